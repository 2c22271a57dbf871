"""The calls that run in this process, with or without a request that waits for them."""

import asyncio
from typing import Any


class RunningCalls:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self) -> "asyncio.Task[Any]":
        """The current task is one that runs a call, until it is said to `end`."""
        task = asyncio.current_task()
        assert task is not None, "calls are made in tasks"  # noqa: S101 - true of every coroutine that asyncio runs
        self._tasks.add(task)
        return task

    def end(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)

    def cancel(self) -> None:
        """Cut off whatever still runs; the record of each call tells so."""
        for task in tuple(self._tasks):
            task.cancel()

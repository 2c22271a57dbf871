"""The calls that run in this process, with or without a request that waits for them, and what each runs on."""

import asyncio
from typing import Any


class RunningCalls:
    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], object] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def are_on(self, of: object) -> bool:
        """Whether one of them runs on that."""
        return any(each is of for each in self._tasks.values())

    def begin(self, on: object) -> "asyncio.Task[Any]":
        """The current task is one that runs a call, until it is said to `end`."""
        task = asyncio.current_task()
        assert task is not None, "calls are made in tasks"  # noqa: S101 - true of every coroutine that asyncio runs
        self._tasks[task] = on
        return task

    def end(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task, None)

    def cancel(self) -> None:
        """Cut off whatever still runs; the record of each call tells so."""
        for task in tuple(self._tasks):
            task.cancel()

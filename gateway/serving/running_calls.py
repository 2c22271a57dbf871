"""The calls that run in this process, with or without a request that waits for them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class RunningCalls:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """While this lasts, the task is one that runs a call."""
        task = asyncio.current_task()
        assert task is not None, "calls are made in tasks"  # noqa: S101 - true of every coroutine that asyncio runs
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    def cancel(self) -> None:
        """Cut off whatever still runs; the record of each call tells so."""
        for task in tuple(self._tasks):
            task.cancel()

"""A bounded set of threads for functions that block, with one hop there and one back."""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Any

from gateway.governance.ports import BackendFailed

Job = Callable[[], None]


class Threads:
    """Threads are started when they are needed and never keep the process alive.

    A function cannot be stopped from outside: whoever gives up on it gets away, and its thread stays taken until it
    returns.
    """

    def __init__(self, name: str, *, size: int, waiting: int) -> None:
        self._name = name
        self._size = size
        self._most = size + waiting
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._started = 0
        self._taken = 0

    async def call(self, function: Callable[[], Any]) -> Any:
        if self._taken >= self._most:
            raise BackendFailed("unavailable", "too many calls of this tool are waiting", help="try again later")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        context = copy_context()

        def job() -> None:
            # whoever waited may be gone by now; then the function must not run
            ended = (None, None) if outcome.cancelled() else context.run(_outcome, function)
            # the result of a loop that has been closed meanwhile is nobody's
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._finished, outcome, ended)

        self._taken += 1
        if self._started < min(self._size, self._taken):
            self._started += 1
            Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
        self._jobs.put(job)
        value, error = await outcome
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        for _ in range(self._started):
            self._jobs.put(None)
        self._started = 0

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _finished(self, outcome: asyncio.Future[Any], ended: tuple[Any, BaseException | None]) -> None:
        self._taken -= 1
        if not outcome.done():
            outcome.set_result(ended)


def _outcome(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Never raises: a future refuses some exceptions, and a thread must survive all of them."""
    try:
        return function(), None
    except BaseException as error:
        return None, error

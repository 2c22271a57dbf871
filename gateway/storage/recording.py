"""Fresh calls, written by a process of their own that this one talks to; the thread that writes does it without one.

Whatever that process did not confirm is written here once more, if it is not there already: it may have ended between
its commit and its word about it.
"""

import asyncio
import logging
import marshal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from gateway.audit.chain import Head, origin
from gateway.storage.fresh_calls import INTO_FRESH, MOVES, FreshCall
from gateway.storage.recorder import HEAD, Order, framed

WORTH_IT: Final = 200
"""Calls after which a process of their own is started: a gateway that is hardly used needs none."""

_RESTART_AFTER: Final = 1.0
_MOST_WAITING: Final = 4096
_UNDER_WAY: Final = 2
"""Groups that were sent and not answered: one is on its way to the disk, the next one waits for it."""
_END_SECONDS: Final = 5.0

_log: Final = logging.getLogger(__name__)


class Recording:
    """One for each process that serves. `write` says whether a call is durable; if not, nobody knows."""

    def __init__(self, database: Path, *, place: tuple[str, str | None, str | None, str | None] | None, shard: str):
        self._order = Order(str(database), INTO_FRESH, MOVES, place, shard)
        self._process: Process | None = None
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self._batch: list[tuple[object, ...]] = []
        self._under_way: deque[int] = deque()
        """The last number of each group that was sent and not answered."""
        self._is_due = False
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self.head: Head | None = None
        """How far the log of that process has come."""
        self._starts = 0
        self._seen = 0

    async def start(self) -> None:
        """Begin now. Otherwise it begins when enough calls have come to be worth a process."""
        self._seen = WORTH_IT
        await self._begin()

    def takes_another(self) -> bool:
        """Whether the next call can be written through it."""
        self._seen += 1
        if self._seen == WORTH_IT and not self._is_closing:
            self._do(self._begin())
        return self._process is not None and len(self._waiting) < _MOST_WAITING

    def durable_head(self) -> Head:
        """How far the log of that process has come; to no entry, if it has not written anything yet."""
        return self.head or Head(self._order.shard, 0, origin(self._order.shard))

    async def write(self, fresh: FreshCall) -> bool:
        """Whether it is durable. It is written even if the caller stops waiting."""
        if self._process is None:
            return False
        self._number += 1
        number = self._number
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        self._waiting[number] = future
        self._batch.append((number, fresh.row, fresh.audit))
        if not self._is_due and len(self._under_way) < _UNDER_WAY:  # else it goes with those that come meanwhile
            self._is_due = True
            loop.call_soon(self._flush)
        return await future

    async def close(self) -> None:
        self._is_closing = True
        process = self._process
        if process is not None and process.stdin is not None:
            self._flush()
            process.stdin.close()
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _begin(self) -> None:
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gateway.storage.recorder", stdin=PIPE, stdout=PIPE
            )
        except OSError as error:
            _log.error("no process can be started that writes calls (%s): a thread goes on writing them", error)
            return
        self._starts += 1
        order = self._order._replace(shard=f"{self._order.shard}.{self._starts}")
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.write(framed([tuple(each) if isinstance(each, tuple) else each for each in order]))
        if self._is_closing:
            self._process.stdin.close()
        self._do(self._listen(self._process))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _flush(self) -> None:
        self._is_due = False
        batch, self._batch = self._batch, []
        process = self._process
        if batch and process is not None and process.stdin is not None:
            self._under_way.append(self._number)
            process.stdin.write(framed(batch))

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            while True:
                size = int.from_bytes(await process.stdout.readexactly(HEAD), "big")
                answer = await process.stdout.readexactly(size)
                durable, undone, head = marshal.loads(answer)  # noqa: S302 - from the process we started
                if head is not None:
                    self.head = Head(*head)
                self._settle(durable, True)
                self._settle(undone, False)
                self._answered(max([*durable, *undone], default=0))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        await process.wait()
        await self._ended()

    def _answered(self, number: int) -> None:
        """Up to that one. What has come meanwhile is the next group."""
        while self._under_way and self._under_way[0] <= number:
            self._under_way.popleft()
        if self._batch and not self._is_due:
            self._flush()

    def _settle(self, numbers: list[int], is_durable: bool) -> None:
        for number in numbers:
            future = self._waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_result(is_durable)

    async def _ended(self) -> None:
        """Nobody confirms what is left; begin another one, unless all of it is to end."""
        self._process = None
        self._batch = []
        self._under_way.clear()
        self._settle(list(self._waiting), False)
        if not self._is_closing:
            _log.error("the process that writes calls has ended; another one is started")
            await asyncio.sleep(_RESTART_AFTER)
            if not self._is_closing:
                await self._begin()

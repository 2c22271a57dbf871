"""Fresh calls, written by a process of their own that this one talks to; the thread that writes does it without one.

Whatever that process did not confirm is written here once more, if it is not there already: it may have ended between
its commit and its word about it.
"""

import asyncio
import logging
import os
import sys
from asyncio.subprocess import PIPE
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from gateway.audit.chain import Head, origin
from gateway.audit.contents import ContentKey
from gateway.governance.records import AuditBody
from gateway.storage.framing import framed, unframed
from gateway.storage.fresh_calls import INTO_FRESH
from gateway.storage.fresh_rows import Values
from gateway.storage.recorder import Order

WORTH_IT: Final = 200
"""Calls after which a process of their own is started: a gateway that is hardly used needs none."""

_RESTART_AFTER: Final = 1.0
_MOST_WAITING: Final = 4096
_UNDER_WAY: Final = 3
"""Groups that were sent and not answered: one is on its way to the disk, the next ones wait for it."""
_ENOUGH: Final = 8
"""Calls that are sent without waiting for more: the other process works on them while this one makes the next."""
_END_SECONDS: Final = 5.0

_log: Final = logging.getLogger(__name__)


class Recording:
    """One for each process that serves. `write` says whether a call is durable; if not, nobody knows."""

    def __init__(
        self,
        database: Path,
        *,
        place: tuple[str, str | None, str | None, str | None] | None,
        shard: str,
        key: ContentKey | None = None,
    ) -> None:
        self._order = Order(str(database), INTO_FRESH, place, shard)
        self._key = key
        self._process: _Process | None = None
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self._batch: list[tuple[int, Values, Sequence[AuditBody]]] = []
        self._under_way: deque[int] = deque()
        """The last number of each group that was sent and not answered."""
        self._is_due = False
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._head: tuple[str, int, bytes] | None = None
        self._starts = 0
        self._seen = 0

    @property
    def head(self) -> Head | None:
        """How far the log of that process has come."""
        return None if self._head is None else Head(*self._head)

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

    def write(self, fresh: Values, audit: Sequence[AuditBody]) -> asyncio.Future[bool]:
        """Whether it is durable, once that is known. Only for a call that is taken; it is written even if the caller
        stops waiting.
        """
        loop = asyncio.get_running_loop()
        self._number = number = self._number + 1
        self._waiting[number] = future = loop.create_future()
        self._batch.append((number, fresh, audit))
        if len(self._under_way) < _UNDER_WAY:  # else it goes with those that come meanwhile
            if len(self._batch) >= _ENOUGH:
                self._flush()
            elif not self._is_due:
                self._is_due = True
                loop.call_soon(self._flush)
        return future

    async def close(self) -> None:
        self._is_closing = True
        process = self._process
        if process is not None:
            self._flush()
            process.end()
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await process.ended.wait()
            except TimeoutError:
                process.transport.kill()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, process = await loop.subprocess_exec(
                lambda: _Process(self._answered),
                *(sys.executable, "-m", "gateway.storage.recorder"),
                stdin=PIPE,
                stdout=PIPE,
                stderr=None,
            )
        except OSError as error:
            _log.error("no process can be started that writes calls (%s): a thread goes on writing them", error)
            return
        self._process = process
        self._starts += 1
        key = None if self._key is None else self._key.for_our_own_process()
        order = self._order._replace(shard=f"{self._order.shard}.{self._starts}", key=key)
        process.send([tuple(each) if isinstance(each, tuple) else each for each in order])
        if self._is_closing:
            process.end()
        self._do(self._follow(process))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _flush(self) -> None:
        self._is_due = False
        batch, self._batch = self._batch, []
        if not batch or self._process is None:
            return
        try:
            self._process.send(batch)
        except ValueError:  # something in it is not plain: those who wait have it written in another way
            self._settle([number for number, *_ in batch], False)
        else:
            self._under_way.append(self._number)

    def _answered(self, durable: list[int], undone: list[int], head: tuple[str, int, bytes] | None) -> None:
        """They come in the order they were sent in. What was to be written meanwhile is the next group."""
        if head is not None:
            self._head = head
        self._settle(durable, True)
        self._settle(undone, False)
        last = (undone or durable)[-1]
        while self._under_way and self._under_way[0] <= last:
            self._under_way.popleft()
        if self._batch and not self._is_due:
            self._flush()

    def _settle(self, numbers: list[int], is_durable: bool) -> None:
        for number in numbers:
            future = self._waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_result(is_durable)

    async def _follow(self, process: "_Process") -> None:
        """When it ends, nobody confirms what is left; begin another one, unless all of it is to end."""
        await process.ended.wait()
        self._process = None
        self._batch = []
        self._under_way.clear()
        self._settle(list(self._waiting), False)
        if not self._is_closing:
            _log.error("the process that writes calls has ended; another one is started")
            await asyncio.sleep(_RESTART_AFTER)
            if not self._is_closing:
                await self._begin()


class _Process(asyncio.SubprocessProtocol):
    """The process as long as it runs: messages to it, its answers, and that it has ended and said all it had to say."""

    transport: asyncio.SubprocessTransport
    _input: asyncio.WriteTransport
    _own_end: int | None = None

    def __init__(self, answered: Callable[..., None]) -> None:
        self.ended: Final = asyncio.Event()
        self._answered = answered
        self._received = bytearray()

    @property
    def pid(self) -> int:
        return self.transport.get_pid()

    def send(self, message: Any) -> None:
        """At once, as far as the pipe takes it: the transport would wait for whatever else is to be done now."""
        data = framed(message)
        if self._own_end is not None and not self._input.get_write_buffer_size():
            with suppress(OSError):  # it is full, or nobody reads: the transport knows what to do
                data = data[os.write(self._own_end, data) :]
        if data:
            self._input.write(data)

    def end(self) -> None:
        """Let it write what it was sent, and then end."""
        self._input.close()
        self._close_own_end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.SubprocessTransport", transport)
        self._input = cast("asyncio.WriteTransport", self.transport.get_pipe_transport(0))
        pipe = self._input.get_extra_info("socket") or self._input.get_extra_info("pipe")  # by the kind of loop
        # Not the transport's: once it is closed, that number may be anybody's.
        self._own_end = os.dup(pipe.fileno())

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._received += data
        for answer in unframed(self._received):
            self._answered(*answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport.close()
        self._close_own_end()
        self.ended.set()

    def _close_own_end(self) -> None:
        own_end, self._own_end = self._own_end, None
        if own_end is not None:
            os.close(own_end)

"""Client of the process that writes the outcomes of calls. While there is none, the writer thread writes them.

Calls that the process did not confirm are written here again unless they are stored: the process may have ended after
its commit. A process that does not answer in time is killed and replaced.
"""

import asyncio
import logging
import os
import sys
from asyncio.subprocess import PIPE
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from gateway.audit import ChainHead, ContentKey, genesis_hash
from gateway.policy import TurnStateWrite
from gateway.storage.call_store import AuditBody
from gateway.storage.sql import call_statements as statements
from gateway.storage.sql.sqlite.single_call_conversion import EXPANSION, SINGLE_CALL_INSERT
from gateway.storage.sql.sqlite.single_call_table import SingleCallValues
from gateway.storage.sql.sqlite.writer_process import (
    LARGEST_GROUP,
    OutcomeStatements,
    OutcomeValues,
    WriterConfig,
    decode_frames,
    encode_frame,
)

_OUTCOME_STATEMENTS: Final = OutcomeStatements(
    statements.ENSURE_TURN.sql,
    statements.UPDATE_CALL_OUTCOME.sql,
    statements.INSERT_PIECE.sql,
    statements.SELECT_TURN_STATE.sql,
    statements.UPDATE_TURN_STATE.sql,
)

ANSWER_SECONDS: Final = 1.0
"""How long the process may take for a group. Its callers wait that long at most, and then the thread writes."""

_RESTART_AFTER: Final = 1.0
_MOST_WAITING: Final = 4096
_UNDER_WAY: Final = 3
"""Groups that are sent and not answered: one is being written, the next ones wait for it."""
_ENOUGH: Final = 16
"""Calls that are sent without waiting for more: the process works on them while the next ones arrive."""
_END_SECONDS: Final = 5.0

_log: Final = logging.getLogger(__name__)


class WriterClient:
    """One for each process that serves. `write` returns whether a call is durable; if not, it may be stored or not."""

    def __init__(
        self,
        database: Path,
        *,
        place: tuple[str, str | None, str | None, str | None] | None,
        shard: str,
        key: ContentKey | None = None,
        drain: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`drain` waits for earlier writes of the thread: the states of a turn have to arrive in order."""
        self._drain = drain
        self._order = WriterConfig(str(database), SINGLE_CALL_INSERT, EXPANSION, _OUTCOME_STATEMENTS, place, shard)
        self._key = key
        self._process: _Process | None = None
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self._batch: list[tuple[Any, ...]] = []
        """The fields of each `WriterJob` that is not sent yet."""
        self._states: dict[str, tuple[list[tuple[str, bytes, bytes | None]], bytes]] = {}
        """Which job of the next message has the newest state of a turn, and that state."""
        self._under_way: deque[int] = deque()
        """The last number of each group that is sent and not answered."""
        self._is_due = False
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._head: tuple[str, int, bytes] | None = None
        self._starts = 0
        self._is_wanted = False
        self._is_starting = False
        """Whether calls wait for the process to be started."""
        self._late: asyncio.TimerHandle | None = None
        """Kills the process unless it answers before."""
        self.replacements = 0
        """How often the process was replaced because it ended or did not answer."""

    @property
    def head(self) -> ChainHead | None:
        """Head of the log of that process."""
        return None if self._head is None else ChainHead(*self._head)

    async def start(self) -> None:
        """Start the process now. Otherwise it starts with the first call, which waits for it."""
        self._is_wanted = True
        await self._begin()

    def can_accept(self) -> bool:
        """Whether the process can write the next call."""
        if not self._is_wanted and not self._is_closing:
            self._is_wanted = self._is_starting = True
            self._do(self._begin())
        return (self._process is not None or self._is_starting) and len(self._waiting) < _MOST_WAITING

    def durable_head(self) -> ChainHead:
        """Return the head of the process's log, or its genesis if nothing is written yet."""
        return self.head or ChainHead(self._order.shard, 0, genesis_hash(self._order.shard))

    def write(
        self,
        single: SingleCallValues | None,
        audit: Sequence[AuditBody],
        *,
        outcome: OutcomeValues | None = None,
        states: Iterable[TurnStateWrite | None] = (),
    ) -> asyncio.Future[bool]:
        """Return a future: whether the call is durable. Call `can_accept` first. Cancelling does not stop the write."""
        loop = asyncio.get_running_loop()
        self._number = number = self._number + 1
        self._waiting[number] = future = loop.create_future()
        if len(self._batch) % LARGEST_GROUP == 0:
            self._states.clear()
        writes: list[tuple[str, bytes, bytes | None]] = []
        for each in states:
            if each is not None:
                self._add_state(writes, *each)
        self._batch.append((number, single, None if outcome is None else tuple(outcome), writes, audit))
        if len(self._under_way) < _UNDER_WAY:  # otherwise it is sent with those that arrive meanwhile
            if len(self._batch) >= _ENOUGH:
                self._flush()
            elif not self._is_due:
                self._is_due = True
                loop.call_soon(self._flush)
        return future

    async def close(self) -> None:
        self._is_closing = True
        process = self._process
        if process is not None and not self._number:
            process.transport.kill()  # it was sent nothing that it could write
        elif process is not None:
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
        self._is_starting = True
        try:
            await self._wait_for_thread()
            process = await self._start_process()
        except OSError as error:
            _log.error("the process that writes calls cannot be started (%s): a thread writes them", error)
            self._fail_waiting()
            return
        finally:
            self._is_starting = False
        self._process = process
        self._starts += 1
        key = None if self._key is None else self._key.export_secret()
        order = self._order._replace(shard=f"{self._order.shard}.{self._starts}", key=key)
        process.send([tuple(each) if isinstance(each, tuple) else each for each in order])
        self._flush()
        if self._is_closing:
            process.end()
        self._do(self._follow(process))

    async def _wait_for_thread(self) -> None:
        """Wait for what was written before, but not for a database that is locked."""
        if self._drain is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._drain()

    async def _start_process(self) -> "_Process":
        _, process = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Process(self._on_answer),
            *(sys.executable, "-m", "gateway.storage.sql.sqlite.writer_process"),
            stdin=PIPE,
            stdout=PIPE,
            stderr=None,
        )
        return process

    def _add_state(
        self, writes: list[tuple[str, bytes, bytes | None]], turn_id: str, memory: bytes, knowing: bytes | None
    ) -> None:
        """Add the state of a turn to a job. It replaces that of an earlier job of the message, which it continues."""
        earlier = self._states.get(turn_id)
        if earlier is not None and earlier[1] is knowing:
            for replaced in earlier[0]:
                if replaced[0] == turn_id:
                    knowing = replaced[2]
                    earlier[0].remove(replaced)
                    break
        writes.append((turn_id, memory, knowing))
        self._states[turn_id] = writes, memory

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _flush(self) -> None:
        self._is_due = False
        if self._process is None:  # calls are sent once it has started
            return
        batch, self._batch = self._batch, []
        self._states.clear()
        for start in range(0, len(batch), LARGEST_GROUP):
            self._send(self._process, batch[start : start + LARGEST_GROUP])

    def _send(self, process: "_Process", jobs: list[tuple[Any, ...]]) -> None:
        try:
            process.send(jobs)
        except ValueError:  # a value is not plain: the callers write the calls in another way
            self._settle([number for number, *_ in jobs], False)
        else:
            self._under_way.append(jobs[-1][0])
            self._expect_answer()

    def _expect_answer(self) -> None:
        """Give the process its time for the next answer, if one is due."""
        if self._late is not None:
            self._late.cancel()
        loop = asyncio.get_running_loop()
        self._late = loop.call_later(ANSWER_SECONDS, self._kill) if self._under_way else None

    def _kill(self) -> None:
        if self._process is not None:
            _log.error("the process that writes calls did not answer for %g s and is killed", ANSWER_SECONDS)
            self._process.transport.kill()

    def _on_answer(self, durable: list[int], undone: list[int], head: tuple[str, int, bytes] | None) -> None:
        """Handle an answer. They come in the order of the groups. Calls that arrived meanwhile are the next group."""
        if head is not None:
            self._head = head
        self._settle(durable, True)
        self._settle(undone, False)
        last = (undone or durable)[-1]
        while self._under_way and self._under_way[0] <= last:
            self._under_way.popleft()
        self._expect_answer()
        if self._batch and not self._is_due:
            self._flush()

    def _fail_waiting(self) -> None:
        self._batch = []
        self._states.clear()
        self._settle(list(self._waiting), False)

    def _settle(self, numbers: list[int], is_durable: bool) -> None:
        for number in numbers:
            future = self._waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_result(is_durable)

    async def _follow(self, process: "_Process") -> None:
        """When the process ends, fail the unconfirmed calls and start another process, unless the client is closing."""
        await process.ended.wait()
        self._process = None
        self._under_way.clear()
        self._expect_answer()
        self._fail_waiting()
        if not self._is_closing:
            self.replacements += 1
            _log.error("the process that writes calls has ended; another one is started")
            await asyncio.sleep(_RESTART_AFTER)
            if not self._is_closing:
                await self._begin()


class _Process(asyncio.SubprocessProtocol):
    """The running process. `ended` is set when it has ended and all its answers are handled."""

    transport: asyncio.SubprocessTransport
    _input: asyncio.WriteTransport
    _own_end: int | None = None

    def __init__(self, answered: Callable[..., None]) -> None:
        self.ended: Final = asyncio.Event()
        self._on_answer = answered
        self._received = bytearray()

    @property
    def pid(self) -> int:
        return self.transport.get_pid()

    def send(self, message: Any) -> None:
        """Write to the pipe at once, as far as it has room: the transport would wait for its turn in the event loop."""
        data = encode_frame(message)
        if self._own_end is not None and not self._input.get_write_buffer_size():
            try:  # noqa: SIM105 - `suppress` costs three calls
                data = data[os.write(self._own_end, data) :]
            except OSError:  # the pipe is full or broken: the transport handles that
                pass
        if data:
            self._input.write(data)

    def end(self) -> None:
        """Close its standard input: it writes what it was sent, and ends."""
        self._input.close()
        self._close_own_end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.SubprocessTransport", transport)
        self._input = cast("asyncio.WriteTransport", self.transport.get_pipe_transport(0))
        pipe = self._input.get_extra_info("socket") or self._input.get_extra_info("pipe")  # by the kind of loop
        # Not the transport's own descriptor: after it is closed, another file may get that number.
        self._own_end = os.dup(pipe.fileno())

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._received += data
        for answer in decode_frames(self._received):
            self._on_answer(*answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport.close()
        self._close_own_end()
        self.ended.set()

    def _close_own_end(self) -> None:
        own_end, self._own_end = self._own_end, None
        if own_end is not None:
            os.close(own_end)

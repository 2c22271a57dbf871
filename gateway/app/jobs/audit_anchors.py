"""The job that writes anchors of the decision log.

A failed anchor does not delay calls: it is logged, reported in the status, and tried again.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from time import monotonic_ns
from typing import Any, Final

from gateway.app.audit_settings import AnchorPolicy
from gateway.audit import (
    AnchorFile,
    AnchorSink,
    ChainHead,
    SignedAnchor,
    read_anchor_position,
)
from gateway.audit import AnchorSigner as AnchoredChain
from gateway.errors import GatewayError
from gateway.model import now

_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BEAT: Final = 1.0
_PATIENCE: Final = 5.0
"""Seconds that the file system may take for one line before a problem is reported."""

_log: Final = logging.getLogger(__name__)


class AnchorWriter:
    """Writes anchors of one process's chain: at the start, at intervals, and at the end.

    `head` returns the last durable entry. `anchored` returns the last entry that earlier anchors of a shard cover.
    """

    def __init__(
        self,
        terms: AnchorPolicy,
        head: Callable[[], ChainHead],
        *,
        sink: AnchorSink | None = None,
        anchored: Callable[[str], int] | None = None,
        clock: Callable[[], datetime] = now,
        ticks: Callable[[], int] = monotonic_ns,
        patience: float = _PATIENCE,
    ) -> None:
        self._terms = terms
        self._head = head
        self._sink = sink or AnchorFile(terms.path)
        self._anchored = anchored or partial(read_anchor_position, terms.path)
        self._clock = clock
        self._ticks = ticks
        self._patience = patience
        self._chain: AnchoredChain | None = None
        self._shard: str | None = None
        self._last: SignedAnchor | None = None
        self._is_owed = True
        self._writing: asyncio.Future[Exception | None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.problem: str | None = None
        """Why anchors cannot be written now, if so."""

    def start(self) -> None:
        """Write the first anchor, and continue until `close`."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Write the last anchor. Later entries are not covered."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._is_owed = True
        try:
            async with asyncio.timeout(self._patience):
                if self._writing is not None:
                    await asyncio.wait({self._writing})
                await self.write_if_due()
        except TimeoutError as error:
            self._report(error)

    async def write_if_due(self) -> None:
        """Write an anchor if one is due or an earlier one failed. Errors are reported, not raised."""
        if self._writing is not None and not self._writing.done():
            return
        try:
            head = self._head()
            if self._is_due(head):
                self._is_owed = True
                await self._write_in_thread(head)
        except Exception as error:
            self._report(error)

    async def confirm(self) -> bool:
        """Write an anchor of all durable entries; return whether one covers them."""
        head = self._head()
        for _ in range(2):  # an earlier write may be running
            if self._writing is not None:
                await asyncio.wait({self._writing})
            if self._covers(head):
                return True
            self._is_owed = True
            await self.write_if_due()
        return self._covers(head)

    def status(self) -> Mapping[str, Any]:
        """Return the status. `unanchored` is the number of entries that no anchor covers yet."""
        last = self._last.anchor if self._last else None
        return {
            "key": self._terms.key.id,
            "anchored": last.seq if last else 0,
            "anchoredAt": (_EPOCH + timedelta(microseconds=last.at)).isoformat() if last else None,
            "unanchored": self._head().seq - (last.seq if last else 0),
            "problem": self.problem,
        }

    def _covers(self, head: ChainHead) -> bool:
        last = self._last.anchor if self._last else None
        return last is not None and last.shard == head.shard and last.seq >= head.seq

    async def _run(self) -> None:
        beat = min(_BEAT, self._terms.every.total_seconds())
        while True:
            await self.write_if_due()
            await asyncio.sleep(beat)

    def _is_due(self, head: ChainHead) -> bool:
        """Whether an anchor is due by the monotonic clock; the anchor itself holds the wall-clock time."""
        if self._is_owed or self._chain is None or self._shard != head.shard:
            return head.seq > 0
        return self._chain.is_due(head, self._ticks() // 1000)

    async def _write_in_thread(self, head: ChainHead) -> None:
        """Write one anchor; a write that hangs is reported and waited for."""
        self._writing = _run_in_thread(partial(self._write, head, (self._clock() - _EPOCH) // _MICROSECOND))
        await asyncio.wait({self._writing}, timeout=self._patience)
        if not self._writing.done():
            self._report(TimeoutError())
            await asyncio.wait({self._writing})
        error = self._writing.result()
        if error is not None:
            raise error
        self._is_owed = False
        if self.problem is not None:
            _log.warning("anchors of the decision log are written again")
        self.problem = None

    def _write(self, head: ChainHead, at: int) -> None:
        """Write the anchor, in a thread; nothing else uses the chain meanwhile."""
        if self._chain is None or self._shard != head.shard:
            terms = self._terms
            self._chain = AnchoredChain(
                terms.key,
                self._sink,
                anchored=self._anchored(head.shard),
                every_entries=terms.entries,
                every_microseconds=terms.every // _MICROSECOND,
            )
            self._shard, self._last = head.shard, None
        self._last = self._chain.anchor(head, at) or self._last

    def _report(self, error: Exception) -> None:
        """Log the problem, once per outage."""
        if self.problem is None:
            unexpected = None if isinstance(error, GatewayError | OSError) else error
            _log.error("no anchor of the decision log can be written: %s", _describe_error(error), exc_info=unexpected)
        self.problem = _describe_error(error)


def _describe_error(error: Exception) -> str:
    match error:
        case GatewayError():
            return error.message
        case TimeoutError():
            return "the file system does not answer"
        case OSError():
            return f"the anchors cannot be read ({error.strerror})"
        case _:
            return f"an anchor could not be created ({type(error).__name__})"


def _run_in_thread(work: Callable[[], None]) -> "asyncio.Future[Exception | None]":
    """Run in a daemon thread and return the error, if any. A pool would not end while the file system hangs."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Exception | None] = loop.create_future()

    def run() -> None:
        error: Exception | None = None
        try:
            work()
        except Exception as raised:
            error = raised
        with suppress(RuntimeError):  # the loop has ended: the result is not needed
            loop.call_soon_threadsafe(done.set_result, error)

    threading.Thread(target=run, name="gateway-anchors", daemon=True).start()
    return done

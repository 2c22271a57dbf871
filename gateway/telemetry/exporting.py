"""Sending what was observed: queues that are bounded, and one task for each signal that empties its own.

Nothing here can hold up a call. What does not fit, and what a collector does not take in time, is let go and counted.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from random import uniform
from time import monotonic
from typing import Final, Protocol

from gateway.telemetry.names import QUEUE_FULL
from gateway.telemetry.settings import Batching, Signal
from gateway.telemetry.wire_format import Envelope

FLUSH_SECONDS: Final = 5.0
"""How long the end of the gateway waits for what was not sent yet."""

_ATTEMPTS: Final = 5
_TOLD_EVERY: Final = 60.0

_log: Final = logging.getLogger(__name__)


class Unsent(Exception):
    """What was not taken. `again` says whether it may be another time, and after how many seconds if that was said."""

    def __init__(self, reason: str, *, again: bool, after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.again = again
        self.after = after


class Transport(Protocol):
    async def send(self, signal: Signal, payload: bytes) -> int:
        """How many of them the other side refused. Raises `Unsent`."""
        ...

    async def close(self) -> None: ...


class Queue:
    """What waits to be sent. It may be put into from any thread; it is emptied by one task.

    `taken` counts what came, `dropped` what was let go, by the reason; both only grow.
    """

    def __init__(self, batching: Batching) -> None:
        self.batching = batching
        self.dropped: Counter[str] = Counter()
        self._items: list[bytes] = []
        self._given = 0
        self._most = batching.queue
        self._many = batching.batch
        self._is_due: asyncio.Event | None = None

    @property
    def taken(self) -> int:
        return self._given + len(self._items) + self.dropped[QUEUE_FULL]

    def put(self, item: bytes) -> None:
        items = self._items
        waiting = len(items)
        if waiting >= self._most:
            self.dropped[QUEUE_FULL] += 1
            return
        items.append(item)
        if waiting + 1 == self._many and self._is_due is not None:
            self._is_due.set()

    def __len__(self) -> int:
        return len(self._items)

    def take(self) -> list[bytes]:
        """The oldest, as many as go at once."""
        given = self._items[: self._many]
        del self._items[: len(given)]
        self._given += len(given)
        return given

    async def due(self) -> None:
        """Return when there is enough, or when it has waited long enough."""
        self._is_due = event = asyncio.Event()
        if len(self._items) >= self._many:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self.batching.delay):
                await event.wait()

    def wake(self) -> None:
        """Whoever waits has waited long enough."""
        if self._is_due is not None:
            self._is_due.set()


class Exporting:
    """One signal on its way out."""

    def __init__(self, signal: Signal, queue: Queue, envelope: Envelope, transport: Transport) -> None:
        self.queue = queue
        self._signal: Signal = signal
        self._envelope = envelope
        self._transport = transport
        self._task: asyncio.Task[None] | None = None
        self._told_at = float("-inf")
        self._closing = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Send what is left, as long as there is time; the rest is let go and counted."""
        self._closing.set()
        self.queue.wake()
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=seconds)
            for task in late:
                task.cancel()
                await asyncio.wait({task})
        while len(self.queue):
            self._let_go(self.queue.take(), "closed")
        await self._transport.close()

    async def _run(self) -> None:
        while not self._closing.is_set():
            await self.queue.due()
            await self._send(self.queue.take())
        while len(self.queue):
            await self._send(self.queue.take())

    async def _send(self, batch: Sequence[bytes]) -> None:
        if not batch:
            return
        payload = self._envelope.around(batch)
        until = monotonic() + FLUSH_SECONDS * 4
        for attempt in range(_ATTEMPTS):
            try:
                refused = await self._transport.send(self._signal, payload)
            except Unsent as error:
                pause = uniform(0.8, 1.2) * 2**attempt  # noqa: S311 - no secret depends on it
                wait = pause if error.after is None else error.after
                is_last = attempt == _ATTEMPTS - 1 or self._closing.is_set() or monotonic() + wait > until
                if not error.again or is_last:
                    self._let_go(batch, error.reason)
                    return
                await self._sleep(wait)
            except asyncio.CancelledError:
                self._let_go(batch, "closed")
                raise
            except Exception:  # a fault of ours must not end the sending
                _log.exception("telemetry could not be sent")
                self._let_go(batch, "failed")
                return
            else:
                if refused:
                    self.queue.dropped["rejected"] += refused
                return

    async def _sleep(self, seconds: float) -> None:
        """Whoever ends the gateway does not wait for it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    def _let_go(self, batch: Sequence[bytes], reason: str) -> None:
        self.queue.dropped[reason] += len(batch)
        if monotonic() - self._told_at > _TOLD_EVERY:  # said once a minute: whoever reads logs is not to be flooded
            self._told_at = monotonic()
            what = "spans" if self._signal == "traces" else "log records"
            _log.warning("%d %s were not sent (%s); calls are not affected", len(batch), what, reason)

"""Delivery from threads: exporters of the SDK are called in threads, where each has an event loop of its own."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gateway.telemetry.export.signal_exporter import FLUSH_SECONDS, Delivery, Transport, suppress_instrumentation
from gateway.telemetry.settings import Signal


class BlockingDelivery:
    """Sends requests of one signal. What does not arrive is counted in `dropped`, by reason."""

    def __init__(self, signal: Signal, transport: Transport, dropped: Counter[str]) -> None:
        self._delivery = Delivery(signal, transport, dropped)
        self._lock = threading.Lock()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = threading.Lock()
        self._work: asyncio.Task[bool] | None = None
        self._until: float | None = None
        """When the export ends, on the clock of the loop."""
        self._is_closed = False

    def send(self, payload: bytes, count: int, *, within: float = FLUSH_SECONDS * 4) -> bool:
        """Send a request with so many items. Return whether it arrived."""
        arrived: bool = self._run(lambda: self._send(payload, count, within))
        return arrived

    def limit(self, seconds: float = FLUSH_SECONDS) -> None:
        """Try nothing again from now on, and give up whatever was not sent after so many seconds."""
        loop = self._open_loop()
        loop.call_soon_threadsafe(self._end_at, loop.time() + seconds)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._run(self._delivery.close)
            with self._lock:
                self._runner.close()

    def _run(self, work: Callable[[], Any]) -> Any:
        """Run a coroutine to its end in the loop of the exporter, also where another loop runs."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._run_here(work)
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._run_here, work).result()

    def _open_loop(self) -> asyncio.AbstractEventLoop:
        with self._opening:
            if self._loop is None:
                self._loop = self._runner.get_loop()
            return self._loop

    def _run_here(self, work: Callable[[], Any]) -> Any:
        self._open_loop()
        with self._lock:
            return self._runner.run(work())

    async def _send(self, payload: bytes, count: int, within: float) -> bool:
        suppress_instrumentation()
        loop = asyncio.get_running_loop()
        if self._until is not None and loop.time() >= self._until:
            self._delivery.drop(count, "closed")
            return False
        self._work = asyncio.create_task(self._delivery.send(payload, count, within=within))
        if self._until is not None:
            loop.call_at(self._until, self._work.cancel)
        try:
            return await self._work
        except asyncio.CancelledError:
            return False
        finally:
            self._work = None

    def _end_at(self, until: float) -> None:
        self._until = until
        self._delivery.closing.set()
        if self._work is not None:
            asyncio.get_running_loop().call_at(until, self._work.cancel)

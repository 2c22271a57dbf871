"""Requests to a collector from threads: exporters of the SDK run in threads, transports in the event loop."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from itertools import count
from random import uniform
from threading import Event
from time import monotonic
from typing import Any

from gateway.telemetry.export.signal_exporter import ExportFailed, Transport
from gateway.telemetry.settings import Signal


class BlockingSender:
    """Sends requests of one signal, and repeats those that fail for a while."""

    def __init__(self, signal: Signal, transport: Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._signal: Signal = signal
        self._transport = transport
        self._loop = loop
        self._request: Future[int] | None = None
        self.closing = Event()
        """Once it is set, nothing is repeated."""

    def send(self, payload: bytes, seconds: float) -> int:
        """Send a request within so many seconds; return how many items the collector refused.

        Raises `ExportFailed`. Must not run in the event loop.
        """
        until = monotonic() + seconds
        for attempt in count():
            try:
                return self._wait(self._transport.send(self._signal, payload), until - monotonic())
            except ExportFailed as error:
                pause = uniform(0.8, 1.2) * 2**attempt if error.after is None else error.after  # noqa: S311
                if not error.again or monotonic() + pause > until or self.closing.wait(pause):
                    raise
        raise AssertionError

    def cancel(self) -> None:
        """Give up a request that is under way."""
        self.closing.set()
        if self._request is not None:
            self._request.cancel()

    async def close(self) -> None:
        await self._transport.close()

    def _wait(self, sending: Coroutine[Any, Any, int], seconds: float) -> int:
        try:
            self._request = asyncio.run_coroutine_threadsafe(sending, self._loop)
        except RuntimeError as error:  # the loop is closed
            sending.close()
            raise ExportFailed("closed", again=False) from error
        try:
            return self._request.result(max(seconds, 0))
        except TimeoutError as error:
            self._request.cancel()
            raise ExportFailed("timeout", again=False) from error
        except CancelledError as error:
            raise ExportFailed("closed", again=False) from error

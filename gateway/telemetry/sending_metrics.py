"""Sending metrics every so often. What was not taken is not sent again: the next sums have it in them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from time import time_ns
from typing import Final

from gateway.telemetry.exporting import FLUSH_SECONDS, Transport, Unsent
from gateway.telemetry.instruments import Family
from gateway.telemetry.otlp_metrics import encoded_metrics

_log: Final = logging.getLogger(__name__)


class SendingMetrics:
    """`read` gives what there is to tell; `every` is in seconds."""

    def __init__(
        self,
        read: Callable[[], Awaitable[list[Family]]],
        transport: Transport,
        *,
        resource: Mapping[str, str],
        version: str,
        every: float,
    ) -> None:
        self._read = read
        self._transport = transport
        self._resource = resource
        self._version = version
        self._every = every
        self._since = time_ns()
        self._closing = asyncio.Event()
        self._was_taken = True
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Send the last sums, as long as there is time."""
        self._closing.set()
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=FLUSH_SECONDS)
            for task in late:
                task.cancel()
                await asyncio.wait({task})
        await self._transport.close()

    async def _run(self) -> None:
        while not self._closing.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._closing.wait()
            try:
                await self._send()
            except Exception:  # a fault of ours must not end the sending
                _log.exception("metrics could not be sent")

    async def _send(self) -> None:
        families = await self._read()
        payload = await asyncio.to_thread(
            encoded_metrics, families, self._resource, since=self._since, at=time_ns(), version=self._version
        )
        try:
            await self._transport.send("metrics", payload)
        except Unsent as error:
            if self._was_taken:  # said once, until they are taken again
                _log.warning("metrics were not sent (%s); calls are not affected", error.reason)
            self._was_taken = False
        else:
            self._was_taken = True

"""Metrics as OTLP: an exporter for readers of the SDK, which run in threads, over a transport of the event loop."""

import asyncio
import logging
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from itertools import count
from random import uniform
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.exporter.otlp.proto.common._internal.metrics_encoder import OTLPMetricExporterMixin
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData

from gateway.telemetry.export.signal_exporter import ExportFailed, Transport

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1 import metrics_pb2

_log: Final = logging.getLogger(__name__)


def to_message(data: MetricsData | None) -> "metrics_pb2.MetricsData":
    """Return metrics of the SDK as the message that collectors receive."""
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData as Message

    return Message() if data is None else Message(resource_metrics=encode_metrics(data).resource_metrics)


class OtlpMetricExporter(OTLPMetricExporterMixin, MetricExporter):
    """Sends metrics with a transport of the loop. Temporality and default aggregation are those of the variables."""

    def __init__(self, transport: Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._common_configuration()
        self._transport = transport
        self._loop = loop
        self.closing = Event()
        """Once it is set, a request that fails is not repeated."""
        self._request: Future[int] | None = None
        self._was_sent = True

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        payload = to_message(metrics_data).SerializeToString()
        try:
            self._send(payload, monotonic() + timeout_millis / 1000)
        except ExportFailed as error:
            if self._was_sent:  # logged once, until an export succeeds
                _log.warning("metrics were not sent (%s); calls are not affected", error.reason)
            self._was_sent = False
            return MetricExportResult.FAILURE
        self._was_sent = True
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        """Give up a request that is under way. The owner of the transport closes it."""
        self.closing.set()
        if self._request is not None:
            self._request.cancel()

    def _send(self, payload: bytes, until: float) -> None:
        for attempt in count():
            try:
                self._wait(self._transport.send("metrics", payload), until - monotonic())
            except ExportFailed as error:
                pause = uniform(0.8, 1.2) * 2**attempt if error.after is None else error.after  # noqa: S311
                if not error.again or monotonic() + pause > until or self.closing.wait(pause):
                    raise
            else:
                return

    def _wait(self, sending: Coroutine[Any, Any, int], seconds: float) -> None:
        try:
            self._request = asyncio.run_coroutine_threadsafe(sending, self._loop)
        except RuntimeError as error:  # the loop is closed
            sending.close()
            raise ExportFailed("closed", again=False) from error
        try:
            self._request.result(max(seconds, 0))
        except TimeoutError as error:
            self._request.cancel()
            raise ExportFailed("timeout", again=False) from error
        except CancelledError as error:
            raise ExportFailed("closed", again=False) from error

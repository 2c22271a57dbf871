"""Metrics as OTLP: an exporter for readers of the SDK."""

import logging
from typing import TYPE_CHECKING, Final

from opentelemetry.exporter.otlp.proto.common._internal.metrics_encoder import OTLPMetricExporterMixin
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData

from gateway.telemetry.export.blocking_sender import BlockingSender
from gateway.telemetry.export.signal_exporter import ExportFailed

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1 import metrics_pb2

_log: Final = logging.getLogger(__name__)


def to_message(data: MetricsData | None) -> "metrics_pb2.MetricsData":
    """Return metrics of the SDK as the message that collectors receive."""
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData as Message

    return Message() if data is None else Message(resource_metrics=encode_metrics(data).resource_metrics)


class OtlpMetricExporter(OTLPMetricExporterMixin, MetricExporter):
    """Sends metrics. Temporality and default aggregation are those of the variables."""

    def __init__(self, sender: BlockingSender) -> None:
        self._common_configuration()
        self.sender = sender
        self._was_sent = True

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        try:
            self.sender.send(to_message(metrics_data).SerializeToString(), timeout_millis / 1000)
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
        """Give up a request that is under way. The owner of the sender closes it."""
        self.sender.cancel()

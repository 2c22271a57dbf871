"""Metrics as OTLP: an exporter for readers of the SDK."""

from collections import Counter
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.common._internal.metrics_encoder import OTLPMetricExporterMixin
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData

from gateway.telemetry.export.blocking_delivery import BlockingDelivery
from gateway.telemetry.export.signal_exporter import Transport

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1 import metrics_pb2


def to_message(data: MetricsData | None) -> "metrics_pb2.MetricsData":
    """Return metrics of the SDK as the message that collectors receive."""
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData as Message

    return Message() if data is None else Message(resource_metrics=encode_metrics(data).resource_metrics)


class OtlpMetricExporter(OTLPMetricExporterMixin, MetricExporter):
    """Sends metrics. Temporality and default aggregation are those of the variables."""

    def __init__(self, transport: Transport) -> None:
        self._common_configuration()
        self._delivery = BlockingDelivery("metrics", transport, Counter())
        self.limit = self._delivery.limit

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        message = to_message(metrics_data)
        count = sum(len(scoped.metrics) for each in message.resource_metrics for scoped in each.scope_metrics)
        arrived = self._delivery.send(message.SerializeToString(), count, within=timeout_millis / 1000)
        return MetricExportResult.SUCCESS if arrived else MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        self._delivery.close()

"""OTLP exporters for the SDK: spans, metrics and log records.

They are called in threads of the SDK. The gateway's own spans and log records are encoded fast, any others as the SDK
does. A start record is made for every call: it is encoded once, with what calls have in common, and decoded only for
exporters of other packages.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common._internal.metrics_encoder import OTLPMetricExporterMixin
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import LogRecordLimits, ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from gateway.telemetry.export.delivery import FLUSH_SECONDS, Delivery, Transport
from gateway.telemetry.export.wire_format import (
    FAILED,
    OF_EVENT,
    OF_SPAN,
    Attributes,
    BoundedCache,
    OtlpEnvelope,
    StepEvent,
    link,
    span_event,
    span_head,
    span_name,
)
from gateway.telemetry.gateway_span import GatewaySpan, SharedAttributes, SpanEvent, SpanSource, describe_step
from gateway.telemetry.names import STEP_SECONDS
from gateway.telemetry.settings import LONGEST_VALUE

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue
    from opentelemetry.proto.metrics.v1 import metrics_pb2


_MOST_OF_STEP = 2
"""Attributes of the event of a step."""


class SpanEncoder:
    """Encodes finished spans as OTLP, with the limits of their provider."""

    def __init__(self, source: SpanSource) -> None:
        self._source = source
        limits = source.limits
        self._most = limits.max_span_attributes or (1 << 30)
        longest = limits.max_span_attribute_length
        longest = longest if longest is not None else 1 << 30
        self._attributes = Attributes(OF_SPAN, longest)
        self._most_of_event = limits.max_event_attributes or (1 << 30)
        self._of_events = Attributes(OF_EVENT, limits.max_attribute_length or longest)
        self._steps: BoundedCache[tuple[str, bool | None], StepEvent] = BoundedCache(
            lambda of: StepEvent(of[0], STEP_SECONDS, describe_step(of[1]))
        )
        scope = source.scope
        self._envelope = OtlpEnvelope(
            source.resource.attributes,
            scope=scope.name,
            version=scope.version or "",
            schema_url=scope.schema_url or "",
        )

    def encode(self, spans: Sequence[GatewaySpan]) -> bytes:
        """Return a whole request."""
        return self._envelope.around([self.encode_span(each) for each in spans])

    def encode_span(self, span: GatewaySpan) -> bytes:
        fields = [span_head(span), span_name(span._name, LONGEST_VALUE)]
        parts = span.parts
        if sum(map(len, parts)) > self._most:
            parts = (span.attributes or {},)
        for part in parts:
            if type(part) is not SharedAttributes:
                fields += self._attributes.list_fields(part)
                continue
            if part.encoded is None:
                part.encoded = self._attributes.join(part)
            fields.append(part.encoded)
        if span.own_events or self._most_of_event < _MOST_OF_STEP:
            for event in span.list_events()[: self._source.limits.max_events]:
                fields.append(self._encode_event(event))
        elif span.steps:
            for name, since, until, is_cached in span.steps[: self._source.limits.max_events]:
                fields.append(self._steps[name, is_cached].encode(since, until))
        for each in span.targets[: self._source.limits.max_links]:
            fields.append(link(*each))
        if span.is_error:
            fields.append(FAILED)
        return b"".join(fields)

    def _encode_event(self, event: SpanEvent) -> bytes:
        attributes: Mapping[str, Any] = event.attributes
        if len(attributes) > self._most_of_event:
            attributes = dict(list(attributes.items())[-self._most_of_event :])
        return span_event(event.name, event.at, self._of_events.join(attributes), LONGEST_VALUE)


class _Sender:
    """What the exporters of all signals have in common."""

    _delivery: Delivery

    def limit(self, seconds: float = FLUSH_SECONDS) -> None:
        """Try nothing again from now on, and give up whatever was not sent after so many seconds."""
        self._delivery.limit(seconds)

    def force_flush(self, timeout_millis: float = 30_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        self._delivery.close()


class OtlpSpanExporter(_Sender, SpanExporter):
    """Sends spans as OTLP. What does not arrive is counted in `dropped`, by reason."""

    def __init__(self, transport: Transport) -> None:
        self.dropped: Counter[str] = Counter()
        self._delivery = Delivery("traces", transport, self.dropped)
        self._encoder: tuple[SpanSource, SpanEncoder] | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        arrived = self._delivery.send(self._encode(spans), len(spans))
        return SpanExportResult.SUCCESS if arrived else SpanExportResult.FAILURE

    def _encode(self, spans: Sequence[ReadableSpan]) -> bytes:
        ours = [each for each in spans if isinstance(each, GatewaySpan)]
        pieces = []
        if ours:
            source = ours[0].source
            if self._encoder is None or self._encoder[0] is not source:
                self._encoder = source, SpanEncoder(source)
            pieces.append(self._encoder[1].encode(ours))
        if len(ours) < len(spans):
            others = [each for each in spans if not isinstance(each, GatewaySpan)]
            pieces.append(encode_spans(others).SerializeToString())
        return b"".join(pieces)  # repeated fields of a message may be in several pieces


def to_message(data: MetricsData | None) -> "metrics_pb2.MetricsData":
    """Return metrics of the SDK as the message that collectors receive."""
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData as Message

    return Message() if data is None else Message(resource_metrics=encode_metrics(data).resource_metrics)


class OtlpMetricExporter(_Sender, OTLPMetricExporterMixin, MetricExporter):
    """Sends metrics. Temporality and default aggregation are those of the variables."""

    def __init__(self, transport: Transport) -> None:
        self._common_configuration()
        self._delivery = Delivery("metrics", transport, Counter())

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        message = to_message(metrics_data)
        count = sum(len(scoped.metrics) for each in message.resource_metrics for scoped in each.scope_metrics)
        arrived = self._delivery.send(message.SerializeToString(), count, within=timeout_millis / 1000)
        return MetricExportResult.SUCCESS if arrived else MetricExportResult.FAILURE


class RecordSource(NamedTuple):
    """What all records of a gateway have in common."""

    resource: Resource
    instrumentation_scope: InstrumentationScope
    limits: LogRecordLimits


class EncodedRecord(ReadableLogRecord):
    """A log record of the gateway. It is encoded when it is exported, and decoded for exporters of other packages."""

    __setattr__ = object.__setattr__  # the fields of the base class, which is frozen, are computed

    def __init__(self, encode: Callable[[], bytes], source: RecordSource) -> None:
        self.encode = encode
        self.source = source

    @property
    def resource(self) -> Resource:
        return self.source.resource

    @property
    def instrumentation_scope(self) -> InstrumentationScope:
        return self.source.instrumentation_scope

    @property
    def limits(self) -> LogRecordLimits:
        return self.source.limits

    @cached_property
    def log_record(self) -> LogRecord:
        return decode_record(self.encode())


def decode_record(encoded: bytes) -> LogRecord:
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord as Message

    found = Message.FromString(encoded)
    ids = SpanContext(
        int.from_bytes(found.trace_id), int.from_bytes(found.span_id), is_remote=False, trace_flags=TraceFlags(1)
    )
    return LogRecord(
        timestamp=found.time_unix_nano,
        observed_timestamp=found.observed_time_unix_nano,
        context=set_span_in_context(NonRecordingSpan(ids), Context()),
        severity_number=SeverityNumber(found.severity_number),
        body=_value_of(found.body),
        attributes={each.key: _value_of(each.value) for each in found.attributes},
        event_name=found.event_name or None,
    )


def _value_of(value: "AnyValue") -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value_of(each) for each in value.array_value.values]
    return None if kind is None else getattr(value, kind)


class OtlpLogExporter(_Sender, LogRecordExporter):
    """Sends log records. What does not arrive is counted in `dropped`, by reason."""

    def __init__(self, transport: Transport, envelope: OtlpEnvelope, dropped: Counter[str]) -> None:
        self._delivery = Delivery("logs", transport, dropped)
        self._envelope = envelope

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        encoded = [each.encode() for each in batch if type(each) is EncodedRecord]
        others = [each for each in batch if type(each) is not EncodedRecord]
        payload = self._envelope.around(encoded) if encoded else b""
        if others:  # messages of one type can be joined
            payload += encode_logs(others).SerializeToString()
        arrived = self._delivery.send(payload, len(batch))
        return LogRecordExportResult.SUCCESS if arrived else LogRecordExportResult.FAILURE

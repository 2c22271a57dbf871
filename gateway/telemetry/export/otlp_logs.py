"""Log records as OTLP: an exporter for processors of the SDK, and records that the gateway has encoded itself.

A start record is made for every call. It is encoded once, with what calls have in common, and decoded only for
exporters of other packages.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.sdk._logs import LogRecordLimits, ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from gateway.telemetry.export.blocking_delivery import BlockingDelivery
from gateway.telemetry.export.signal_exporter import Transport
from gateway.telemetry.export.wire_format import OtlpEnvelope

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue


class RecordSource(NamedTuple):
    """What all records of a gateway have in common."""

    resource: Resource
    instrumentation_scope: InstrumentationScope
    limits: LogRecordLimits


class EncodedRecord(ReadableLogRecord):
    """A log record of the gateway, as the bytes of its message."""

    def __init__(self, encoded: bytes, source: RecordSource) -> None:
        fields = vars(self)
        fields["encoded"] = encoded
        fields["resource"], fields["instrumentation_scope"], fields["limits"] = source

    @property
    def log_record(self) -> LogRecord:
        """The record, decoded on first use."""
        found = vars(self).get("decoded")
        if found is None:
            found = vars(self)["decoded"] = decode_record(vars(self)["encoded"])
        record: LogRecord = found
        return record


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


class OtlpLogExporter(LogRecordExporter):
    """Sends log records. What does not arrive is counted in `dropped`, by reason."""

    def __init__(self, transport: Transport, envelope: OtlpEnvelope, dropped: Counter[str]) -> None:
        self._delivery = BlockingDelivery("logs", transport, dropped)
        self._envelope = envelope
        self.limit = self._delivery.limit

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        encoded = [vars(each)["encoded"] for each in batch if type(each) is EncodedRecord]
        others = [each for each in batch if type(each) is not EncodedRecord]
        payload = self._envelope.around(encoded) if encoded else b""
        if others:  # messages of one type can be joined
            payload += encode_logs(others).SerializeToString()
        arrived = self._delivery.send(payload, len(batch))
        return LogRecordExportResult.SUCCESS if arrived else LogRecordExportResult.FAILURE

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True

    def shutdown(self) -> None:
        self._delivery.close()

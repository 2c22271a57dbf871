"""The default exporter of spans: it encodes the gateway's own spans fast, and any others as the SDK does.

It is called in the thread of the SDK's batch processor, where it has an event loop of its own.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from gateway.telemetry.export.blocking_delivery import BlockingDelivery
from gateway.telemetry.export.signal_exporter import Transport
from gateway.telemetry.export.wire_format import (
    FAILED,
    Attributes,
    OtlpEnvelope,
    link,
    of_span,
    span_event,
    span_head,
    span_name,
)
from gateway.telemetry.finished_span import FinishedSpan, SharedAttributes, SpanEvent, SpanSource
from gateway.telemetry.names import QUEUE_FULL
from gateway.telemetry.settings import LONGEST_VALUE, BatchSettings

T = TypeVar("T")


class SpanEncoder:
    """Encodes finished spans as OTLP, with the limits of their provider."""

    def __init__(self, source: SpanSource) -> None:
        self._source = source
        limits = source.limits
        self._most = limits.max_span_attributes or (1 << 30)
        longest = limits.max_span_attribute_length
        self._limit = longest if longest is not None else 1 << 30
        self._attributes = Attributes(self._limit)
        self._most_of_event = limits.max_event_attributes or (1 << 30)
        self._of_events = Attributes(limits.max_attribute_length or self._limit)
        resource = Attributes(1 << 20).all(dict(source.resource.attributes))
        scope = source.scope
        self._envelope = OtlpEnvelope(
            resource, scope=scope.name, version=scope.version or "", schema_url=scope.schema_url or ""
        )

    def encode(self, spans: Sequence[FinishedSpan]) -> bytes:
        """Return a whole request."""
        return self._envelope.around([self.encode_span(each) for each in spans])

    def encode_span(self, span: FinishedSpan) -> bytes:
        content = span.content
        told = [span_head(span), span_name(span.name, LONGEST_VALUE)]
        if sum(map(len, content.parts)) > self._most:
            told.append(of_span(self._attributes.all(span.attributes or {})))
        else:
            for part in content.parts:
                if type(part) is not SharedAttributes:
                    told.append(of_span(self._attributes.all(part)))
                    continue
                if part.encoded is None:
                    part.encoded = of_span(self._attributes.all(part))
                told.append(part.encoded)
        for event in content.events[: self._source.limits.max_events]:
            told.append(self._encode_event(event))
        for each in content.links[: self._source.limits.max_links]:
            told.append(link(*each))
        if span.is_error:
            told.append(FAILED)
        return b"".join(told)

    def _encode_event(self, event: SpanEvent) -> bytes:
        attributes: Mapping[str, Any] = event.attributes
        if len(attributes) > self._most_of_event:
            attributes = dict(list(attributes.items())[-self._most_of_event :])
        return span_event(event.name, event.at, self._of_events.all(attributes), LONGEST_VALUE)


class OtlpSpanExporter(SpanExporter):
    """Sends spans as OTLP. What does not arrive is counted in `dropped`, by reason."""

    def __init__(self, transport: Transport) -> None:
        self.dropped: Counter[str] = Counter()
        self._delivery = BlockingDelivery("traces", transport, self.dropped)
        self._encoder: tuple[SpanSource, SpanEncoder] | None = None
        self.limit = self._delivery.limit

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        arrived = self._delivery.send(self._encode(spans), len(spans))
        return SpanExportResult.SUCCESS if arrived else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self._delivery.close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True

    def _encode(self, spans: Sequence[ReadableSpan]) -> bytes:
        ours = [each for each in spans if type(each) is FinishedSpan]
        pieces = []
        if ours:
            source = ours[0].source
            if self._encoder is None or self._encoder[0] is not source:
                self._encoder = source, SpanEncoder(source)
            pieces.append(self._encoder[1].encode(ours))
        if len(ours) < len(spans):
            others = [each for each in spans if type(each) is not FinishedSpan]
            pieces.append(encode_spans(others).SerializeToString())
        return b"".join(pieces)  # repeated fields of a message may be in several pieces


class SpanQueue(BatchSpanProcessor):
    """The SDK's queue of spans, and how many it took and dropped. Both counts only grow."""

    def __init__(self, exporter: SpanExporter, batching: BatchSettings) -> None:
        super().__init__(exporter, batching.queue, batching.delay * 1000, batching.batch)
        self.dropped: Counter[str] = exporter.dropped if isinstance(exporter, OtlpSpanExporter) else Counter()
        self._given = 0
        self._reported = self._batch_processor._metrics
        self._batch_processor._metrics = self  # its place for counts

    def on_end(self, span: ReadableSpan) -> None:
        if type(span) is FinishedSpan:  # it is sampled
            self._batch_processor.emit(span)
        else:
            super().on_end(span)

    @property
    def taken(self) -> int:
        return self._given + len(self) + self.dropped[QUEUE_FULL]

    def __len__(self) -> int:
        return len(self._batch_processor._queue)

    def register_queue_size(self, get_queue_size: Callable[[], int]) -> None:
        self._reported.register_queue_size(get_queue_size)

    def drop_items(self, count: int, error_type: str = QUEUE_FULL) -> None:
        self.dropped[error_type] += count
        self._reported.drop_items(count, error_type)

    def finish_items(self, count: int) -> None:
        self._given += count
        self._reported.finish_items(count)

"""A package with parts for the OpenTelemetry SDK, as a vendor offers them. Its spans are lines of a file."""

import json
import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator, default_getter, default_setter
from opentelemetry.sdk.resources import Resource, ResourceDetector
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

HEADER = "x-vendor-trace"
PREFIX = 0xFEED << 112


class LineExporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with Path(os.environ["VENDOR_FILE"]).open("a", encoding="utf-8") as file:
            for span in spans:
                file.write(json.dumps(json.loads(span.to_json())) + "\n")
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None: ...


class NameSampler(Sampler):
    """Drops spans with one name, and what is below them."""

    def __init__(self, dropped: str | None) -> None:
        self._dropped = dropped

    def should_sample(
        self, parent_context: Context | None, trace_id: int, name: str, *args: Any, **kwargs: Any
    ) -> SamplingResult:
        above = trace.get_current_span(parent_context).get_span_context()
        is_dropped = name == self._dropped or (above.is_valid and not above.trace_flags.sampled)
        return SamplingResult(Decision.DROP if is_dropped else Decision.RECORD_AND_SAMPLE, {"vendor.sampled": True})

    def get_description(self) -> str:
        return "NameSampler"


def drop_lists() -> Sampler:
    return NameSampler("tools/list")


class HeaderPropagator(TextMapPropagator):
    """One header with the ids of a trace and a span."""

    def extract(self, carrier: Any, context: Context | None = None, getter: Any = default_getter) -> Context:
        context = Context() if context is None else context
        found = getter.get(carrier, HEADER)
        if not found:
            return context
        trace_id, span_id = (int(each, 16) for each in found[0].split(":"))
        span = SpanContext(trace_id, span_id, True, TraceFlags(TraceFlags.SAMPLED))
        return trace.set_span_in_context(NonRecordingSpan(span), context)

    def inject(self, carrier: Any, context: Context | None = None, setter: Any = default_setter) -> None:
        span = trace.get_current_span(context).get_span_context()
        setter.set(carrier, HEADER, f"{span.trace_id:032x}:{span.span_id:016x}")

    @property
    def fields(self) -> set[str]:
        return {HEADER}


class RackDetector(ResourceDetector):
    def detect(self) -> Resource:
        return Resource({"vendor.rack": 7})


class PrefixedIds(RandomIdGenerator, IdGenerator):
    _numbers = count(1)

    def generate_trace_id(self) -> int:
        return PREFIX + next(self._numbers)


class StampProcessor(SpanProcessor):
    """Sets an attribute when a span starts."""

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:
        span.set_attribute("vendor.stamp", "as it started")


class StampedProvider(TracerProvider):
    def __init__(self) -> None:
        super().__init__(resource=Resource({"service.name": "of the process"}))
        self.add_span_processor(StampProcessor())
        self.add_span_processor(SimpleSpanProcessor(LineExporter()))

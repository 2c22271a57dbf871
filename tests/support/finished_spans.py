"""Observers whose spans stay in memory, through the processors of the SDK."""

from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import DEFAULT_ON

from gateway.audit.content_hash import ContentKey
from gateway.telemetry.gateway_span import KEPT, GatewaySpan, SpanGroup, SpanSource
from gateway.telemetry.observer import TelemetryObserver
from gateway.telemetry.settings import TelemetrySettings
from gateway.telemetry.span_pipeline import SpanPipeline, TailSampling

KEY = ContentKey(bytes(range(160, 192)))


def open_pipeline(settings: TelemetrySettings, *processors: Any) -> SpanPipeline:
    provider = TracerProvider(
        sampler=DEFAULT_ON,
        resource=Resource({"service.name": "gateway"}),
        shutdown_on_exit=False,
        active_span_processor=TailSampling(settings.sampling),
    )
    for each in processors:
        provider.add_span_processor(each)
    return SpanPipeline(provider, "1", settings.sampling)


def build_span(
    source: SpanSource, ids: tuple[bytes, bytes] = (b"\1" * 16, b"\2" * 8), group: SpanGroup = KEPT, **fields: Any
) -> GatewaySpan:
    """Return a span that ended, with such fields."""
    span = GatewaySpan(ids, group)
    defaults = {"source": source, "_name": "s", "_start_time": 1, "_end_time": 2, "parts": [{}]}
    vars(span).update(defaults | fields)
    return span


def observe(settings: TelemetrySettings, hashes: Any = KEY) -> tuple[TelemetryObserver, InMemorySpanExporter]:
    """Return an observer and the exporter that keeps its spans."""
    kept = InMemorySpanExporter()
    pipeline = open_pipeline(settings, SimpleSpanProcessor(kept))
    return TelemetryObserver(settings, pipeline=pipeline, logs=None, hashes=hashes), kept

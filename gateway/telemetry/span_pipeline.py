"""The way of spans to the processors of an SDK: lazily at their end, or as spans of the SDK from their start.

Spans of the SDK cost ten times as much. They are made only where something has to see a span when it starts: a sampler
that decides then, or a processor with `on_start`.

The tracer provider is that of the process, or the gateway's own with the exporters of its settings. A provider can be
set once in a process, and a gateway may start and stop in it. So the gateway offers Python tools one that passes on to
the provider of the gateway that runs.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    ReadableSpan,
    SpanLimits,
    SpanProcessor,
    SynchronousMultiSpanProcessor,
)
from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, DEFAULT_ON, Sampler
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    NoOpTracer,
    NoOpTracerProvider,
    ProxyTracerProvider,
    Span,
    StatusCode,
    Tracer,
    TracerProvider,
    set_span_in_context,
)

from gateway.model import new_random_64, new_random_128
from gateway.telemetry import names
from gateway.telemetry.export.delivery import FLUSH_SECONDS, QueueCounts
from gateway.telemetry.export.otlp_exporters import OtlpSpanExporter
from gateway.telemetry.export.otlp_transports import open_transport
from gateway.telemetry.gateway_span import KEPT, GatewaySpan
from gateway.telemetry.sdk_components import SdkComponents, load_exporter
from gateway.telemetry.settings import (
    AnyExporter,
    BatchSettings,
    PluginSettings,
    SamplingSettings,
    TelemetrySettings,
    describe_exporter,
)
from gateway.telemetry.trace_context import to_otel

_log: Final = logging.getLogger(__name__)


class RunningGatewayProvider(TracerProvider):
    """Passes on to the provider of the gateway that runs, if there is one."""

    def __init__(self) -> None:
        self.target: TracerProvider | None = None

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Any = None,
    ) -> Tracer:
        scope = instrumenting_module_name, instrumenting_library_version, schema_url, attributes
        return _PassingTracer(self, scope)


class _PassingTracer(Tracer):
    def __init__(self, provider: RunningGatewayProvider, scope: tuple[Any, ...]) -> None:
        self._provider = provider
        self._scope = scope

    @property
    def _tracer(self) -> Tracer:
        target = self._provider.target
        return NoOpTracer() if target is None else target.get_tracer(*self._scope)

    def start_span(self, *args: Any, **kwargs: Any) -> Any:
        return self._tracer.start_span(*args, **kwargs)

    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Any:
        return self._tracer.start_as_current_span(*args, **kwargs)


_NOT_SET: Final = (ProxyTracerProvider, NoOpTracerProvider, RunningGatewayProvider)


def find_process_provider() -> TracerProvider | None:
    """Return the provider that the process has set, if it was not the gateway."""
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, _NOT_SET) else provider


def offer_to_tools(provider: TracerProvider) -> None:
    """Make the provider of a gateway that of the process, until `withdraw`."""
    found = trace.get_tracer_provider()
    if isinstance(found, ProxyTracerProvider):
        trace.set_tracer_provider(RunningGatewayProvider())
        found = trace.get_tracer_provider()
    if isinstance(found, RunningGatewayProvider):
        found.target = provider


def withdraw(provider: TracerProvider) -> None:
    found = trace.get_tracer_provider()
    if isinstance(found, RunningGatewayProvider) and found.target is provider:
        found.target = None


MOST_WAITING_SPANS: Final = 1_000
"""Spans of a request that wait until it is decided whether they are kept; later ones are dropped."""

_EMPTY: Final = Context()
_SAMPLES_ALL: Final = frozenset(each.get_description() for each in (ALWAYS_ON, DEFAULT_ON))


class TailSampling(SynchronousMultiSpanProcessor):
    """Passes on spans that the ratio samples, and those of requests that end as listed in `always`.

    The spans of a request that the ratio does not sample wait until one of them decides.
    """

    def __init__(self, sampling: SamplingSettings) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._always = frozenset({"cancelled", "decided", *sampling.always})
        self.live: dict[int, GatewaySpan] = {}
        """What spans of the SDK that end now stand for."""

    def keeps(self, span: GatewaySpan) -> bool:
        """Whether a span that decides about its group is kept. If not, its group is dropped."""
        if span.group.is_kept or not self._always.isdisjoint(span.why):
            return True
        span.group.waiting.clear()
        return False

    def on_end(self, span: ReadableSpan) -> None:
        ours = span if isinstance(span, GatewaySpan) else self._find_live(span)
        if ours is not None and not ours.group.is_kept:
            group = ours.group
            if self._always.isdisjoint(ours.why):
                if len(group.waiting) < MOST_WAITING_SPANS:
                    group.waiting.append(span)
                return
            group.is_kept = True
            for each in group.waiting:
                super().on_end(each)
            group.waiting.clear()
        for processor in self._span_processors:
            processor.on_end(span)

    def _find_live(self, span: ReadableSpan) -> GatewaySpan | None:
        context = span.get_span_context()
        return None if context is None else self.live.pop(context.span_id, None)


class SpanPipeline:
    """The spans of one gateway. `provider` is that of the process, or the gateway's own with `TailSampling`."""

    def __init__(self, provider: TracerProvider, version: str, sampling: SamplingSettings) -> None:
        self.provider = provider
        self.scope = InstrumentationScope(names.SCOPE, version, names.SCHEMA_URL)
        self.resource = Resource.get_empty()
        self.limits = SpanLimits()
        self._tracer = provider.get_tracer(names.SCOPE, version, names.SCHEMA_URL)
        self._ids: IdGenerator | None = None
        processors: tuple[SpanProcessor, ...] = ()
        sampler: Sampler | None = None
        if isinstance(provider, SdkTracerProvider):
            self.resource, self.limits, sampler = provider.resource, provider._span_limits, provider.sampler
            self._ids = None if type(provider.id_generator) is RandomIdGenerator else provider.id_generator
            processors = tuple(_each_processor(provider._active_span_processor))
        samples_all = sampler is not None and sampler.get_description() in _SAMPLES_ALL
        self.is_live = not samples_all or any(_sees_starts(each) for each in processors)
        """Whether spans are spans of the SDK from their start."""
        active = provider._active_span_processor if isinstance(provider, SdkTracerProvider) else None
        is_own = isinstance(active, TailSampling)
        self.samples_at_end = samples_all and (is_own or not self.is_live)
        """Whether the gateway decides at the end of a call which spans are exported, and not a sampler at its start."""
        self._tail = active if isinstance(active, TailSampling) else TailSampling(sampling)
        if active is not None and not is_own:
            self._tail.add_span_processor(active)
        self.keeps = self._tail.keeps

    def add_queues(self, queues: Iterable[SpanProcessor]) -> None:
        """Also pass spans to queues that are not the provider's."""
        for each in queues:
            if not self.is_live:
                self._tail.add_span_processor(each)
            elif isinstance(self.provider, SdkTracerProvider):
                self.provider.add_span_processor(each)

    @property
    def makes_ids(self) -> bool:
        """Whether a generator of the provider makes ids, and not the gateway."""
        return self._ids is not None

    def new_ids(self) -> tuple[bytes, bytes]:
        """Return new ids of a trace and of a span."""
        if self._ids is None:
            return new_random_128(), new_random_64()
        return self._ids.generate_trace_id().to_bytes(16), self._ids.generate_span_id().to_bytes(8)

    def new_span_id(self) -> bytes:
        return new_random_64() if self._ids is None else self._ids.generate_span_id().to_bytes(8)

    def open(self, span: GatewaySpan, attributes: Mapping[str, Any]) -> bool:
        """Make it a span of the SDK, which gives it its ids. Return whether it is sampled.

        Only if spans are `is_live`.
        """
        context = _EMPTY
        if span.above:
            is_sampled = span.is_sampled or self.samples_at_end
            above = to_otel(span.trace, span.above, is_sampled=is_sampled, is_remote=span.is_remote, state=span.state)
            context = set_span_in_context(NonRecordingSpan(above), _EMPTY)
        linked = [Link(to_otel(*each, is_sampled=True, is_remote=True)) for each in span.targets]
        live = self._tracer.start_span(span.name, context, span.kind, attributes, linked, span.start_time)
        found = live.get_span_context()
        if found.is_valid:
            span.trace, span.span = found.trace_id.to_bytes(16), found.span_id.to_bytes(8)
            span.state = found.trace_state.to_header()
        if not self.samples_at_end:
            span.group = KEPT
        span.live = live
        return found.trace_flags.sampled

    def end(self, span: GatewaySpan) -> None:
        span.source, live = self, span.live
        if span._end_time < span._start_time:  # a clock was set back in between
            span._end_time = span._start_time
        if live is None:
            if self.is_live:
                return
            if not span.group.is_kept:
                self._tail.on_end(span)
                return
            for processor in self._tail._span_processors:
                processor.on_end(span)
            return
        if not live.is_recording():
            return
        known = live.get_span_context().span_id
        self._tail.live[known] = span
        try:
            _copy(span, live)
            live.end(span.end_time)
        finally:
            self._tail.live.pop(known, None)


def _copy(span: GatewaySpan, live: Span) -> None:
    live.update_name(span.name)
    for part in span.parts:
        live.set_attributes(part)
    for event in span.list_events():
        live.add_event(event.name, dict(event.attributes), event.at)
    known = {each.context.span_id for each in getattr(live, "links", ())}
    for trace_id, span_id in span.targets:
        if int.from_bytes(span_id) not in known:
            live.add_link(to_otel(trace_id, span_id, is_sampled=True, is_remote=True))
    if span.is_error:
        live.set_status(StatusCode.ERROR)


def _each_processor(processor: SpanProcessor) -> Iterable[SpanProcessor]:
    if isinstance(processor, SynchronousMultiSpanProcessor | ConcurrentMultiSpanProcessor):
        for each in processor._span_processors:
            yield from _each_processor(each)
    else:
        yield processor


def _sees_starts(processor: SpanProcessor) -> bool:
    """Whether a processor does something when a span starts, or before it ends. Those of the SDK do not."""
    kind = type(processor)
    return not all(each.__module__.startswith("opentelemetry.sdk.") for each in (kind.on_start, kind._on_ending))


class SpanQueue(QueueCounts, BatchSpanProcessor):
    """The SDK's queue of spans."""

    def __init__(self, exporter: SpanExporter, batching: BatchSettings) -> None:
        super().__init__(exporter, batching.queue, batching.delay * 1000, batching.batch)
        self.start_counts(exporter.dropped if isinstance(exporter, OtlpSpanExporter) else Counter())

    def on_end(self, span: ReadableSpan) -> None:
        if isinstance(span, GatewaySpan):  # it is sampled
            self.put(span)
        else:
            super().on_end(span)


class SpanExport:
    """The export of spans of one gateway, and how many of them its queues took and dropped."""

    def __init__(
        self, pipeline: SpanPipeline, own: SdkTracerProvider | None, queues: tuple[SpanQueue, ...], words: str
    ) -> None:
        self.pipeline = pipeline
        self._own = own
        self._queues = queues
        self._words = words

    @property
    def taken(self) -> int:
        return sum(each.taken for each in self._queues)

    @property
    def dropped(self) -> Counter[str]:
        return sum((each.dropped for each in self._queues), Counter())

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    def start(self) -> None:
        """Offer the provider to Python tools, and log what is in force."""
        if self._own is not None:
            offer_to_tools(self._own)
        _log.info("spans are sent: %s", self._words)

    async def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Send what is left, for at most `seconds`; the rest is dropped and counted. A foreign provider stays open."""
        for each in self._queues:
            if isinstance(each.span_exporter, OtlpSpanExporter):
                each.span_exporter.limit(seconds)
        if self._own is not None:
            withdraw(self._own)
            await asyncio.to_thread(self._own.shutdown)
            return
        for each in self._queues:
            await asyncio.to_thread(each.shutdown)


def open_span_export(settings: TelemetrySettings, components: SdkComponents, version: str) -> SpanExport:
    """Open what the settings ask for. The document's exporters also get the spans of a process's provider."""

    def make(destination: AnyExporter) -> SpanQueue:
        exporter: SpanExporter
        if isinstance(destination, PluginSettings):
            exporter = load_exporter("traces", destination.name, SpanExporter)
        else:
            exporter = OtlpSpanExporter(open_transport(destination))
        return SpanQueue(exporter, settings.spans)

    queues = tuple(make(each) for each in settings.traces)
    provider = find_process_provider() if settings.uses_process else None
    own: SdkTracerProvider | None = None
    longest = settings.longest_value
    if provider is None:
        provider = own = SdkTracerProvider(
            sampler=components.sampler or DEFAULT_ON,
            resource=Resource(dict(settings.resource)),
            shutdown_on_exit=False,
            active_span_processor=TailSampling(settings.sampling),
            id_generator=components.id_generator,
            span_limits=SpanLimits(max_attribute_length=longest, max_span_attribute_length=longest),
        )
        for each in queues:
            provider.add_span_processor(each)
    pipeline = SpanPipeline(provider, version, settings.sampling)
    if own is None:
        pipeline.add_queues(queues)
    words = "; ".join(_describe(settings, components, pipeline, provider_is_own=own is not None))
    return SpanExport(pipeline, own, queues, words)


def _describe(
    settings: TelemetrySettings, components: SdkComponents, pipeline: SpanPipeline, *, provider_is_own: bool
) -> Iterator[str]:
    if not provider_is_own:
        yield "through the tracer provider of the process"
    for each in settings.traces:
        yield describe_exporter(each)
    if pipeline.samples_at_end:
        always = ", ".join(sorted(settings.sampling.always)) or "nothing"
        yield f"ratio {settings.sampling.ratio:g} by trace, always {always}"
    else:
        yield "a sampler decides when a span starts; `always` of the Telemetry document is not in force"
    yield from (f"{variable}={name}" for variable, name in components.names.items())
    if pipeline.is_live:
        yield "spans are made at their start, because a sampler or a processor has to see them then"

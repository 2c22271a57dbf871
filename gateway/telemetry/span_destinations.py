"""Where spans go: the tracer provider of the process, or the gateway's own with the exporters of its settings."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.sampling import DEFAULT_ON

from gateway.telemetry.export.otlp_spans import OtlpSpanExporter, SpanQueue
from gateway.telemetry.export.signal_exporter import FLUSH_SECONDS, Transport
from gateway.telemetry.process_provider import find_process_provider, offer_to_tools, withdraw
from gateway.telemetry.sdk_components import SdkComponents, describe, load_exporter
from gateway.telemetry.settings import AnyExporter, Exporter, PluginSettings, TelemetrySettings, describe_exporter
from gateway.telemetry.span_pipeline import SpanPipeline, TailSampling

_log: Final = logging.getLogger(__name__)


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


def open_span_export(
    settings: TelemetrySettings,
    components: SdkComponents,
    version: str,
    open_transport: Callable[[Exporter], Transport],
) -> SpanExport:
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
    if provider is None:
        provider = own = SdkTracerProvider(
            sampler=components.sampler or DEFAULT_ON,
            resource=Resource(dict(settings.resource)),
            shutdown_on_exit=False,
            active_span_processor=TailSampling(settings.sampling),
            id_generator=components.id_generator,
            span_limits=components.span_limits(settings.longest_value),
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
    yield from describe(components)
    if pipeline.is_live:
        yield "spans are made at their start, because a sampler or a processor has to see them then"

"""Where the metrics of a process go: a `MeterProvider` of the SDK with its readers and views.

The provider is that of the process, if one is set, as in an application that embeds the gateway or under automatic
instrumentation. Otherwise the pipeline has its own, with the exporters of the Telemetry document or of the variables.
Exporters and readers of other packages are entry points in the group `opentelemetry_metrics_exporter`, as everywhere.
Views are entry points in the group `gateway_metric_views`: a view, a list of them, or a function that returns a list.

Counters and histograms collect measurements cheaply and hand them to instruments of the SDK later. Every call makes
several measurements, and an instrument of the SDK takes microseconds for each. Here a measurement is an append to a
list. What waits is handed over when a reader collects, or when the list is full: counters as one sum for each set of
attributes, histograms as single values with their time and span. Readers, views, temporality and exemplars therefore
see the same as with direct use.

Attributes are a tuple of values in the order in which the metric lists them; `None` is an absent one.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from threading import Lock
from time import monotonic, time_ns
from typing import Any, Final, Generic, TypeVar

from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter_provider
from opentelemetry.metrics import Histogram as ApiHistogram
from opentelemetry.sdk.metrics import Histogram as SdkHistogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics._internal._view_instrument_match import _hash_attributes
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExporter,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from gateway.telemetry import names
from gateway.telemetry.export.delivery import FLUSH_SECONDS
from gateway.telemetry.export.otlp_exporters import OtlpMetricExporter
from gateway.telemetry.export.otlp_transports import open_transport
from gateway.telemetry.export.wire_format import BoundedCache
from gateway.telemetry.names import Metric
from gateway.telemetry.sdk_components import find_views, load_exporter
from gateway.telemetry.settings import (
    AnyExporter,
    InvalidTelemetry,
    PluginSettings,
    TelemetrySettings,
    describe_exporter,
)

_log: Final = logging.getLogger(__name__)


class MeterPipeline:
    """The metrics of a gateway. Nothing is kept for as long as there is no reader."""

    def __init__(self, settings: TelemetrySettings, *, instance: str, version: str) -> None:
        """Raises `InvalidTelemetry` for exporters and views that cannot be used."""
        self._settings = settings
        self._exporters: list[OtlpMetricExporter] = []
        self._served: InMemoryMetricReader | None = None
        found, views = get_meter_provider(), find_views()
        made = {
            each: load_exporter("metrics", each.name, MetricExporter, MetricReader)
            for each in settings.metrics
            if isinstance(each, PluginSettings)
        }
        readers = [self._create_reader(each, made) for each in settings.metrics]
        self._is_own = not isinstance(found, MeterProvider)
        if isinstance(found, MeterProvider):
            self._provider = found
            for each in readers:
                found.add_metric_reader(each)
        else:
            self._provider = _create_provider(settings, readers, views)
        self._readers: list[MetricReader] = readers
        words = [describe_exporter(each) for each in settings.metrics]
        words += [] if self._is_own else ["the meter provider of the process"]
        words += [f"{len(views)} views of other packages"] if views and self._is_own else []
        if words:
            _log.info("metrics are sent: %s", "; ".join(words))
        # Instruments of one scope exist once in a provider, and the process may start several gateways.
        apart = None if self._is_own else {"service.instance.id": instance}
        self.meter: Meter = self._provider.get_meter(names.SCOPE, version, names.SCHEMA_URL, apart)

    def serve(self) -> None:
        """Keep measurements for `collect` from now on."""
        if self._served is None:
            self._served = InMemoryMetricReader()
            self._provider.add_metric_reader(self._served)
            self._readers.append(self._served)

    def collect(self) -> MetricsData | None:
        """Return all metrics since `serve`. It calls every callback, and must not run in the event loop."""
        return None if self._served is None else self._served.get_metrics_data()

    async def close(self) -> None:
        """Send the last values, for at most `FLUSH_SECONDS`. Later calls do nothing."""
        for exporter in self._exporters:
            exporter.limit()
        readers, self._readers, self._exporters, self._served = self._readers, [], [], None
        await asyncio.to_thread(self._shut_down, readers)

    def _shut_down(self, readers: Sequence[MetricReader]) -> None:
        until = monotonic() + FLUSH_SECONDS
        for each in readers:
            left = max(until - monotonic(), 0.001) * 1000
            try:
                if self._is_own:
                    each.shutdown(timeout_millis=left)
                else:  # removed first, a reader could not collect the last values
                    each.force_flush(timeout_millis=left)
                    self._provider.remove_metric_reader(each)
            except Exception:  # of a reader that is not ours
                _log.exception("the last metrics could not be sent")

    def _create_reader(
        self, settings: AnyExporter, plugins: Mapping[PluginSettings, MetricExporter | MetricReader]
    ) -> MetricReader:
        if isinstance(settings, PluginSettings):
            made = plugins[settings]
        else:
            made = OtlpMetricExporter(open_transport(settings))
            self._exporters.append(made)
        if isinstance(made, MetricReader):
            return made
        every, timeout = self._settings.metrics_every, self._settings.metrics_timeout
        return PeriodicExportingMetricReader(made, every * 1000, timeout * 1000)


def has_meter_provider() -> bool:
    """Whether the process has a provider with readers of its own."""
    return isinstance(get_meter_provider(), MeterProvider)


def _create_provider(
    settings: TelemetrySettings, readers: Sequence[MetricReader], views: Sequence[View]
) -> MeterProvider:
    resource = Resource(dict(settings.resource), names.SCHEMA_URL)
    try:
        provider = MeterProvider(readers, resource, shutdown_on_exit=False, views=views)
    except ValueError as error:  # an unknown exemplar filter
        raise InvalidTelemetry("metrics cannot be set up", help="check OTEL_METRICS_EXEMPLAR_FILTER") from error
    provider._disabled = False  # OTEL_SDK_DISABLED stops exporters, not the metrics that the gateway serves itself
    return provider


V = TypeVar("V")

Values = tuple[str | None, ...]
SpanIds = tuple[str, str]
"""Ids of a trace and a span, in hex."""
Read = Callable[[], Iterable[tuple[Values, float]]]
"""Returns the current values of a metric by attributes."""

MOST_WAITING: Final = 512
"""Measurements of an instrument that wait at most. To hand over so many takes less than a millisecond."""

_NO_SPAN: Final = Context()
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


Measured = tuple[Values, float, int, SpanIds | None]
"""Attributes, value, time in nanoseconds since 1970, and the span if it is exported."""


class _Buffer(Generic[V]):
    """Measurements that wait. Any thread may append; one at a time hands over, so that their order stays."""

    __slots__ = ("_lock", "_waiting", "metric")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._waiting: list[V] = []
        self._lock = Lock()

    def hand_over(self, *, blocking: bool = True) -> None:
        """Hand over what waits. Without `blocking`, return at once if another thread does that."""
        if not self._lock.acquire(blocking=blocking):
            return
        try:
            taken = self._waiting[:]
            del self._waiting[: len(taken)]
            self._record(taken)
        finally:
            self._lock.release()

    def _record(self, taken: list[V]) -> None:
        raise NotImplementedError


class Counter(_Buffer[tuple[Values, float]]):
    """Only grows."""

    __slots__ = ("_attributes", "_instrument")

    def __init__(self, metric: Metric, meter: Meter) -> None:
        super().__init__(metric)
        self._instrument = meter.create_counter(metric.name, metric.unit, metric.meaning)
        self._attributes: BoundedCache[Values, dict[str, str]] = BoundedCache(partial(attributes_of, metric))

    def add(self, values: Values = (), amount: float = 1) -> None:
        """Add an amount. An amount of 0 starts the series, so that its first increase is seen as one."""
        waiting = self._waiting
        waiting.append((values, amount))
        if len(waiting) >= MOST_WAITING:
            self.hand_over(blocking=False)

    def _record(self, taken: list[tuple[Values, float]]) -> None:
        sums: dict[Values, float] = {}
        for values, amount in taken:
            sums[values] = sums.get(values, 0) + amount
        for values, amount in sums.items():
            self._instrument.add(amount, self._attributes[values], _NO_SPAN)


class Histogram(_Buffer[Measured]):
    """Measurements in the buckets of its metric, or in those of a view."""

    __slots__ = ("_attributes", "_instrument")

    def __init__(self, metric: Metric, meter: Meter) -> None:
        super().__init__(metric)
        self._instrument = meter.create_histogram(
            metric.name, metric.unit, metric.meaning, explicit_bucket_boundaries_advisory=metric.buckets
        )
        self._attributes: BoundedCache[Values, dict[str, str]] = BoundedCache(partial(attributes_of, metric))

    def record(self, values: Values, amount: float, span: SpanIds | None = None) -> None:
        """Add a measurement; one with an exported span may become an exemplar."""
        waiting = self._waiting
        waiting.append((values, amount, time_ns(), span))
        if len(waiting) >= MOST_WAITING:
            self.hand_over(blocking=False)

    def _record(self, taken: list[Measured]) -> None:
        record_all(self._instrument, taken, self._attributes)


def observe(metric: Metric, meter: Meter, read: Read) -> None:
    """Let `read` supply the values of the metric whenever a reader collects, from the thread of that reader."""
    kinds: Mapping[str, Callable[..., object]] = {
        "counter": meter.create_observable_counter,
        "updowncounter": meter.create_observable_up_down_counter,
        "gauge": meter.create_observable_gauge,
    }

    def callback(options: CallbackOptions) -> list[Observation]:
        return [Observation(value, attributes_of(metric, values), _NO_SPAN) for values, value in read()]

    kinds[metric.instrument](metric.name, [callback], metric.unit, metric.meaning)


def attributes_of(metric: Metric, values: Values) -> dict[str, str]:
    return {name: value for name, value in zip(metric.attributes, values, strict=True) if value is not None}


def record_all(
    instrument: ApiHistogram, measured: Sequence[Measured], attributes: Mapping[Values, Mapping[str, str]]
) -> None:
    """Record measurements in their order.

    `instrument.record` looks up the series of every measurement and takes the present time. Here each series is looked
    up once, in the parts of the SDK that `record` uses; a test compares the outcome with that of `record`.
    """
    if not isinstance(instrument, SdkHistogram):
        for values, amount, _, span in measured:
            instrument.record(amount, dict(attributes[values]), _context_of(span))
        return
    consumer: Any = instrument._measurement_consumer
    if not instrument._is_enabled() or not consumer._reader_storages:
        return
    is_example = consumer._sdk_config.exemplar_filter.should_sample
    made = [_Measurement(each, attributes[each[0]]) for each in measured]
    examples = [is_example(each.value, each.time_unix_nano, each.attributes, each.context) for each in made]
    for storage in consumer._reader_storages.values():
        for match in storage._get_or_init_view_instrument_match(instrument):
            keys = match._view._attribute_keys
            series: dict[Values, Any] = {}
            with match._lock:
                for (values, *_), each, is_one in zip(measured, made, examples, strict=True):
                    aggregation = series.get(values)
                    if aggregation is None:
                        kept = {name: value for name, value in each.attributes.items() if keys is None or name in keys}
                        aggregation = match._get_or_create_aggregation(_hash_attributes(kept), kept)
                        series[values] = aggregation
                    aggregation.aggregate(each, is_one)


class _Measurement:
    """What aggregations of the SDK read of a measurement."""

    __slots__ = ("attributes", "context", "time_unix_nano", "value")

    def __init__(self, measured: Measured, attributes: Mapping[str, str]) -> None:
        _, self.value, self.time_unix_nano, span = measured
        self.attributes = attributes
        self.context = _context_of(span)


def _context_of(span: SpanIds | None) -> Context:
    if span is None:
        return _NO_SPAN
    trace_id, span_id = span
    ids = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=_SAMPLED)
    return set_span_in_context(NonRecordingSpan(ids), _NO_SPAN)

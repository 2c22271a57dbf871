"""Instruments that collect measurements cheaply and hand them to instruments of the SDK later.

Every call makes several measurements, and an instrument of the SDK takes microseconds for each. Here a measurement is
an append to a list. What waits is handed over when a reader collects, or when the list is full. Readers, views,
temporality and exemplars see the same as with direct use.

Attributes are a tuple of values in the order in which the metric lists them; `None` is an absent one.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from threading import Lock
from time import time_ns
from typing import Any, Final, Generic, TypeVar

from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import AlignedHistogramBucketExemplarReservoir
from opentelemetry.sdk.metrics import Histogram as SdkHistogram
from opentelemetry.sdk.metrics._internal._view_instrument_match import _hash_attributes
from opentelemetry.sdk.metrics._internal.aggregation import _ExplicitBucketHistogramAggregation
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from gateway.telemetry.export.wire_format import BoundedCache
from gateway.telemetry.names import Metric

V = TypeVar("V", bound=tuple[Any, ...])

Values = tuple[str | None, ...]
SpanIds = tuple[str, str]
"""Ids of a trace and a span, in hex."""
Read = Callable[[], Iterable[tuple[Values, float]]]
"""Returns the current values of a metric by attributes."""

MOST_WAITING: Final = 512
"""Measurements of an instrument that wait at most. To hand over so many takes less than a millisecond."""

_NO_SPAN: Final = Context()
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)

Measured = tuple[Values, float, SpanIds | None, int]
"""Attributes, value, the span if it is exported, and then the time in nanoseconds since 1970."""


class _Buffer(Generic[V]):
    """Measurements that wait. Any thread may append; one at a time hands over, so that their order stays."""

    __slots__ = ("_attributes", "_lock", "_waiting", "metric")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._attributes: BoundedCache[Values, dict[str, str]] = BoundedCache(partial(attributes_of, metric))
        self._waiting: list[V] = []
        self._lock = Lock()

    def hand_over(self, *, blocking: bool = True) -> None:
        """Hand over what waits. Without `blocking`, return at once if another thread does that."""
        if not self._lock.acquire(blocking=blocking):
            return
        try:
            taken = self._waiting[:]
            del self._waiting[: len(taken)]
            if taken:
                self._record(taken)
        finally:
            self._lock.release()

    def _record(self, taken: list[V]) -> None:
        raise NotImplementedError


class Counter(_Buffer[tuple[Values, float]]):
    """Only grows."""

    __slots__ = ("_instrument",)

    def __init__(self, metric: Metric, meter: Meter) -> None:
        super().__init__(metric)
        self._instrument = meter.create_counter(metric.name, metric.unit, metric.meaning)

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

    __slots__ = ("_instrument",)

    def __init__(self, metric: Metric, meter: Meter) -> None:
        super().__init__(metric)
        self._instrument = meter.create_histogram(
            metric.name, metric.unit, metric.meaning, explicit_bucket_boundaries_advisory=metric.buckets
        )

    def record(self, values: Values, amount: float, span: SpanIds | None = None) -> None:
        """Add a measurement; one with an exported span may become an exemplar."""
        waiting = self._waiting
        waiting.append((values, amount, span, 0 if span is None else time_ns()))
        if len(waiting) >= MOST_WAITING:
            self.hand_over(blocking=False)

    def _record(self, taken: list[Measured]) -> None:
        instrument: Any = self._instrument
        if not isinstance(instrument, SdkHistogram):
            for values, amount, span, _ in taken:
                instrument.record(amount, dict(self._attributes[values]), _context_of(span))
        elif instrument._is_enabled():
            consumer: Any = instrument._measurement_consumer
            _Batch(taken, self._attributes, consumer._sdk_config).record(instrument)


class _Batch:
    """Measurements in their order, that go to the aggregations of the SDK together.

    `instrument.record` looks up the series of every measurement and takes the present time. Here each series is looked
    up once, in the parts of the SDK that `record` uses; a test compares the outcome with that of `record`.
    """

    def __init__(self, taken: Sequence[Measured], attributes: Mapping[Values, Mapping[str, str]], config: Any) -> None:
        self._taken = taken
        self._attributes = attributes
        self._is_example = config.exemplar_filter.should_sample
        self._amounts: dict[Values, list[float]] = defaultdict(list)
        for values, amount, _, _ in taken:
            self._amounts[values].append(amount)

    def record(self, instrument: Any) -> None:
        for storage in instrument._measurement_consumer._reader_storages.values():
            for match in storage._get_or_init_view_instrument_match(instrument):
                keys = match._view._attribute_keys
                found: dict[Values, Any] = {}
                with match._lock:
                    for values in self._amounts:
                        named = self._attributes[values]
                        kept = {name: value for name, value in named.items() if keys is None or name in keys}
                        found[values] = match._get_or_create_aggregation(_hash_attributes(kept), kept)
                    if all(map(_is_aligned, found.values())):
                        self._add_to_buckets(found)
                    else:
                        for each in self._taken:
                            found[each[0]].aggregate(*self._offer(each))

    def _add_to_buckets(self, found: Mapping[Values, Any]) -> None:
        """Add all amounts of a series at once. Its reservoir keeps the last example of each bucket."""
        for values, amounts in self._amounts.items():
            add_to_buckets(found[values], amounts)
        latest: dict[tuple[int, int], Measured] = {}
        spanned = [each for each in self._taken if each[2] is not None]
        for each in spanned or self._taken[-1:]:
            aggregation = found[each[0]]
            latest[id(aggregation), bisect_left(aggregation._boundaries, each[1])] = each
        for each in latest.values():
            found[each[0]]._sample_exemplar(*self._offer(each))

    def _offer(self, measured: Measured) -> tuple["_Measurement", bool]:
        """Return a measurement, and whether it may become an exemplar."""
        made = _Measurement(measured, self._attributes[measured[0]])
        return made, self._is_example(made.value, made.time_unix_nano, made.attributes, made.context)


def _is_aligned(aggregation: Any) -> bool:
    return (
        type(aggregation) is _ExplicitBucketHistogramAggregation
        and type(aggregation._reservoir) is AlignedHistogramBucketExemplarReservoir
    )


def add_to_buckets(aggregation: Any, amounts: Sequence[float]) -> None:
    """Do what its `aggregate` does with each of the amounts."""
    with aggregation._lock:
        bounds = aggregation._boundaries
        counts = aggregation._value = aggregation._value or [0] * (len(bounds) + 1)
        for amount in amounts:
            counts[bisect_left(bounds, amount)] += 1
        aggregation._sum += sum(amounts)
        if aggregation._record_min_max:
            aggregation._min = min(aggregation._min, *amounts)
            aggregation._max = max(aggregation._max, *amounts)


class _Measurement:
    """What aggregations of the SDK read of a measurement."""

    __slots__ = ("attributes", "context", "time_unix_nano", "value")

    def __init__(self, measured: Measured, attributes: Mapping[str, str]) -> None:
        _, self.value, span, at = measured
        self.time_unix_nano = at or time_ns()
        self.attributes = attributes
        self.context = _context_of(span)


def _context_of(span: SpanIds | None) -> Context:
    if span is None:
        return _NO_SPAN
    trace_id, span_id = span
    ids = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=_SAMPLED)
    return set_span_in_context(NonRecordingSpan(ids), _NO_SPAN)


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

"""Counters and histograms, stored as sums until they are read.

A measurement is a look-up and an addition, because every call makes several; the SDK's own instruments take ten times
as long. MetricAttributes are a tuple of values in the order in which the metric lists them; `None` is an absent one.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import time_ns
from typing import Final, TypeVar

from gateway.telemetry.names import Metric

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOST: Final = 16_384


class BoundedCache(dict[K, V]):
    """Values made by `make` on first access, by key. A full cache is cleared: frequent keys soon return."""

    __slots__ = ("_make", "_most")

    def __init__(self, make: Callable[[K], V], *, most: int = _MOST) -> None:
        super().__init__()
        self._make = make
        self._most = most

    def __missing__(self, key: K) -> V:
        if len(self) >= self._most:
            self.clear()
        found = self[key] = self._make(key)
        return found


MOST_SERIES: Final = 2_000
"""Maximum of series per metric. Further ones are counted together, so that labels cannot exhaust memory."""

OVERFLOW: Final = (("otel.metric.overflow", "true"),)

Values = tuple[str | None, ...]
Example = tuple[float, int, str, str]
"""An unread `Exemplar`: every call makes one, and few of them are read."""
MetricAttributes = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Exemplar:
    """One measurement and the span that it belongs to, in hex."""

    value: float
    at: int
    trace_id: str
    span_id: str


@dataclass(slots=True)
class Distribution:
    """Number of measurements per bucket, the one without an upper bound last."""

    counts: list[int]
    sum: float = 0.0
    exemplars: dict[int, Exemplar] | None = None
    """The latest exemplar by index of the bucket."""

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(slots=True)
class Point:
    attributes: MetricAttributes
    value: float | Distribution


@dataclass(slots=True)
class Family:
    """A metric with all its points."""

    metric: Metric
    points: list[Point]


class _SeriesTable(dict[Values | None, V]):
    """The series of an instrument by attributes; those after the first `most` share one."""

    __slots__ = ("_make", "_most")

    def __init__(self, make: Callable[[], V], most: int) -> None:
        super().__init__()
        self._make = make
        self._most = most

    def __missing__(self, values: Values) -> V:
        return self.setdefault(values if len(self) < self._most else None, self._make())


class Counter:
    """Only grows. `add` may be called from any thread that holds the interpreter."""

    __slots__ = ("metric", "of")

    def __init__(self, metric: Metric, *, most: int = MOST_SERIES) -> None:
        self.metric = metric
        self.of: _SeriesTable[list[float]] = _SeriesTable(lambda: [0], most)

    def add(self, values: Values = (), amount: float = 1) -> None:
        self.of[values][0] += amount

    def read(self) -> Family:
        pairs = tuple(self.of.items())
        return Family(self.metric, [Point(attributes_of(self.metric, values), found[0]) for values, found in pairs])


class Series:
    """The measurements of a histogram for one set of attributes."""

    __slots__ = ("_bounds", "counts", "examples", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.examples: dict[int, Example] = {}

    def record(self, amount: float, trace_id: str | None = None, span_id: str = "") -> None:
        """Add a measurement; one of an exported span becomes the exemplar of its bucket."""
        place = bisect_left(self._bounds, amount)
        self.counts[place] += 1
        self.sum += amount
        if trace_id:
            self.examples[place] = (amount, time_ns(), trace_id, span_id)

    def read(self) -> Distribution:
        examples = {place: Exemplar(*each) for place, each in tuple(self.examples.items())}
        return Distribution(list(self.counts), self.sum, examples or None)


class Histogram:
    """Measurements in the buckets of its metric."""

    __slots__ = ("metric", "of")

    def __init__(self, metric: Metric, *, most: int = MOST_SERIES) -> None:
        self.metric = metric
        self.of: _SeriesTable[Series] = _SeriesTable(partial(Series, metric.buckets), most)

    def record(self, values: Values, amount: float, trace_id: str | None = None, span_id: str = "") -> None:
        self.of[values].record(amount, trace_id, span_id)

    def read(self) -> Family:
        pairs = tuple(self.of.items())
        return Family(self.metric, [Point(attributes_of(self.metric, values), found.read()) for values, found in pairs])


def gauge_family(metric: Metric, points: Iterable[tuple[Values, float]]) -> Family:
    """Return a gauge whose values are determined when it is read."""
    return Family(metric, [Point(attributes_of(metric, values), value) for values, value in points])


def attributes_of(metric: Metric, values: Values | None) -> MetricAttributes:
    if values is None:
        return OVERFLOW
    return tuple(_pair_present(metric.attributes, values))


def merge_families(families: Iterable[Sequence[Family]]) -> list[Family]:
    """Merge the points of several processes by metric."""
    found: dict[str, Family] = {}
    for each in families:
        for family in each:
            found.setdefault(family.metric.name, Family(family.metric, [])).points.extend(family.points)
    return list(found.values())


def _pair_present(names: tuple[str, ...], values: Values) -> Iterator[tuple[str, str]]:
    for name, value in zip(names, values, strict=True):
        if value is not None:
            yield name, value

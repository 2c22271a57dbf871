"""Instruments: what readers of the SDK see is the same as with direct use of its instruments."""

import random
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.metrics import Meter, NoOpMeter
from opentelemetry.sdk.metrics import Counter as SdkCounter
from opentelemetry.sdk.metrics import Histogram as SdkHistogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics._internal.exemplar import (
    AlwaysOffExemplarFilter,
    AlwaysOnExemplarFilter,
    TraceBasedExemplarFilter,
)
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.metrics.view import (
    DropAggregation,
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
    View,
)
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from gateway.telemetry import names
from gateway.telemetry.instruments import MOST_WAITING, Counter, Histogram, SpanIds, Values, attributes_of

CALLS = names.EXECUTE_DURATION
DELTA: dict[type, AggregationTemporality] = {
    SdkCounter: AggregationTemporality.DELTA,
    SdkHistogram: AggregationTemporality.DELTA,
}
TIMES = ("start_time_unix_nano", "time_unix_nano")

Readers = Callable[[], list[InMemoryMetricReader]]


def exponential() -> list[InMemoryMetricReader]:
    return [InMemoryMetricReader(preferred_aggregation={SdkHistogram: ExponentialBucketHistogramAggregation()})]


CASES: dict[str, tuple[Readers, list[View], Any]] = {
    "default": (lambda: [InMemoryMetricReader()], [], None),
    "several readers": (lambda: [InMemoryMetricReader(), InMemoryMetricReader(DELTA)], [], None),
    "delta": (lambda: [InMemoryMetricReader(DELTA)], [], None),
    "exponential": (exponential, [], None),
    "fewer attributes": (
        lambda: [InMemoryMetricReader()],
        [View(instrument_name="*", attribute_keys={names.TOOL_NAME, names.OUTCOME})],
        None,
    ),
    "other buckets": (
        lambda: [InMemoryMetricReader()],
        [View(instrument_name=CALLS.name, aggregation=ExplicitBucketHistogramAggregation((1.0, 2.0)))],
        None,
    ),
    "two views": (
        lambda: [InMemoryMetricReader()],
        [View(instrument_name=CALLS.name), View(instrument_name=CALLS.name, name="other", attribute_keys=set())],
        None,
    ),
    "dropped": (lambda: [InMemoryMetricReader()], [View(instrument_name="*", aggregation=DropAggregation())], None),
    "few series": (
        lambda: [InMemoryMetricReader()],
        [View(instrument_name="*", aggregation_cardinality_limit=2)],
        None,
    ),
    "few series in a period": (
        lambda: [InMemoryMetricReader(DELTA)],
        [View(instrument_name="*", aggregation_cardinality_limit=2)],
        None,
    ),
    "no exemplars": (lambda: [InMemoryMetricReader()], [], AlwaysOffExemplarFilter()),
    "all exemplars": (lambda: [InMemoryMetricReader()], [], AlwaysOnExemplarFilter()),
    "exemplars of traces": (lambda: [InMemoryMetricReader()], [], TraceBasedExemplarFilter()),
    "no reader": (list, [], None),
}
Measurement = tuple[str, float, SpanIds | None]
SPANS = st.none() | st.tuples(st.just("a" * 31 + "1"), st.sampled_from(["b" * 16, "c" * 16]))
MEASURED = st.lists(
    st.tuples(st.sampled_from(["quote", "refund", "track", "notify"]), st.floats(min_value=0, max_value=200), SPANS),
    max_size=30,
)


def of_tool(tool: str) -> Values:
    return ("execute_tool", tool, "function", None, "shop", "open")


def context_of(span: SpanIds | None) -> Context:
    if span is None:
        return Context()
    ids = SpanContext(int(span[0], 16), int(span[1], 16), is_remote=False, trace_flags=TraceFlags(1))
    return set_span_in_context(NonRecordingSpan(ids), Context())


class Buffered:
    def __init__(self, meter: Meter) -> None:
        self.calls, self.reloads = Histogram(CALLS, meter), Counter(names.RELOADS, meter)

    def measure(self, measured: Sequence[Measurement]) -> None:
        for tool, amount, span in measured:
            self.calls.record(of_tool(tool), amount, span)
            self.reloads.add((tool,))
        self.calls.hand_over()
        self.reloads.hand_over()


class Direct:
    def __init__(self, meter: Meter) -> None:
        self.calls = meter.create_histogram(
            CALLS.name, CALLS.unit, CALLS.meaning, explicit_bucket_boundaries_advisory=CALLS.buckets
        )
        metric = names.RELOADS
        self.reloads = meter.create_counter(metric.name, metric.unit, metric.meaning)

    def measure(self, measured: Sequence[Measurement]) -> None:
        for tool, amount, span in measured:
            self.calls.record(amount, attributes_of(CALLS, of_tool(tool)), context_of(span))
            self.reloads.add(1, attributes_of(names.RELOADS, (tool,)), Context())


def read(
    kind: type[Buffered] | type[Direct], case: str, rounds: Sequence[Sequence[Measurement]]
) -> list[dict[str, Any]]:
    """Return what every reader collects after every round, without times."""
    make, views, filter = CASES[case]
    readers = make()
    provider = MeterProvider(readers, views=views, exemplar_filter=filter, shutdown_on_exit=False)
    instruments = kind(provider.get_meter("gateway"))
    random.seed(1)  # of reservoirs
    found = []
    for measured in rounds:
        instruments.measure(measured)
        found += [read_all(reader) for reader in readers]
    return found


def read_all(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    if data is None:
        return {}
    [scoped] = data.resource_metrics[0].scope_metrics
    found = {}
    for metric in scoped.metrics:
        points = []
        for point in metric.data.data_points:
            fields = {key: value for key, value in vars(point).items() if key not in TIMES}
            fields["exemplars"] = [(each.value, each.span_id, each.filtered_attributes) for each in point.exemplars]
            fields["sum"] = pytest.approx(fields.get("sum", 0))
            points.append(fields)
        whole = {key: value for key, value in vars(metric.data).items() if key != "data_points"}
        found[metric.name] = (metric.unit, metric.description, type(metric.data), whole, points)
    return found


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=30, deadline=None)
@given(rounds=st.lists(MEASURED, min_size=1, max_size=3))
def test_readers_see_the_same_as_with_direct_use(case: str, rounds: list[list[Measurement]]) -> None:
    if case in ("no exemplars", "all exemplars"):  # exemplars of counters are those of a whole period
        rounds = [each[:1] for each in rounds]

    assert read(Buffered, case, rounds) == read(Direct, case, rounds)


def test_all_is_seen_when_more_is_measured_than_may_wait() -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("gateway")
    calls, reloads = Histogram(CALLS, meter), Counter(names.RELOADS, meter)
    threads = [Thread(target=measure, args=(calls, reloads)) for _ in range(4)]

    for each in threads:
        each.start()
    while any(each.is_alive() for each in threads):  # a reader collects meanwhile
        calls.hand_over()
        reader.get_metrics_data()
    calls.hand_over()
    reloads.hand_over()

    found = read_all(reader)
    assert found[CALLS.name][-1][0]["count"] == 4 * 3 * MOST_WAITING
    assert found[names.RELOADS.name][-1][0]["value"] == 4 * 3 * MOST_WAITING


def measure(calls: Histogram, reloads: Counter) -> None:
    for _ in range(3 * MOST_WAITING):
        calls.record(of_tool("quote"), 1.0)
        reloads.add(("published",))


def test_amount_of_zero_starts_a_series() -> None:
    reader = InMemoryMetricReader()
    counter = Counter(names.RELOADS, MeterProvider([reader], shutdown_on_exit=False).get_meter("gateway"))

    counter.add(("refused",), 0)
    counter.hand_over()

    [point] = read_all(reader)[names.RELOADS.name][-1]
    assert (point["attributes"], point["value"]) == ({names.OUTCOME: "refused"}, 0)


def test_exemplar_has_the_time_of_its_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    calls = Histogram(CALLS, MeterProvider([reader], shutdown_on_exit=False).get_meter("gateway"))
    monkeypatch.setattr("gateway.telemetry.instruments.time_ns", lambda: 4711)

    calls.record(of_tool("quote"), 1.0, ("a" * 32, "b" * 16))
    calls.hand_over()

    data = reader.get_metrics_data()
    assert data is not None
    point: Any = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points[0]
    assert [(each.time_unix_nano, each.value) for each in point.exemplars] == [(4711, 1.0)]


def test_absent_attribute_is_left_out() -> None:
    assert attributes_of(names.CIRCUITS, (None, "wiki")) == {names.UPSTREAM: "wiki"}


def test_meter_that_measures_nothing_is_no_error() -> None:
    calls = Histogram(CALLS, NoOpMeter("gateway"))

    calls.record(of_tool("quote"), 1.0, ("a" * 32, "b" * 16))
    calls.hand_over()

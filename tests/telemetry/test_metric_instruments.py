"""Instruments: sums, buckets, exemplars, and a bound on labels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry import names
from gateway.telemetry.metric_instruments import (
    OVERFLOW,
    Counter,
    Distribution,
    Histogram,
    gauge_family,
    merge_families,
)
from gateway.telemetry.metrics import pack_families, unpack_families


def only(histogram: Histogram) -> Distribution:
    [point] = histogram.read().points
    assert isinstance(point.value, Distribution)
    return point.value


def test_counter_keeps_sums_apart_by_attributes() -> None:
    counter = Counter(names.RELOADS)

    counter.add(("published",))
    counter.add(("published",), 2)
    counter.add(("refused",))

    found = {point.attributes: point.value for point in counter.read().points}
    assert found == {((names.OUTCOME, "published"),): 3, ((names.OUTCOME, "refused"),): 1}


def test_absent_attribute_is_left_out() -> None:
    counter = Counter(names.CIRCUITS)

    counter.add((None, "wiki"))

    [point] = counter.read().points
    assert point.attributes == ((names.UPSTREAM, "wiki"),)


@pytest.mark.parametrize(
    ("value", "place"),
    [(0.0, 0), (0.01, 0), (0.0100001, 1), (300, 13), (301, 14)],
    ids=["nothing", "on the bound", "above it", "last bound", "beyond"],
)
def test_measurement_goes_into_the_bucket_that_ends_at_or_above_it(value: float, place: int) -> None:
    histogram = Histogram(names.SERVER_DURATION)

    histogram.record((None,) * len(names.SERVER_DURATION.attributes), value)

    assert [index for index, count in enumerate(only(histogram).counts) if count] == [place]


@given(st.lists(st.floats(min_value=0, max_value=1e6)))
def test_every_measurement_is_in_one_bucket(values: list[float]) -> None:
    histogram = Histogram(names.RECORDS_DURATION)

    for value in values:
        histogram.record((), value)

    found = only(histogram) if values else Distribution([0])
    assert found.count == len(values)
    assert found.sum == pytest.approx(sum(values))


def test_latest_measurement_of_a_span_is_the_example_of_its_bucket() -> None:
    histogram = Histogram(names.RECORDS_DURATION)

    histogram.record((), 0.001, trace_id="a" * 32, span_id="b" * 16)
    histogram.record((), 0.002, trace_id="c" * 32, span_id="d" * 16)
    histogram.record((), 0.003)

    examples = only(histogram).exemplars
    assert examples is not None
    assert [(place, each.value, each.trace_id) for place, each in examples.items()] == [(0, 0.002, "c" * 32)]


@pytest.mark.parametrize("kind", [Counter, Histogram])
def test_series_beyond_the_limit_are_counted_together(kind: type[Counter] | type[Histogram]) -> None:
    instrument = kind(names.RELOADS, most=3)

    for index in range(1000):
        if isinstance(instrument, Counter):
            instrument.add((str(index),))
        else:
            instrument.record((str(index),), 1.0)

    points = {point.attributes: point.value for point in instrument.read().points}
    rest = points[OVERFLOW]
    assert len(points) == 4
    assert (rest.count if isinstance(rest, Distribution) else rest) == 997


def test_what_is_read_does_not_change_any_more() -> None:
    histogram = Histogram(names.RECORDS_DURATION)
    histogram.record((), 0.001, trace_id="a" * 32, span_id="b" * 16)
    before = only(histogram)

    histogram.record((), 0.001, trace_id="c" * 32, span_id="d" * 16)

    assert before.count == 1
    assert before.exemplars is not None
    assert before.exemplars[0].trace_id == "a" * 32


def test_metrics_pass_between_processes_unchanged() -> None:
    histogram = Histogram(names.RECORDS_DURATION)
    histogram.record((), 0.001, trace_id="a" * 32, span_id="b" * 16)
    families = [histogram.read(), gauge_family(names.CIRCUITS, [(("tool", None), 2)])]

    assert unpack_families(pack_families(families)) == families


@pytest.mark.parametrize("content", [b"", b"[]", b'{"no.such": []}', b'{"gateway.limits": [1]}', b"\xff"])
def test_what_is_no_metrics_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack_families(content)


def test_points_of_one_metric_stand_together() -> None:
    one, other = Counter(names.RELOADS), Counter(names.RELOADS)
    one.add(("published",))
    other.add(("refused",))

    [family] = merge_families([[one.read()], [other.read()]])

    assert len(family.points) == 2

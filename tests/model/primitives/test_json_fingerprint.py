"""Exact canonical JSON: distinct values have distinct texts, equal values equal texts, and nothing is rounded."""

import json
from math import inf, nan, nextafter
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.model.primitives.canonical_json import MAX_DEPTH, call_id, canonical
from gateway.model.primitives.json_fingerprint import (
    call_identity,
    exact_digest,
    exact_json,
    fingerprint_of,
    is_short,
    reads_exactly,
)

EDGE = 2**53
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-8, 8).map(lambda by: EDGE + by),
    st.integers(-8, 8).map(lambda by: -EDGE + by),
    st.integers(0, 40).map(lambda by: 10**16 + by),
    st.integers(-2, 2).map(lambda by: 10**21 + by * 2**17),
    st.builds(lambda power, by: 2**power + by, st.integers(65, 1100), st.integers(-1, 1)),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(min_value=2.0**53, allow_infinity=False).map(int),
    st.integers(-4, 4).map(lambda by: float(EDGE + by)),
    st.sampled_from([0, -0.0, 0.0, 1, 1.0, 1e16, 1e21, 1.5e300, 5e-324, 0.1, nextafter(0.1, 1)]),
)
SCALARS = NUMBERS | st.none() | st.booleans() | st.text(max_size=6)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Any, Any]:
    """Two values that differ in at most one number, somewhere inside."""
    one, other = draw(NUMBERS), draw(NUMBERS)
    for _ in range(draw(st.integers(0, 3))):
        beside = draw(SCALARS)
        key = draw(st.text(max_size=3))
        if draw(st.booleans()):
            one, other = [beside, one], [beside, other]
        else:
            one, other = {key: one}, {key: other}
    return one, other


def same(one: Any, other: Any) -> bool:
    """Equality of JSON values: numbers by value, and `true` is not a number."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(pairs())
@example((EDGE, EDGE + 1))
@example((EDGE, float(EDGE)))
@example((1e21, 10**21))
@example((1.5e300, int(1.5e300)))
@example((1.5e300, 15 * 10**299))
@example((-(2.0**1000), -(2**1000)))
@example((10**400, 10**400 + 1))
@example((1.2345678901234567e20, 123456789012345670000))
@example(([0], [-0.0]))
def test_distinct_numbers_have_distinct_digests_and_equal_ones_equal_digests(pair: tuple[Any, Any]) -> None:
    one, other = pair

    assert (exact_digest(one) == exact_digest(other)) == same(one, other)
    assert (fingerprint_of("t", one) == fingerprint_of("t", other)) == same(one, other)


@given(VALUES, VALUES)
@example(True, 1)
@example("1", 1)
@example(None, "null")
@example("\\ud800", "\ud800")
@example([], {})
def test_distinct_values_have_distinct_texts(one: Any, other: Any) -> None:
    assert (exact_json(one) == exact_json(other)) == same(one, other)


@given(VALUES)
def test_text_is_json_of_the_same_value(value: Any) -> None:
    assert same(json.loads(exact_json(value)), value)


@given(VALUES)
def test_both_forms_are_one_text_where_nothing_is_rounded(value: Any) -> None:
    identity = call_identity("tool", value)

    assert identity.checksum == call_id("tool", value)
    assert identity.text == exact_json(value)
    assert (identity.exact or identity.checksum) == fingerprint_of("tool", value)
    assert (identity.exact is None) == (canonical(value) == exact_json(value))


def test_only_numbers_that_the_checksum_rounds_have_a_digest_of_their_own() -> None:
    whole, rounded = call_identity("pay", {"account": EDGE}), call_identity("pay", {"account": EDGE + 1})

    assert whole.checksum == rounded.checksum
    assert whole.exact is None
    assert rounded.exact not in (None, whole.checksum)


@pytest.mark.parametrize("number", [1e21, -1.5e300, 1.7976931348623157e308, int(1.5e300), 2**1000])
def test_whole_numbers_that_a_float_holds_are_short_however_large(number: float) -> None:
    assert len(exact_json(number)) < 25
    assert "e+" in exact_json(number)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param({"a": 1, "b": [2]}, MappingProxyType({"b": (2,), "a": 1}), id="other containers and order"),
        pytest.param("\ud83d\ude00", "\U0001f600", id="one character written as a pair"),
        pytest.param({"é": EDGE + 1}, {"é": EDGE + 1}, id="keys above ASCII"),
    ],
)
def test_equal_values_have_one_text(one: Any, other: Any) -> None:
    assert exact_json(one) == exact_json(other)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        pytest.param(inf, ValueError, id="infinity"),
        pytest.param({"a": [nan]}, ValueError, id="not a number"),
        pytest.param({"a": b"bytes"}, TypeError, id="bytes"),
        pytest.param({1: "a"}, TypeError, id="key that is no text"),
        pytest.param({"\U0001f600": 1, "\ud83d\ude00": 2}, ValueError, id="one key written two ways"),
    ],
)
def test_values_without_json_text_are_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        exact_json(value)
    with pytest.raises(error):
        call_identity("tool", value)


def test_depth_has_the_bound_of_the_checksum() -> None:
    deep: Any = EDGE + 1
    for _ in range(MAX_DEPTH):
        deep = [deep]

    assert exact_json(deep).count("[") == MAX_DEPTH
    with pytest.raises(ValueError, match="nested deeper"):
        exact_json([deep])
    with pytest.raises(ValueError, match="nested deeper"):
        exact_json({"a": deep})


@pytest.mark.parametrize(
    ("content", "exact"),
    [
        (b'{"a": 1, "b": "text"}', True),
        (b'{"a": 18446744073709551615, "b": -9223372036854775808}', True),
        (b'{"a": 18446744073709551616}', False),
        (b'{"a": -9223372036854775809}', False),
        (b'[1, {"b": ' + b"9" * 5000 + b"}]", False),
        (b'{"a": "18446744073709551616999"}', True),
        (b'{"a": 0.18446744073709551616999}', True),
        (b"[" * 100_000 + b"1" * 20 + b"]" * 100_000, False),
    ],
    ids=["small", "64 bits", "65 bits", "65 bits below", "digits", "text", "fraction", "deep"],
)
def test_integers_that_would_be_rounded_are_noticed(content: bytes, exact: bool) -> None:
    assert reads_exactly(content) is exact


@pytest.mark.parametrize(
    ("value", "most", "short"), [({"a": 1}, 7, True), ({"a": 1}, 6, False), ({"a": "\ud800"}, 100, False)]
)
def test_length_of_a_text_is_known_before_a_slow_look(value: Any, most: int, short: bool) -> None:
    assert is_short(value, most) is short

"""Trace context and baggage of callers: exactly as specified, or ignored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.trace_context import filter_baggage, format_traceparent, parse_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"


def test_a_trace_context_is_read_and_written_alike() -> None:
    found = parse_traceparent(GOOD, " a=1 , b@c=2 ")

    assert found is not None
    assert (found.trace_id.hex(), found.span_id.hex(), found.is_sampled, found.state) == (
        TRACE,
        SPAN,
        True,
        "a=1,b@c=2",
    )
    assert format_traceparent(found.trace_id, found.span_id, is_sampled=True) == GOOD


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(None, id="nothing"),
        pytest.param(7, id="no-text"),
        pytest.param("", id="empty"),
        pytest.param(GOOD.upper(), id="capitals"),
        pytest.param(f"00-{'0' * 32}-{SPAN}-01", id="no-trace"),
        pytest.param(f"00-{TRACE}-{'0' * 16}-01", id="no-span"),
        pytest.param(f"ff-{TRACE}-{SPAN}-01", id="forbidden-version"),
        pytest.param(f"{GOOD}-more", id="more-in-version-0"),
        pytest.param(f"{GOOD}\n", id="line-break"),
        pytest.param("01-" + "a" * 2_000_000, id="huge"),
    ],
)
def test_what_is_no_trace_context_is_as_good_as_absent(wrong: object) -> None:
    assert parse_traceparent(wrong) is None


def test_later_versions_may_have_more_fields() -> None:
    found = parse_traceparent(f"cc-{TRACE}-{SPAN}-00-what-the-future-brings")

    assert found is not None
    assert not found.is_sampled


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("x" * 1_000_000, id="megabyte"),
        pytest.param(",".join(f"k{number}=v" for number in range(33)), id="too-many"),
        pytest.param("key=a\r\nset-cookie: x=y", id="second-header"),
        pytest.param("Key=v", id="capital"),
        pytest.param(["a=1"], id="list"),
    ],
)
def test_a_malformed_state_is_dropped_as_a_whole(state: object) -> None:
    found = parse_traceparent(GOOD, state)

    assert found is not None
    assert found.state == ""


@given(st.text(max_size=300), st.text(max_size=300))
def test_no_text_breaks_the_readers(parent: str, state: str) -> None:
    parse_traceparent(parent, state)
    passed = filter_baggage(state, frozenset({"a"}))

    assert passed == "" or passed.startswith("a=")
    assert passed.isascii()


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        pytest.param("a=1,b=2", "a=1", id="listed-alone"),
        pytest.param(" a = 1 ;prop=x , a=2", "a=2", id="last-one-counts"),
        pytest.param("b=2", "", id="none-listed"),
        pytest.param('a="quoted"', "", id="quotes"),
        pytest.param("a=1\r\nx: y", "", id="second-header"),
        pytest.param(",".join(["a=1"] * 33), "", id="too-many"),
        pytest.param("a=" + "x" * 8200, "", id="too-large"),
        pytest.param(None, "", id="nothing"),
    ],
)
def test_baggage_is_what_is_listed_and_never_much(given: object, passed: str) -> None:
    assert filter_baggage(given, frozenset({"a"})) == passed


def test_without_a_list_there_is_no_baggage() -> None:
    assert filter_baggage("a=1", frozenset()) == ""

"""What a tool may do with the current span, and how failures are named."""

import asyncio

import pytest
from opentelemetry import baggage, trace
from opentelemetry.trace import StatusCode

from gateway.errors import GatewayError, ToolDownstreamError
from gateway.model.tools.backend import BackendError
from gateway.telemetry import names
from gateway.telemetry.current_span import (
    MOST_ATTRIBUTES,
    MOST_EVENTS,
    CurrentSpan,
    activate,
    find_failure,
    format_places,
    to_values,
)
from gateway.telemetry.gateway_span import KEPT, GatewaySpan


def current_span(*, is_sampled: bool = True, state: str = "") -> CurrentSpan:
    span = GatewaySpan((b"\1" * 16, b"\2" * 8), KEPT, is_sampled=is_sampled)
    span.state = state
    return CurrentSpan(span)


@pytest.mark.parametrize("is_sampled", [True, False])
def test_it_is_the_span_of_the_call(is_sampled: bool) -> None:
    span = current_span(is_sampled=is_sampled, state="vendor=1")
    deactivate = activate(span)
    try:
        found = trace.get_current_span().get_span_context()
    finally:
        deactivate()

    assert (found.trace_id, found.span_id) == (int("01" * 16, 16), int("02" * 8, 16))
    assert (found.trace_flags.sampled, found.trace_state.get("vendor"), found.is_remote) == (is_sampled, "1", False)
    assert not trace.get_current_span().get_span_context().is_valid


def test_baggage_is_that_of_the_call() -> None:
    deactivate = activate(current_span(), {"tenant.tier": "gold"})
    try:
        found = dict(baggage.get_all())
    finally:
        deactivate()

    assert found == {"tenant.tier": "gold"}
    assert not baggage.get_all()


def test_attributes_and_events_are_bounded() -> None:
    span = current_span()
    span.set_attributes({f"shop.{number}": number for number in range(MOST_ATTRIBUTES + 10)})
    span.set_attribute("shop.0", "again")
    for number in range(MOST_EVENTS + 10):
        span.add_event("e", {f"k{key}": key for key in range(MOST_ATTRIBUTES + number)})

    assert len(span.attributes) == MOST_ATTRIBUTES
    assert span.attributes["shop.0"] == "again"
    assert len(span.events) == MOST_EVENTS
    assert {len(each.attributes) for each in span.events} == {MOST_ATTRIBUTES}


def test_a_tool_changes_nothing_that_is_the_gateways() -> None:
    span = current_span()
    span.set_attributes({names.DECISION: "deny", names.TOOL_NAME: "another", names.MCP_METHOD: "x", "gatewayed": 1})
    span.update_name("another")
    span.set_status(StatusCode.ERROR, "broken")
    span.end()

    assert span.attributes == {"gatewayed": 1}
    assert span.is_recording()


def test_nothing_is_recorded_after_the_span_was_exported() -> None:
    span = current_span()
    span.close()
    span.set_attribute("shop.late", 1)
    span.add_event("late")

    assert (span.attributes, span.events, span.is_recording()) == ({}, [], False)


def test_an_exception_is_recorded_without_its_text() -> None:
    span = current_span()
    try:
        raise asyncio.InvalidStateError("secret-of-a-call")
    except asyncio.InvalidStateError as error:
        span.record_exception(error, {"shop.step": 2})

    [event] = span.events
    assert (event.name, event.attributes[names.EXCEPTION_TYPE]) == ("exception", "asyncio.exceptions.InvalidStateError")
    assert event.attributes["shop.step"] == 2
    assert "test_an_exception_is_recorded" in event.attributes[names.EXCEPTION_PLACES]
    assert "secret-of-a-call" not in str(event.attributes)


def late() -> BaseException:
    """Return the error of a deadline, as `asyncio.timeout` makes it."""
    return raised(TimeoutError(), cause=asyncio.CancelledError())


def raised(error: BaseException, *, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


class OwnError(Exception):
    """An exception of a package."""


@pytest.mark.parametrize(
    ("error", "kind", "has_places"),
    [
        (raised(KeyError("x")), "KeyError", True),
        (raised(OwnError()), f"{__name__}.OwnError", True),
        (raised(BackendError("failed", "m"), cause=raised(KeyError("x"))), "KeyError", True),
        (raised(ToolDownstreamError(), cause=raised(BackendError("failed", "m", kind="503"))), "503", False),
        (raised(BackendError("failed", "m", kind="KeyError", places="  File"), cause=KeyError()), "KeyError", True),
        (
            raised(BackendError("unavailable", "m"), cause=late()),
            "timeout",
            True,
        ),
        (raised(BackendError("failed", "m")), "E_BACKEND_FAILED", False),
        (raised(GatewayError("m")), GatewayError.code, False),
    ],
    ids=["plain", "of a package", "behind a backend error", "status", "of a process", "timeout", "no cause", "ours"],
)
def test_a_failure_is_named_after_what_failed_in_the_tool(error: BaseException, kind: str, has_places: bool) -> None:
    found, places = find_failure(error)

    assert (found, bool(places)) == (kind, has_places)


def test_a_chain_of_causes_without_an_end_ends() -> None:
    first, second = BackendError("failed", "a"), BackendError("failed", "b")
    first.__cause__, second.__cause__ = second, first

    assert find_failure(first) == ("E_BACKEND_FAILED", "")


def test_places_are_those_of_the_innermost_frames() -> None:
    def deep(left: int) -> None:
        if not left:
            raise KeyError
        deep(left - 1)

    try:
        deep(40)
    except KeyError as error:
        places = format_places(error).splitlines()

    assert len(places) == 12
    assert all("deep" in each for each in places)


def test_values_that_cannot_be_exported_become_text() -> None:
    found = to_values({"a": 1 << 70, "b": [1, 2], "c": None, "d": 1.5, "e": True, "f": "t", "g": -(1 << 63)})

    assert found == {
        **{"a": str(1 << 70), "b": ["1", "2"], "c": "None", "d": 1.5, "e": True, "f": "t"},
        "g": -(1 << 63),
    }

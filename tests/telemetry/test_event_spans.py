"""Spans from bus events, a failing observer, and a missing library."""

import logging
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from gateway.engine.call import Call
from gateway.model.caller import Principal
from gateway.model.turns.events import (
    DispatchEnd,
    DispatchStart,
    EventBuses,
    IterationEnd,
    IterationStart,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnEnd,
    TurnStart,
)
from gateway.telemetry import names
from gateway.telemetry.event_spans import EventSpans
from gateway.telemetry.export.otlp_transports import grpc_library
from gateway.telemetry.observer import TelemetryObserver
from gateway.telemetry.settings import CaptureSettings, InvalidTelemetry, SamplingSettings, TelemetrySettings
from gateway.telemetry.spans import log_errors
from tests.support.finished_spans import observe

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
LATER = NOON + timedelta(milliseconds=250)


def telemetry(ratio: float = 1.0) -> tuple[TelemetryObserver, InMemorySpanExporter]:
    return observe(TelemetrySettings({}, sampling=SamplingSettings(ratio)))


def test_a_dispatch_and_its_tool_are_spans_of_one_trace() -> None:
    (observer, kept), buses = telemetry(), EventBuses()
    stop = EventSpans(observer).listen(buses)

    buses.emit(TurnStart("t", NOON))
    buses.emit(DispatchStart("d", NOON))
    buses.emit(IterationStart("d", 0, NOON))
    buses.emit(ToolExecutionStart("echo", "t", "d", "c", {}, NOON))
    buses.emit(ToolExecutionEnd("echo", "t", "d", "c", NOON, LATER, 250.0, is_error=True))
    buses.emit(IterationEnd("d", 0, NOON, LATER, 250.0))
    buses.emit(DispatchEnd("d", "nack", 2, NOON, LATER, 250.0, error=ValueError("hunter2")))
    buses.emit(TurnEnd("t", NOON, LATER, 250.0))
    stop()
    stop_turns = EventSpans(observer).listen_to_turns(buses)
    buses.emit(TurnEnd("t", NOON, LATER, 250.0))  # as in another process
    stop_turns()
    buses.emit(TurnEnd("t", NOON, LATER, 250.0))

    spans = kept.get_finished_spans()
    tool, iteration, dispatch, turn, alone = spans
    assert [each.name for each in spans] == ["execute_tool echo", "iteration", "dispatch", "turn", "turn"]
    for span, above in pairwise((tool, iteration, dispatch, turn)):
        assert span.parent is not None
        assert (span.parent.trace_id, span.parent.span_id) == (above.context.trace_id, above.context.span_id)
    assert alone.context == turn.context
    assert alone.attributes == {names.TURN_ID: "t"}
    assert (turn.end_time or 0) - (turn.start_time or 0) == 250_000_000
    assert dispatch.attributes == {
        names.DISPATCH_ID: "d",
        names.DISPATCH_STATUS: "nack",
        names.DISPATCH_ITERATIONS: 2,
        names.ERROR_TYPE: "ValueError",
    }
    assert tool.status.status_code is StatusCode.ERROR


def test_of_what_is_not_sampled_only_errors_are_kept() -> None:
    (observer, kept), buses = telemetry(ratio=0.0), EventBuses()
    EventSpans(observer).listen(buses)

    buses.emit(ToolExecutionEnd("good", "t", "d", "c", NOON, LATER, 250.0, is_error=False))
    buses.emit(ToolExecutionEnd("bad", "t", "d", "c", NOON, LATER, 250.0, is_error=True))

    assert [each.name for each in kept.get_finished_spans()] == ["execute_tool bad"]


def test_an_observer_that_fails_is_on_the_log_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    @log_errors
    def broken() -> int:
        raise ValueError("hunter2")

    with caplog.at_level(logging.ERROR):
        assert broken() is None

    assert "ValueError" in caplog.text
    assert "hunter2" not in caplog.text


def test_broken_values_never_raise_into_the_observed_call(caplog: pytest.LogCaptureFixture) -> None:
    observer, kept = telemetry()
    broken: Any = object()

    with caplog.at_level(logging.ERROR):
        request = observer.start_request("tools/call", Principal("user:ada"), fields={}, peer=broken)
        assert request is not None
        assert observer.start_request("tools/call", Principal("user:ada"), fields=broken) is None
        assert observer.start_call(broken, None, request) is None
        call = observer.start_call(Call("id", "echo", {}, broken, "desk", "r"), None, request)
        assert call is not None
        call.end(broken)
        call.end_with_error(ValueError("hunter2"))
        request.end()

    assert [each.getMessage().rpartition(" ")[2] for each in caplog.records] == [
        "TelemetryObserver.start_request",
        "TelemetryObserver.start_call",
        "CallSpan.end",
        "CallSpan.end_with_error",
        "RequestSpan.end",
    ]
    assert "hunter2" not in caplog.text
    assert kept.get_finished_spans() == ()


@pytest.mark.parametrize(
    ("ours", "theirs", "both"),
    [
        (CaptureSettings("values", "values"), CaptureSettings("keys", "none"), CaptureSettings("keys", "none")),
        (CaptureSettings("none", "none"), CaptureSettings("values", "values"), CaptureSettings("none", "none")),
        (CaptureSettings("keys", "values"), CaptureSettings("values", "none"), CaptureSettings("keys", "none")),
    ],
)
def test_capture_is_only_ever_tightened(ours: CaptureSettings, theirs: CaptureSettings, both: CaptureSettings) -> None:
    assert ours.tighten(theirs) == theirs.tighten(ours) == both


def test_grpc_without_its_library_states_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)

    with pytest.raises(InvalidTelemetry) as raised:
        grpc_library()

    assert "agent-gateway[grpc]" in str(raised.value.help)

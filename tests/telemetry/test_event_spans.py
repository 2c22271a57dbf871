"""Spans of what is told on the buses; an observer that fails; a library that is not there."""

import logging
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gateway.audit.contents import ContentKey
from gateway.core.events import Buses, DispatchEnd, DispatchStart, ToolExecutionEnd, TurnEnd, TurnStart
from gateway.governance.principals import Principal
from gateway.serving.current import ServedCall
from gateway.telemetry import names
from gateway.telemetry.events import EventSpans
from gateway.telemetry.exporting import Queue
from gateway.telemetry.observing import Telemetry
from gateway.telemetry.otlp_grpc import grpc_library
from gateway.telemetry.settings import Batching, Capture, Sampling, Settings, TelemetryUnusable
from gateway.telemetry.silence import silently

KEY = ContentKey(bytes(range(160, 192)))
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
LATER = NOON + timedelta(milliseconds=250)


def telemetry(ratio: float = 1.0) -> Telemetry:
    settings = Settings({}, sampling=Sampling(ratio))
    return Telemetry(settings, spans=Queue(Batching()), logs=None, hashes=KEY)


def sent(observer: Telemetry) -> list[Any]:
    assert observer.spans is not None
    return [Span.FromString(each) for each in observer.spans.take()]


def test_a_dispatch_and_its_tool_are_spans_of_one_trace() -> None:
    observer, buses = telemetry(), Buses()
    stop = EventSpans(observer).listen(buses)

    buses.emit(TurnStart("t", NOON))
    buses.emit(DispatchStart("d", NOON))
    buses.emit(ToolExecutionEnd("echo", "t", "d", "c", NOON, LATER, 250.0, is_error=True))
    buses.emit(DispatchEnd("d", "nack", 2, NOON, LATER, 250.0, error=ValueError("hunter2")))
    buses.emit(TurnEnd("t", NOON, LATER, 250.0))
    stop()
    buses.emit(TurnEnd("t", NOON, LATER, 250.0))

    tool, dispatch, turn = sent(observer)
    assert [each.name for each in (tool, dispatch, turn)] == ["execute_tool echo", "dispatch", "turn"]
    assert (tool.trace_id, tool.parent_span_id) == (dispatch.trace_id, dispatch.span_id)
    assert turn.end_time_unix_nano - turn.start_time_unix_nano == 250_000_000
    told = {each.key: each.value.string_value or each.value.int_value for each in dispatch.attributes}
    assert told == {
        names.DISPATCH_ID: "d",
        names.DISPATCH_STATUS: "nack",
        names.DISPATCH_ITERATIONS: 2,
        names.ERROR_TYPE: "ValueError",
    }
    assert tool.status.code == 2


def test_of_what_is_not_sampled_only_errors_are_kept() -> None:
    observer, buses = telemetry(ratio=0.0), Buses()
    EventSpans(observer).listen(buses)

    buses.emit(ToolExecutionEnd("good", "t", "d", "c", NOON, LATER, 250.0, is_error=False))
    buses.emit(ToolExecutionEnd("bad", "t", "d", "c", NOON, LATER, 250.0, is_error=True))

    assert [each.name for each in sent(observer)] == ["execute_tool bad"]


def test_an_observer_that_fails_is_on_the_log_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    @silently
    def broken() -> int:
        raise ValueError("hunter2")

    with caplog.at_level(logging.ERROR):
        assert broken() is None

    assert "ValueError" in caplog.text
    assert "hunter2" not in caplog.text


def test_nothing_that_is_wrong_with_a_call_reaches_whoever_is_observed(caplog: pytest.LogCaptureFixture) -> None:
    observer = telemetry()
    broken: Any = object()

    with caplog.at_level(logging.ERROR):
        request = observer.received("tools/call", Principal("user:ada"), fields={}, peer=broken)
        assert request is not None
        assert observer.received("tools/call", Principal("user:ada"), fields=broken) is None
        assert observer.called(broken, None, request) is None
        call = observer.called(ServedCall("id", "echo", {}, broken, "desk", "r"), None, request)
        assert call is not None
        call.settled(broken)
        call.failed(ValueError("hunter2"))
        request.answered()

    assert [each.getMessage().rpartition(" ")[2] for each in caplog.records] == [
        "Telemetry.received",
        "Telemetry.called",
        "CallSpan.settled",
        "CallSpan.failed",
        "RequestSpan.answered",
    ]
    assert "hunter2" not in caplog.text
    assert sent(observer) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "both"),
    [
        (Capture("values", "values"), Capture("keys", "none"), Capture("keys", "none")),
        (Capture("none", "none"), Capture("values", "values"), Capture("none", "none")),
        (Capture("keys", "values"), Capture("values", "none"), Capture("keys", "none")),
    ],
)
def test_capture_is_only_ever_tightened(ours: Capture, theirs: Capture, both: Capture) -> None:
    assert ours.tightened(theirs) == theirs.tightened(ours) == both


def test_grpc_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)

    with pytest.raises(TelemetryUnusable) as raised:
        grpc_library()

    assert "agent-gateway[grpc]" in str(raised.value.help)

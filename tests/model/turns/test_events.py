"""Events are plain data, and no listener can change the outcome: not by raising, waiting, leaving or rewriting."""

import asyncio
import logging
from collections.abc import Generator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from gateway.errors import GatewayError
from gateway.model.schema.schema import Schema
from gateway.model.turns.events import (
    DispatchEnd,
    DispatchStart,
    ErrorEvent,
    EventBus,
    EventBuses,
    GenerationStats,
    IterationEnd,
    IterationStart,
    LogEvent,
    MessageEvent,
    ThoughtEvent,
    ToolCallEvent,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnEnd,
    TurnEvent,
    TurnGateClosed,
    TurnGateOpen,
    TurnStart,
    WarningEvent,
    elapsed_milliseconds,
    now,
)
from gateway.model.turns.turn_gate import TurnGate

T0 = datetime(2026, 1, 1, tzinfo=UTC)
T1 = T0 + timedelta(milliseconds=250)
ERROR = GatewayError("broken")
STAMPS = {"started_at": T0, "ended_at": T1, "duration_ms": 250.0}

# Each event as published without its optional fields, and those fields.
PUBLISHED: list[tuple[TurnEvent, str, dict[str, Any], set[str]]] = [
    (
        MessageEvent("m1", T0, T1, "hello", "lo", False),
        "message",
        {"id": "m1", "created_at": T0, "updated_at": T1, "full": "hello", "a_delta": "lo", "is_complete": False},
        {"completed_at"},
    ),
    (
        ThoughtEvent("t1", T0, T1, "hm", "m", False),
        "thought",
        {"id": "t1", "created_at": T0, "updated_at": T1, "full": "hm", "a_delta": "m", "is_complete": False},
        {"completed_at"},
    ),
    (
        ToolCallEvent("c1", "", None, "", T0, T1, False, False),
        "toolCall",
        {
            "id": "c1",
            "tool": "",
            "args": None,
            "checksum": "",
            "created_at": T0,
            "updated_at": T1,
            "is_complete": False,
            "is_error": False,
        },
        {"results", "completed_at"},
    ),
    (TurnStart("turn", T0), "turnStart", {"turn_id": "turn", "started_at": T0}, set()),
    (TurnEnd("turn", T0, T1, 250.0), "turnEnd", {"turn_id": "turn", **STAMPS}, set()),
    (DispatchStart("d", T0), "dispatchStart", {"dispatch_id": "d", "started_at": T0}, set()),
    (
        DispatchEnd("d", "ack", 0, T0, T1, 250.0),
        "dispatchEnd",
        {"dispatch_id": "d", "status": "ack", "iterations": 0, **STAMPS},
        {"error"},
    ),
    (
        IterationStart("d", 0, T0),
        "iterationStart",
        {"dispatch_id": "d", "iteration": 0, "started_at": T0},
        set(),
    ),
    (IterationEnd("d", 0, T0, T1, 250.0), "iterationEnd", {"dispatch_id": "d", "iteration": 0, **STAMPS}, set()),
    (
        ToolExecutionStart("echo", "turn", "d", "c0ffee", {}, T0),
        "toolExecutionStart",
        {
            "tool_name": "echo",
            "turn_id": "turn",
            "dispatch_id": "d",
            "call_id": "c0ffee",
            "args": {},
            "started_at": T0,
        },
        set(),
    ),
    (
        ToolExecutionEnd("echo", "turn", "d", "c0ffee", T0, T1, 250.0, False),
        "toolExecutionEnd",
        {
            "tool_name": "echo",
            "turn_id": "turn",
            "dispatch_id": "d",
            "call_id": "c0ffee",
            "is_error": False,
            **STAMPS,
        },
        set(),
    ),
    (
        TurnGateClosed("g", "turn", "timeout", T1),
        "turnGateClosed",
        {"gate_id": "g", "turn_id": "turn", "result": "timeout", "settled_at": T1},
        set(),
    ),
    (
        LogEvent("d", 0, T0, "warn", "slow", "took long"),
        "log",
        {
            "dispatch_id": "d",
            "iteration": 0,
            "emitted_at": T0,
            "level": "warn",
            "kind": "slow",
            "message": "took long",
        },
        {"payload"},
    ),
    (
        WarningEvent(T0, "tokens", "token-estimation-degraded", "no vocabulary"),
        "warning",
        {"emitted_at": T0, "source": "tokens", "kind": "token-estimation-degraded", "message": "no vocabulary"},
        {"error", "payload", "dispatch_id", "iteration"},
    ),
    (
        GenerationStats("d", 0, T0, {"outputTokens": 7}),
        "generationStats",
        {"dispatch_id": "d", "iteration": 0, "emitted_at": T0, "stats": {"outputTokens": 7}},
        set(),
    ),
    (ErrorEvent(ERROR), "error", {"error": ERROR}, set()),
]


@pytest.mark.parametrize(("event", "name", "published", "optional"), PUBLISHED, ids=[row[1] for row in PUBLISHED])
def test_event_publishes_its_fields_under_its_name(
    event: TurnEvent, name: str, published: dict[str, Any], optional: set[str]
) -> None:
    assert event.name == name
    assert event.to_dict() == published
    assert {field.name for field in fields(event)} == published.keys() | optional


def test_optional_fields_are_published_once_they_are_set() -> None:
    ended = DispatchEnd("d", "nack", 2, T0, T1, 250.0, ERROR)
    warned = WarningEvent(T0, "context", "kind", "text", dispatch_id="d", iteration=0)

    assert ended.to_dict()["error"] is ERROR
    assert (warned.to_dict()["dispatch_id"], warned.to_dict()["iteration"]) == ("d", 0)


def test_only_product_output_is_functional() -> None:
    functional = {event.name for event, *_ in PUBLISHED if event.functional}

    assert functional == {"message", "thought", "toolCall"}
    assert not TurnGateOpen.functional


@pytest.mark.anyio
async def test_open_gate_is_published_as_data_and_not_as_an_object() -> None:
    raw = {"id": "g", "reason": "pay?", "payload": {"amount": 5}, "created_at": T0}
    plain = TurnGate(raw, "turn", emit=lambda event: None)
    typed = TurnGate({**raw, "schema": Schema({"type": "boolean"})}, "turn", emit=lambda event: None)
    shown = {"gate_id": "g", "turn_id": "turn", "reason": "pay?", "payload": {"amount": 5}, "created_at": T0}

    assert TurnGateOpen.name == "turnGateOpen"
    assert TurnGateOpen(plain).to_dict() == shown
    assert TurnGateOpen(typed).to_dict() == {**shown, "schema": {"type": "boolean"}}


def test_moments_are_aware_and_durations_are_milliseconds() -> None:
    assert now().tzinfo is UTC
    assert elapsed_milliseconds(T0, T1) == 250.0


def test_listeners_of_the_name_are_called_before_those_of_all_events() -> None:
    bus, seen = EventBus(), list[str]()
    bus.on("*", lambda event: seen.append("all 1"))
    bus.on("turnStart", lambda event: seen.append("named 1"))
    bus.on("turnStart", lambda event: seen.append("named 2"))
    bus.on("*", lambda event: seen.append("all 2"))
    bus.on("turnEnd", lambda event: seen.append("other"))

    bus.emit(TurnStart("turn", T0))

    assert seen == ["named 1", "named 2", "all 1", "all 2"]


def test_unsubscribing_twice_takes_away_one_subscription_only() -> None:
    bus, seen = EventBus(), list[TurnEvent]()
    first = bus.on("turnStart", seen.append)
    bus.on("turnStart", seen.append)

    first()
    first()
    bus.emit(TurnStart("turn", T0))

    assert len(seen) == 1


def test_bus_listens_only_while_it_has_subscribers() -> None:
    bus = EventBus()
    assert not bus.has_listener("turnStart")

    leave_name = bus.on("turnStart", print)
    assert (bus.has_listener("turnStart"), bus.has_listener("turnEnd")) == (True, False)

    leave_all = bus.on("*", print)
    leave_name()
    assert (bus.has_listener("turnStart"), bus.has_listener("turnEnd")) == (True, True)

    leave_all()
    assert not bus.has_listener("turnStart")


def test_event_without_listeners_is_dropped() -> None:
    EventBus().emit(TurnStart("turn", T0))


def test_listener_that_leaves_during_delivery_does_not_disturb_the_others() -> None:
    bus, seen = EventBus(), list[str]()

    def once(event: TurnEvent) -> None:
        seen.append("first")
        leave()

    leave = bus.on("turnStart", once)
    bus.on("turnStart", lambda event: seen.append("second"))

    bus.emit(TurnStart("turn", T0))
    bus.emit(TurnStart("turn", T0))

    assert seen == ["first", "second", "second"]


@pytest.mark.parametrize("listener", [None, "print", 5], ids=["none", "text", "number"])
def test_listener_that_cannot_be_called_is_refused_at_once(listener: Any) -> None:
    bus = EventBus()

    with pytest.raises(TypeError, match="a listener must be a function of one event"):
        bus.on("turnStart", listener)

    assert not bus.has_listener("turnStart")


@pytest.mark.parametrize("raised", [ValueError("mine"), asyncio.CancelledError()], ids=["error", "stray-cancellation"])
def test_listener_that_raises_is_logged_and_passed_over(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    bus, seen = EventBus(), list[TurnEvent]()

    def fail(event: TurnEvent) -> None:
        raise raised

    bus.on("turnStart", fail)
    bus.on("turnStart", seen.append)
    with caplog.at_level(logging.ERROR, logger="gateway.model.turns.events"):
        bus.emit(TurnStart("turn", T0))

    assert len(seen) == 1
    assert [record.getMessage() for record in caplog.records] == ["a listener of 'turnStart' failed"]
    assert caplog.records[0].exc_info is not None
    assert caplog.records[0].exc_info[1] is raised


def test_interrupt_of_the_process_is_not_held_up_by_a_bus() -> None:
    bus = EventBus()

    def interrupted(event: TurnEvent) -> None:
        raise KeyboardInterrupt

    bus.on("turnStart", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bus.emit(TurnStart("turn", T0))


@pytest.mark.anyio
async def test_async_listener_runs_in_the_background_while_emit_returns() -> None:
    bus, allowed, done = EventBus(), anyio.Event(), anyio.Event()

    async def slow(event: TurnEvent) -> None:
        await allowed.wait()
        done.set()

    bus.on("turnStart", slow)
    bus.emit(TurnStart("turn", T0))
    assert not done.is_set()

    allowed.set()
    with anyio.fail_after(5):
        await done.wait()


@pytest.mark.anyio
async def test_async_listener_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    bus, entered = EventBus(), anyio.Event()

    async def fail(event: TurnEvent) -> None:
        entered.set()
        raise ValueError("mine")

    bus.on("turnStart", fail)
    bus.emit(TurnStart("turn", T0))
    with anyio.fail_after(5):
        await entered.wait()
        while not caplog.records:
            await checkpoint()

    assert [record.getMessage() for record in caplog.records] == ["a listener of 'turnStart' failed"]


@pytest.mark.anyio
async def test_async_listener_that_is_cancelled_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    bus, future = EventBus(), asyncio.get_running_loop().create_future()
    bus.on("turnStart", lambda event: future)

    bus.emit(TurnStart("turn", T0))
    future.cancel()
    await checkpoint()

    assert caplog.records == []


class Later:
    """Awaitable without being a coroutine."""

    def __await__(self) -> Generator[Any, None, None]:
        yield


async def answering_later(event: TurnEvent) -> None:
    raise AssertionError("never run")


@pytest.mark.parametrize("listener", [answering_later, lambda event: Later()], ids=["coroutine", "awaitable"])
def test_async_listener_without_a_running_loop_is_logged_and_not_run(
    listener: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bus, seen = EventBus(), list[TurnEvent]()
    bus.on("turnStart", listener)
    bus.on("turnStart", seen.append)

    bus.emit(TurnStart("turn", T0))

    assert len(seen) == 1
    assert "no running event loop" in caplog.text


def test_buses_carry_each_event_on_the_bus_it_belongs_to() -> None:
    buses, functional, observed = EventBuses(), list[str](), list[str]()
    buses.functional.on("*", lambda event: functional.append(event.name))
    buses.observability.on("*", lambda event: observed.append(event.name))

    for event, *_ in PUBLISHED:
        buses.emit(event)

    assert functional == ["message", "thought", "toolCall"]
    assert observed == [event.name for event, *_ in PUBLISHED if not event.functional]


def test_buses_keep_the_ones_they_are_given() -> None:
    functional, observability = EventBus(), EventBus()
    buses = EventBuses(functional, observability)

    assert buses.functional is functional
    assert buses.observability is observability


@pytest.mark.parametrize("listens_to", ["turnStart", "error", "*"])
def test_buses_know_whether_one_of_several_events_has_a_listener(listens_to: str) -> None:
    names = frozenset({"*", "turnStart", "error"})
    for of in ("functional", "observability"):
        buses = EventBuses()
        assert not buses.has_any_listener(names)
        leave = getattr(buses, of).on(listens_to, lambda event: None)
        assert buses.has_any_listener(names)
        assert not buses.has_any_listener(frozenset({"log"}))
        leave()
        assert not buses.has_any_listener(names)

"""A gate is settled exactly once, with one of four outcomes, and the guarded action waits for that."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

import anyio
import pytest
from anyio.lowlevel import checkpoint
from pydantic import BaseModel

from gateway.artifacts.spool_stores import InMemoryStore
from gateway.engine.turn_pipeline.dispatch_loop import dispatch, in_memory_callbacks
from gateway.engine.turn_pipeline.tool_execution import ProposedCall, settle_call
from gateway.errors import (
    GatewayError,
    InvalidInitialTurnGateValue,
    InvalidTurnGateResolution,
    LlmExecutionGateNotSupported,
    TurnGateAborted,
    TurnGateTimeout,
    ValidationException,
)
from gateway.model.primitives.concurrency import AbortController
from gateway.model.primitives.deadline import Deadline, reset_deadline, set_deadline
from gateway.model.schema.schema import Schema
from gateway.model.tools.tool import Tool
from gateway.model.tools.tool_call import ToolCall
from gateway.model.tools.tool_registry import ToolRegistry
from gateway.model.turns.context import DispatchContext, TurnContext
from gateway.model.turns.events import EventBuses, TurnEvent, TurnGateClosed, TurnGateOpen
from gateway.model.turns.progress_reporter import Reporter
from gateway.model.turns.turn_gate import MAX_TIMEOUT_MS, TurnGate, open_gate

pytestmark = pytest.mark.anyio

RAW: dict[str, Any] = {"id": "g1", "reason": "pay?", "payload": {"amount": 5}}


class Opened:
    """A gate with a waiting task, its emitted events, and the result of the wait."""

    def __init__(self, *, listener: Callable[[TurnGate], object] = lambda gate: None, **raw: Any) -> None:
        self.controller = AbortController()
        self.events: list[TurnEvent] = []
        self._listener = listener
        self.task = asyncio.ensure_future(
            open_gate({**RAW, **raw}, "turn-1", signal=self.controller.signal, emit=self._emit)
        )

    def _emit(self, event: TurnEvent) -> None:
        self.events.append(event)
        if isinstance(event, TurnGateOpen):
            self._listener(event.gate)

    async def gate(self) -> TurnGate:
        with anyio.fail_after(5):
            while not self.events:
                await checkpoint()
        assert isinstance(self.events[0], TurnGateOpen)
        return self.events[0].gate

    async def outcome(self) -> Any:
        """The value or the exception that the waiting task got."""
        with anyio.fail_after(5):
            settled = await asyncio.gather(self.task, return_exceptions=True)
        return settled[0]

    @property
    def results(self) -> list[str]:
        return [event.result for event in self.events if isinstance(event, TurnGateClosed)]

    @property
    def listeners_left(self) -> int:
        return len(self.controller.signal._listeners)


def timers() -> list[Any]:
    """Timers that the running loop still holds and that are not cancelled."""
    loop: Any = asyncio.get_running_loop()
    return [timer for timer in loop._scheduled if not timer.cancelled()]


class Falsy(Exception):
    def __bool__(self) -> bool:
        return False


async def test_resolved_gate_answers_the_value_and_closes_as_resolved() -> None:
    opened = Opened()
    gate = await opened.gate()

    gate.resolve({"approved": True})

    assert await opened.outcome() == {"approved": True}
    assert opened.results == ["resolved"]


@pytest.mark.parametrize("error", [ValueError("no"), Falsy("no"), KeyError("no")], ids=["plain", "falsy", "key"])
async def test_rejected_gate_raises_that_very_error(error: Exception) -> None:
    opened = Opened()
    gate = await opened.gate()

    gate.reject(error)

    assert await opened.outcome() is error
    assert opened.results == ["rejected"]


async def test_rejection_with_stop_iteration_reaches_the_awaiter_as_python_allows() -> None:
    opened = Opened()
    error = StopIteration("no")
    (await opened.gate()).reject(error)

    outcome = await opened.outcome()

    assert isinstance(outcome, RuntimeError)
    assert outcome.__cause__ is error
    assert opened.results == ["rejected"]


@pytest.mark.parametrize("error", ["no", None, ValueError, 0], ids=["text", "none", "class", "zero"])
async def test_rejecting_with_anything_but_an_exception_leaves_the_gate_open(error: Any) -> None:
    opened = Opened()
    gate = await opened.gate()

    with pytest.raises(TypeError, match="rejected with an exception"):
        gate.reject(error)

    assert not gate.is_settled
    gate.resolve(1)
    assert await opened.outcome() == 1


async def test_aborting_one_gate_leaves_the_turn_running() -> None:
    opened = Opened()
    (await opened.gate()).abort()

    outcome = await opened.outcome()

    assert isinstance(outcome, TurnGateAborted)
    assert (outcome.code, outcome.status, outcome.fatal) == ("E_TURN_GATE_ABORTED", 499, False)
    assert opened.results == ["aborted"]
    assert not opened.controller.signal.aborted


async def test_abort_of_the_turn_aborts_its_gates() -> None:
    opened = Opened()
    await opened.gate()

    opened.controller.abort("client gone")

    assert isinstance(await opened.outcome(), TurnGateAborted)
    assert opened.results == ["aborted"]


async def test_gate_of_an_aborted_turn_is_seen_to_open_and_then_aborted() -> None:
    controller, events = AbortController(), list[TurnEvent]()
    controller.abort()

    with pytest.raises(TurnGateAborted):
        await open_gate({**RAW, "timeout": 60_000}, "turn-1", signal=controller.signal, emit=events.append)

    assert [event.name for event in events] == ["turnGateOpen", "turnGateClosed"]
    assert timers() == []


async def test_unsettled_gate_times_out() -> None:
    opened = Opened(timeout=1)

    outcome = await opened.outcome()

    assert isinstance(outcome, TurnGateTimeout)
    assert (outcome.code, outcome.status, outcome.fatal) == ("E_TURN_GATE_TIMEOUT", 408, False)
    assert opened.results == ["timeout"]


async def test_late_answer_finds_a_settled_gate_and_changes_nothing() -> None:
    opened = Opened(timeout=1)
    gate = await opened.gate()
    await opened.outcome()

    gate.resolve("late")

    assert opened.results == ["timeout"]


SETTLEMENTS: dict[str, Callable[[TurnGate], None]] = {
    "resolved": lambda gate: gate.resolve(True),
    "rejected": lambda gate: gate.reject(ValueError("no")),
    "aborted": lambda gate: gate.abort(),
}


@pytest.mark.parametrize("later", SETTLEMENTS, ids=lambda name: f"then-{name}")
@pytest.mark.parametrize("first", SETTLEMENTS)
async def test_only_the_first_settlement_counts(first: str, later: str) -> None:
    opened = Opened(schema=Schema({"type": "boolean"}))
    gate = await opened.gate()

    SETTLEMENTS[first](gate)
    assert gate.is_settled
    SETTLEMENTS[later](gate)
    await opened.outcome()
    SETTLEMENTS[later](gate)

    assert opened.results == [first]


async def test_settled_gate_validates_nothing_any_more() -> None:
    opened = Opened(schema=Schema({"type": "boolean"}))
    gate = await opened.gate()
    gate.abort()

    gate.resolve("not a boolean")
    gate.reject("not an exception")  # type: ignore[arg-type]  # the point of this test

    assert opened.results == ["aborted"]
    await opened.outcome()


class Approval(BaseModel):
    approved: bool
    limit: int = 10


def yes_only(value: Any) -> str:
    if value != "yes":
        raise RuntimeError("say yes")
    return "YES"


class Duck:
    def coerce(self, value: Any) -> Any:
        return yes_only(value)


ACCEPTED = [
    pytest.param(Schema({"type": "boolean"}), "true", True, id="text-to-boolean"),
    pytest.param(Schema({"type": "integer"}), "5", 5, id="text-to-integer"),
    pytest.param(
        Schema({"type": "object", "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "default": 3}}}),
        {"ok": "false"},
        {"ok": False, "n": 3},
        id="nested-with-default",
    ),
    pytest.param(Approval, {"approved": "true"}, Approval(approved=True), id="pydantic-class"),
    pytest.param(yes_only, "yes", "YES", id="function"),
    pytest.param(Duck(), "yes", "YES", id="look-alike"),
    pytest.param(None, "true", "true", id="no-schema"),
    pytest.param(None, None, None, id="nothing-at-all"),
]


@pytest.mark.parametrize(("schema", "value", "expected"), ACCEPTED)
async def test_resolution_is_coerced_by_the_schema(schema: Any, value: Any, expected: Any) -> None:
    opened = Opened(schema=schema)

    (await opened.gate()).resolve(value)

    assert await opened.outcome() == expected


REFUSED = [
    pytest.param(Schema({"type": "boolean"}), "perhaps", id="schema"),
    pytest.param(Schema({"type": "object", "required": ["ok"]}), {}, id="missing-field"),
    pytest.param(Approval, {"approved": "perhaps"}, id="pydantic-class"),
    pytest.param(yes_only, "no", id="function"),
    pytest.param(Schema({"type": "boolean"}), object(), id="not-json"),
    pytest.param(Schema({"type": "boolean"}), None, id="nothing"),
]


@pytest.mark.parametrize(("schema", "value"), REFUSED)
async def test_value_that_fails_the_schema_is_the_resolvers_problem(schema: Any, value: Any) -> None:
    opened = Opened(schema=schema)
    gate = await opened.gate()

    with pytest.raises(InvalidTurnGateResolution) as raised:
        gate.resolve(value)

    error = raised.value
    assert (error.code, error.status, error.fatal) == ("E_INVALID_TURN_GATE_RESOLUTION", 500, True)
    assert error.cause is not None
    await checkpoint()
    assert not gate.is_settled
    assert not opened.task.done()
    assert opened.results == []
    gate.abort()
    await opened.outcome()


async def test_gate_can_be_resolved_after_a_failed_attempt() -> None:
    opened = Opened(schema=Schema({"type": "boolean"}))
    gate = await opened.gate()
    with pytest.raises(InvalidTurnGateResolution):
        gate.resolve("perhaps")

    gate.resolve("false")

    assert await opened.outcome() is False
    assert opened.results == ["resolved"]


class AnswersLater:
    """Not recognisable as async before it is called."""

    def __call__(self, value: Any) -> Any:
        return asyncio.get_running_loop().create_future()


class AnswersWithACoroutine:
    def coerce(self, value: Any) -> Any:
        async def accept() -> Any:
            return value

        return accept()


@pytest.mark.parametrize("schema", [AnswersLater(), AnswersWithACoroutine()], ids=["future", "coroutine"])
async def test_schema_that_answers_later_never_lets_a_value_through(schema: Any) -> None:
    opened = Opened(schema=schema)
    gate = await opened.gate()

    with pytest.raises(InvalidTurnGateResolution, match="at once"):
        gate.resolve(True)

    assert not gate.is_settled
    gate.abort()
    await opened.outcome()


async def test_open_event_comes_before_a_settlement_and_carries_the_live_gate() -> None:
    states: list[bool] = []
    opened = Opened(listener=lambda gate: states.append(gate.is_settled))

    gate = await opened.gate()

    assert states == [False]
    assert (gate.id, gate.turn_id, gate.reason, gate.payload) == ("g1", "turn-1", "pay?", {"amount": 5})
    assert gate.created_at.tzinfo is UTC
    assert repr(gate) == "TurnGate('g1', settled=False)"
    gate.resolve()
    await opened.outcome()


@pytest.mark.parametrize(("result", "settle"), SETTLEMENTS.items(), ids=list(SETTLEMENTS))
async def test_listener_may_settle_the_gate_right_there(result: str, settle: Callable[[TurnGate], None]) -> None:
    opened = Opened(listener=settle, timeout=60_000)

    await opened.outcome()

    assert [event.name for event in opened.events] == ["turnGateOpen", "turnGateClosed"]
    assert opened.results == [result]
    assert timers() == []
    assert opened.listeners_left == 0


async def test_every_observer_sees_the_gate_open_before_it_closes() -> None:
    buses, first, second = EventBuses(), list[str](), list[str]()
    buses.observability.on("turnGateOpen", lambda event: event.gate.resolve(True))
    buses.observability.on("*", lambda event: first.append(event.name))
    buses.observability.on("*", lambda event: second.append(event.name))

    await open_gate(RAW, "turn-1", signal=AbortController().signal, emit=buses.emit)

    assert first == second == ["turnGateOpen", "turnGateClosed"]


async def test_closing_time_is_the_moment_of_settlement() -> None:
    opened = Opened()
    gate = await opened.gate()
    gate.resolve()
    await opened.outcome()

    closed = opened.events[-1]
    assert isinstance(closed, TurnGateClosed)
    assert closed.settled_at >= gate.created_at
    assert (closed.gate_id, closed.turn_id) == ("g1", "turn-1")


@pytest.mark.parametrize("settle", SETTLEMENTS.values(), ids=list(SETTLEMENTS))
async def test_settling_leaves_neither_timer_nor_abort_listener(settle: Callable[[TurnGate], None]) -> None:
    opened = Opened(timeout=60_000)
    gate = await opened.gate()
    assert len(timers()) == 1
    assert opened.listeners_left == 1

    settle(gate)
    await opened.outcome()

    assert timers() == []
    assert opened.listeners_left == 0
    opened.controller.abort()
    assert len(opened.results) == 1


async def test_timeout_leaves_no_abort_listener() -> None:
    opened = Opened(timeout=1)

    await opened.outcome()

    assert opened.listeners_left == 0


async def test_cancelled_awaiter_aborts_the_gate() -> None:
    opened = Opened(timeout=60_000)
    gate = await opened.gate()

    opened.task.cancel()
    outcome = await opened.outcome()

    assert isinstance(outcome, asyncio.CancelledError)
    assert gate.is_settled
    assert opened.results == ["aborted"]
    assert timers() == []
    assert opened.listeners_left == 0


async def test_gate_is_read_only_for_its_holders() -> None:
    opened = Opened()
    gate = await opened.gate()

    with pytest.raises(AttributeError):
        gate.turn_id = "another"
    gate.payload["amount"] = 5_000_000

    assert gate.payload == {"amount": 5}
    gate.resolve()
    await opened.outcome()


async def test_payload_is_isolated_from_the_opener_of_the_gate() -> None:
    payload = {"amount": 5}
    opened = Opened(payload=payload)
    gate = await opened.gate()

    payload["amount"] = 5_000_000

    assert gate.payload == {"amount": 5}
    gate.resolve()
    await opened.outcome()


@pytest.mark.parametrize("payload", [0, "", False, [], {}, 0.0], ids=repr)
async def test_falsy_payload_is_a_payload(payload: Any) -> None:
    opened = Opened(payload=payload)
    gate = await opened.gate()

    assert gate.payload == payload
    gate.resolve()
    await opened.outcome()


async def test_description_shows_what_an_approver_needs() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)

    def described(schema: Any) -> dict[str, Any]:
        gate = TurnGate({**RAW, "schema": schema, "created_at": moment}, "turn-1", emit=lambda event: None)
        return gate.describe()

    plain = {"gate_id": "g1", "turn_id": "turn-1", "reason": "pay?", "payload": {"amount": 5}, "created_at": moment}
    assert described(None) == plain
    assert described(yes_only) == plain
    assert described(Schema({"type": "boolean"})) == {**plain, "schema": {"type": "boolean"}}
    assert described(Approval) == {**plain, "schema": Approval.model_json_schema()}


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"inner": value}
    return value


async def async_schema(value: Any) -> Any:
    return value


class OnlyChecks:
    def check(self, value: Any) -> Any:
        return value


BAD_INPUT: list[tuple[str, Any, list[str]]] = [
    ("not-a-mapping", ["g1"], []),
    ("nothing", None, []),
    ("empty", {}, ["id", "reason", "payload"]),
    ("no-id", {"reason": "r", "payload": {}}, ["id"]),
    ("empty-id", {**RAW, "id": ""}, ["id"]),
    ("numeric-id", {**RAW, "id": 7}, ["id"]),
    ("no-reason", {"id": "g", "payload": {}}, ["reason"]),
    ("empty-reason", {**RAW, "reason": ""}, ["reason"]),
    ("no-payload", {"id": "g", "reason": "r"}, ["payload"]),
    ("payload-none", {**RAW, "payload": None}, ["payload"]),
    ("payload-too-deep", {**RAW, "payload": nested(10_000)}, ["payload"]),
    ("timeout-zero", {**RAW, "timeout": 0}, ["timeout"]),
    ("timeout-negative", {**RAW, "timeout": -5}, ["timeout"]),
    ("timeout-float", {**RAW, "timeout": 1.5}, ["timeout"]),
    ("timeout-true", {**RAW, "timeout": True}, ["timeout"]),
    ("timeout-text", {**RAW, "timeout": "5"}, ["timeout"]),
    ("timeout-huge", {**RAW, "timeout": 10**400}, ["timeout"]),
    ("timeout-just-too-long", {**RAW, "timeout": MAX_TIMEOUT_MS + 1}, ["timeout"]),
    ("moment-text", {**RAW, "created_at": "2026-01-01"}, ["created_at"]),
    ("moment-zero", {**RAW, "created_at": 0}, ["created_at"]),
    ("moment-empty", {**RAW, "created_at": ""}, ["created_at"]),
    ("schema-look-alike", {**RAW, "schema": {"type": "boolean"}}, ["schema"]),
    ("schema-false", {**RAW, "schema": False}, ["schema"]),
    ("schema-without-coerce", {**RAW, "schema": OnlyChecks()}, ["schema"]),
    ("schema-async", {**RAW, "schema": async_schema}, ["schema"]),
    ("unknown-field", {**RAW, "approver": "me"}, ["approver"]),
    ("several", {"id": "", "reason": 1, "payload": None, "timeout": 0}, ["id", "reason", "payload", "timeout"]),
]


@pytest.mark.parametrize(("raw", "paths"), [row[1:] for row in BAD_INPUT], ids=[row[0] for row in BAD_INPUT])
async def test_bad_input_is_refused_before_anything_is_announced(raw: Any, paths: list[str]) -> None:
    events: list[TurnEvent] = []

    with pytest.raises(InvalidInitialTurnGateValue) as raised:
        await open_gate(raw, "turn-1", signal=AbortController().signal, emit=events.append)

    error = raised.value
    assert (error.code, error.status, error.fatal) == ("E_INVALID_INITIAL_TURN_GATE_VALUE", 500, True)
    assert isinstance(error.cause, ValidationException)
    assert [detail["path"] for detail in error.cause.details] == ([[path] for path in paths] or [[]])
    assert events == []
    assert timers() == []


async def test_longest_timeout_can_be_set() -> None:
    opened = Opened(timeout=MAX_TIMEOUT_MS)
    gate = await opened.gate()

    gate.resolve("soon")

    assert await opened.outcome() == "soon"


async def test_naive_creation_moment_is_taken_as_utc() -> None:
    gate = TurnGate({**RAW, "created_at": datetime(2026, 1, 1)}, "turn-1", emit=lambda event: None)

    assert gate.created_at == datetime(2026, 1, 1, tzinfo=UTC)


# Gates inside a context, and inside the handler they belong to.


def turn(buses: EventBuses | None = None, *, gates: bool = True) -> TurnContext:
    raw = {"system_prompt": "p"}
    return TurnContext(
        raw, tools=ToolRegistry(), callbacks=in_memory_callbacks(), buses=buses or EventBuses(), gates=gates
    )


async def test_context_without_gate_support_refuses_to_wait() -> None:
    with pytest.raises(LlmExecutionGateNotSupported) as raised:
        await turn(gates=False).wait_for(RAW)

    error = raised.value
    assert (error.code, error.status, error.fatal) == ("E_LLM_EXECUTION_GATE_NOT_SUPPORTED", 501, False)


async def test_context_opens_gates_under_the_id_of_its_turn() -> None:
    buses = EventBuses()
    buses.observability.on("turnGateOpen", lambda event: event.gate.resolve(event.gate.turn_id))
    ctx = turn(buses)

    assert await ctx.wait_for(RAW) == ctx.turn_id
    assert await DispatchContext(ctx, buses=buses).wait_for(RAW) == ctx.turn_id


async def test_time_of_a_call_stands_still_while_its_gate_is_open() -> None:
    moment = [100.0]
    deadline = Deadline(110.0, lambda: moment[0])
    token = set_deadline(deadline)
    try:
        opened = Opened(id="slow")
        gate = await opened.gate()
        moment[0] += 60
        gate.resolve("late")
        assert await opened.outcome() == "late"
    finally:
        reset_deadline(token)

    assert deadline.remaining_seconds == 10.0


async def test_observer_of_a_gate_leaves_it_open() -> None:
    opened = Opened(id="watched")
    gate = await opened.gate()
    watching = [asyncio.create_task(gate.wait_until_settled()) for _ in range(2)]
    await asyncio.sleep(0)
    watching[0].cancel()
    await asyncio.wait(watching[:1])
    assert not gate.is_settled

    gate.reject(ValueError("no"))
    await watching[1]
    assert isinstance(await opened.outcome(), ValueError)


async def test_one_waiting_gate_does_not_hold_up_another() -> None:
    first, second = Opened(id="first"), Opened(id="second")
    held, free = await first.gate(), await second.gate()

    free.resolve("go")

    assert await second.outcome() == "go"
    assert not held.is_settled
    held.abort()
    await first.outcome()


class Payment:
    """A gated tool that pays, and everything that an observer saw of one call."""

    def __init__(self, decide: Callable[[TurnGate], object], **gate: Any) -> None:
        self.paid = 0
        self.seen: list[str] = []
        self.records: list[ToolCall] = []
        self._decide = decide
        self._gate = {**RAW, **gate}

    async def run(self) -> Literal["ack", "nack", "aborted"]:
        tool = Tool(name="pay", description="d", input_schema=Schema({"type": "object"}), handler=self._pay)
        return await dispatch(
            raw={"system_prompt": "p", "tools": [tool], "gates": True},
            executor=self._execute,
            observers={"*": self._observe},
        )

    async def _pay(self, args: Any, ctx: DispatchContext, meta: object) -> str:
        await ctx.wait_for(self._gate)
        self.paid += 1
        self.seen.append("paid")
        return "done"

    async def _execute(self, ctx: DispatchContext, reporter: Reporter) -> None:
        with anyio.fail_after(5):
            self.records.append(await settle_call(ctx, reporter, ProposedCall("c1", "pay"), spool=InMemoryStore()))
        ctx.ack()

    def _observe(self, event: TurnEvent) -> None:
        self.seen.append(event.name)
        if isinstance(event, TurnGateOpen):
            self._decide(event.gate)


async def test_side_effect_happens_only_after_approval() -> None:
    payment = Payment(lambda gate: gate.resolve(True))

    await payment.run()

    inside = payment.seen[payment.seen.index("toolExecutionStart") : payment.seen.index("toolExecutionEnd") + 1]
    assert inside == ["toolExecutionStart", "turnGateOpen", "turnGateClosed", "paid", "toolExecutionEnd"]
    assert not payment.records[0].is_error


REFUSALS: list[tuple[str, Callable[[TurnGate], object], dict[str, Any], str]] = [
    ("rejected", lambda gate: gate.reject(PermissionError("the treasurer said no")), {}, "the treasurer said no"),
    ("rejected-by-ours", lambda gate: gate.reject(GatewayError("over the limit")), {}, "over the limit"),
    ("timeout", lambda gate: None, {"timeout": 1}, "the gate timed out before it was resolved"),
    ("aborted", lambda gate: gate.abort(), {}, "the gate was aborted"),
]


@pytest.mark.parametrize(("decide", "gate", "text"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
async def test_refusal_is_an_error_result_the_model_can_read(
    decide: Callable[[TurnGate], object], gate: dict[str, Any], text: str
) -> None:
    payment = Payment(decide, **gate)

    assert await payment.run() == "ack"

    assert payment.paid == 0
    [record] = payment.records
    assert record.is_error
    assert str(record.results).endswith(text)
    assert payment.seen.count("toolExecutionEnd") == 1
    assert "error" not in payment.seen

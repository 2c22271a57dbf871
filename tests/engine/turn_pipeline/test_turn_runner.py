"""One turn: its three steps, which events each bus carries, and that no turn sees the edits of another."""

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from gateway.artifacts.spool_stores import InMemoryStore
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.engine.turn_pipeline.dispatch_loop import in_memory_callbacks
from gateway.engine.turn_pipeline.tool_execution import ProposedCall, settle_call
from gateway.engine.turn_pipeline.turn_runner import PIPELINE_NAMES, TurnRunner
from gateway.errors import (
    AbortError,
    GatewayError,
    InputPipelineError,
    InvalidTurnContext,
    InvalidTurnRunnerConfig,
    LlmExecutionExecutorError,
    OutputPipelineError,
    PipelineShortCircuited,
    ValidationException,
)
from gateway.model.primitives.concurrency import AbortController
from gateway.model.schema.schema import Schema
from gateway.model.tools.tool import Tool
from gateway.model.tools.tool_call import ToolCall
from gateway.model.turns.context import CallContext, DispatchContext
from gateway.model.turns.conversation_records import CALLBACKS, Message
from gateway.model.turns.events import ErrorEvent, TurnEnd, TurnEvent, TurnGateOpen
from gateway.model.turns.middleware_pipeline import Next
from gateway.model.turns.progress_reporter import Reporter

pytestmark = pytest.mark.anyio

RAW = {"system_prompt": "p"}
BOOM = ValueError("boom")


def tool(name: str, handler: Callable[..., Any] = lambda args, ctx, meta: "said") -> Tool:
    return Tool(name=name, description="d", input_schema=Schema({"type": "object"}), handler=handler)


def acking(ctx: DispatchContext, reporter: Reporter) -> None:
    ctx.ack()


def config(**changes: Any) -> dict[str, Any]:
    return {"executor": acking, **in_memory_callbacks(), **changes}


class Seen:
    """A runner, and all events of its three buses."""

    def __init__(self, **changes: Any) -> None:
        self.runner = TurnRunner(config(**changes))
        self.turn: list[TurnEvent] = []
        self.dispatch: list[TurnEvent] = []
        self.functional: list[TurnEvent] = []
        self.runner.observability.on("*", self.turn.append)
        self.runner.dispatch_observability.on("*", self.dispatch.append)
        self.runner.functional.on("*", self.functional.append)

    async def run(self, **raw: Any) -> "Seen":
        with anyio.fail_after(10):
            answer: Any = await self.runner.run({**RAW, **raw})  # type: ignore[func-returns-value]  # it returns nothing
        assert answer is None
        return self

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.turn]

    @property
    def errors(self) -> list[GatewayError]:
        return [event.error for event in self.turn if isinstance(event, ErrorEvent)]


# Configuration.


def test_runner_needs_an_executor_and_every_callback_and_nothing_else() -> None:
    TurnRunner(config())
    TurnRunner(config(tools=None, turn_input_pipeline=None))
    TurnRunner({"executor": acking, **dict.fromkeys(CALLBACKS, lambda *args: None)})


BAD_CONFIG: list[tuple[str, dict[str, Any], list[str]]] = [
    ("executor-none", {"executor": None}, ["executor"]),
    ("executor-text", {"executor": "run"}, ["executor"]),
    *((f"{name}-none", {name: None}, [name]) for name in CALLBACKS),
    *((f"{name}-text", {name: "abc"}, [name]) for name in PIPELINE_NAMES),
    *((f"{name}-of-text", {name: ["abc"]}, [name]) for name in PIPELINE_NAMES),
    ("pipeline-iterator", {"turn_input_pipeline": iter([])}, ["turn_input_pipeline"]),
    ("pipeline-mapping", {"turn_input_pipeline": {"a": print}}, ["turn_input_pipeline"]),
    ("pipeline-zero", {"turn_input_pipeline": 0}, ["turn_input_pipeline"]),
    ("tools-text", {"tools": "echo"}, ["tools"]),
    ("tools-false", {"tools": False}, ["tools"]),
    ("tools-of-dicts", {"tools": [{"name": "echo"}]}, ["tools"]),
    ("tools-generator", {"tools": (each for each in [tool("echo")])}, ["tools"]),
    ("tools-twice", {"tools": [tool("echo"), tool("echo")]}, ["tools"]),
    ("unknown", {"turnInputPipeline": []}, ["turnInputPipeline"]),
    (
        "several",
        {"executor": 5, "store_message": 5, "tools": 5, "turn_output_pipeline": 5, "extra": 5},
        ["executor", "store_message", "turn_output_pipeline", "tools", "extra"],
    ),
]


@pytest.mark.parametrize(("changes", "fields"), [row[1:] for row in BAD_CONFIG], ids=[row[0] for row in BAD_CONFIG])
def test_bad_configuration_names_every_offending_field(changes: dict[str, Any], fields: list[str]) -> None:
    with pytest.raises(InvalidTurnRunnerConfig) as raised:
        TurnRunner(config(**changes))

    error = raised.value
    assert (error.code, error.status, error.fatal) == ("E_INVALID_TURN_RUNNER_CONFIG", 529, True)
    assert error.message.endswith(": " + ", ".join(fields))
    assert isinstance(error.cause, ValidationException)
    assert [detail["path"] for detail in error.cause.details] == [[field] for field in fields]


def test_empty_configuration_names_everything_that_is_missing() -> None:
    with pytest.raises(InvalidTurnRunnerConfig) as raised:
        TurnRunner({})

    assert all(name in raised.value.message for name in ("executor", *CALLBACKS))


@pytest.mark.parametrize("given", [None, [], "config", 5], ids=repr)
def test_configuration_is_a_mapping(given: Any) -> None:
    with pytest.raises(InvalidTurnRunnerConfig, match="must be a mapping"):
        TurnRunner(given)


@pytest.mark.parametrize("raw", [None, {}, {"system_prompt": ""}, {**RAW, "tools": []}], ids=repr)
async def test_bad_input_is_raised_before_any_event(raw: Any) -> None:
    seen = Seen()

    with pytest.raises(InvalidTurnContext):
        await seen.runner.run(raw)

    assert (seen.turn, seen.dispatch, seen.functional) == ([], [], [])


# The steps of a turn.


async def test_happy_path_is_published_in_order() -> None:
    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        if ctx.iteration == 1:
            ctx.ack()

    seen = await Seen(executor=execute).run()

    assert seen.names == [
        "turnStart",
        "dispatchStart",
        "iterationStart",
        "iterationEnd",
        "iterationStart",
        "iterationEnd",
        "dispatchEnd",
        "turnEnd",
    ]
    start, *_, end = seen.turn
    assert isinstance(end, TurnEnd)
    assert end.to_dict() == {
        **start.to_dict(),
        "ended_at": end.ended_at,
        "duration_ms": (end.ended_at - end.started_at).total_seconds() * 1000,
    }


async def test_output_acked_iteration_is_complete() -> None:
    async def last_word(ctx: DispatchContext, next: Next) -> None:
        await next()
        ctx.ack()

    seen = await Seen(executor=lambda ctx, reporter: None, dispatch_output_pipeline=[last_word]).run()

    assert seen.names == ["turnStart", "dispatchStart", "iterationStart", "iterationEnd", "dispatchEnd", "turnEnd"]


def act(how: str, ctx: Any) -> None:
    match how:
        case "raise":
            raise BOOM
        case "abort-error":
            raise AbortError("given up")
        case "abort":
            ctx.abort("enough")
        case "nack":
            ctx.nack(BOOM)
        case "nack-ours":
            ctx.nack(GatewayError("ours"))


# step, how | steps that ran, error codes on the turn's bus
ENDINGS: list[tuple[str, str, list[str], list[str]]] = [
    ("none", "", ["input", "executor", "output"], []),
    ("input", "raise", ["input"], ["E_INPUT_PIPELINE_ERROR"]),
    ("input", "forget-next", ["input"], ["E_PIPELINE_SHORT_CIRCUITED"]),
    ("input", "abort", ["input"], []),
    ("input", "abort-error", ["input"], []),
    ("executor", "raise", ["input", "executor"], ["E_LLM_EXECUTION_EXECUTOR_ERROR"]),
    ("executor", "nack", ["input", "executor"], ["E_LLM_EXECUTION_EXECUTOR_ERROR"]),
    ("executor", "nack-ours", ["input", "executor"], ["E_GATEWAY"]),
    ("executor", "abort", ["input", "executor"], []),
    ("executor", "abort-error", ["input", "executor"], []),
    ("output", "raise", ["input", "executor", "output"], ["E_OUTPUT_PIPELINE_ERROR"]),
    ("output", "forget-next", ["input", "executor", "output"], ["E_PIPELINE_SHORT_CIRCUITED"]),
    ("output", "abort", ["input", "executor", "output"], []),
    ("output", "abort-error", ["input", "executor", "output"], []),
]


@pytest.mark.parametrize(
    ("step", "how", "ran", "codes"), ENDINGS, ids=[f"{row[0]}-{row[1]}".strip("-") for row in ENDINGS]
)
async def test_every_ending_returns_normally_with_one_turn_end(
    step: str, how: str, ran: list[str], codes: list[str]
) -> None:
    happened: list[str] = []

    def middleware(name: str) -> Callable[..., Any]:
        async def run(ctx: CallContext, next: Next) -> None:
            happened.append(name)
            if name == step:
                act(how, ctx)
            if not (name == step and how == "forget-next"):
                await next()

        return run

    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        happened.append("executor")
        if step == "executor":
            act(how, ctx)
        else:
            ctx.ack()

    seen = await Seen(
        executor=execute, turn_input_pipeline=[middleware("input")], turn_output_pipeline=[middleware("output")]
    ).run()

    assert happened == ran
    assert [error.code for error in seen.errors] == codes
    assert (seen.names[0], seen.names[-1]) == ("turnStart", "turnEnd")
    assert seen.names.count("turnEnd") == 1
    assert ("dispatchStart" in seen.names) == ("executor" in ran)


async def test_labels_and_causes_name_the_pipeline_that_failed() -> None:
    async def forget(ctx: CallContext, next: Next) -> None:
        pass

    async def fail(ctx: CallContext, next: Next) -> None:
        raise BOOM

    for name, wrapper, label in (
        ("turn_input_pipeline", InputPipelineError, "turn-input"),
        ("turn_output_pipeline", OutputPipelineError, "turn-output"),
    ):
        [failed] = (await Seen(**{name: [fail]}).run()).errors
        [short] = (await Seen(**{name: [forget]}).run()).errors

        assert type(failed) is wrapper
        assert failed.cause is BOOM
        assert failed.message.endswith(": boom")
        assert isinstance(short, PipelineShortCircuited)
        assert short.label == label


async def test_each_exception_of_a_turn_pipeline_is_reported() -> None:
    async def outer(ctx: CallContext, next: Next) -> None:
        await next()
        raise ValueError("outer")

    async def inner(ctx: CallContext, next: Next) -> None:
        raise ValueError("inner")

    seen = await Seen(turn_input_pipeline=[outer, inner]).run()

    assert [str(error.cause) for error in seen.errors] == ["inner", "outer"]


async def test_turn_aborted_during_its_dispatch_skips_the_output_even_after_an_ack() -> None:
    controller, ran = AbortController(), list[str]()

    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        ctx.ack()
        controller.abort("client gone")

    async def output(ctx: CallContext, next: Next) -> None:
        ran.append("output")

    seen = await Seen(executor=execute, turn_output_pipeline=[output]).run(turn_abort_controller=controller)

    assert ran == []
    assert seen.errors == []


async def test_turn_aborted_before_it_starts_only_starts_and_ends() -> None:
    controller = AbortController()
    controller.abort()

    seen = await Seen().run(turn_abort_controller=controller)

    assert seen.names == ["turnStart", "turnEnd"]


async def test_thrown_abort_aborts_the_controller_of_the_turn() -> None:
    controller = AbortController()

    async def give_up(ctx: CallContext, next: Next) -> None:
        raise AbortError("given up")

    await Seen(turn_input_pipeline=[give_up]).run(turn_abort_controller=controller)

    assert controller.signal.aborted
    assert isinstance(controller.signal.reason, AbortError)


async def test_output_pipeline_sees_what_the_dispatch_stored() -> None:
    stored: list[list[str]] = []

    async def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        await ctx.store_message(Message("m", "assistant", "hello"))
        ctx.ack()

    async def output(ctx: CallContext, next: Next) -> None:
        stored.append([message.id for message in ctx.turn_messages])
        await next()

    await Seen(executor=execute, turn_output_pipeline=[output]).run()

    assert stored == [["m"]]


# Which bus.


async def test_error_of_a_dispatch_is_reported_once_on_each_bus() -> None:
    seen = await Seen(executor=lambda ctx, reporter: ctx.nack(BOOM)).run()

    on_dispatch = [event.error for event in seen.dispatch if isinstance(event, ErrorEvent)]
    assert [type(error) for error in on_dispatch] == [LlmExecutionExecutorError]
    assert [error.cause for error in seen.errors] == [error.cause for error in on_dispatch] == [BOOM]


async def test_error_of_a_turn_pipeline_stays_off_the_dispatch_bus() -> None:
    async def fail(ctx: CallContext, next: Next) -> None:
        raise BOOM

    seen = await Seen(turn_output_pipeline=[fail]).run()

    assert [event.name for event in seen.dispatch] == ["dispatchStart", "iterationStart", "iterationEnd", "dispatchEnd"]


async def test_generation_figures_stay_on_the_dispatch_bus() -> None:
    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        reporter.report_generation_stats({"outputTokens": 3})
        reporter.log.info({"kind": "k", "message": "m"})
        ctx.emit_warning("odd", "something is odd")
        ctx.ack()

    seen = await Seen(executor=execute).run()

    assert [event.name for event in seen.dispatch][2:5] == ["generationStats", "log", "warning"]
    assert seen.names[3:5] == ["log", "warning"]


async def test_product_output_leaves_through_the_functional_bus_once() -> None:
    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        reporter.report_message("m", "hello", is_complete=True)
        reporter.report_thought("t", "hm")
        reporter.report_tool_call("c", tool="echo", args={})
        ctx.ack()

    seen = await Seen(executor=execute).run()

    assert [event.name for event in seen.functional] == ["message", "thought", "toolCall"]
    assert {"message", "thought", "toolCall"}.isdisjoint(seen.names)


async def test_tool_events_name_both_the_turn_and_the_dispatch() -> None:
    async def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        await settle_call(ctx, reporter, ProposedCall("c", "echo", {}), spool=InMemoryStore())
        ctx.ack()

    seen = await Seen(executor=execute, tools=[tool("echo")]).run()

    published = {event.name: event.to_dict() for event in seen.turn}
    turn_id = published["turnStart"]["turn_id"]
    dispatch_id = published["dispatchStart"]["dispatch_id"]
    assert turn_id != dispatch_id
    for name in ("toolExecutionStart", "toolExecutionEnd"):
        assert (published[name]["turn_id"], published[name]["dispatch_id"]) == (turn_id, dispatch_id)


# Many turns.


async def test_reused_runner_runs_every_pipeline_each_time() -> None:
    ran: list[str] = []

    def middleware(name: str) -> Callable[..., Any]:
        async def run(ctx: CallContext, next: Next) -> None:
            ran.append(name)
            await next()

        return run

    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        if ctx.iteration == 1:
            ctx.ack()

    seen = Seen(executor=execute, **{name: [middleware(name)] for name in PIPELINE_NAMES})

    for _ in range(3):
        await seen.run()

    one_turn = ["turn_input_pipeline", "dispatch_input_pipeline", "dispatch_output_pipeline", "dispatch_input_pipeline"]
    assert ran == [*one_turn, "turn_output_pipeline"] * 3


async def test_edits_of_one_turn_are_gone_in_the_next() -> None:
    names: list[list[str]] = []
    stashes: list[Any] = []
    baseline = [tool("kept"), tool("removed")]

    async def edit(ctx: CallContext, next: Next) -> None:
        names.append([each.name for each in ctx.tools.visible()])
        stashes.append(ctx.stash.get("seen.before"))
        ctx.tools.unregister("removed")
        ctx.tools.hide("kept")
        ctx.tools.register(tool("added"))
        ctx.stash.set("seen.before", True)
        await next()

    seen = Seen(tools=baseline, turn_input_pipeline=[edit])
    await seen.run()
    baseline.append(tool("late"))
    await seen.run()

    assert names == [["kept", "removed"]] * 2
    assert stashes == [None, None]


async def test_hidden_tools_stay_hidden_in_the_dispatch() -> None:
    visible: list[list[str]] = []

    async def hide(ctx: CallContext, next: Next) -> None:
        ctx.tools.hide("secret")
        await next()

    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        visible.append([each.name for each in ctx.tools.visible()])
        assert ctx.tools.has("secret")
        ctx.ack()

    seen = await Seen(tools=[tool("shown"), tool("secret")], turn_input_pipeline=[hide], executor=execute).run()

    assert visible == [["shown"]]
    assert seen.errors == []


async def test_concurrent_turns_do_not_see_each_other() -> None:
    arrived, all_arrived = list[str](), anyio.Event()
    views: dict[str, tuple[list[str], Any, list[str]]] = {}

    async def edit(ctx: CallContext, next: Next) -> None:
        name = ctx.stash.get("name")
        ctx.tools.register(tool(f"only_{name}"))
        ctx.stash.set("mine", name)
        await ctx.store_message(Message(f"m_{name}", "user", name))
        arrived.append(name)
        if len(arrived) == 3:
            all_arrived.set()
        await all_arrived.wait()
        await next()

    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        tools = [each.name for each in ctx.tools.all()]
        views[ctx.stash.get("name")] = (tools, ctx.stash.get("mine"), [each.id for each in ctx.turn_messages])
        ctx.ack()

    seen = Seen(executor=execute, turn_input_pipeline=[edit], tools=[tool("shared")])
    await asyncio.gather(*(seen.run(stash={"name": name}) for name in "abc"))

    assert views == {name: (["shared", f"only_{name}"], name, [f"m_{name}"]) for name in "abc"}
    assert seen.names.count("turnEnd") == 3
    assert len({event.to_dict()["turn_id"] for event in seen.turn if event.name == "turnStart"}) == 3


async def test_nothing_is_fetched_by_itself() -> None:
    fetched: list[str] = []

    def counting(name: str) -> Callable[[Any], list[Any]]:
        def fetch(ctx: Any) -> list[Any]:
            fetched.append(name)
            return []

        return fetch

    await Seen(**{name: counting(name) for name in CALLBACKS if name.startswith("fetch_")}).run()
    assert fetched == []

    async def register(ctx: CallContext, next: Next) -> None:
        for each in await ctx.fetch_tools():
            ctx.tools.register(each)
        await next()

    names: list[list[str]] = []

    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        names.append([each.name for each in ctx.tools.all()])
        ctx.ack()

    await Seen(fetch_tools=lambda ctx: [tool("dynamic")], turn_input_pipeline=[register], executor=execute).run()
    assert names == [["dynamic"]]


# Nothing but cancellation leaves run().


class Indescribable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "where", ["turn_input_pipeline", "dispatch_input_pipeline", "executor", "turn_output_pipeline"]
)
async def test_error_that_cannot_be_shown_is_still_only_an_event(where: str) -> None:
    async def fail(*args: Any) -> None:
        raise Indescribable

    seen = await Seen(**{where: fail if where == "executor" else [fail]}).run()

    [error] = seen.errors
    assert isinstance(error.cause, Indescribable)
    assert error.message.endswith("Indescribable")


async def test_listener_of_an_abort_that_raises_is_reported_by_the_turn() -> None:
    async def give_up(ctx: CallContext, next: Next) -> None:
        def fail() -> None:
            raise BOOM

        ctx.abort_signal.on_abort(fail)
        raise AbortError("given up")

    seen = await Seen(turn_input_pipeline=[give_up]).run()

    [error] = seen.errors
    assert isinstance(error.cause, ExceptionGroup)
    assert seen.names[-1] == "turnEnd"


@pytest.mark.parametrize("where", ["turn_input_pipeline", "handler", "turn_output_pipeline"])
async def test_cancellation_leaves_at_once_and_every_start_has_one_end(where: str) -> None:
    entered = anyio.Event()

    async def hang(*args: Any) -> None:
        entered.set()
        await anyio.sleep_forever()

    async def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        await settle_call(ctx, reporter, ProposedCall("c", "work", {}), spool=InMemoryStore())
        ctx.ack()

    handler = hang if where == "handler" else (lambda args, ctx, meta: "done")
    pipelines: dict[str, Any] = {} if where == "handler" else {where: [hang]}
    seen = Seen(executor=execute, tools=[tool("work", handler)], **pipelines)
    task = asyncio.ensure_future(seen.runner.run(RAW))
    with anyio.fail_after(5):
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for start, end in (
        ("turnStart", "turnEnd"),
        ("dispatchStart", "dispatchEnd"),
        ("toolExecutionStart", "toolExecutionEnd"),
    ):
        assert seen.names.count(start) == seen.names.count(end) <= 1
    assert seen.names[-1] == "turnEnd"
    assert seen.errors == []


# Observers.


def hostile_to_events(event: Any) -> None:
    """Changes everything it can reach, then fails."""
    for name in getattr(type(event), "__slots__", ()):
        value = getattr(event, name)
        if isinstance(value, dict | list):
            value.clear()
        setattr(event, name, "rewritten")
    raise RuntimeError("a bad observer")


async def hostile_later(event: Any) -> None:
    raise RuntimeError("a bad observer")


async def play(seed: int, observe: Callable[[TurnRunner], object]) -> tuple[list[Any], list[Any]]:
    """Run a turn of several calls, gates and records; return what was stored and what the model would see."""
    chosen = random.Random(seed)
    kept, outcome = list[Any](), list[Any]()

    async def describe(record: Any) -> Any:
        if isinstance(record, ToolCall):
            results: Any = record.results
            text = await results.as_string() if isinstance(results, SpooledArtifact) else str(results)
            return (record.id, record.tool, record.args, record.checksum, record.is_error, text)
        return (record.id, record.content)

    async def approve(args: dict[str, Any], ctx: DispatchContext, meta: object) -> str:
        raw = {"id": "g", "reason": "pay?", "payload": args, "timeout": 1, "schema": Schema({"type": "boolean"})}
        return f"approved: {await ctx.wait_for(raw)}"

    def fail(args: dict[str, Any], ctx: DispatchContext, meta: object) -> str:
        args.clear()
        raise BOOM

    schema = Schema({"type": "object", "properties": {"n": {"type": "integer"}, "list": {"type": "array"}}})
    tools = [
        Tool(name=name, description="d", input_schema=schema, handler=handler)
        for name, handler in (("say", lambda args, ctx, meta: str(args)), ("approve", approve), ("fail", fail))
    ]
    calls = [
        ProposedCall(f"c{n}", chosen.choice(["say", "approve", "fail", "unknown"]), {"n": n, "list": [1, [2]]})
        for n in range(4)
    ]
    spool = InMemoryStore()

    async def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        reporter.report_message("m", f"part {ctx.iteration} ", is_complete=ctx.iteration == len(calls))
        if ctx.iteration == len(calls):
            outcome.extend([await describe(record) for record in ctx.turn_tool_calls])
            ctx.ack()
            return
        await settle_call(ctx, reporter, calls[ctx.iteration], spool=spool)
        await ctx.store_message(Message(f"m{ctx.iteration}", "assistant", "said"))
        reporter.log.info({"kind": "k", "message": "m", "payload": {"n": [1]}})

    async def output(ctx: CallContext, next: Next) -> None:
        kept.extend([await describe(record) for record in [*ctx.turn_tool_calls, *ctx.turn_messages]])
        await next()

    runner = TurnRunner(config(executor=execute, tools=tools, turn_output_pipeline=[output]))
    observe(runner)
    with anyio.fail_after(10):
        await runner.run(RAW)
    return kept, outcome


@pytest.mark.parametrize("seed", range(5))
async def test_removing_every_observer_changes_nothing(seed: int) -> None:
    def watch(listener: Callable[[Any], object]) -> Callable[[TurnRunner], object]:
        def observe(runner: TurnRunner) -> None:
            for bus in (runner.functional, runner.observability, runner.dispatch_observability):
                bus.on("*", listener)

        return observe

    alone = await play(seed, lambda runner: None)
    seen: list[TurnEvent] = []

    assert alone[0]
    assert alone == await play(seed, watch(seen.append))
    assert alone == await play(seed, watch(hostile_to_events))
    assert alone == await play(seed, watch(hostile_later))
    assert {"turnStart", "message", "toolCall", "log", "turnEnd"} <= {event.name for event in seen}


async def test_observer_that_settles_a_gate_is_a_decider_and_does_change_it() -> None:
    def decide(event: TurnEvent) -> None:
        if isinstance(event, TurnGateOpen):
            event.gate.resolve("true")

    answers: list[Any] = []

    async def ask(ctx: CallContext, next: Next) -> None:
        moment = datetime(2026, 1, 1, tzinfo=UTC)
        raw = {
            "id": "g",
            "reason": "go on?",
            "payload": {},
            "schema": Schema({"type": "boolean"}),
            "created_at": moment,
        }
        answers.append(await ctx.wait_for(raw))
        await next()

    seen = Seen(turn_input_pipeline=[ask])
    seen.runner.observability.on("*", decide)
    await seen.run()

    assert answers == [True]
    assert seen.names[:4] == ["turnStart", "turnGateOpen", "turnGateClosed", "dispatchStart"]

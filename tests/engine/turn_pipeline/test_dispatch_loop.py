"""One dispatch: who may end it and how, what reaches the turn, and its events."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import anyio
import pytest

from gateway.artifacts.query_tools import ToolMethod
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.engine.turn_pipeline.dispatch_loop import Executor, dispatch, in_memory_callbacks
from gateway.errors import (
    AbortError,
    ArtifactIdCollision,
    DispatchPipelineError,
    GatewayError,
    InvalidLlmDispatchInput,
    InvalidLlmExecutionContext,
    LlmExecutionAlreadySignalled,
    LlmExecutionExecutorError,
    LlmExecutionGateNotSupported,
    PipelineShortCircuited,
    TurnGateAborted,
)
from gateway.model.primitives.concurrency import AbortController
from gateway.model.schema.schema import Schema
from gateway.model.tools.tool import Tool
from gateway.model.tools.tool_call import ToolCall
from gateway.model.tools.tool_registry import ToolRegistry
from gateway.model.turns.context import CallContext, DispatchContext, TurnContext
from gateway.model.turns.conversation_records import Message, Retrievable
from gateway.model.turns.events import DispatchEnd, ErrorEvent, EventBuses, Listener, TurnEvent, now
from gateway.model.turns.middleware_pipeline import Middleware, Next
from gateway.model.turns.progress_reporter import Reporter

pytestmark = pytest.mark.anyio


class Falsy(Exception):
    def __bool__(self) -> bool:
        return False


class Played:
    """One dispatch from a fresh turn, its result or exception, and what its observers saw."""

    def __init__(self, **raw: Any) -> None:
        self.persisted: list[Any] = []
        callbacks = {**in_memory_callbacks(), "store_message": lambda ctx, record: self.persisted.append(record)}
        self.buses = EventBuses()
        self.turn = TurnContext(
            {"system_prompt": "p", **raw}, tools=ToolRegistry(), callbacks=callbacks, buses=EventBuses()
        )
        self.events: list[TurnEvent] = []
        self.outcome: Any = None
        self.buses.observability.on("*", self.events.append)

    async def run(
        self,
        executor: Executor,
        *,
        input: Sequence[Middleware] = (),
        output: Sequence[Middleware] = (),
    ) -> "Played":
        try:
            with anyio.fail_after(10):
                self.outcome = await dispatch(
                    source=self.turn,
                    executor=executor,
                    input_pipeline=input,
                    output_pipeline=output,
                    buses=self.buses,
                )
        except Exception as error:
            self.outcome = error
        return self

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]

    @property
    def end(self) -> DispatchEnd:
        [end] = [event for event in self.events if isinstance(event, DispatchEnd)]
        return end

    @property
    def errors(self) -> list[GatewayError]:
        return [event.error for event in self.events if isinstance(event, ErrorEvent)]

    @property
    def flushed(self) -> list[str]:
        return [message.id for message in self.turn.turn_messages]


def tool(name: str, *, ephemeral: bool = False) -> Tool:
    return Tool(
        name=name,
        description="d",
        input_schema=Schema({"type": "object"}),
        handler=lambda args, ctx, meta: "",
        ephemeral=ephemeral,
    )


def artifact_call(id: str, artifact: Any = None) -> ToolCall:
    moment = now()
    return ToolCall(
        id=id,
        tool="read",
        args={"id": id},
        is_complete=True,
        is_error=False,
        results=artifact or SpooledArtifact(InMemoryReader("one\ntwo")),
        created_at=moment,
        updated_at=moment,
        completed_at=moment,
    )


def acking(ctx: DispatchContext, reporter: Reporter) -> None:
    ctx.ack()


def rounds(count: int) -> Executor:
    """Return `count` times, then ack."""

    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        if ctx.iteration >= count:
            ctx.ack()

    return execute


# Who ends it, and how.

BOOM = ValueError("boom")
SIGNALS: dict[str, Callable[[DispatchContext], object]] = {
    "ack": lambda ctx: ctx.ack(),
    "nack": lambda ctx: ctx.nack(BOOM),
    "abort": lambda ctx: ctx.abort("enough"),
}


def act(how: str, ctx: DispatchContext) -> None:
    if how == "raise":
        raise BOOM
    if how == "abort-error":
        raise AbortError("given up")
    if how != "forget-next":
        SIGNALS[how](ctx)


# step, how | status, iterations, flushed, raised
ENDINGS: list[tuple[str, str, str, int, bool, type[Exception] | None]] = [
    ("input", "ack", "ack", 0, True, None),
    ("input", "nack", "nack", 0, False, ValueError),
    ("input", "abort", "aborted", 0, False, None),
    ("input", "abort-error", "aborted", 0, False, None),
    ("input", "raise", "nack", 0, False, DispatchPipelineError),
    ("input", "forget-next", "nack", 0, False, PipelineShortCircuited),
    ("executor", "ack", "ack", 0, True, None),
    ("executor", "nack", "nack", 0, False, ValueError),
    ("executor", "abort", "aborted", 0, False, None),
    ("executor", "abort-error", "aborted", 0, False, None),
    ("executor", "raise", "nack", 0, False, LlmExecutionExecutorError),
    ("output", "ack", "ack", 1, True, None),
    ("output", "nack", "nack", 1, True, ValueError),
    ("output", "abort", "aborted", 1, True, None),
    ("output", "abort-error", "aborted", 1, True, None),
    ("output", "raise", "nack", 0, False, DispatchPipelineError),
    ("output", "forget-next", "nack", 0, False, PipelineShortCircuited),
]


@pytest.mark.parametrize(
    ("step", "how", "status", "iterations", "flushed", "raised"),
    ENDINGS,
    ids=[f"{row[0]}-{row[1]}" for row in ENDINGS],
)
async def test_ending_decides_status_iterations_and_what_reaches_the_turn(
    step: str, how: str, status: str, iterations: int, flushed: bool, raised: type[Exception] | None
) -> None:
    ran: list[str] = []

    async def do(name: str, ctx: DispatchContext) -> None:
        ran.append(name)
        if name == step:
            await ctx.store_message(Message("m", "user", "hello"))
            act(how, ctx)

    def middleware(name: str) -> Middleware:
        async def run(ctx: DispatchContext, next: Next) -> None:
            await do(name, ctx)
            if not (name == step and how == "forget-next"):
                await next()

        return run

    async def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        await do("executor", ctx)

    played = await Played().run(execute, input=[middleware("input")], output=[middleware("output")])

    steps = ["input", "executor", "output"]
    failed = [] if raised is None else ["error"]
    assert ran == steps[: steps.index(step) + 1]
    assert (played.end.status, played.end.iterations) == (status, iterations)
    assert played.names == ["dispatchStart", "iterationStart", "iterationEnd", *failed, "dispatchEnd"]
    assert played.flushed == (["m"] if flushed else [])
    assert [record.id for record in played.persisted] == ["m"]
    if raised is None:
        assert played.outcome == status
        assert played.end.error is None
        assert played.errors == []
    else:
        assert type(played.outcome) is raised
        assert played.end.error is played.outcome
        assert len(played.errors) == 1


async def test_skipping_next_is_fine_for_a_middleware_that_signals() -> None:
    async def refuse(ctx: DispatchContext, next: Next) -> None:
        ctx.nack(BOOM)

    async def accept(ctx: DispatchContext, next: Next) -> None:
        ctx.ack()

    refused = await Played().run(acking, input=[refuse])
    accepted = await Played().run(lambda ctx, reporter: None, output=[accept])

    assert refused.outcome is BOOM
    assert (accepted.outcome, accepted.end.iterations) == ("ack", 1)


async def test_iterations_follow_each_other_until_a_signal() -> None:
    seen: list[tuple[str, int]] = []

    async def note_input(ctx: DispatchContext, next: Next) -> None:
        seen.append(("input", ctx.iteration))
        await next()

    async def note_output(ctx: DispatchContext, next: Next) -> None:
        await next()
        seen.append(("output", ctx.iteration))

    played = await Played().run(rounds(2), input=[note_input], output=[note_output])

    assert seen == [("input", 0), ("output", 0), ("input", 1), ("output", 1), ("input", 2)]
    assert played.names == [
        "dispatchStart",
        "iterationStart",
        "iterationEnd",
        "iterationStart",
        "iterationEnd",
        "iterationStart",
        "iterationEnd",
        "dispatchEnd",
    ]
    assert played.end.iterations == 2


async def test_events_describe_one_dispatch_with_consistent_times() -> None:
    played = await Played().run(rounds(1))

    published = [event.to_dict() for event in played.events]
    assert {each["dispatch_id"] for each in published} == {played.end.dispatch_id}
    assert played.end.dispatch_id != played.turn.turn_id
    assert [each.get("iteration") for each in published] == [None, 0, 0, 1, 1, None]
    for each in published:
        if "ended_at" in each:
            assert each["duration_ms"] == (each["ended_at"] - each["started_at"]).total_seconds() * 1000


async def test_earlier_iterations_stay_when_a_later_one_is_discarded() -> None:
    async def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        await ctx.store_message(Message(f"m{ctx.iteration}", "user", "hello"))
        if ctx.iteration == 1:
            ctx.nack()

    played = await Played().run(execute)

    assert played.flushed == ["m0"]
    assert len(played.persisted) == 2


async def test_ack_flushes_right_away_and_the_rest_of_the_step_follows() -> None:
    seen: list[list[str]] = []

    played = Played()

    async def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        await ctx.store_message(Message("before", "user", "hello"))
        ctx.ack()
        seen.append(list(played.flushed))
        await ctx.store_message(Message("after", "user", "hello"))

    await played.run(execute)

    assert seen == [["before"]]
    assert played.flushed == ["before", "after"]


async def test_failure_after_an_ack_is_a_failure() -> None:
    async def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        await ctx.store_message(Message("before", "user", "hello"))
        ctx.ack()
        await ctx.store_message(Message("after", "user", "hello"))
        raise BOOM

    played = await Played().run(execute)

    assert played.end.status == "nack"
    assert played.flushed == ["before"]
    assert len(played.errors) == 1


async def test_abort_after_an_ack_is_an_ack() -> None:
    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        ctx.ack()
        ctx.abort()

    assert (await Played().run(execute)).outcome == "ack"


async def test_second_signal_of_an_executor_is_its_error() -> None:
    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        ctx.nack(BOOM)
        ctx.ack()

    played = await Played().run(execute)

    assert isinstance(played.outcome, LlmExecutionExecutorError)
    assert isinstance(played.outcome.cause, LlmExecutionAlreadySignalled)
    assert len(played.errors) == 1


async def test_stash_of_a_dispatch_does_not_flow_back() -> None:
    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        ctx.stash.set("a.b", 2)
        ctx.ack()

    played = await Played(stash={"a": {"b": 1}}).run(execute)

    assert played.turn.stash.get("a.b") == 1


# Failures.


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no model"), "the executor failed: no model"),
        (Falsy("empty"), "the executor failed: empty"),
        (KeyError(), "the executor failed: KeyError"),
        (GatewayError("ours"), "the executor failed: ours"),
    ],
    ids=["plain", "falsy", "no-text", "ours"],
)
@pytest.mark.parametrize("waits", [False, True], ids=["sync", "async"])
async def test_error_of_the_executor_is_wrapped_with_its_text(error: Exception, text: str, waits: bool) -> None:
    def fail(ctx: DispatchContext, reporter: Reporter) -> None:
        raise error

    async def fail_later(ctx: DispatchContext, reporter: Reporter) -> None:
        raise error

    played = await Played().run(fail_later if waits else fail)

    assert isinstance(played.outcome, LlmExecutionExecutorError)
    assert played.outcome.message == text
    assert played.outcome.cause is error
    assert (played.outcome.code, played.outcome.status, played.outcome.fatal) == (
        "E_LLM_EXECUTION_EXECUTOR_ERROR",
        500,
        False,
    )
    assert played.errors == [played.outcome]
    assert played.end.error is played.outcome


async def test_reporting_after_completion_is_an_executor_error() -> None:
    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        reporter.report_message("m", "all", is_complete=ctx.iteration == 0)

    played = await Played().run(execute)

    assert isinstance(played.outcome, LlmExecutionExecutorError)
    assert "'m' was already reported as complete" in played.outcome.message
    assert played.end.iterations == 1


async def test_last_of_two_pipeline_errors_is_kept() -> None:
    async def outer(ctx: DispatchContext, next: Next) -> None:
        await next()
        raise ValueError("outer")

    async def inner(ctx: DispatchContext, next: Next) -> None:
        raise ValueError("inner")

    played = await Played().run(acking, input=[outer, inner])

    assert isinstance(played.outcome, DispatchPipelineError)
    assert played.outcome.message == "the dispatch-input pipeline failed: outer"
    assert str(played.outcome.cause) == "outer"
    assert played.errors == [played.outcome]


@pytest.mark.parametrize("step", ["input", "output"])
async def test_short_circuit_names_its_pipeline(step: str) -> None:
    async def forget(ctx: DispatchContext, next: Next) -> None:
        pass

    pipelines: dict[str, Any] = {step: [forget]}
    played = await Played().run(lambda ctx, reporter: None, **pipelines)

    assert isinstance(played.outcome, PipelineShortCircuited)
    assert played.outcome.label == f"dispatch-{step}"
    assert (played.outcome.code, played.outcome.status) == ("E_PIPELINE_SHORT_CIRCUITED", 500)


@pytest.mark.parametrize("error", [BOOM, Falsy("no")], ids=["plain", "falsy"])
async def test_nack_raises_the_original_and_its_event_wraps_it(error: Exception) -> None:
    played = await Played().run(lambda ctx, reporter: ctx.nack(error))

    assert played.outcome is error
    assert played.end.error is error
    [reported] = played.errors
    assert isinstance(reported, LlmExecutionExecutorError)
    assert reported.cause is error


async def test_nack_with_one_of_our_errors_is_reported_as_it_is() -> None:
    error = GatewayError("over budget", code="E_BUDGET")

    played = await Played().run(lambda ctx, reporter: ctx.nack(error))

    assert played.outcome is error
    assert played.errors == [error]


async def test_nack_without_an_error_raises_a_generic_one() -> None:
    played = await Played().run(lambda ctx, reporter: ctx.nack())

    assert isinstance(played.outcome, GatewayError)
    assert played.errors == [played.outcome]


async def test_error_event_precedes_the_end() -> None:
    played = await Played().run(lambda ctx, reporter: ctx.nack())

    assert played.names == ["dispatchStart", "iterationStart", "iterationEnd", "error", "dispatchEnd"]


# Abort and cancellation.


async def test_aborted_turn_starts_no_iteration() -> None:
    controller = AbortController()
    controller.abort()

    played = await Played(turn_abort_controller=controller).run(acking)

    assert played.names == ["dispatchStart", "dispatchEnd"]
    assert played.outcome == "aborted"


async def test_abort_of_the_turn_ends_its_dispatch_quietly() -> None:
    controller = AbortController()

    played = await Played(turn_abort_controller=controller).run(lambda ctx, reporter: controller.abort())

    assert played.outcome == "aborted"
    assert played.errors == []


@pytest.mark.parametrize("step", ["input", "executor"])
async def test_gate_given_up_with_the_turn_is_no_error(step: str) -> None:
    controller = AbortController()
    played = Played(turn_abort_controller=controller)
    played.buses.observability.on("turnGateOpen", lambda event: controller.abort())

    async def ask(ctx: CallContext) -> None:
        await ctx.wait_for({"id": "g", "reason": "go on?", "payload": {}})

    async def middleware(ctx: CallContext, next: Next) -> None:
        await ask(ctx)

    if step == "input":
        await played.run(acking, input=[middleware])
    else:
        await played.run(lambda ctx, reporter: ask(ctx))

    assert played.outcome == "aborted"
    assert played.errors == []


async def test_gate_given_up_alone_is_the_error_of_the_waiting_task() -> None:
    played = Played()
    played.buses.observability.on("turnGateOpen", lambda event: event.gate.abort())

    async def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        await ctx.wait_for({"id": "g", "reason": "go on?", "payload": {}})

    await played.run(execute)

    assert isinstance(played.outcome, LlmExecutionExecutorError)
    assert isinstance(played.outcome.cause, TurnGateAborted)


async def test_listener_of_an_abort_that_raises_fails_the_dispatch_and_not_the_caller() -> None:
    played = Played()

    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        def fail() -> None:
            raise BOOM

        ctx.abort_signal.on_abort(fail)
        raise AbortError("given up")

    await played.run(execute)

    assert played.end.status == "nack"
    assert isinstance(played.outcome, LlmExecutionExecutorError)


@pytest.mark.parametrize("step", ["input", "executor", "output"])
async def test_cancellation_passes_through_and_the_end_is_seen_once(step: str) -> None:
    entered = anyio.Event()
    controller = AbortController()
    played = Played(turn_abort_controller=controller)

    async def hang(*args: Any) -> None:
        entered.set()
        await anyio.sleep_forever()

    task = asyncio.ensure_future(
        dispatch(
            source=played.turn,
            executor=hang if step == "executor" else lambda ctx, reporter: None,
            input_pipeline=[hang] if step == "input" else [],
            output_pipeline=[hang] if step == "output" else [],
            buses=played.buses,
        )
    )
    with anyio.fail_after(5):
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert played.names == ["dispatchStart", "iterationStart", "iterationEnd", "dispatchEnd"]
    assert (played.end.status, played.end.error) == ("aborted", None)
    assert len(controller.signal._listeners) == 0


async def test_cancelled_future_inside_the_executor_is_its_error() -> None:
    async def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    played = await Played().run(execute)

    assert isinstance(played.outcome, LlmExecutionExecutorError)
    assert isinstance(played.outcome.cause, asyncio.CancelledError)


async def test_finished_dispatch_no_longer_listens_to_the_turn() -> None:
    controller = AbortController()

    await Played(turn_abort_controller=controller).run(acking)

    assert len(controller.signal._listeners) == 0


# Forged tools.

BASE_SEVEN = {
    "artifact_head",
    "artifact_tail",
    "artifact_grep",
    "artifact_cat",
    "artifact_byte_length",
    "artifact_line_count",
    "artifact_estimate_tokens",
}


async def test_query_tools_are_renewed_before_each_input_pipeline_and_do_not_grow() -> None:
    seen: list[tuple[set[str], Any]] = []

    async def look(ctx: DispatchContext, next: Next) -> None:
        head = ctx.tools.get("artifact_head")
        ids = head.describe()["input_schema"]["properties"]["callId"]["enum"] if head else None
        seen.append(({each.name for each in ctx.tools.all()}, ids))
        await next()

    async def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        await ctx.store_tool_call(artifact_call(f"c{ctx.iteration}"))
        if ctx.iteration == 2:
            ctx.ack()

    await Played().run(execute, input=[look])

    assert seen == [(set(), None), (BASE_SEVEN, ["c0"]), (BASE_SEVEN, ["c0", "c1"])]


async def test_ephemeral_tools_of_middleware_live_until_the_ack() -> None:
    seen: list[list[str]] = []

    async def register(ctx: DispatchContext, next: Next) -> None:
        if ctx.iteration == 0:
            ctx.tools.register(tool("fleeting", ephemeral=True))
            ctx.tools.register(tool("lasting"))
        await next()
        seen.append([each.name for each in ctx.tools.all()])
        ctx.on_ack(lambda: seen.append([each.name for each in ctx.tools.all()]))

    await Played().run(rounds(1), input=[register])

    assert seen == [["fleeting", "lasting"], ["fleeting", "lasting"], ["lasting"], ["lasting"]]


async def test_ack_drops_ephemeral_tools_at_once_inside_the_executor() -> None:
    seen: list[set[str]] = []
    played = Played()
    await played.turn.store_tool_call(artifact_call("c"))

    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        seen.append({each.name for each in ctx.tools.all()})
        ctx.ack()
        seen.append({each.name for each in ctx.tools.all()})

    await played.run(execute)

    assert seen == [BASE_SEVEN, set()]


@pytest.mark.parametrize("how", ["nack", "abort"])
async def test_failed_dispatch_keeps_its_tools_for_inspection(how: str) -> None:
    contexts: list[DispatchContext] = []
    played = Played()
    await played.turn.store_tool_call(artifact_call("c"))

    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        contexts.append(ctx)
        SIGNALS[how](ctx)

    await played.run(execute)

    assert {each.name for each in contexts[0].tools.all()} == BASE_SEVEN


async def test_registry_put_in_place_by_middleware_is_pruned_as_well() -> None:
    contexts: list[DispatchContext] = []

    async def exchange(ctx: DispatchContext, next: Next) -> None:
        contexts.append(ctx)
        ctx.tools = ToolRegistry.merge([ctx.tools, ToolRegistry([tool("extra", ephemeral=True), tool("other")])])
        await next()

    await Played().run(acking, input=[exchange])

    assert [each.name for each in contexts[0].tools.all()] == ["other"]


async def test_tools_of_a_dispatch_never_reach_its_turn() -> None:
    played = Played()
    played.turn.tools.register(tool("configured"))
    await played.turn.store_tool_call(artifact_call("c"))

    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        ctx.tools.register(tool("added"))
        ctx.tools.unregister("configured")
        ctx.nack()

    await played.run(execute)

    assert [each.name for each in played.turn.tools.all()] == ["configured"]


class Unforgeable(SpooledArtifact):
    tool_methods: ClassVar[tuple[ToolMethod, ...]] = ()

    @classmethod
    def forge_tools(cls, ctx: Any) -> ToolRegistry:
        raise RuntimeError("no tools today")


async def test_artifact_class_that_cannot_forge_fails_the_dispatch() -> None:
    played = Played()
    await played.turn.store_tool_call(artifact_call("c", Unforgeable(InMemoryReader("text"))))

    await played.run(acking)

    assert isinstance(played.outcome, DispatchPipelineError)
    assert played.outcome.message == "the query tools cannot be forged: no tools today"
    assert played.names == ["dispatchStart", "iterationStart", "iterationEnd", "error", "dispatchEnd"]


async def test_id_shared_by_a_call_and_a_retrieved_record_fails_the_dispatch() -> None:
    played = Played()
    artifact = SpooledArtifact(InMemoryReader("text"))
    await played.turn.store_tool_call(artifact_call("x"))
    await played.turn.store_retrievable(Retrievable("x", artifact, "first-party", inline=False))

    await played.run(acking)

    assert isinstance(played.outcome, ArtifactIdCollision)
    assert played.errors == [played.outcome]


# Pipelines, hooks and observers.


async def test_pipeline_changed_while_it_runs_stays_as_it_was_given() -> None:
    seen: list[str] = []
    pipeline: list[Middleware] = []

    async def grow(ctx: DispatchContext, next: Next) -> None:
        seen.append("grow")
        pipeline.append(grow)
        await next()

    pipeline.append(grow)
    await Played().run(rounds(2), input=pipeline)

    assert seen == ["grow"] * 3


async def test_hooks_and_observers_listen_for_the_time_of_the_dispatch() -> None:
    buses, hooked, observed = EventBuses(), list[str](), list[str]()

    async def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        reporter.report_message("m", "hello", is_complete=True)
        ctx.ack()

    for _ in range(2):
        await dispatch(
            raw={"system_prompt": "p"},
            executor=execute,
            hooks={"message": lambda event: hooked.append(event.full)},
            observers={"dispatchEnd": lambda event: observed.append(event.status)},
            buses=buses,
        )

    assert (hooked, observed) == (["hello"] * 2, ["ack"] * 2)
    assert not buses.functional.has_listener("message")
    assert not buses.observability.has_listener("dispatchEnd")


async def test_generation_figures_are_seen_by_observers_of_the_dispatch() -> None:
    seen: list[Any] = []

    def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        reporter.report_generation_stats({"outputTokens": 3})
        reporter.log.info({"kind": "k", "message": "m"})
        ctx.ack()

    await dispatch(raw={"system_prompt": "p"}, executor=execute, observers={"*": seen.append})

    assert [event.name for event in seen][2:4] == ["generationStats", "log"]


# A dispatch on its own, and bad input.


async def test_dispatch_on_its_own_needs_a_prompt_only() -> None:
    assert await dispatch(raw={"system_prompt": "p"}, executor=acking) == "ack"


async def test_dispatch_on_its_own_takes_tools_callbacks_and_stash() -> None:
    published: list[Any] = []
    seen: list[Any] = []

    async def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        seen.extend([ctx.tools.has("echo"), ctx.stash.get("a.b")])
        await ctx.store_message(Message("m", "user", "hello"))
        await ctx.store_memory(Message("kept", "user", "in memory"))
        ctx.ack()

    await dispatch(
        raw={
            "system_prompt": "p",
            "tools": [tool("echo")],
            "callbacks": {"store_message": lambda ctx, record: published.append(record.id)},
            "stash": {"a": {"b": 1}},
        },
        executor=execute,
    )

    assert (seen, published) == ([True, 1], ["m"])


@pytest.mark.parametrize("gates", [None, False, True], ids=["unsaid", "off", "on"])
async def test_dispatch_on_its_own_has_gates_only_if_it_asks_for_them(gates: bool | None) -> None:
    asked: dict[str, Any] = {} if gates is None else {"gates": gates}
    answers: list[Any] = []

    async def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        try:
            answers.append(await ctx.wait_for({"id": "g", "reason": "go on?", "payload": {}}))
        except LlmExecutionGateNotSupported as error:
            answers.append(error.code)
        ctx.ack()

    await dispatch(
        raw={"system_prompt": "p", **asked},
        executor=execute,
        observers={"turnGateOpen": lambda event: event.gate.resolve("yes")},
    )

    assert answers == ["yes" if gates else "E_LLM_EXECUTION_GATE_NOT_SUPPORTED"]


RAW = {"system_prompt": "p"}
BAD_INPUT: list[tuple[str, dict[str, Any]]] = [
    ("neither", {}),
    ("executor-none", {"raw": RAW, "executor": None}),
    ("executor-text", {"raw": RAW, "executor": "run"}),
    ("raw-list", {"raw": []}),
    ("raw-text", {"raw": "hello"}),
    ("pipeline-none", {"raw": RAW, "input_pipeline": None}),
    ("pipeline-text", {"raw": RAW, "input_pipeline": "abc"}),
    ("pipeline-of-text", {"raw": RAW, "output_pipeline": ["abc"]}),
    ("pipeline-iterator", {"raw": RAW, "output_pipeline": iter([])}),
    ("hooks-list", {"raw": RAW, "hooks": [print]}),
    ("hooks-of-text", {"raw": RAW, "hooks": {"message": "print"}}),
    ("observers-of-none", {"raw": RAW, "observers": {"*": None}}),
]


@pytest.mark.parametrize("given", [row[1] for row in BAD_INPUT], ids=[row[0] for row in BAD_INPUT])
async def test_bad_input_is_refused_before_anything_happens(given: dict[str, Any]) -> None:
    ran: list[str] = []
    buses = EventBuses()
    buses.observability.on("*", lambda event: ran.append(event.name))

    with pytest.raises(InvalidLlmDispatchInput) as raised:
        await dispatch(**{"executor": lambda ctx, reporter: ran.append("ran"), "buses": buses, **given})

    error = raised.value
    assert (error.code, error.status, error.fatal) == ("E_INVALID_LLM_DISPATCH_INPUT", 529, True)
    assert ran == []


async def test_source_and_raw_together_are_refused() -> None:
    with pytest.raises(InvalidLlmDispatchInput):
        await dispatch(source=Played().turn, raw=RAW, executor=acking)


BAD_CONTEXT: list[tuple[str, dict[str, Any]]] = [
    ("no-prompt", {"raw": {}}),
    ("unknown-field", {"raw": {**RAW, "prompt": "p"}}),
    ("bad-stash", {"raw": {**RAW, "stash": []}}),
    ("tools-number", {"raw": {**RAW, "tools": 5}}),
    ("tools-of-dicts", {"raw": {**RAW, "tools": [{"name": "echo"}]}}),
    ("tools-twice", {"raw": {**RAW, "tools": [tool("echo"), tool("echo")]}}),
    ("callbacks-list", {"raw": {**RAW, "callbacks": []}}),
    ("callbacks-of-text", {"raw": {**RAW, "callbacks": {"store_message": "print"}}}),
    ("callbacks-unknown", {"raw": {**RAW, "callbacks": {"store_mesage": print}}}),
    ("gates-text", {"raw": {**RAW, "gates": "yes"}}),
    ("source-dict", {"source": RAW}),
]


@pytest.mark.parametrize("given", [row[1] for row in BAD_CONTEXT], ids=[row[0] for row in BAD_CONTEXT])
async def test_bad_context_is_refused_before_anything_happens(given: dict[str, Any]) -> None:
    ran: list[str] = []
    buses = EventBuses()
    listener: Listener = ran.append

    with pytest.raises(InvalidLlmExecutionContext) as raised:
        await dispatch(executor=acking, buses=buses, observers={"*": listener}, **given)

    error = raised.value
    assert (error.code, error.status, error.fatal) == ("E_INVALID_LLM_EXECUTION_CONTEXT", 529, True)
    assert ran == []
    assert not buses.observability.has_listener("*")

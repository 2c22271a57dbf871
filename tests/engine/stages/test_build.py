"""From a pipeline of a snapshot to a running chain."""

import asyncio
import gc
from datetime import timedelta
from typing import Any

import pytest
from anyio import fail_after

from gateway.config.kinds.pipelines import parse_stage_options
from gateway.engine.stages.factory import (
    InvalidStage,
    StageState,
    ToolLimits,
    build_phase_stages,
    call_stages,
    chain_stages,
    find_loop_guard,
    refusal_before,
)
from gateway.engine.stages.resilience import BulkheadFull, CallRejected
from gateway.engine.stages.result_stages import InlineSmallResults, RedactionStage
from gateway.engine.stages.turn_stages import LoopGuard, ToolSelectionStage, TurnSummaryStage
from gateway.model.tools.backend import BackendError, CallPipeline
from gateway.model.tools.tool_registry import ToolRegistry
from gateway.registries.diagnostics import Position
from gateway.registries.effective_trust import EffectiveTrust, Tier
from gateway.registries.pipeline_stages import Phase
from gateway.registries.snapshot import DeclaredTool, Pipeline, PipelineStage
from tests.engine.stages.sample_calls import Backend, Clock, HangingBackend, a_call, a_dispatch, settled, started

pytestmark = pytest.mark.anyio

HERE = Position("pipelines.yaml", 1, 1)
TIER = Tier("internal", 10, "first-party")
DOWN = BackendError("unavailable", "the server is down")
BREAKER = {"use": "circuit-breaker", "with": {"openAfter": 1}}
RETRY = {"use": "retry", "with": {"delay": "1ms"}}
CACHE = {"use": "cache", "with": {"for": "5m"}}


def a_pipeline(*stages: dict[str, Any], phase: Phase = "call") -> Pipeline:
    uses = tuple(
        PipelineStage(
            each["use"], parse_stage_options(each["use"], each.get("with", {})).model_dump(by_alias=True), HERE
        )
        for each in stages
    )
    return Pipeline("standard", {phase: uses}, HERE)


def a_tool(*flags: str, name: str = "look", **fields: Any) -> DeclaredTool:
    trust = EffectiveTrust(TIER, frozenset(flags), trusted=False, callable=True)
    return DeclaredTool(name, "Looks.", trust, "http", HERE, **fields)


def built(backend: Any, *stages: dict[str, Any], tool: DeclaredTool | None = None, **parts: Any) -> CallPipeline:
    given = {"shared": StageState(), "clock": Clock(), "random": lambda: 0.0, **parts}
    return chain_stages(call_stages(a_pipeline(*stages), tool or a_tool(), **given), backend)


async def failure_of(run: CallPipeline) -> BackendError:
    with pytest.raises(BackendError) as raised:
        await run(a_call())
    return raised.value


async def test_pipeline_without_stages_runs_the_backend() -> None:
    run = chain_stages(call_stages(Pipeline("p", {}, HERE), a_tool(), shared=StageState()), Backend("done"))

    assert await run(a_call()) == "done"


async def test_gates_and_idempotency_are_applied_elsewhere() -> None:
    assert await built(Backend("done"), {"use": "gates"}, {"use": "idempotency"})(a_call()) == "done"


async def test_all_stages_work_together() -> None:
    backend = Backend(DOWN, "done", "other")
    timeout = {"use": "timeout", "with": {"after": "30s"}}
    breaker = {"use": "circuit-breaker"}
    run = built(backend, {"use": "gates"}, CACHE, timeout, RETRY, breaker, {"use": "concurrency", "with": {"limit": 1}})

    assert [await run(a_call()), await run(a_call())] == ["done", "done"]
    assert len(backend.calls) == 2


# Retry


@pytest.mark.parametrize(
    ("tool", "options", "calls"),
    [
        (a_tool(), {}, 2),
        (a_tool("egress"), {}, 2),
        (a_tool("egress"), {"unlessFlags": ["egress"]}, 1),
        (a_tool("writes"), {}, 1),
        (a_tool("destructive"), {}, 1),
        (a_tool("writes", idempotent=True), {}, 2),
        (a_tool("writes", idempotent=True), {"unlessFlags": ["writes"]}, 1),
    ],
    ids=["reads", "egress", "excluded", "writes", "destructive", "idempotent", "idempotent and excluded"],
)
async def test_only_harmless_calls_are_tried_again(tool: DeclaredTool, options: dict[str, Any], calls: int) -> None:
    backend = Backend(DOWN)

    await failure_of(built(backend, {"use": "retry", "with": {"delay": "1ms", **options}}, tool=tool))

    assert len(backend.calls) == calls


# Cache


@pytest.mark.parametrize("flag", ["writes", "destructive"])
async def test_tools_that_change_something_are_not_answered_from_memory(flag: str) -> None:
    backend = Backend("done")
    run = built(backend, CACHE, tool=a_tool(flag))

    await run(a_call())
    await run(a_call())

    assert len(backend.calls) == 2


async def test_next_snapshot_remembers_no_answers() -> None:
    backend = Backend("one", "two")
    shared = StageState()
    await built(backend, CACHE, shared=shared)(a_call())

    assert await built(backend, CACHE, shared=shared)(a_call()) == "one"
    assert await built(backend, CACHE, shared=shared.for_next_revision())(a_call()) == "two"


async def test_catalogue_reaches_the_cache() -> None:
    backend = Backend("one", "two")
    by_catalogue = {"use": "cache", "with": {"for": "5m", "by": ["catalogue"]}}
    shared = StageState()

    answers = [
        await built(backend, by_catalogue, shared=shared, catalogue=name)(a_call()) for name in ("eng", "sales", "eng")
    ]

    assert answers == ["one", "two", "one"]


# Circuits


async def test_tools_of_an_upstream_share_a_circuit() -> None:
    shared = StageState()
    one = built(Backend(DOWN), BREAKER, tool=a_tool(name="one", upstream="github"), shared=shared)
    two = built(Backend("done"), BREAKER, tool=a_tool(name="two", upstream="github"), shared=shared)
    alone = built(Backend("done"), BREAKER, tool=a_tool(name="three"), shared=shared)
    await failure_of(one)

    assert isinstance(await failure_of(two), CallRejected)
    assert await alone(a_call()) == "done"
    assert shared.circuit_states() == {"upstream:github": "open", "tool:three": "closed"}


async def test_backend_that_rests_is_known_before_a_call_begins() -> None:
    stages = call_stages(a_pipeline(RETRY, BREAKER), a_tool(), shared=StageState(), clock=Clock())
    refuse = refusal_before(stages)
    assert refuse is not None
    refuse()
    await failure_of(chain_stages(stages, Backend(DOWN)))

    with pytest.raises(CallRejected) as resting:
        refuse()

    assert (resting.value.status, resting.value.retry_after) == (503, timedelta(seconds=15))


async def test_full_line_is_known_before_a_call_begins() -> None:
    stages = call_stages(a_pipeline(), a_tool(), shared=StageState(), limits=ToolLimits(concurrent=1))
    refuse, run = refusal_before(stages), chain_stages(stages, HangingBackend())
    assert refuse is not None
    calls = [asyncio.ensure_future(run(a_call())) for _ in range(3)]
    for _ in range(5):
        await asyncio.sleep(0)

    with pytest.raises(BulkheadFull) as crowded:
        refuse()

    assert crowded.value.status == 429
    for each in calls:
        each.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize(
    ("stages", "refuses"),
    [([], False), ([RETRY], False), ([CACHE, BREAKER], False), ([BREAKER, CACHE], True)],
    ids=["none", "retry", "cache-first", "breaker-first"],
)
def test_stage_that_may_answer_itself_is_asked_first(stages: list[dict[str, Any]], refuses: bool) -> None:
    made = call_stages(a_pipeline(*stages), a_tool(), shared=StageState())

    assert (refusal_before(made) is not None) is refuses


async def test_circuit_outlives_the_snapshot_while_it_is_used() -> None:
    shared = StageState()
    down = BackendError("unavailable", "no")  # not the shared one, whose traceback would keep the chain alive
    first = built(Backend(down), BREAKER, shared=shared)
    await failure_of(first)

    second = built(Backend("done"), BREAKER, shared=shared.for_next_revision())

    assert isinstance(await failure_of(second), CallRejected)
    del first, second, down
    gc.collect()
    assert shared.circuit_states() == {}


async def test_worst_state_of_a_key_is_reported() -> None:
    shared = StageState()
    strict = built(Backend(DOWN), BREAKER, shared=shared)
    lenient = built(Backend("done"), {"use": "circuit-breaker"}, shared=shared)
    await failure_of(strict)

    assert await lenient(a_call()) == "done"
    assert shared.circuit_states() == {"tool:look": "open"}


# The tool's own limits


@pytest.mark.parametrize(
    "stages", [(), ({"use": "timeout", "with": {"after": "30s"}},), (CACHE, RETRY)], ids=["none", "longer", "others"]
)
async def test_own_timeout_holds_whatever_the_pipeline_declares(stages: Any) -> None:
    limits = ToolLimits(timeout=timedelta(milliseconds=2))

    with fail_after(5):
        failure = await failure_of(built(HangingBackend(), *stages, limits=limits))

    assert failure.message == "no answer within 0.002s"


async def test_own_timeout_wraps_the_retries() -> None:
    backend = Backend(DOWN)
    limits = ToolLimits(timeout=timedelta(seconds=1))
    slow = {"use": "retry", "with": {"delay": "10s"}}

    await failure_of(built(backend, {"use": "gates"}, slow, limits=limits, random=lambda: 1.0))

    assert len(backend.calls) == 1  # the pause would last past the deadline


@pytest.mark.parametrize(
    ("stages", "own", "running"),
    [
        ((), 1, 1),
        (({"use": "concurrency", "with": {"limit": 3}},), 2, 2),
        (({"use": "concurrency", "with": {"limit": 2}},), 3, 2),
        (({"use": "concurrency", "with": {"limit": 2}},), None, 2),
    ],
    ids=["own alone", "own is smaller", "stage is smaller", "stage alone"],
)
async def test_smaller_limit_of_running_calls_counts(stages: Any, own: int | None, running: int) -> None:
    backend = HangingBackend()
    run = built(backend, *stages, limits=ToolLimits(concurrent=own))

    tasks = [started(run, a_call()) for _ in range(3)]
    await settled()

    assert backend.running == running
    backend.release.set()
    await asyncio.gather(*tasks)


async def test_chains_of_one_tool_share_its_bulkhead() -> None:
    shared = StageState()
    backend = HangingBackend()
    chains = [built(backend, limits=ToolLimits(concurrent=1), shared=shared) for _ in range(2)]

    tasks = [started(run, a_call()) for run in chains]
    await settled()

    assert backend.running == 1
    backend.release.set()
    await asyncio.gather(*tasks)


async def test_largest_size_of_the_artifact_class_holds() -> None:
    failure = await failure_of(built(Backend("12345"), limits=ToolLimits(max_size=4), tool=a_tool(artifact="ticket")))

    assert failure.message == "the result is larger than the 4 bytes that ticket may have; nothing was stored"


# Other phases


@pytest.mark.parametrize(
    ("phase", "stages", "classes"),
    [
        ("turnInput", ["select-tools"], [ToolSelectionStage]),
        ("dispatchInput", ["loop-guard"], [LoopGuard]),
        ("dispatchOutput", ["inline-small-results", "redact"], [InlineSmallResults, RedactionStage]),
        ("turnOutput", ["audit-summary"], [TurnSummaryStage]),
    ],
)
def test_each_phase_has_its_stages(phase: Phase, stages: list[str], classes: list[type]) -> None:
    pipeline = a_pipeline(*({"use": name} for name in stages), phase=phase)

    made = build_phase_stages(pipeline, phase, registry=ToolRegistry(), class_of=lambda tool: None)

    assert [type(stage) for stage in made] == classes


def test_phase_that_a_pipeline_does_not_mention_is_empty() -> None:
    assert build_phase_stages(a_pipeline(), "turnInput", registry=ToolRegistry(), class_of=lambda tool: None) == []


def test_stage_of_another_phase_is_refused() -> None:
    pipeline = a_pipeline({"use": "gates"}, phase="turnInput")

    with pytest.raises(InvalidStage, match="stage 'gates' has no place in turnInput"):
        build_phase_stages(pipeline, "turnInput", registry=ToolRegistry(), class_of=lambda tool: None)


def test_loop_guard_can_be_had_by_itself() -> None:
    guard = find_loop_guard(a_pipeline({"use": "loop-guard", "with": {"sameCall": 1}}, phase="dispatchInput"))

    assert guard is not None
    guard.check(a_dispatch(), "checksum")
    assert find_loop_guard(a_pipeline()) is None

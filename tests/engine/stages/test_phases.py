"""Stages of turns and dispatches: sizes, loops, tools, summaries."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.artifacts.spool_stores import InMemoryReader, InMemoryStore
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.engine.stages.factory import chain_stages
from gateway.engine.stages.result_stages import InlineSmallResults, SizeLimit, measure_results
from gateway.engine.stages.turn_stages import (
    PROPOSED_CALLS,
    LoopGuard,
    ToolSelectionStage,
    TurnSummary,
    TurnSummaryStage,
)
from gateway.errors import ArtifactGone, LoopStopped
from gateway.model.media import InMemoryMediaReader, Media
from gateway.model.primitives.canonical_json import call_id
from gateway.model.schema.schema import Schema
from gateway.model.tokenizer import Tokenizable
from gateway.model.tools.backend import BackendError, Invocation
from gateway.model.tools.tool import Tool
from gateway.model.tools.tool_registry import ToolRegistry
from gateway.model.turns.context import DispatchContext
from gateway.model.turns.events import EventBuses
from gateway.model.turns.middleware_pipeline import run_pipeline
from gateway.registries.diagnostics import Position
from gateway.registries.snapshot import ArtifactClass
from tests.engine.stages.sample_calls import Backend, a_call, a_dispatch, a_record, a_turn, run_stage

pytestmark = pytest.mark.anyio


class Gone(InMemoryReader):
    def byte_length(self) -> int:
        raise ArtifactGone()


class Unmeasured(InMemoryMediaReader):
    def byte_length(self) -> Any:
        return None


def text(content: str) -> SpooledArtifact:
    return SpooledArtifact(InMemoryReader(content))


def image(reader: Any = None) -> Media:
    chosen = reader or InMemoryMediaReader(b"12345")
    return Media.tool_generated("image", mime_type="image/png", filename="a.png", reader=chosen)


# Sizes


@pytest.mark.parametrize(
    ("results", "size"),
    [
        (text("héllo"), 6),
        ([text("ab"), text("c")], 3),
        (image(), 5),
        (Tokenizable("é"), 2),
        (image(Unmeasured(b"")), None),
        ([image(), image(Unmeasured(b""))], None),
        (SpooledArtifact(Gone("x")), None),
    ],
    ids=["artifact", "artifacts", "media", "text", "unknown", "partly unknown", "gone"],
)
async def test_results_have_a_size(results: Any, size: int | None) -> None:
    assert await measure_results(results) == size


@pytest.mark.parametrize(
    ("below", "limit", "results", "default", "inline"),
    [
        (5, None, text("1234"), False, True),
        (5, None, text("12345"), True, False),
        (5, 3, text("1234"), True, False),
        (None, 5, text("1234"), False, True),
        (None, None, text("1234"), False, False),
        (5, None, [text("123"), text("45")], True, False),
        (5, None, image(), True, True),
        (5, None, Tokenizable("a long text"), True, True),
        (5, None, SpooledArtifact(Gone("x")), False, False),
    ],
    ids=["below", "not below", "class wins", "class alone", "neither", "several", "media", "text", "gone"],
)
async def test_small_results_are_shown(
    below: int | None, limit: int | None, results: Any, default: bool, inline: bool
) -> None:
    assert await InlineSmallResults(below).decide(results, default=default, limit=limit) is inline


async def test_records_are_flipped_by_the_limits_of_their_classes() -> None:
    ctx = a_dispatch()
    short = ArtifactClass("short", SpooledArtifact, Position("a.yaml", 1, 1), inline_below=2)
    await ctx.store_tool_call(a_record(text("1234"), id="a", inline=False))
    await ctx.store_tool_call(a_record(text("1234"), id="b", tool="other", inline=True))
    await ctx.store_tool_call(a_record(text("1234"), id="c", inline=True))

    await InlineSmallResults(5, {"other": short}.get)(ctx, run_stage)

    assert [(call.id, call.inline) for call in ctx.turn_tool_calls] == [("a", True), ("b", False), ("c", True)]


# SizeLimit

TOO_LARGE = "the result is larger than the 4 bytes that customer-record may have; nothing was stored"


@pytest.mark.parametrize("result", ["1234", "éé", b"1234", bytearray(b"1"), [1, 2, 3, 4, 5]], ids=repr)
async def test_result_that_fits_passes(result: Any) -> None:
    assert await chain_stages([SizeLimit(4, of="customer-record")], Backend(result))(a_call()) == result


@pytest.mark.parametrize(
    "result",
    ["12345", "ééé", b"12345", bytearray(b"12345"), memoryview(b"12345")],
    ids=["text", "two bytes a letter", "bytes", "bytearray", "memoryview"],
)
async def test_result_that_is_too_large_is_refused(result: Any) -> None:
    with pytest.raises(BackendError) as raised:
        await chain_stages([SizeLimit(4, of="customer-record")], Backend(result))(a_call())

    assert (raised.value.word, raised.value.message) == ("failed", TOO_LARGE)


async def test_stream_that_grows_too_large_is_cut_off_and_not_kept() -> None:
    spool = InMemoryStore()
    given: list[bytes] = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            given.append(b"123")
            yield b"123"

    async def stream(call: Invocation) -> Any:
        return await call.keep(endless())

    with pytest.raises(BackendError, match="larger than"):
        await chain_stages([SizeLimit(4, of="customer-record")], Backend(stream))(a_call(spool=spool))

    assert len(given) == 2
    assert await spool.read("c") is None


async def test_stream_that_fits_is_kept() -> None:
    async def stream(call: Invocation) -> Any:
        return await call.keep([b"12", b"34"])

    reader = await chain_stages([SizeLimit(4, of="customer-record")], Backend(stream))(a_call())

    assert reader.read_all() == "1234"


# Loops


async def with_calls(count: int, *, buses: EventBuses | None = None) -> DispatchContext:
    ctx = a_dispatch(buses=buses)
    for number in range(count):
        await ctx.store_tool_call(a_record(Tokenizable("x"), id=str(number), args={"q": 1}))
    return ctx


SAME = call_id("look", {"q": 1})
OTHER = call_id("look", {"q": 2})


async def test_call_made_too_often_is_refused_with_the_reason() -> None:
    seen: list[Any] = []
    buses = EventBuses()
    buses.observability.on("warning", seen.append)
    ctx = await with_calls(3, buses=buses)

    with pytest.raises(LoopStopped) as raised:
        LoopGuard(3).check(ctx, SAME)

    assert (raised.value.code, raised.value.status) == ("E_LOOP_STOPPED", 429)
    assert raised.value.message == (
        "this call was already made 3 times in this turn with the same arguments; "
        "use what it answered, or call with other arguments"
    )
    assert [event.kind for event in seen] == ["loop-stopped"]


@pytest.mark.parametrize(("made", "pending"), [(2, 0), (0, 2), (1, 1)])
async def test_call_below_the_limit_passes(made: int, pending: int) -> None:
    LoopGuard(3).check(await with_calls(made), SAME, pending=pending)


async def test_calls_under_way_count() -> None:
    with pytest.raises(LoopStopped, match="3 times"):
        LoopGuard(3).check(await with_calls(1), SAME, pending=2)


async def test_other_arguments_are_another_call() -> None:
    LoopGuard(1).check(await with_calls(1), OTHER)


async def test_each_call_once_can_be_asked_for() -> None:
    with pytest.raises(LoopStopped, match="already made once in this turn"):
        LoopGuard(1).check(await with_calls(1), SAME)


@pytest.mark.parametrize(
    ("proposed", "is_stopped"),
    [(None, False), ([OTHER, OTHER], False), ([OTHER, SAME, SAME], True)],
    ids=["none", "below", "together too often"],
)
async def test_proposed_calls_are_checked_before_the_dispatch(proposed: list[str] | None, is_stopped: bool) -> None:
    ctx = await with_calls(1)
    if proposed:
        ctx.stash.set(PROPOSED_CALLS, proposed)

    passage = await run_pipeline(ctx, [LoopGuard(2)])

    assert [type(error) for error in passage.errors] == ([LoopStopped] if is_stopped else [])
    assert passage.reached_core is not is_stopped


# Tools


def a_tool(name: str) -> Tool:
    schema = Schema({"type": "object", "properties": {}})
    return Tool(name=name, description="Tests.", input_schema=schema, handler=lambda args, ctx, meta: "x")


async def test_turn_gets_the_tools_of_its_catalogue_alone() -> None:
    turn = a_turn()
    turn.tools.register(a_tool("stray"))
    registry = ToolRegistry([a_tool("one"), a_tool("two")])
    registry.hide("two")

    await ToolSelectionStage(registry)(turn, run_stage)
    turn.tools.register(a_tool("three"))

    assert [tool.name for tool in turn.tools.visible()] == ["one", "three"]
    assert [tool.name for tool in turn.tools.hidden()] == ["two"]
    assert not registry.has("three")


# Summary


async def test_turn_is_summed_up_in_one_event() -> None:
    seen: list[Any] = []
    buses = EventBuses()
    buses.observability.on("turnSummary", seen.append)
    turn = a_turn(buses=buses)
    await turn.store_tool_call(a_record(text("1234"), id="a"))
    await turn.store_tool_call(a_record(Tokenizable("no"), id="b", is_error=True))
    await turn.store_tool_call(a_record(SpooledArtifact(Gone("x")), id="c", tool="other"))
    decisions: dict[str, Any] = {"a": "allow", "b": "deny"}

    await TurnSummaryStage(lambda call: decisions.get(call.id))(turn, run_stage)

    [summary] = seen
    assert summary == TurnSummary(
        turn.turn_id,
        summary.emitted_at,
        calls={"look": 2, "other": 1},
        errors={"look": 1},
        decisions={"allow": 1, "deny": 1},
        byte_length=6,
    )


async def test_turn_without_calls_is_summed_up_as_well() -> None:
    summary = await TurnSummaryStage().summarize(a_turn())

    assert (summary.calls, summary.errors, summary.decisions, summary.byte_length) == ({}, {}, {}, 0)


async def test_unknown_decisions_are_left_out() -> None:
    turn = a_turn()
    await turn.store_tool_call(a_record(text("1234")))

    assert (await TurnSummaryStage().summarize(turn)).decisions == {}

"""Query tools are forged anew for each dispatch, from the artifacts that the turn has at that time."""

from typing import Any

import pytest

from gateway.artifacts.query_tools import ToolMethod
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.engine.turn_pipeline.dispatch_loop import build_query_tools, forge_into, in_memory_callbacks
from gateway.model.schema.schema import Schema
from gateway.model.tokenizer import Tokenizable
from gateway.model.tools.tool import ArtifactTool, Tool
from gateway.model.tools.tool_call import ToolCall
from gateway.model.tools.tool_registry import ToolRegistry
from gateway.model.turns.context import DispatchContext, TurnContext
from gateway.model.turns.conversation_records import Retrievable
from gateway.model.turns.events import EventBuses, now

pytestmark = pytest.mark.anyio

BASE_SEVEN = {each.name for each in SpooledArtifact.tool_methods}


class Left(SpooledArtifact):
    tool_methods = (ToolMethod("artifact_left", "head", "Queries a left one of this turn by callId."),)


class Right(SpooledArtifact):
    tool_methods = (ToolMethod("artifact_right", "head", "Queries a right one of this turn by callId."),)


def a_tool(name: str, **fields: Any) -> Tool:
    schema = Schema({"type": "object"})
    return Tool(name=name, description="Tests.", input_schema=schema, handler=lambda *_: "", **fields)


def a_dispatch(*tools: Tool) -> DispatchContext:
    buses = EventBuses()
    raw = {"system_prompt": "Test."}
    turn = TurnContext(raw, tools=ToolRegistry(tools), callbacks=in_memory_callbacks(), buses=buses)
    return DispatchContext(turn, buses=buses)


def a_call(id: str, results: Any, **fields: Any) -> ToolCall:
    moment = now()
    return ToolCall(
        id=id,
        tool="t",
        args={},
        is_complete=True,
        is_error=False,
        results=results,
        created_at=moment,
        updated_at=moment,
        completed_at=moment,
        **fields,
    )


def list_call_ids(tools: ToolRegistry) -> dict[str, list[str]]:
    described = {tool.name: tool.describe()["input_schema"]["properties"] for tool in tools.all()}
    return {name: properties["callId"]["enum"] for name, properties in described.items() if "callId" in properties}


async def test_nothing_is_forged_for_texts() -> None:
    ctx = a_dispatch(a_tool("t"))
    await ctx.store_tool_call(a_call("c", Tokenizable("x")))
    await ctx.store_retrievable(Retrievable("r", "text", "first-party", inline=False))

    forge_into(ctx)

    assert [tool.name for tool in ctx.tools.all()] == ["t"]


async def test_every_class_among_the_results_brings_its_tools() -> None:
    ctx = a_dispatch()
    await ctx.store_tool_call(a_call("l", Left(InMemoryReader("l"))))
    await ctx.store_tool_call(a_call("r", Right(InMemoryReader("r"))))
    await ctx.store_tool_call(a_call("p", SpooledArtifact(InMemoryReader("p"))))

    assert list_call_ids(build_query_tools(ctx)) == {
        **{name: ["l", "r", "p"] for name in BASE_SEVEN},
        "artifact_left": ["l"],
        "artifact_right": ["r"],
    }


async def test_each_artifact_of_a_list_brings_its_tools() -> None:
    ctx = a_dispatch()
    await ctx.store_tool_call(a_call("many", [Left(InMemoryReader("1")), Left(InMemoryReader("2"))]))
    await ctx.store_tool_call(a_call("p", SpooledArtifact(InMemoryReader("p"))))

    assert list_call_ids(build_query_tools(ctx)) == {
        **{name: ["many#0", "many#1", "p"] for name in BASE_SEVEN},
        "artifact_left": ["many#0", "many#1"],
    }
    head = build_query_tools(ctx).get("artifact_head")
    assert head is not None
    assert [await head.executor(ctx)({"callId": f"many#{number}"}) for number in (0, 1)] == ["1", "2"]


async def test_retrieved_artifacts_bring_their_tools() -> None:
    ctx = a_dispatch()
    await ctx.store_retrievable(Retrievable("r", Right(InMemoryReader("r")), "third-party-public", inline=False))

    assert list_call_ids(build_query_tools(ctx)) == {**{name: ["r"] for name in BASE_SEVEN}, "artifact_right": ["r"]}


async def test_forging_again_renews_the_ids_and_adds_no_tools() -> None:
    ctx = a_dispatch(a_tool("t"))
    await ctx.store_tool_call(a_call("one", SpooledArtifact(InMemoryReader("1"))))
    forge_into(ctx)
    await ctx.store_tool_call(a_call("two", SpooledArtifact(InMemoryReader("2"))))

    forge_into(ctx)

    assert list_call_ids(ctx.tools) == {name: ["one", "two"] for name in BASE_SEVEN}
    assert len(ctx.tools.all()) == 8


async def test_tools_of_artifacts_that_are_gone_disappear() -> None:
    ctx = a_dispatch(a_tool("t"))
    await ctx.store_tool_call(a_call("one", SpooledArtifact(InMemoryReader("1"))))
    forge_into(ctx)
    await ctx.delete_tool_call("one")

    forge_into(ctx)

    assert [tool.name for tool in ctx.tools.all()] == ["t"]


async def test_every_other_ephemeral_tool_stays() -> None:
    ctx = a_dispatch(a_tool("kept"), a_tool("passing", ephemeral=True))
    await ctx.store_tool_call(a_call("one", SpooledArtifact(InMemoryReader("1"))))

    forge_into(ctx)
    by_hand = ArtifactTool(
        name="own_query",
        description="Tests.",
        input_schema=Schema({"type": "object"}),
        handler=lambda *_: "",
        ephemeral=True,
    )
    ctx.tools.register(by_hand)
    ctx.tools.register(a_tool("artifact_head", ephemeral=True), overwrite=True)
    await ctx.delete_tool_call("one")
    forge_into(ctx)

    assert [tool.name for tool in ctx.tools.all()] == ["kept", "passing", "artifact_head", "own_query"]
    ctx.prunes_on_ack = True
    ctx.ack()
    assert [tool.name for tool in ctx.tools.all()] == ["kept"]


async def test_dispatch_inside_a_dispatch_renews_what_the_outer_one_forged() -> None:
    outer = a_dispatch()
    await outer.store_tool_call(a_call("one", SpooledArtifact(InMemoryReader("1"))))
    forge_into(outer)
    inner = DispatchContext(outer, buses=EventBuses())
    await inner.delete_tool_call("one")

    forge_into(inner)

    assert inner.tools.all() == []
    assert list_call_ids(outer.tools) == {name: ["one"] for name in BASE_SEVEN}


async def test_forged_tool_takes_the_place_of_one_with_its_name() -> None:
    ctx = a_dispatch(a_tool("artifact_head"), a_tool("t"))
    await ctx.store_tool_call(a_call("c", SpooledArtifact(InMemoryReader("x"))))

    forge_into(ctx)

    assert [tool.name for tool in ctx.tools.all()][:2] == ["artifact_head", "t"]
    assert list_call_ids(ctx.tools)["artifact_head"] == ["c"]


async def test_ack_drops_the_forged_tools() -> None:
    ctx = a_dispatch(a_tool("t"))
    await ctx.store_tool_call(a_call("c", SpooledArtifact(InMemoryReader("x"))))
    ctx.tools.bind_context(ctx)
    forge_into(ctx)

    ctx.ack()

    assert [tool.name for tool in ctx.tools.all()] == ["t"]

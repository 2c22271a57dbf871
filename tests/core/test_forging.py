"""Forging for a dispatch: query tools are renewed for what the turn holds now."""

from typing import Any

import pytest

from gateway.core.artifacts import SpooledArtifact, ToolMethod
from gateway.core.callbacks import in_memory_callbacks
from gateway.core.calls import ToolCall
from gateway.core.context import DispatchContext, TurnContext
from gateway.core.events import Buses, now
from gateway.core.forging import forge_into, forged_tools
from gateway.core.records import Retrievable
from gateway.core.schemas import Schema
from gateway.core.spool import InMemoryReader
from gateway.core.tokens import Tokenizable
from gateway.core.tool_registry import ToolRegistry
from gateway.core.tools import ArtifactTool, Tool

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
    buses = Buses()
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


def offered(tools: ToolRegistry) -> dict[str, list[str]]:
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

    assert offered(forged_tools(ctx)) == {
        **{name: ["l", "r", "p"] for name in BASE_SEVEN},
        "artifact_left": ["l"],
        "artifact_right": ["r"],
    }


async def test_each_artifact_of_a_list_brings_its_tools() -> None:
    ctx = a_dispatch()
    await ctx.store_tool_call(a_call("many", [Left(InMemoryReader("1")), Left(InMemoryReader("2"))]))
    await ctx.store_tool_call(a_call("p", SpooledArtifact(InMemoryReader("p"))))

    assert offered(forged_tools(ctx)) == {
        **{name: ["many#0", "many#1", "p"] for name in BASE_SEVEN},
        "artifact_left": ["many#0", "many#1"],
    }
    head = forged_tools(ctx).get("artifact_head")
    assert head is not None
    assert [await head.executor(ctx)({"callId": f"many#{number}"}) for number in (0, 1)] == ["1", "2"]


async def test_retrieved_artifacts_bring_their_tools() -> None:
    ctx = a_dispatch()
    await ctx.store_retrievable(Retrievable("r", Right(InMemoryReader("r")), "third-party-public", inline=False))

    assert offered(forged_tools(ctx)) == {**{name: ["r"] for name in BASE_SEVEN}, "artifact_right": ["r"]}


async def test_forging_again_renews_the_ids_and_adds_no_tools() -> None:
    ctx = a_dispatch(a_tool("t"))
    await ctx.store_tool_call(a_call("one", SpooledArtifact(InMemoryReader("1"))))
    forge_into(ctx)
    await ctx.store_tool_call(a_call("two", SpooledArtifact(InMemoryReader("2"))))

    forge_into(ctx)

    assert offered(ctx.tools) == {name: ["one", "two"] for name in BASE_SEVEN}
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
    inner = DispatchContext(outer, buses=Buses())
    await inner.delete_tool_call("one")

    forge_into(inner)

    assert inner.tools.all() == []
    assert offered(outer.tools) == {name: ["one"] for name in BASE_SEVEN}


async def test_forged_tool_takes_the_place_of_one_with_its_name() -> None:
    ctx = a_dispatch(a_tool("artifact_head"), a_tool("t"))
    await ctx.store_tool_call(a_call("c", SpooledArtifact(InMemoryReader("x"))))

    forge_into(ctx)

    assert [tool.name for tool in ctx.tools.all()][:2] == ["artifact_head", "t"]
    assert offered(ctx.tools)["artifact_head"] == ["c"]


async def test_ack_drops_the_forged_tools() -> None:
    ctx = a_dispatch(a_tool("t"))
    await ctx.store_tool_call(a_call("c", SpooledArtifact(InMemoryReader("x"))))
    ctx.tools.bind_context(ctx)
    forge_into(ctx)

    ctx.ack()

    assert [tool.name for tool in ctx.tools.all()] == ["t"]

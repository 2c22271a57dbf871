"""Real clients of either era, through the gateway, to real servers of either era: nothing is lost on the way."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from tests.backends.mcp.servers.asgi_host import Era, reference
from tests.backends.mcp.servers.front_gateway import Gateway, gateway, project, tool, upstream
from tests.backends.mcp.servers.reference_server import PIXEL

pytestmark = pytest.mark.anyio

MODERN = "2026-07-28"
WAYS = [(mode, era) for mode in (MODERN, "legacy") for era in ("modern", "legacy")]
TOOLS = [
    tool("echo", "text"),
    tool("add", "a:int", "b:int"),
    tool("sum", "a:int", "b:int", remote="add", output={"artifact": "json", "schema": {"type": "object"}}),
    tool("picture"),
    tool("mixed"),
    tool("fail"),
    tool("steps"),
    tool("greet"),
    tool("think"),
    tool("wait", "key"),
    tool("waited", "key"),
    tool("route", "region"),
    tool("token"),
]
every_way = pytest.mark.parametrize(("mode", "era"), WAYS, ids=[f"{mode}-to-{era}" for mode, era in WAYS])


async def answer_elicitation(context: Any, params: Any) -> Any:
    return types.ElicitResult(action="accept", content={"name": "Ana"})


async def answer_sampling(context: Any, params: Any) -> Any:
    content = types.TextContent(type="text", text="hi there")
    return types.CreateMessageResult(role="assistant", content=content, model="tiny")


@asynccontextmanager
async def start_bridge(folder: Path, era: Era, *, render: str = "plain") -> AsyncIterator[Gateway]:
    async with reference(era) as url:
        remote = upstream("remote", {"type": "streamable-http", "url": url})
        async with gateway(project(folder / "project", remote, *TOOLS, render=render)) as started:
            yield started


@every_way
async def test_results_arrive_as_they_were_given(tmp_path: Path, mode: Any, era: Era) -> None:
    async with start_bridge(tmp_path, era) as started, Client(started.url, mode=mode) as client:
        echoed = await client.call_tool("echo", {"text": "hällo\nworld"})
        added = await client.call_tool("add", {"a": 1, "b": 2})
        summed = await client.call_tool("sum", {"a": 1, "b": 2})
        seen = await client.call_tool("picture")
        mixed = await client.call_tool("mixed")
        failed = await client.call_tool("fail")

    assert [block.text for block in echoed.content if isinstance(block, types.TextContent)] == ["hällo\nworld"]
    assert (added.structured_content, summed.structured_content) == ({"total": 3}, {"total": 3})
    assert [block.data for block in seen.content if isinstance(block, types.ImageContent)] == [PIXEL]
    assert [block.type for block in mixed.content] == ["text", "image", "resource", "resource_link"]
    embedded, link = mixed.content[2], mixed.content[3]
    assert isinstance(embedded, types.EmbeddedResource)
    assert isinstance(embedded.resource, types.TextResourceContents)
    assert embedded.resource.text == "inside"
    assert isinstance(link, types.ResourceLink)
    assert link.uri == "test://more"
    assert failed.is_error


@every_way
async def test_progress_questions_and_samples_go_both_ways(tmp_path: Path, mode: Any, era: Era) -> None:
    reported: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        reported.append(progress)

    async with (
        start_bridge(tmp_path, era) as started,
        Client(
            started.url, mode=mode, elicitation_callback=answer_elicitation, sampling_callback=answer_sampling
        ) as client,
    ):
        await client.call_tool("steps", progress_callback=progressed)
        greeted = await client.call_tool("greet")
        thought = await client.call_tool("think")

    assert reported == [1, 2, 3]
    assert "hello Ana" in str(greeted.content)
    assert "it says hi there" in str(thought.content)


@every_way
async def test_client_that_cannot_answer_is_never_asked(tmp_path: Path, mode: Any, era: Era) -> None:
    async with start_bridge(tmp_path, era) as started, Client(started.url, mode=mode) as client:
        try:
            answer = await client.call_tool("greet")
            is_error = answer.is_error
        except Exception as error:
            is_error = "capability" in str(error)
        after = await client.call_tool("echo", {"text": "still there"})

    assert is_error
    assert "still there" in str(after.content)


@every_way
async def test_call_that_is_given_up_is_given_up_over_there(tmp_path: Path, mode: Any, era: Era) -> None:
    async with start_bridge(tmp_path, era) as started, Client(started.url, mode=mode) as client:
        call = asyncio.create_task(client.call_tool("wait", {"key": "k"}))
        while "waiting" not in str((await client.call_tool("waited", {"key": "k"})).content):
            await asyncio.sleep(0.02)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        async with asyncio.timeout(10):
            while "cancelled" not in str((await client.call_tool("waited", {"key": "k"})).content):
                await asyncio.sleep(0.02)


async def test_blocks_are_marked_by_the_gateway_alone(tmp_path: Path) -> None:
    async with (
        start_bridge(tmp_path, "modern", render="envelope") as started,
        Client(started.url, mode=MODERN) as client,
    ):
        mixed = await client.call_tool("mixed")

    assert all((block.meta or {}).get("trusted") is False for block in mixed.content)
    first, _, embedded, _ = mixed.content
    assert isinstance(first, types.TextContent)
    assert first.text.startswith("<untrusted_content_")
    assert isinstance(embedded, types.EmbeddedResource)
    assert isinstance(embedded.resource, types.TextResourceContents)
    assert embedded.resource.text.startswith("<untrusted_content_")


async def test_headers_of_arguments_and_none_of_the_callers_reach_a_modern_server(tmp_path: Path) -> None:
    async with start_bridge(tmp_path, "modern") as started, Client(started.url, mode=MODERN) as client:
        routed = await client.call_tool("route", {"region": "Köln"})
        token = await client.call_tool("token")

    packed = base64.b64encode("Köln".encode()).decode()
    assert f"=?base64?{packed}?=" in str(routed.content)
    assert "None" in str(token.content)

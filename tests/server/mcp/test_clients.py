"""Clients in common use, against a real listener: the reference client in every mode, and FastMCP's."""

import asyncio
from typing import Any

import aiohttp
import fastmcp
import mcp_types
import orjson
import pytest
from mcp import Client, MCPError

from gateway.engine.service import Service
from gateway.server.mcp.endpoint import McpEndpoint
from tests.server.mcp.asgi_client import META, MODERN
from tests.server.mcp.listener import start_mcp_listener
from tests.server.mcp.tools import Waiting, waiting

pytestmark = pytest.mark.anyio

MODES = ["auto", "legacy", MODERN]


async def answer_elicitation(context: Any, params: Any) -> Any:
    return mcp_types.ElicitResult(action="accept", content={"name": "Ana"})


@pytest.mark.parametrize("mode", MODES)
async def test_reference_client_lists_calls_asks_and_reads(endpoint: McpEndpoint, mode: Any) -> None:
    reported: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        reported.append(progress)

    async with (
        start_mcp_listener(endpoint) as url,
        Client(url, mode=mode, elicitation_callback=answer_elicitation) as client,
    ):
        tools = await client.list_tools()
        echoed = await client.call_tool("echo", {"text": "hello"})
        quoted = await client.call_tool("quote", {"pieces": 3})
        report = await client.call_tool("report", {"lines": 3})
        uri = next(block.uri for block in report.content if isinstance(block, mcp_types.ResourceLink))
        read = await client.read_resource(uri)
        greeted = await client.call_tool("greet")
        await client.call_tool("steps", progress_callback=progressed)
        wrong = await client.call_tool("echo", {"text": 5})
        with pytest.raises(MCPError) as unknown:
            await client.call_tool("nothing")
        version, instructions = client.protocol_version, client.instructions

    assert version == ("2025-11-25" if mode == "legacy" else MODERN)
    assert (instructions or "").startswith("Be kind.") or mode == MODERN, "a pinned client does not ask"
    assert "echo" in [tool.name for tool in tools.tools]
    assert "hello" in str(echoed.content)
    assert quoted.structured_content == {"total": 6}
    assert "line 2" in str(read.contents)
    assert "accept Ana" in str(greeted.content)
    assert reported == [1, 2, 3]
    assert wrong.is_error
    assert unknown.value.error.code == -32602


@pytest.mark.parametrize("mode", MODES)
async def test_fastmcp_client_lists_and_calls(endpoint: McpEndpoint, mode: Any) -> None:
    async with start_mcp_listener(endpoint) as url, fastmcp.Client(url, mode=mode) as client:
        tools = await client.list_tools()
        quoted = await client.call_tool("quote", {"pieces": 3})

    assert "quote" in [tool.name for tool in tools]
    assert quoted.structured_content == {"total": 6}


async def test_reference_client_hears_of_a_new_revision(endpoint: McpEndpoint, service: Service) -> None:
    async with (
        start_mcp_listener(endpoint) as url,
        Client(url, mode=MODERN) as client,
        client.listen(tools_list_changed=True) as events,
    ):
        service.publish(service.published)
        heard = await asyncio.wait_for(anext(aiter(events)), 5)

    assert "ools" in type(heard).__name__


# --- connections ---


def request(id: Any, tool: str, arguments: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    params = {"name": tool, "arguments": arguments, "_meta": META}
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": MODERN,
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    return orjson.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}), headers


async def test_no_caller_gets_the_answer_to_another(endpoint: McpEndpoint) -> None:
    """Five hundred callers with equal ids, some of which disconnect in the middle."""

    async def one(session: aiohttp.ClientSession, url: str, number: int) -> bool:
        canary = f"canary-{number}-end"
        body, headers = request(number % 3, "echo", {"text": canary})
        if number % 10 == 7:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await session.post(url, data=body, headers=headers)
            return True
        caller = {"authorization": f"Bearer {'ana' if number % 2 else 'kim'}"}
        async with session.post(url, data=body, headers={**headers, **caller}) as answer:
            reported = orjson.loads(await answer.read())
        return reported["id"] == number % 3 and canary in reported["result"]["content"][0]["text"]

    async with start_mcp_listener(endpoint) as url:
        connector = aiohttp.TCPConnector(limit=100)
        async with aiohttp.ClientSession(connector=connector) as session:
            assert all(await asyncio.gather(*(one(session, url, number) for number in range(500))))


async def test_closed_connection_stops_the_call(endpoint: McpEndpoint) -> None:
    waiting["closed"] = Waiting()
    body, headers = request(1, "wait", {"key": "closed"})
    async with start_mcp_listener(endpoint) as url, aiohttp.ClientSession() as session:
        call = asyncio.create_task(session.post(url, data=body, headers=headers))
        await asyncio.wait_for(waiting["closed"].began.wait(), 5)

        call.cancel()
        await session.close()

        await asyncio.wait_for(waiting["closed"].stopped.wait(), 5)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"authorization": "Bearer nobody"}, 401),
    ],
    ids=["host", "origin", "null origin", "credential"],
)
async def test_edge_refuses_before_anything_is_read(
    endpoint: McpEndpoint, headers: dict[str, str], status: int
) -> None:
    body, own = request(1, "echo", {"text": "a"})
    async with (
        start_mcp_listener(endpoint) as url,
        aiohttp.ClientSession() as session,
        session.post(url, data=body, headers={**own, **headers}) as answer,
    ):
        assert answer.status == status

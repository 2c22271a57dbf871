"""Streams that are lost and resumed, lists that change, and traces and metadata that are passed on, without mix-ups."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from gateway.backends.mcp.http_client import UpstreamEndpoint
from gateway.backends.mcp.http_transport import StreamableHttpConnection
from gateway.http_client.pool import HttpConnections
from tests.backends.mcp.servers.asgi_host import Era, legacy_only, reference, serve_app
from tests.backends.mcp.servers.front_gateway import gateway, project, tool, upstream

pytestmark = pytest.mark.anyio

MODERN = "2026-07-28"
ERAS: list[Era] = ["modern", "legacy"]


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[StreamableHttpConnection]:
    pool = HttpConnections()
    connection = StreamableHttpConnection("remote", UpstreamEndpoint(url), pool, ids=count(1))
    try:
        yield connection
    finally:
        await connection.close()
        await pool.close()


def make_dropping_server() -> Any:
    """An older server that ends the stream of a call before its answer, and sends the rest on reconnection."""
    asked: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])
        kind, body = b"text/event-stream", b""
        if scope["method"] == "GET":
            if b"last-event-id" not in headers:
                await _send(send, 405, b"application/json", b"{}")
                return
            assert headers[b"last-event-id"] == b"e1"
            message = {"jsonrpc": "2.0", "id": asked["id"], "result": {"content": [], "late": True}}
            body = f"id: e2\ndata: {json.dumps(message)}\n\n".encode()
        else:
            message = json.loads((await receive())["body"])
            if message["method"] == "initialize":
                found = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "letting go"}}
                kind, body = (
                    b"application/json",
                    json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": found}).encode(),
                )
            elif message["method"] == "tools/call":
                asked["id"] = message["id"]
                body = b"id: e1\nretry: 10\ndata: \n\n"
            elif "id" not in message:
                await _send(send, 202, kind, b"")
                return
        await _send(send, 200, kind, body)

    return legacy_only(app)


async def _send(send: Any, status: int, kind: bytes, body: bytes) -> None:
    headers = [(b"content-type", kind), (b"mcp-session-id", b"s1")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def test_stream_that_a_server_lets_go_of_is_taken_up_again() -> None:
    async with serve_app(make_dropping_server()) as origin, connect(f"{origin}/mcp") as connection:
        result = await connection.request("tools/call", {"name": "any", "arguments": {}})

    assert result["late"] is True


@pytest.mark.parametrize("era", ERAS)
async def test_change_of_a_list_is_announced(era: Era) -> None:
    made: MCPServer = MCPServer("changing")

    @made.tool()
    async def change(ctx: Context) -> str:
        await ctx.notify_tools_changed()
        await ctx.session.send_tool_list_changed()
        return "changed"

    app: Any = made.streamable_http_app()
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with (
        serve_app(legacy_only(app) if era == "legacy" else app, lifespan="on") as origin,
        connect(f"{origin}/mcp") as connection,
    ):
        connection.on_notification(lambda method, params: heard.put_nowait(method))
        await connection.list("tools")
        async with asyncio.timeout(20):
            while "notifications/tools/list_changed" not in [heard.get_nowait() for _ in range(heard.qsize())]:
                await connection.request("tools/call", {"name": "change", "arguments": {}})
                await asyncio.sleep(0.05)


async def test_trace_and_notes_of_a_caller_travel_along(tmp_path: Path) -> None:
    made: MCPServer = MCPServer("noting")

    @made.tool()
    async def noted(ctx: Context) -> str:
        meta: Any = ctx.request_context.meta
        return json.dumps({key: value for key, value in dict(meta or {}).items() if isinstance(value, str)})

    async with serve_app(made.streamable_http_app(), lifespan="on") as origin:
        remote = upstream("remote", {"type": "streamable-http", "url": f"{origin}/mcp"})
        spans = {"OTEL_TRACES_EXPORTER": "console"}
        async with (
            gateway(project(tmp_path / "project", remote, tool("noted")), environ=spans) as started,
            Client(started.url, mode=MODERN) as client,
        ):
            meta: Any = {"acme/note": "kept", "gateway/turn": "", "traceparent": "00-theirs", "baggage": "a=b"}
            meta.pop("gateway/turn")
            result = await client.call_tool("noted", meta=meta)

    assert '"acme/note": "kept"' in str(result.content)
    assert re.search(r'"traceparent": "00-[0-9a-f]{32}-[0-9a-f]{16}-01"', str(result.content))
    assert "00-theirs" not in str(result.content)
    assert "baggage" not in str(result.content)


@pytest.mark.parametrize("era", ERAS)
async def test_no_answer_reaches_another_caller(tmp_path: Path, era: Era) -> None:
    async with reference(era) as url:
        remote = upstream("remote", {"type": "streamable-http", "url": url})
        folder = project(tmp_path / "project", remote, tool("echo", "text"))
        async with gateway(folder) as started:

            async def callers(number: int) -> list[bool]:
                mode: Any = MODERN if number % 2 else "legacy"
                async with Client(started.url, mode=mode) as client:
                    words = [f"canary {number} {each}" for each in range(10)]
                    answers = await asyncio.gather(*(client.call_tool("echo", {"text": word}) for word in words))
                    return [word in str(answer.content) for word, answer in zip(words, answers, strict=True)]

            found = await asyncio.gather(*(callers(number) for number in range(8)))

    assert all(all(each) for each in found)


FORM: Any = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def make_asking_server(together: int = 1) -> MCPServer:
    """Asks on the stream of its session, not on that of the call, once that many callers are there."""
    made: MCPServer = MCPServer("aside")
    there: list[asyncio.Event] = []

    @made.tool()
    async def aside(ctx: Context) -> str:
        there.append(asyncio.Event())
        if len(there) == together:
            for each in there:
                each.set()
        await there[-1].wait()
        try:
            answer = await ctx.session.elicit("Who?", FORM)
        except Exception as error:
            return f"nobody says: {error}"
        return f"hello {(answer.content or {}).get('name')}"

    @made.tool()
    async def where(ctx: Context) -> str:
        return str([each.uri for each in (await ctx.session.list_roots()).roots])

    return made


async def named(context: Any, params: Any) -> Any:
    return types.ElicitResult(action="accept", content={"name": "Ana"})


async def list_roots(context: Any) -> Any:
    return types.ListRootsResult(roots=[types.Root(uri="file:///here")])  # type: ignore[arg-type]  # parsed as an address


@pytest.mark.parametrize("mode", [MODERN, "legacy"])
async def test_older_server_asks_outside_of_the_stream_of_a_call(tmp_path: Path, mode: Any) -> None:
    async with serve_app(legacy_only(make_asking_server().streamable_http_app()), lifespan="on") as origin:
        remote = upstream("remote", {"type": "streamable-http", "url": f"{origin}/mcp"})
        async with (
            gateway(project(tmp_path / "project", remote, tool("aside"), tool("where"))) as started,
            Client(started.url, mode=mode, elicitation_callback=named, list_roots_callback=list_roots) as client,
        ):
            greeted = await client.call_tool("aside")
            found = await client.call_tool("where")

    assert "hello Ana" in str(greeted.content)
    assert "file:///here" in str(found.content)


async def test_question_that_could_be_for_either_caller_is_for_none(tmp_path: Path) -> None:
    async with serve_app(legacy_only(make_asking_server(together=2).streamable_http_app()), lifespan="on") as origin:
        remote = upstream("remote", {"type": "streamable-http", "url": f"{origin}/mcp"})
        async with (
            gateway(project(tmp_path / "project", remote, tool("aside"))) as started,
            Client(started.url, mode=MODERN, elicitation_callback=named) as client,
        ):
            both = await asyncio.gather(client.call_tool("aside"), client.call_tool("aside"))

    assert any("nobody says" in str(each.content) for each in both)
    assert "no caller can answer that" in str([each.content for each in both])

"""Results of many megabytes: complete up to a bound, read one after the other, and refused with our error beyond it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from gateway.backends.mcp.http_client import UpstreamEndpoint
from gateway.backends.mcp.http_transport import StreamableHttpConnection
from gateway.http_client.pool import HttpConnections
from gateway.mcp.messages import MAX_MESSAGE, MessageTooLarge
from tests.backends.mcp.servers.asgi_host import serve_app
from tests.backends.mcp.servers.front_gateway import gateway, project, tool, upstream

pytestmark = pytest.mark.anyio

MODERN = "2026-07-28"
LINE = "a line of text that is not short\n"


def generous(*, streams: bool) -> Any:
    """A modern server whose tool returns as many mebibytes as its caller requests; with `streams`, on a stream."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (event := await receive()).get("more_body"):
            body += event["body"]
        message = json.loads(body + event.get("body", b""))
        result: dict[str, Any] = {"resultType": "complete"}
        if message["method"] == "server/discover":
            result |= {"supportedVersions": [MODERN], "capabilities": {"tools": {}}}
        elif message["method"] == "tools/list":
            result |= {"tools": []}
        else:
            asked = message["params"]["arguments"]
            filling = LINE * (int(asked["mebibytes"]) * (1 << 20) // len(LINE))
            result |= {"content": [{"type": "text", "text": filling}], "parts": []}
        content = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        if message["params"].get("arguments", {}).get("parts"):
            content = content.replace(b'"parts": []', b'"parts": [%b[]]' % (b"[], " * 1_000_000))
        kind = b"text/event-stream" if streams else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        for piece in [b"data: ", content, b"\n\n"] if streams else [content]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


@asynccontextmanager
async def connect(*, streams: bool) -> AsyncIterator[StreamableHttpConnection]:
    pool = HttpConnections()
    async with serve_app(generous(streams=streams)) as origin:
        connection = StreamableHttpConnection("generous", UpstreamEndpoint(f"{origin}/mcp"), pool, ids=count(1))
        try:
            yield connection
        finally:
            await connection.close()
            await pool.close()


async def size_of(connection: StreamableHttpConnection, mebibytes: int, **more: Any) -> int:
    arguments = {"mebibytes": mebibytes, **more}
    result = await connection.request("tools/call", {"name": "much", "arguments": arguments}, timeout=60)
    return len(result["content"][0]["text"])


@pytest.mark.parametrize("streams", [False, True], ids=["answer", "stream"])
async def test_large_results_come_whole_and_others_go_on(streams: bool) -> None:
    async with connect(streams=streams) as connection:
        sizes = await asyncio.gather(*(size_of(connection, each) for each in (20, 24, 1, 0)))
        with pytest.raises(MessageTooLarge) as failed:
            await size_of(connection, 70)
        again = await size_of(connection, 17)

    assert [round(size / (1 << 20)) for size in (*sizes, again)] == [20, 24, 1, 0, 17]
    assert failed.value.message == f"the upstream server sent a message of more than {MAX_MESSAGE} bytes"
    assert failed.value.help == "have the tool return less at a time, or a link to the rest"


@pytest.mark.parametrize("streams", [False, True], ids=["answer", "stream"])
async def test_message_of_too_many_values_is_refused_before_they_are_built(streams: bool) -> None:
    async with connect(streams=streams) as connection:
        with pytest.raises(MessageTooLarge, match="more than 50000 JSON values"):
            await size_of(connection, 0, parts=True)
        assert await size_of(connection, 0) == 0


async def test_large_text_comes_whole_unless_its_tool_may_not(tmp_path: Path) -> None:
    async with serve_app(generous(streams=False)) as origin:
        remote = upstream("remote", {"type": "streamable-http", "url": f"{origin}/mcp"})
        narrow = tool("little", "mebibytes:int", remote="much", limits={"maxOutput": "1MiB"})
        folder = project(tmp_path / "project", remote, tool("much", "mebibytes:int"), narrow)
        async with gateway(folder) as started, Client(started.url, mode=MODERN) as client:
            whole = await client.call_tool("much", {"mebibytes": 30})
            refused = await client.call_tool("little", {"mebibytes": 30})

    assert not whole.is_error
    assert len(whole.content[0].text) > 29 << 20  # type: ignore[union-attr]  # a text, as requested
    assert refused.is_error
    assert "1048576" in str(refused.content) or "1 MiB" in str(refused.content)

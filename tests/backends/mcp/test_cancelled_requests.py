"""A server that withdraws its question: the client is notified, and the call continues."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.backends.mcp.servers.asgi_host import legacy_only, serve_app
from tests.backends.mcp.servers.front_gateway import gateway, project, tool, upstream

pytestmark = pytest.mark.anyio

FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}


async def test_question_that_a_server_takes_back_is_taken_back_from_the_caller(tmp_path: Path) -> None:
    asked, ended = asyncio.Event(), list[str]()

    async def spoken(id: int) -> AsyncIterator[str]:
        question = {"jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": FORM}
        yield f"data: {json.dumps(question)}\n\n"
        await asked.wait()
        withdrawn = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "q1"}}
        yield f"data: {json.dumps(withdrawn)}\n\n"
        while not ended:
            await asyncio.sleep(0.01)
        found = {"content": [{"type": "text", "text": "never mind"}]}
        yield f"data: {json.dumps({'jsonrpc': '2.0', 'id': id, 'result': found})}\n\n"

    async def answer(request: Request) -> Response:
        message = json.loads(await request.body())
        if message.get("method") == "tools/call":
            return StreamingResponse(spoken(message["id"]), media_type="text/event-stream")
        if message.get("method") == "initialize":
            known = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "fickle"}}
            return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": known})
        if "id" not in message or "method" not in message:
            return Response(status_code=202)
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": {"tools": []}})

    async def elicited(context: Any, params: Any) -> Any:
        asked.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("given up")

    async with serve_app(legacy_only(Starlette(routes=[Route("/mcp", answer, methods=["POST"])]))) as origin:
        remote = upstream("remote", {"type": "streamable-http", "url": f"{origin}/mcp"})
        async with (
            gateway(project(tmp_path / "project", remote, tool("greet"))) as started,
            Client(started.url, mode="legacy", elicitation_callback=elicited) as client,
            asyncio.timeout(20),
        ):
            result = await client.call_tool("greet")

    assert (result.is_error, ended) == (False, ["given up"])
    assert "never mind" in str(result.content)

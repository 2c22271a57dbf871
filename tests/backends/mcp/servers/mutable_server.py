"""An MCP server over HTTP, in raw messages, whose definitions a test changes while it runs."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

FIND: dict[str, Any] = {
    "name": "find",
    "description": "Finds pages.",
    "inputSchema": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
}


class MutableServer:
    """Lists the current `tools`. With `alternates`, every second list has those instead.

    `results` has the results of calls, by tool. With `changed`, the server keeps a stream open and announces there that
    its list has changed, once the event is set.
    """

    def __init__(self, *tools: dict[str, Any]) -> None:
        self.tools = list(tools)
        self.alternates: list[dict[str, Any]] | None = None
        self.changed: asyncio.Event | None = None
        self.listed = 0
        self.called: list[dict[str, Any]] = []
        self.results: dict[str, dict[str, Any]] = {}
        self.capabilities: dict[str, Any] = {"tools": {}}
        self.answers: dict[str, dict[str, Any]] = {}
        """Results of other methods."""
        self.is_away = False
        self.hold: asyncio.Event | None = None
        """Calls wait for this."""

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/mcp", self._answer, methods=["POST", "GET", "DELETE"])])

    async def _answer(self, request: Request) -> Response:
        if request.method == "GET" and self.changed is not None:
            return StreamingResponse(self._announced(self.changed), media_type="text/event-stream")
        if request.method != "POST":
            return Response(status_code=405)
        if self.is_away:
            return Response(status_code=503)
        message = json.loads(await request.body())
        if "id" not in message:
            return Response(status_code=202)
        result = self._result(message["method"], message.get("params") or {})
        if message["method"] == "tools/call" and self.hold is not None:
            await self.hold.wait()
        if result is None:
            error = {"code": -32601, "message": "Method not found"}
            return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": error}, status_code=400)
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result})

    async def _announced(self, changed: asyncio.Event) -> AsyncIterator[bytes]:
        yield b": here\n\n"
        await changed.wait()
        yield b'data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n\n'
        await asyncio.Event().wait()

    def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        match method:
            case "initialize":
                info = {"name": "changing", "version": "1.0.0"}
                return {"protocolVersion": "2025-11-25", "capabilities": self.capabilities, "serverInfo": info}
            case "ping":
                return {}
            case "tools/list":
                self.listed += 1
                odd = self.alternates is not None and self.listed % 2 == 0
                return {"tools": self.alternates if odd else self.tools}
            case "tools/call":
                self.called.append(params)
                return self.results.get(params["name"]) or {"content": [{"type": "text", "text": "found it"}]}
            case _:
                return self.answers.get(method)

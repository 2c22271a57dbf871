"""If a server forgets subscriptions, the gateway subscribes again and notifies subscribers of a possible change."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway.backends.command.child_process import HostControls
from gateway.backends.mcp.http_client import UpstreamEndpoint
from gateway.backends.mcp.http_transport import StreamableHttpConnection
from gateway.backends.mcp.server_process import ServerProgram
from gateway.backends.mcp.stdio_transport import StdioConnection
from gateway.http_client.pool import HttpConnections
from gateway.model.tools.backend import BackendError
from tests.backends.mcp.servers.asgi_host import legacy_only, serve_app
from tests.support.paths import ROOT
from tests.support.python_folders import PYTHON_FOLDERS

pytestmark = pytest.mark.anyio

UPDATED = "notifications/resources/updated"
STUBBORN = str(ROOT / "tests" / "backends" / "mcp" / "servers" / "stubborn_server.py")


class ForgetfulServer:
    """An older server that stores subscriptions by session, and forgets sessions on request."""

    def __init__(self) -> None:
        self.sessions: dict[str, set[str]] = {}
        self.streams: dict[str, asyncio.Queue[bytes]] = {}
        self.refuses = False
        self._names = count(1)

    @property
    def app(self) -> Any:
        return legacy_only(Starlette(routes=[Route("/mcp", self._answer, methods=["GET", "POST", "DELETE"])]))

    def forget(self) -> None:
        self.sessions.clear()
        self.streams.clear()

    def announce(self, uri: str) -> None:
        notification = json.dumps({"jsonrpc": "2.0", "method": UPDATED, "params": {"uri": uri}})
        for name, subscribed in self.sessions.items():
            if uri in subscribed and name in self.streams:
                self.streams[name].put_nowait(f"data: {notification}\n\n".encode())

    async def _answer(self, request: Request) -> Response:
        name = request.headers.get("mcp-session-id", "")
        if request.method == "POST" and json.loads(await request.body())["method"] == "initialize":
            name = f"s{next(self._names)}"
            self.sessions[name] = set()
        if name not in self.sessions:
            return Response(status_code=404)
        if request.method == "GET":
            self.streams[name] = asyncio.Queue()
            return StreamingResponse(self._spoken(self.streams[name]), media_type="text/event-stream")
        if request.method == "DELETE":
            return Response(status_code=200)
        return self._answer_message(json.loads(await request.body()), name)

    async def _spoken(self, stream: "asyncio.Queue[bytes]") -> AsyncIterator[bytes]:
        yield b": here\n\n"
        while True:
            yield await stream.get()

    def _answer_message(self, message: dict[str, Any], name: str) -> Response:
        headers = {"mcp-session-id": name}
        if "id" not in message:
            return Response(status_code=202, headers=headers)
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"], "result": {}}
        if message["method"] == "initialize":
            known = {"protocolVersion": "2025-11-25", "capabilities": {"resources": {"subscribe": True}}}
            answer["result"] = {**known, "serverInfo": {"name": "forgetful", "version": "1"}}
        elif message["method"] == "resources/subscribe" and self.refuses:
            answer = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32603, "message": "not now"}}
        elif message["method"] == "resources/subscribe":
            self.sessions[name].add(message["params"]["uri"])
        elif message["method"] == "resources/unsubscribe":
            self.sessions[name].discard(message["params"]["uri"])
        return JSONResponse(answer, headers=headers)


@asynccontextmanager
async def forgetful() -> AsyncIterator[tuple[ForgetfulServer, StreamableHttpConnection, list[str]]]:
    server, pool, heard = ForgetfulServer(), HttpConnections(), list[str]()
    async with serve_app(server.app) as origin:
        connection = StreamableHttpConnection("remote", UpstreamEndpoint(f"{origin}/mcp"), pool, ids=count(1))
        connection.on_notification(lambda method, params: heard.append(params["uri"]) if method == UPDATED else None)
        try:
            yield server, connection, heard
        finally:
            await connection.close()
            await pool.close()


async def until(condition: Any) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.01)


async def test_subscriptions_are_renewed_in_the_session_that_is_begun_again() -> None:
    async with forgetful() as (server, connection, heard):
        await connection.subscribe("notes://a")
        await connection.subscribe("notes://b")
        await connection.unsubscribe("notes://b")
        await until(lambda: server.streams)
        server.announce("notes://a")
        await until(lambda: heard == ["notes://a"])

        server.forget()
        await connection.request("ping")

        assert list(server.sessions.values()) == [{"notes://a"}]
        assert heard == ["notes://a", "notes://a"]  # the gateway cannot know what happened meanwhile
        await until(lambda: server.streams)
        server.announce("notes://a")
        await until(lambda: len(heard) == 3)


async def test_subscription_that_is_refused_the_second_time_stops_nothing_else() -> None:
    async with forgetful() as (server, connection, heard):
        await connection.subscribe("notes://a")
        server.forget()
        server.refuses = True

        assert await connection.request("ping") == {}
        assert heard == []


async def test_subscriptions_are_renewed_with_a_program_that_is_started_again() -> None:
    program = ServerProgram((sys.executable, STUBBORN), {}, readable=PYTHON_FOLDERS)
    connection = StdioConnection("program", program, HostControls.detect(), ids=count(1))
    heard: list[str] = []
    connection.on_notification(lambda method, params: heard.append(method))
    try:
        await connection.subscribe("notes://a")
        with pytest.raises(BackendError):
            await connection.request("tools/call", {"name": "die", "arguments": {}})
        found = await connection.request("tools/call", {"name": "subscribed", "arguments": {}})
    finally:
        await connection.close()

    assert found["content"][0]["text"] == "notes://a"
    assert heard == [UPDATED]

"""Connections to real servers: the reference SDK in both eras over HTTP and stdio, and the example wiki."""

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from gateway.backends.command.child_process import HostControls
from gateway.backends.mcp.connection import UpstreamConnection
from gateway.backends.mcp.http_client import UpstreamEndpoint
from gateway.backends.mcp.http_transport import StreamableHttpConnection
from gateway.backends.mcp.rpc_responses import RemoteError
from gateway.backends.mcp.server_process import ServerProgram
from gateway.backends.mcp.stdio_transport import StdioConnection
from gateway.http_client.pool import HttpConnections
from gateway.model.caller import Principal
from tests.backends.mcp.servers.asgi_host import App, Era, legacy_only, reference, serve_app
from tests.backends.mcp.servers.reference_server import server
from tests.support.paths import ROOT
from tests.support.python_folders import PYTHON_FOLDERS

pytestmark = pytest.mark.anyio

HOST = HostControls.detect()
ERAS: list[Era] = ["modern", "legacy"]


class Listener:
    """The caller for whom a call is made."""

    def __init__(self, **capabilities: Any) -> None:
        self.capabilities: Mapping[str, Any] = capabilities
        self.wants_progress = True
        self.log_level: str | None = "info"
        self.principal: Principal | None = None
        self.heard: list[tuple[str, Mapping[str, Any]]] = []
        self.questions: list[tuple[str, Mapping[str, Any]]] = []

    def handle_notification(self, method: str, params: Mapping[str, Any]) -> None:
        self.heard.append((method, params))

    async def handle_request(self, method: str, params: Mapping[str, Any]) -> Any:
        self.questions.append((method, params))
        return {"action": "accept", "content": {"name": "Ana"}}


@asynccontextmanager
async def connect(era: Era) -> AsyncIterator[StreamableHttpConnection]:
    pool = HttpConnections()
    async with reference(era) as url:
        connection = StreamableHttpConnection("reference", UpstreamEndpoint(url), pool, ids=count(1))
        try:
            yield connection
        finally:
            await connection.close()
            await pool.close()


@asynccontextmanager
async def start_program(*argv: str, **environment: str) -> AsyncIterator[StdioConnection]:
    program = ServerProgram((sys.executable, *argv), environment, readable=PYTHON_FOLDERS)
    connection = StdioConnection("program", program, HOST, ids=count(1))
    try:
        yield connection
    finally:
        await connection.close()


async def call_tool(
    connection: UpstreamConnection, name: str, exchange: Any = None, **arguments: Any
) -> dict[str, Any]:
    return await connection.request("tools/call", {"name": name, "arguments": arguments}, exchange=exchange)


@pytest.mark.parametrize("era", ERAS)
async def test_server_is_met_listed_and_called(era: Era) -> None:
    async with connect(era) as connection:
        known = await connection.connect()
        tools = await connection.list("tools")
        echoed = await call_tool(connection, "echo", text="hällo")
        added = await call_tool(connection, "add", a=1, b=2)

    assert (known.era, connection.server_info.get("name")) == (era, "reference")
    assert {"echo", "add", "mixed"} <= {tool["name"] for tool in tools}
    assert echoed["content"][0]["text"] == "hällo"
    assert added["structuredContent"] == {"total": 3}
    assert connection.health.state == "up"


@pytest.mark.parametrize("era", ERAS)
async def test_progress_and_messages_reach_the_caller(era: Era) -> None:
    listener = Listener()
    async with connect(era) as connection:
        await call_tool(connection, "steps", listener)

    progress = [params["progress"] for method, params in listener.heard if method == "notifications/progress"]
    messages = [params["data"] for method, params in listener.heard if method == "notifications/message"]
    assert progress == [1, 2, 3]
    assert messages == ["done with steps"]


async def test_older_server_asks_on_the_stream_of_its_call() -> None:
    listener = Listener(elicitation={})
    async with connect("legacy") as connection:
        greeted = await call_tool(connection, "greet", listener)

    assert greeted["content"][0]["text"] == "hello Ana"
    assert [method for method, _ in listener.questions] == ["elicitation/create"]


async def test_modern_server_asks_in_its_result() -> None:
    async with connect("modern") as connection:
        asked = await call_tool(connection, "greet", Listener(elicitation={}))

    assert asked["resultType"] == "input_required"
    assert asked["inputRequests"]["who"]["method"] == "elicitation/create"


async def test_header_of_an_argument_is_made_from_the_servers_schema() -> None:
    async with connect("modern") as connection:
        routed = await call_tool(connection, "route", region="Köln am Rhein")

    assert routed["content"][0]["text"].startswith("=?base64?")


@pytest.mark.parametrize("era", ERAS)
async def test_error_of_a_server_keeps_its_number(era: Era) -> None:
    async with connect(era) as connection:
        with pytest.raises(RemoteError) as refused:
            await connection.request("no/such/method")

    assert refused.value.number == -32601


async def test_session_that_is_gone_is_begun_again() -> None:
    forgotten: set[bytes] = set()
    seen: list[bytes] = []

    def forgetful(app: App) -> App:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            session = dict(scope.get("headers", ())).get(b"mcp-session-id")
            if session is not None:
                seen.append(session)
            if session in forgotten:
                await send({"type": "http.response.start", "status": 404, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
            await app(scope, receive, send)

        return answer

    pool = HttpConnections()
    async with serve_app(forgetful(legacy_only(server().streamable_http_app())), lifespan="on") as origin:
        connection = StreamableHttpConnection("reference", UpstreamEndpoint(f"{origin}/mcp"), pool, ids=count(1))
        await call_tool(connection, "echo", text="one")
        forgotten.update(seen)
        again = await call_tool(connection, "echo", text="two")
        await connection.close()
        await pool.close()

    assert again["content"][0]["text"] == "two"
    assert len(set(seen)) == 2


async def test_wiki_answers_over_stdio() -> None:
    async with start_program("-m", "gateway.examples.wiki_server", LANG="C.UTF-8") as connection:
        tools = await connection.list("tools")
        found = await call_tool(connection, "search_pages", query="vpn")

    assert (connection.era, connection.server_info["name"]) == ("legacy", "acme-wiki")
    assert [tool["name"] for tool in tools] == ["search_pages", "read_page"]
    assert found["isError"] is False


async def test_reference_server_answers_over_stdio() -> None:
    listener = Listener(elicitation={})
    async with start_program(
        str(ROOT / "tests" / "backends" / "mcp" / "servers" / "reference_server.py"), LANG="C.UTF-8"
    ) as connection:
        echoed = await call_tool(connection, "echo", text="hi")
        await call_tool(connection, "steps", listener)
        seen = await call_tool(connection, "environment")

    assert echoed["content"][0]["text"] == "hi"
    assert [params["progress"] for method, params in listener.heard if "progress" in method] == [1, 2, 3]
    assert set(seen["content"][0]["text"].split()) <= {"LANG", "LC_CTYPE"}

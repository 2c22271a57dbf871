"""Connections to real servers: the reference SDK in both eras over HTTP, over stdio, and the example wiki."""

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from python_folders import PYTHON_FOLDERS
from reference_upstream import server
from upstream_serving import App, Era, legacy_only, listening, reference

from gateway.backends.connections import Connections
from gateway.backends.processes import HostControls
from gateway.governance.principals import Principal
from gateway.upstreams.connections import Connection
from gateway.upstreams.http import HttpConnection
from gateway.upstreams.messages import RemoteError
from gateway.upstreams.programs import Program
from gateway.upstreams.stdio import StdioConnection
from gateway.upstreams.wire import Endpoint

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent
HOST = HostControls.of_this_host()
ERAS: list[Era] = ["modern", "legacy"]


class Listener:
    """Whoever a call is made for."""

    def __init__(self, **capabilities: Any) -> None:
        self.capabilities: Mapping[str, Any] = capabilities
        self.wants_progress = True
        self.log_level: str | None = "info"
        self.principal: Principal | None = None
        self.heard: list[tuple[str, Mapping[str, Any]]] = []
        self.questions: list[tuple[str, Mapping[str, Any]]] = []

    def notified(self, method: str, params: Mapping[str, Any]) -> None:
        self.heard.append((method, params))

    async def asked(self, method: str, params: Mapping[str, Any]) -> Any:
        self.questions.append((method, params))
        return {"action": "accept", "content": {"name": "Ana"}}


@asynccontextmanager
async def connected(era: Era) -> AsyncIterator[HttpConnection]:
    pool = Connections()
    async with reference(era) as url:
        connection = HttpConnection("reference", Endpoint(url), pool, ids=count(1))
        try:
            yield connection
        finally:
            await connection.close()
            await pool.close()


@asynccontextmanager
async def started(*argv: str, **environment: str) -> AsyncIterator[StdioConnection]:
    program = Program((sys.executable, *argv), environment, readable=PYTHON_FOLDERS)
    connection = StdioConnection("program", program, HOST, ids=count(1))
    try:
        yield connection
    finally:
        await connection.close()


async def called(connection: Connection, name: str, exchange: Any = None, **arguments: Any) -> dict[str, Any]:
    return await connection.request("tools/call", {"name": name, "arguments": arguments}, exchange=exchange)


@pytest.mark.parametrize("era", ERAS)
async def test_server_is_met_listed_and_called(era: Era) -> None:
    async with connected(era) as connection:
        known = await connection.connect()
        tools = await connection.list("tools")
        echoed = await called(connection, "echo", text="hällo")
        added = await called(connection, "add", a=1, b=2)

    assert (known.era, connection.server_info.get("name")) == (era, "reference")
    assert {"echo", "add", "mixed"} <= {tool["name"] for tool in tools}
    assert echoed["content"][0]["text"] == "hällo"
    assert added["structuredContent"] == {"total": 3}
    assert connection.standing.state == "up"


@pytest.mark.parametrize("era", ERAS)
async def test_progress_and_messages_reach_whoever_asked(era: Era) -> None:
    listener = Listener()
    async with connected(era) as connection:
        await called(connection, "steps", listener)

    progress = [params["progress"] for method, params in listener.heard if method == "notifications/progress"]
    messages = [params["data"] for method, params in listener.heard if method == "notifications/message"]
    assert progress == [1, 2, 3]
    assert messages == ["done with steps"]


async def test_older_server_asks_on_the_stream_of_its_call() -> None:
    listener = Listener(elicitation={})
    async with connected("legacy") as connection:
        greeted = await called(connection, "greet", listener)

    assert greeted["content"][0]["text"] == "hello Ana"
    assert [method for method, _ in listener.questions] == ["elicitation/create"]


async def test_modern_server_asks_in_its_result() -> None:
    async with connected("modern") as connection:
        asked = await called(connection, "greet", Listener(elicitation={}))

    assert asked["resultType"] == "input_required"
    assert asked["inputRequests"]["who"]["method"] == "elicitation/create"


async def test_header_of_an_argument_is_made_from_the_servers_schema() -> None:
    async with connected("modern") as connection:
        routed = await called(connection, "route", region="Köln am Rhein")

    assert routed["content"][0]["text"].startswith("=?base64?")


@pytest.mark.parametrize("era", ERAS)
async def test_error_of_a_server_keeps_its_number(era: Era) -> None:
    async with connected(era) as connection:
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

    pool = Connections()
    async with listening(forgetful(legacy_only(server().streamable_http_app())), lifespan="on") as origin:
        connection = HttpConnection("reference", Endpoint(f"{origin}/mcp"), pool, ids=count(1))
        await called(connection, "echo", text="one")
        forgotten.update(seen)
        again = await called(connection, "echo", text="two")
        await connection.close()
        await pool.close()

    assert again["content"][0]["text"] == "two"
    assert len(set(seen)) == 2


async def test_wiki_answers_over_stdio() -> None:
    async with started("-m", "gateway.examples.wiki", LANG="C.UTF-8") as connection:
        tools = await connection.list("tools")
        found = await called(connection, "search_pages", query="vpn")

    assert (connection.era, connection.server_info["name"]) == ("legacy", "acme-wiki")
    assert [tool["name"] for tool in tools] == ["search_pages", "read_page"]
    assert found["isError"] is False


async def test_reference_server_answers_over_stdio() -> None:
    listener = Listener(elicitation={})
    async with started(str(HERE / "reference_upstream.py"), LANG="C.UTF-8") as connection:
        echoed = await called(connection, "echo", text="hi")
        await called(connection, "steps", listener)
        seen = await called(connection, "environment")

    assert echoed["content"][0]["text"] == "hi"
    assert [params["progress"] for method, params in listener.heard if "progress" in method] == [1, 2, 3]
    assert set(seen["content"][0]["text"].split()) <= {"LANG", "LC_CTYPE"}

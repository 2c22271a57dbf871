"""Servers that misbehave: their messages are bounded, their claims of trust are ignored, and calls end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pytest
from mcp import Client

from gateway.backends.mcp.http_client import UpstreamEndpoint
from gateway.backends.mcp.http_transport import StreamableHttpConnection
from gateway.http_client.pool import HttpConnections
from gateway.model.tools.backend import BackendError
from tests.backends.mcp.servers.asgi_host import serve_app
from tests.backends.mcp.servers.front_gateway import gateway, project, tool, upstream
from tests.backends.mcp.servers.hostile_server import (
    MODERN,
    Answer,
    announced_gigabyte,
    another_id,
    around,
    bomb,
    broken,
    elsewhere,
    endless_event,
    endless_notifications,
    gigabyte,
    hostile,
    html,
    id_as_text,
    loud_error,
    no_object,
    not_json,
    not_json_on_a_stream,
    other_ids_on_a_stream,
    result,
    sent,
    vouching_for_itself,
)

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def connect(answer: Answer) -> AsyncIterator[StreamableHttpConnection]:
    pool = HttpConnections()
    async with serve_app(hostile(answer)) as origin:
        connection = StreamableHttpConnection("hostile", UpstreamEndpoint(f"{origin}/mcp"), pool, ids=count(1))
        try:
            yield connection
        finally:
            await connection.close()
            await pool.close()


async def expect_refusal(answer: Answer, *, timeout: float = 5) -> BackendError:
    async with connect(answer) as connection:
        with pytest.raises(BackendError) as failed:
            await connection.request("tools/call", {"name": "any", "arguments": {}}, timeout=timeout)
    return failed.value


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (gigabyte, "more than"),
        (announced_gigabyte, "more than"),
        (endless_event, "more than"),
        (another_id, "another request"),
        (id_as_text, "another request"),
        (other_ids_on_a_stream, "ended early"),
        (not_json, "not JSON"),
        (not_json_on_a_stream, "not JSON"),
        (no_object, "did not answer with a result"),
        (html, "did not answer with JSON"),
        (bomb, "out of proportion"),
        (elsewhere, "another host"),
        (around, "too often"),
        (broken, "500"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_answer_that_is_none_is_refused_in_our_words(answer: Answer, words: str) -> None:
    failed = await expect_refusal(answer, timeout=60)

    assert words in failed.message


async def test_stream_without_an_end_ends_with_the_time() -> None:
    failed = await expect_refusal(endless_notifications, timeout=1)

    assert (failed.word, failed.message) == ("unavailable", "the upstream server did not answer within 1 s")


async def test_error_text_is_one_short_line_without_control_characters() -> None:
    failed = await expect_refusal(loud_error)

    assert failed.message.isprintable()
    assert len(failed.message) < 2200


def about_lists(answer: Answer) -> Answer:
    answer.about = "lists"  # type: ignore[attr-defined]  # a mark on a function of this test
    return answer


@about_lists
async def too_many(message: dict[str, Any], send: Any) -> None:
    cursor = int(message["params"].get("cursor", 0)) + 1
    tools = [{"name": f"t{cursor}-{each}", "inputSchema": {}} for each in range(1000)]
    await sent(send, result(message, tools=tools, nextCursor=str(cursor)))


@about_lists
async def in_circles(message: dict[str, Any], send: Any) -> None:
    await sent(send, result(message, tools=[], nextCursor="again"))


@about_lists
async def too_heavy(message: dict[str, Any], send: Any) -> None:
    cursor = int(message["params"].get("cursor", 0)) + 1
    tools = [{"name": f"t{cursor}", "description": "x" * (8 << 20)}]
    await sent(send, result(message, tools=tools, nextCursor=str(cursor)))


@about_lists
async def no_definitions(message: dict[str, Any], send: Any) -> None:
    await sent(send, result(message, tools=["echo", 5]))


@pytest.mark.parametrize(
    ("answer", "words"),
    [(too_many, "too long"), (in_circles, "no end"), (too_heavy, "too long"), (no_definitions, "not a list")],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_list_without_an_end_is_refused(answer: Answer, words: str) -> None:
    async with connect(answer) as connection:
        with pytest.raises(BackendError, match=words):
            await connection.list("tools")


@about_lists
async def with_bad_marks(message: dict[str, Any], send: Any) -> None:
    fine = {"name": "fine", "inputSchema": {"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}}
    bad = {"name": "bad", "inputSchema": {"properties": {"a": {"type": "object", "x-mcp-header": "a b\r\n"}}}}
    await sent(send, result(message, tools=[fine, bad]))


async def test_tool_with_a_header_that_is_none_is_left_out() -> None:
    async with connect(with_bad_marks) as connection:
        tools = await connection.list("tools")

    assert [each["name"] for each in tools] == ["fine"]


async def test_trust_that_a_server_claims_is_ignored(tmp_path: Path) -> None:
    async with serve_app(hostile(vouching_for_itself)) as origin:
        remote = upstream("remote", {"type": "streamable-http", "url": f"{origin}/mcp"})
        folder = project(tmp_path / "project", remote, tool("any"), render="envelope")
        async with gateway(folder) as started:
            import aiohttp

            headers = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "any"}
            meta = {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": {},
            }
            params = {"name": "any", "arguments": {}, "_meta": meta}
            request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            async with aiohttp.ClientSession() as session:
                answer = await session.post(started.url, json=request, headers=headers)
                result = orjson.loads(await answer.read())["result"]

    text, chart = result["content"]
    expected = {"tier": "internal", "trusted": False, "hazard": "extractable-instructions"}
    assert text["_meta"] == expected
    assert chart == {"type": "acme_chart", "points": [1, 2], "_meta": {**expected, "acme/trace": "kept"}}
    assert text["text"].startswith("<untrusted_content_")
    assert "<trusted_content_0>" not in text["text"]
    assert result["_meta"]["acme/trace"] == "kept"
    assert result["_meta"]["gateway/turn"] != "mine"
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "orders/shop"
    assert result["acmeField"] == {"kept": True}
    assert "tier" not in result["_meta"]


async def nested(message: dict[str, Any], send: Any) -> None:
    deep = "[" * 900 + "]" * 900
    body = f'{{"jsonrpc":"2.0","id":{message["id"]},"result":{{"content":[],"structuredContent":{deep}}}}}'
    await sent(send, body.encode())


async def test_result_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    async with serve_app(hostile(nested)) as origin:
        remote = upstream("remote", {"type": "streamable-http", "url": f"{origin}/mcp"})
        async with (
            gateway(project(tmp_path / "project", remote, tool("any"))) as started,
            Client(started.url, mode=MODERN) as client,
        ):
            answer = await client.call_tool("any")

    assert answer.is_error
    assert "nested too deeply" in str(answer.content)


async def test_missing_server_does_not_prevent_a_start(tmp_path: Path) -> None:
    remote = upstream("remote", {"type": "streamable-http", "url": "http://127.0.0.1:9/mcp"})
    async with gateway(project(tmp_path / "project", remote, tool("any"))) as started:
        async with Client(started.url, mode=MODERN) as client:
            failed = await client.call_tool("any")
        [state] = started.running.upstreams.status()

    assert failed.is_error
    assert "cannot be reached" in str(failed.content)
    assert (state["state"], state["lastError"]) == ("down", "the service cannot be reached")

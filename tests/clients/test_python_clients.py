"""The reference client and FastMCP's against a real gateway, for each era of the protocol."""

from typing import Any, Literal, cast

import fastmcp
import httpx2
import mcp
import pytest
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError
from mcp.client.streamable_http import streamable_http_client

from tests.promises.transports.gateway import TOKENS
from tests.support.gateways.process import GatewayProcess

pytestmark = pytest.mark.anyio

Mode = Literal["auto", "legacy", "2026-07-28"]
MODES: tuple[Mode, ...] = ("auto", "legacy", "2026-07-28")
HEADERS = {"authorization": f"Bearer {TOKENS['ana']}"}
TURN, CALL = "gateway/turn", "gateway/call"


def text_of(result: Any) -> str:
    text: str = result.content[0].text
    return text


def body(text: str) -> str:
    return text.partition("\n")[2].rpartition("\n")[0]


@pytest.mark.parametrize("mode", MODES)
async def test_reference_client_goes_through_everything(gateway: GatewayProcess, mode: Mode) -> None:
    steps: list[float] = []

    async def step(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async with (
        httpx2.AsyncClient(headers=HEADERS, timeout=30) as http,
        mcp.Client(streamable_http_client(gateway.mcp("/promises"), http_client=http), mode=mode) as client,
    ):
        names = {tool.name for tool in (await client.list_tools()).tools}
        reply = await client.call_tool("say", {"text": "hello"})
        broken = await client.call_tool("broken", {})
        wrong = await client.call_tool("say", {"text": 1})
        walked = await client.call_tool("steps", {}, progress_callback=step)
        report = await client.call_tool("report", {"lines": 3})
        assert report.meta is not None
        asked, meta = {"callId": report.meta[CALL], "pattern": "1"}, cast(Any, {TURN: report.meta[TURN]})
        grep = await client.call_tool("artifact_grep", asked, meta=meta)
        read = await client.read_resource(report.content[1].uri)  # type: ignore[union-attr]  # a link, as asserted below
        with pytest.raises(mcp.MCPError, match="no such tool"):
            await client.call_tool("nothing", {})
        version, instructions = client.protocol_version, client.instructions

    assert version == ("2025-11-25" if mode == "legacy" else "2026-07-28")
    if mode != "2026-07-28":  # clients that pin a version do not discover the server
        assert instructions is not None
        assert instructions.startswith("Keep what you promise.")
    assert {"say", "report", "checked"} <= names
    assert body(text_of(reply)) == "hello"
    assert broken.is_error
    assert "the password" not in text_of(broken)
    assert wrong.is_error
    assert body(text_of(walked)) == "walked"
    assert steps == [1, 2, 3]
    assert report.content[1].type == "resource_link"
    assert body(text_of(grep)) == "line 1"
    assert body(read.contents[0].text).startswith("line 0\nline 1")  # type: ignore[union-attr]  # it is text


@pytest.mark.parametrize("mode", MODES)
async def test_fastmcp_client_goes_through_everything(gateway: GatewayProcess, mode: Mode) -> None:
    steps: list[float] = []

    async def step(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    transport = StreamableHttpTransport(gateway.mcp("/promises"), headers=HEADERS)
    async with fastmcp.Client(transport, mode=mode) as client:
        names = {tool.name for tool in await client.list_tools()}
        reply = await client.call_tool("say", {"text": "hello"})
        with pytest.raises(ToolError, match="the tool raised RuntimeError"):
            await client.call_tool("broken", {})
        walked = await client.call_tool("steps", {}, progress_handler=step)
        report = await client.call_tool_mcp("report", {"lines": 3})
        assert report.meta is not None
        asked = {"callId": report.meta[CALL], "pattern": "1"}
        grep = await client.call_tool("artifact_grep", asked, meta={TURN: report.meta[TURN]})
        facts = await client.call_tool("facts", {})

    assert {"say", "report", "checked"} <= names
    assert body(text_of(reply)) == "hello"
    assert body(text_of(walked)) == "walked"
    assert steps == [1, 2, 3]
    assert body(text_of(grep)) == "line 1"
    assert facts.structured_content == {"name": "kim", "tags": ["a", "b"]}


@pytest.mark.parametrize("mode", MODES)
async def test_client_without_a_token_is_not_let_in(gateway: GatewayProcess, mode: Mode) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with mcp.Client(gateway.mcp("/promises"), mode=mode) as client:
            await client.list_tools()

    assert "Server returned an error response" in repr(caught.value)

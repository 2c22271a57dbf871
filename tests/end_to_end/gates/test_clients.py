"""Ordinary MCP clients and held calls: they wait, get progress messages, and call again for the result."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mcp import Client

from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.gateways.gate_projects import ANA, HELD, LIZ, PEOPLE, approval_client, grant, rule, write
from tests.support.gateways.projects import (
    MODERN,
    CallCounter,
    Caller,
    Document,
    document,
    environ_of,
    http_tool,
    send_http,
    start_call_counter,
)

pytestmark = pytest.mark.anyio

PROMISED = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def documents(backend: CallCounter) -> list[Document]:
    """Anonymous callers are ana, so clients need no credential."""
    promising = http_tool("promising", backend.port, output={"schema": PROMISED, "artifact": "json", "inline": True})
    held = rule("leads-agree", HELD, tools=["pay", "promising"], holdFor="1s")
    anonymous = {"type": "none", "subject": "user:ana", "roles": [f"role:{role}" for role in ANA.roles]}
    made = [
        *approval_client(backend.port, tools=[promising], rules=[held]),
        document("IdentityProvider", "anybody", anonymous),
    ]
    made[0]["spec"]["identity"] = ["anybody", "tokens"]
    return made


@asynccontextmanager
async def start_desk(forks: ForkServer, tmp_path: Path) -> AsyncIterator[tuple[GatewayFork, CallCounter, Caller]]:
    async with start_call_counter() as backend, aiohttp.ClientSession() as session:
        project, data = write(tmp_path / "p", documents(backend)), tmp_path / "data"
        gateway = forks.start(project, data, env={**environ_of(PEOPLE), "GATEWAY_DATA_DIR": str(data)})
        try:
            yield gateway, backend, Caller(send_http(session, gateway.url), LIZ.token)
        finally:
            gateway.kill()


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_client_comes_again_and_gets_its_result(mode: Any, forks: ForkServer, tmp_path: Path) -> None:
    messages: list[str | None] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        messages.append(message)

    async with (
        start_desk(forks, tmp_path) as (gateway, backend, liz),
        Client(f"{gateway.url}/desk/mcp", mode=mode) as client,
    ):
        held = await client.call_tool("pay", {"text": "x"}, progress_callback=progressed)
        [approval] = held.structured_content["approvals"]
        await grant(liz, approval["id"])
        ran = await client.call_tool("pay", {"text": "x"})
        third = await client.call_tool("pay", {"text": "x"})

    assert held.is_error
    assert "call again with the same arguments" in str(held.content)
    assert [str(each).endswith("the call waits for approval") for each in messages] == [True]
    assert not ran.is_error
    assert third.structured_content["status"] == "pending"
    assert backend.paths == ["/pay"]


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_client_that_checks_promised_output_takes_a_held_call(
    mode: Any, forks: ForkServer, tmp_path: Path
) -> None:
    async with start_desk(forks, tmp_path) as (gateway, _, liz), Client(f"{gateway.url}/desk/mcp", mode=mode) as client:
        await client.list_tools()
        held = await client.call_tool("promising", {"text": "x"})
        assert held.meta is not None
        await grant(liz, held.meta["gateway/pending"]["approvals"][0]["id"])
        ran = await client.call_tool("promising", {"text": "x"})

    assert (held.is_error, held.structured_content) == (True, None)
    assert ran.structured_content == {"text": "x"}

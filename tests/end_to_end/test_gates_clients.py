"""Ordinary MCP clients and held calls: they wait, hear that people are asked, and come again for the result."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from forked import Forked, Forking
from gated import ANA, HELD, LIZ, PEOPLE, desk, grant, rule, write
from mcp import Client
from secured import MODERN, Caller, Counting, Document, counting, document, environ_of, http_tool, over_http

pytestmark = pytest.mark.anyio

PROMISED = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def documents(backend: Counting) -> list[Document]:
    """Whoever has no token is ana: clients need no credential then."""
    promising = http_tool("promising", backend.port, output={"schema": PROMISED, "artifact": "json", "inline": True})
    held = rule("leads-agree", HELD, tools=["pay", "promising"], holdFor="1s")
    anybody = {"type": "none", "subject": "user:ana", "roles": [f"role:{role}" for role in ANA.roles]}
    made = [*desk(backend.port, tools=[promising], rules=[held]), document("IdentityProvider", "anybody", anybody)]
    made[0]["spec"]["identity"] = ["anybody", "tokens"]
    return made


@asynccontextmanager
async def served(forks: Forking, tmp_path: Path) -> AsyncIterator[tuple[Forked, Counting, Caller]]:
    async with counting() as backend, aiohttp.ClientSession() as session:
        project, data = write(tmp_path / "p", documents(backend)), tmp_path / "data"
        gateway = forks.start(project, data, env={**environ_of(PEOPLE), "GATEWAY_DATA_DIR": str(data)})
        try:
            yield gateway, backend, Caller(over_http(session, gateway.url), LIZ.token)
        finally:
            gateway.kill()


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_client_comes_again_and_gets_its_result(mode: Any, forks: Forking, tmp_path: Path) -> None:
    told: list[str | None] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    async with (
        served(forks, tmp_path) as (gateway, backend, liz),
        Client(f"{gateway.url}/desk/mcp", mode=mode) as client,
    ):
        held = await client.call_tool("pay", {"text": "x"}, progress_callback=progressed)
        [approval] = held.structured_content["approvals"]
        await grant(liz, approval["id"])
        ran = await client.call_tool("pay", {"text": "x"})
        third = await client.call_tool("pay", {"text": "x"})

    assert held.is_error
    assert "call again with the same arguments" in str(held.content)
    assert [str(each).endswith("the call waits for approval") for each in told] == [True]
    assert not ran.is_error
    assert third.structured_content["status"] == "pending"
    assert backend.paths == ["/pay"]


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_client_that_checks_promised_output_takes_a_held_call(mode: Any, forks: Forking, tmp_path: Path) -> None:
    async with served(forks, tmp_path) as (gateway, _, liz), Client(f"{gateway.url}/desk/mcp", mode=mode) as client:
        await client.list_tools()
        held = await client.call_tool("promising", {"text": "x"})
        assert held.meta is not None
        await grant(liz, held.meta["gateway/pending"]["approvals"][0]["id"])
        ran = await client.call_tool("promising", {"text": "x"})

    assert (held.is_error, held.structured_content) == (True, None)
    assert ran.structured_content == {"text": "x"}

"""Upstreams with automatic acceptance: changes are served by the next refresh, announced and recorded."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from gateway.app.status_report import build_status
from tests.backends.mcp.servers.auto_accept_gateway import CHANGED, MODERN, NEW, names, start_auto_accept_gateway, until
from tests.backends.mcp.servers.front_gateway import tool

pytestmark = pytest.mark.anyio


async def test_change_is_served_announced_counted_and_on_record(tmp_path: Path) -> None:
    announced: list[str] = []

    async def heard(message: Any) -> None:
        announced.append(type(message).__name__)

    async with (
        start_auto_accept_gateway(tmp_path) as found,
        Client(found.gateway.url, mode="legacy", message_handler=heard) as client,
    ):
        assert (await names(client))["remote_find"] == "Finds pages."
        before = found.gateway.running.service.published.snapshot.revision

        found.server.tools = [CHANGED, {**NEW, "name": "close"}]
        await until(lambda: len(found.heard) == 2)

        assert found.heard == [("remote.close", "added"), ("remote.find", "changed")]
        assert await names(client) == {
            "other_open": "Opens a page.",
            "remote_close": "Opens a page.",
            "remote_find": "Seeks pages.",
        }
        assert (await client.call_tool("remote_close", {})).is_error is False
        await until(lambda: "ToolListChangedNotification" in announced)
        assert found.gateway.running.service.published.snapshot.revision != before
        assert found.counted == {"remote": 2}
        assert (await build_status(found.gateway.running))["withheld"] == []

        found.server.tools = [CHANGED]
        await until(lambda: len(found.heard) == 3)
        assert (await client.call_tool("remote_find", {"query": "a"})).is_error is False
        assert "remote_close" not in await names(client)

    events = found.audited()
    assert ("definition-accepted", "remote.close") in events
    assert ("definition-accepted", "remote.find") in events
    assert ("config-published", None) in events


async def test_announced_change_is_taken_at_once(tmp_path: Path) -> None:
    changed = asyncio.Event()
    async with start_auto_accept_gateway(tmp_path, every="1h", changed=changed) as found:
        found.server.tools = [CHANGED]
        changed.set()
        await until(lambda: found.heard == [("remote.find", "changed")])


async def test_server_that_is_away_keeps_what_it_brought(tmp_path: Path) -> None:
    async with start_auto_accept_gateway(tmp_path) as found, Client(found.gateway.url, mode=MODERN) as client:
        found.other.is_away = True
        found.server.tools = [CHANGED]
        await until(lambda: bool(found.heard))

        assert set(await names(client)) == {"other_open", "remote_find"}
        assert found.heard == [("remote.find", "changed")]


async def test_change_that_would_break_the_project_is_not_taken(tmp_path: Path) -> None:
    async with (
        start_auto_accept_gateway(tmp_path, tool("remote_close")) as found,
        Client(found.gateway.url, mode=MODERN) as client,
    ):
        listed = found.server.listed
        found.server.tools = [CHANGED, {**NEW, "name": "close"}]  # its name is taken
        await until(lambda: found.server.listed > listed + 2)
        assert (await names(client))["remote_find"] == "Finds pages."

        found.server.tools = [CHANGED]
        await until(lambda: found.heard == [("remote.find", "changed")])
        assert (await names(client))["remote_find"] == "Seeks pages."

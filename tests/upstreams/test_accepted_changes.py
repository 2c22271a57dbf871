"""Upstreams whose terms accept changes: what they bring by the next refresh is served, told and on record."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from changing_upstream import FIND, ChangingServer
from mcp import Client
from upstream_gateway import Gateway, gateway, project, tool, upstream
from upstream_serving import listening

from gateway.runtime.status import status_of
from gateway.serving.withholding import DefinitionTaken

pytestmark = pytest.mark.anyio

MODERN = "2026-07-28"
NEW: dict[str, Any] = {"name": "open", "description": "Opens a page.", "inputSchema": {"type": "object"}}
CHANGED: dict[str, Any] = {**FIND, "description": "Seeks pages."}


@dataclass
class Accepted:
    server: ChangingServer
    other: ChangingServer
    gateway: Gateway
    folder: Path
    heard: list[tuple[str, str]] = field(default_factory=list)

    @property
    def counted(self) -> dict[str, int]:
        vigil = self.gateway.running.service.published.vigil
        return {} if vigil is None else dict(vigil.changes)

    def audited(self) -> list[tuple[str, Any]]:
        with sqlite3.connect(self.folder / "data" / "gateway.db") as database:
            bodies = [orjson.loads(row[0]) for row in database.execute("SELECT body FROM audit ORDER BY at, seq")]
        return [(each["event"], (each.get("object") or {}).get("name")) for each in bodies]


@asynccontextmanager
async def accepting(
    folder: Path, *documents: Any, every: str = "1s", changed: asyncio.Event | None = None
) -> AsyncIterator[Accepted]:
    """A gateway in front of two servers, both on terms that accept."""
    server, other = ChangingServer(FIND), ChangingServer(NEW)
    server.changed = changed
    async with listening(server.app) as first, listening(other.app) as second:
        upstreams = [
            upstream(name, {"type": "streamable-http", "url": f"{url}/mcp"}, health={"every": every})
            for name, url in (("remote", first), ("other", second))
        ]
        made = project(folder / "project", *upstreams, *documents)
        async with gateway(made) as started:
            found = Accepted(server, other, started, made)

            def hear(event: Any) -> None:
                if isinstance(event, DefinitionTaken):
                    found.heard.append((f"{event.upstream}.{event.definition}", event.what))

            started.running.service.buses.observability.on("*", hear)
            yield found


async def names(client: Client) -> dict[str, str]:
    listed = (await client.list_tools(cache_mode="bypass")).tools
    return {each.name: each.description or "" for each in listed if not each.name.startswith("artifact_")}


async def until(is_so: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not is_so():
            await anyio.sleep(0.02)


async def test_change_is_served_told_counted_and_on_record(tmp_path: Path) -> None:
    told: list[str] = []

    async def heard(message: Any) -> None:
        told.append(type(message).__name__)

    async with accepting(tmp_path) as found, Client(found.gateway.url, mode="legacy", message_handler=heard) as client:
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
        await until(lambda: "ToolListChangedNotification" in told)
        assert found.gateway.running.service.published.snapshot.revision != before
        assert found.counted == {"remote": 2}
        assert (await status_of(found.gateway.running))["withheld"] == []

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
    async with accepting(tmp_path, every="1h", changed=changed) as found:
        found.server.tools = [CHANGED]
        changed.set()
        await until(lambda: found.heard == [("remote.find", "changed")])


async def test_server_that_is_away_keeps_what_it_brought(tmp_path: Path) -> None:
    async with accepting(tmp_path) as found, Client(found.gateway.url, mode=MODERN) as client:
        found.other.is_away = True
        found.server.tools = [CHANGED]
        await until(lambda: bool(found.heard))

        assert set(await names(client)) == {"other_open", "remote_find"}
        assert found.heard == [("remote.find", "changed")]


async def test_change_that_would_break_the_project_is_not_taken(tmp_path: Path) -> None:
    async with accepting(tmp_path, tool("remote_close")) as found, Client(found.gateway.url, mode=MODERN) as client:
        listed = found.server.listed
        found.server.tools = [CHANGED, {**NEW, "name": "close"}]  # whose name is taken
        await until(lambda: found.server.listed > listed + 2)
        assert (await names(client))["remote_find"] == "Finds pages."

        found.server.tools = [CHANGED]
        await until(lambda: found.heard == [("remote.find", "changed")])
        assert (await names(client))["remote_find"] == "Seeks pages."


async def test_call_that_runs_meanwhile_ends_on_what_it_began_with(tmp_path: Path) -> None:
    async with accepting(tmp_path) as found, Client(found.gateway.url, mode=MODERN) as client:
        found.server.hold = asyncio.Event()
        call = asyncio.create_task(client.call_tool("remote_find", {"query": "a"}))
        await until(lambda: bool(found.server.called))
        found.server.tools = [NEW]
        await until(lambda: ("remote.find", "removed") in found.heard)
        found.server.hold.set()

        assert (await call).is_error is False
        assert set(await names(client)) == {"other_open", "remote_open"}

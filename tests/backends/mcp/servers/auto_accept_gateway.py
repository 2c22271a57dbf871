"""A gateway in front of two servers whose changes are accepted automatically."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import orjson
from mcp import Client

from gateway.engine.gates.definition_guard import DefinitionAccepted
from tests.backends.mcp.servers.asgi_host import serve_app
from tests.backends.mcp.servers.front_gateway import Gateway, gateway, project, upstream
from tests.backends.mcp.servers.mutable_server import FIND, MutableServer

MODERN = "2026-07-28"
NEW: dict[str, Any] = {"name": "open", "description": "Opens a page.", "inputSchema": {"type": "object"}}
CHANGED: dict[str, Any] = {**FIND, "description": "Seeks pages."}


@dataclass
class AutoAcceptGateway:
    server: MutableServer
    other: MutableServer
    gateway: Gateway
    folder: Path
    heard: list[tuple[str, str]] = field(default_factory=list)

    @property
    def counted(self) -> dict[str, int]:
        definition_guard = self.gateway.running.service.published.definition_guard
        return {} if definition_guard is None else dict(definition_guard.changes)

    def audited(self) -> list[tuple[str, Any]]:
        with sqlite3.connect(self.folder / "data" / "gateway.db") as database:
            bodies = [orjson.loads(row[0]) for row in database.execute("SELECT body FROM audit ORDER BY at, seq")]
        return [(each["event"], (each.get("object") or {}).get("name")) for each in bodies]


@asynccontextmanager
async def start_auto_accept_gateway(
    folder: Path, *documents: Any, every: str = "1s", changed: asyncio.Event | None = None
) -> AsyncIterator[AutoAcceptGateway]:
    """A gateway in front of two servers, both with automatic acceptance."""
    server, other = MutableServer(FIND), MutableServer(NEW)
    server.changed = changed
    async with serve_app(server.app) as first, serve_app(other.app) as second:
        upstreams = [
            upstream(name, {"type": "streamable-http", "url": f"{url}/mcp"}, health={"every": every})
            for name, url in (("remote", first), ("other", second))
        ]
        made = project(folder / "project", *upstreams, *documents)
        async with gateway(made) as started:
            found = AutoAcceptGateway(server, other, started, made)

            def hear(event: Any) -> None:
                if isinstance(event, DefinitionAccepted):
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

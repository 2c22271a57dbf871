"""A gateway in front of two servers on terms that accept whatever they become."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import orjson
from changing_upstream import FIND, ChangingServer
from mcp import Client
from upstream_gateway import Gateway, gateway, project, upstream
from upstream_serving import listening

from gateway.serving.withholding import DefinitionTaken

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

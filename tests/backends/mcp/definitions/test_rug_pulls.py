"""Servers that change reviewed definitions: blocked within one refresh, recorded, and served only after a new lock."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from gateway.app.status_report import build_status
from gateway.cli.operations.status import format_status
from gateway.config.lock.lock_file import LOCK_FILE, Lock, LockedUpstream, render_lock
from gateway.engine.gates.definition_guard import DefinitionStatusChanged
from gateway.registries.imported_definition import UpstreamDefinition
from tests.backends.mcp.servers.asgi_host import serve_app
from tests.backends.mcp.servers.front_gateway import Gateway, gateway, project, tool, upstream
from tests.backends.mcp.servers.mutable_server import FIND, MutableServer

pytestmark = pytest.mark.anyio

OPEN: dict[str, Any] = {"name": "open", "description": "Opens a page.", "inputSchema": {"type": "object"}}
ONE_BYTE: dict[str, Any] = {**FIND, "description": "Finds pages!"}
TERMS = {"include": ["*"], "trust": {"tier": "internal", "flags": []}, "onChange": "quarantine"}


@dataclass
class RunningProject:
    server: MutableServer
    gateway: Gateway
    folder: Path
    heard: list[tuple[str, bool]]

    async def refresh(self) -> None:
        """Wait until the server was listed again and the list was compared."""
        before = self.server.listed
        with anyio.fail_after(10):
            while self.server.listed <= before + 1:
                await anyio.sleep(0.01)

    async def until_heard(self, count: int) -> None:
        with anyio.fail_after(10):
            while len(self.heard) < count:
                await anyio.sleep(0.01)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[ClientSession]:
        async with streamable_http_client(self.gateway.url) as (read, write, *_), ClientSession(read, write) as client:
            await client.initialize()
            yield client

    def audited(self) -> list[tuple[str, Any]]:
        with sqlite3.connect(self.folder / "data" / "gateway.db") as database:
            bodies = [orjson.loads(row[0]) for row in database.execute("SELECT body FROM audit ORDER BY at, seq")]
        return [
            (body["event"], (body.get("object") or {}).get("name") or (body.get("decision") or {}).get("reason"))
            for body in bodies
            if "definition" in body["event"] or (body.get("decision") or {}).get("reason") == "definition-changed"
        ]


@asynccontextmanager
async def serve_project(
    folder: Path,
    *tools: dict[str, Any],
    locked: tuple[dict[str, Any], ...] = (FIND, OPEN),
    every: str = "1s",
    changed: asyncio.Event | None = None,
) -> AsyncIterator[RunningProject]:
    """A gateway in front of the server; `find` is imported under its own name, `open` is published as `open_page`."""
    server = MutableServer(*tools)
    server.changed = changed
    async with serve_app(server.app) as origin:
        url = f"{origin}/mcp"
        documents = [
            upstream("remote", {"type": "streamable-http", "url": url}, **{"import": TERMS}, health={"every": every}),
            tool("open_page", remote="open"),
        ]
        made = project(folder / "project", *documents)
        definitions = [UpstreamDefinition.read("remote", each) for each in locked]
        lock = Lock().with_upstream(LockedUpstream("remote", {"default": ("streamable-http", url)}), definitions)
        (made / "configs" / LOCK_FILE).write_text(render_lock(lock), encoding="utf-8")
        async with gateway(made) as started:
            heard: list[tuple[str, bool]] = []

            def hear(event: Any) -> None:
                if isinstance(event, DefinitionStatusChanged):
                    heard.append((event.withheld.tool, event.lifted))

            started.running.service.buses.observability.on("*", hear)
            yield RunningProject(server, started, made, heard)


async def names(client: ClientSession) -> set[str]:
    return {each.name for each in (await client.list_tools()).tools if not each.name.startswith("artifact_")}


async def call_tool(client: ClientSession, name: str, **args: Any) -> tuple[bool, str]:
    found = await client.call_tool(name, args)
    return bool(found.is_error), str(found.content)


async def test_one_byte_between_list_and_call_withholds_the_tool(tmp_path: Path) -> None:
    async with serve_project(tmp_path, FIND, OPEN) as found, found.client() as client:
        assert await names(client) == {"remote_find", "open_page"}
        is_error, text = await call_tool(client, "remote_find", query="a")
        assert (is_error, len(found.server.called)) == (False, 1)
        assert "found it" in text

        found.server.tools = [ONE_BYTE, OPEN]
        await found.until_heard(1)

        is_error, text = await call_tool(client, "remote_find", query="a")
        assert is_error
        assert "withheld: its definition differs from the approved one" in text
        assert len(found.server.called) == 1
        assert await names(client) == {"open_page"}
        assert (await call_tool(client, "open_page"))[0] is False
        status = await build_status(found.gateway.running)
        assert [(each["tool"], each["why"]) for each in status["withheld"]] == [("find", "changed")]
        assert status["collisions"] == []
        lines = dict(format_status(status))
        assert lines["withheld"] == ("remote.find: its definition differs from the approved one",)
        assert "collisions" not in lines
        definition_guard = found.gateway.running.service.published.definition_guard
        assert definition_guard is not None
        assert definition_guard.changes == {"remote": 1}

    assert ("definition-changed", "remote.find") in found.audited()
    assert ("call-decided", "definition-changed") in found.audited()


async def test_declared_tool_of_a_changed_definition_is_withheld(tmp_path: Path) -> None:
    async with serve_project(tmp_path, FIND, OPEN) as found, found.client() as client:
        assert (await call_tool(client, "open_page"))[0] is False

        found.server.tools = [FIND, {**OPEN, "annotations": {"readOnlyHint": True}}]
        await found.until_heard(1)

        assert (await call_tool(client, "open_page"))[0] is True
        assert await names(client) == {"remote_find"}


async def test_announced_change_is_compared_at_once(tmp_path: Path) -> None:
    changed = asyncio.Event()
    async with serve_project(tmp_path, FIND, OPEN, every="1h", changed=changed) as found, found.client() as client:
        assert await names(client) == {"remote_find", "open_page"}

        found.server.tools = [ONE_BYTE, OPEN]
        changed.set()
        await found.until_heard(1)

        assert await names(client) == {"open_page"}
        assert (await call_tool(client, "remote_find", query="a"))[0] is True


async def test_definition_that_flips_back_and_forth_stays_withheld(tmp_path: Path) -> None:
    async with serve_project(tmp_path, FIND, OPEN) as found, found.client() as client:
        found.server.alternates = [ONE_BYTE, OPEN]
        await found.until_heard(3)
        found.server.alternates = None
        found.server.tools = [FIND, OPEN]
        await found.refresh()
        await found.refresh()

        is_error, text = await call_tool(client, "remote_find", query="a")
        assert is_error
        assert "its definition changed and changed back" in text
        assert found.server.called == []
        assert await names(client) == {"open_page"}
        status = await build_status(found.gateway.running)
        assert [(each["tool"], each["why"]) for each in status["withheld"]] == [("find", "changed-back")]

    assert not any(lifted for _, lifted in found.heard)
    assert found.audited()[:3] == [("definition-changed", "remote.find")] * 3


async def test_tool_that_is_gone_or_comes_twice_is_withheld(tmp_path: Path) -> None:
    async with serve_project(tmp_path, FIND, OPEN) as found, found.client() as client:
        found.server.tools = [FIND, FIND]
        await found.until_heard(2)

        assert await names(client) == set()
        assert "no longer has it" in (await call_tool(client, "open_page"))[1]


async def test_tool_without_a_lock_is_not_served(tmp_path: Path) -> None:
    new = {**FIND, "name": "delete_everything"}
    async with serve_project(tmp_path, FIND, new, OPEN, locked=(FIND,)) as found, found.client() as client:
        await found.refresh()

        assert await names(client) == {"remote_find"}
        assert "its definition was never approved" in (await call_tool(client, "open_page"))[1]
        assert found.server.called == []


async def test_terms_that_accept_take_what_the_server_has(tmp_path: Path) -> None:
    server = MutableServer({**FIND, "description": "Seeks."}, OPEN, {"name": "two words"})
    async with serve_app(server.app) as origin:
        terms = {**TERMS, "onChange": "accept", "include": ["find", "two*"]}
        document = upstream("remote", {"type": "streamable-http", "url": f"{origin}/mcp"}, **{"import": terms})
        async with gateway(project(tmp_path / "project", document)) as started:
            found = RunningProject(server, started, tmp_path, [])
            async with found.client() as client:
                [listed] = [each for each in (await client.list_tools()).tools if each.name == "remote_find"]
                answer = await call_tool(client, "remote_find", query="a")
                assert await names(client) == {"remote_find"}

    assert listed.description == "Seeks."
    assert answer[0] is False


async def test_server_whose_tools_would_break_the_project_brings_none(tmp_path: Path) -> None:
    server = MutableServer({**FIND, "description": "Finds\u202e pages."})
    async with serve_app(server.app) as origin:
        terms = {**TERMS, "onChange": "accept"}
        document = upstream("remote", {"type": "streamable-http", "url": f"{origin}/mcp"}, **{"import": terms})
        async with gateway(project(tmp_path / "project", document)) as started:
            found = RunningProject(server, started, tmp_path, [])
            async with found.client() as client:
                assert await names(client) == set()

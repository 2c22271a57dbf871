"""Reloads with upstreams: a connection lives as long as its document, and unreviewed definitions are not served."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from gateway.app.app import App, start_app
from gateway.app.asgi_apps import build_asgi_apps
from gateway.app.project_source import FolderSource, LastGoodBundle
from gateway.app.revisions.reload import Reloader, prepare_from_source
from gateway.app.settings import Settings
from gateway.config.lock.lock_file import LOCK_FILE, Lock, LockedUpstream, render_lock
from gateway.registries.imported_definition import UpstreamDefinition
from gateway.server.http.drain import ShutdownSignal
from tests.backends.mcp.servers.asgi_host import serve_app
from tests.backends.mcp.servers.front_gateway import project, upstream
from tests.backends.mcp.servers.mutable_server import FIND, MutableServer
from tests.support.yaml_documents import format_documents

pytestmark = pytest.mark.anyio

CHANGED: dict[str, Any] = {**FIND, "description": "Finds pages!"}
TERMS = {"include": ["*"], "trust": {"tier": "internal", "flags": []}, "onChange": "quarantine"}


@dataclass
class RunningProject:
    server: MutableServer
    running: App
    reloading: Reloader
    folder: Path
    origin: str
    url: str

    def declare(self, *, every: str = "1s") -> None:
        transport = {"type": "streamable-http", "url": f"{self.origin}/mcp"}
        document = upstream("remote", transport, **{"import": TERMS}, health={"every": every})
        (self.folder / "configs" / "upstreams.yaml").write_text(format_documents([document]))

    def lock(self, definition: dict[str, Any], confirmed: str | None = None) -> None:
        write_lock(self.folder, self.origin, definition, confirmed)

    async def called(self) -> tuple[bool, str]:
        async with self.client() as client:
            found = await client.call_tool("remote_find", {"query": "a"})
            return bool(found.is_error), str(found.content)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[ClientSession]:
        async with streamable_http_client(self.url) as (read, write, *_), ClientSession(read, write) as client:
            await client.initialize()
            yield client

    async def until(self, why: str | None) -> None:
        """Wait until the tool is blocked for a reason, or served."""
        async with asyncio.timeout(10):
            while [each.why for each in self.withheld()] != ([] if why is None else [why]):
                await asyncio.sleep(0.01)

    def withheld(self) -> Any:
        definition_guard = self.running.service.published.definition_guard
        assert definition_guard is not None
        return definition_guard.list_blocked()


def write_lock(folder: Path, origin: str, definition: dict[str, Any], confirmed: str | None) -> None:
    read = UpstreamDefinition.read("remote", definition)
    where = LockedUpstream("remote", {"default": ("streamable-http", f"{origin}/mcp")}, confirmed=confirmed)
    (folder / "configs" / LOCK_FILE).write_text(render_lock(Lock().with_upstream(where, [read])), encoding="utf-8")


@asynccontextmanager
async def serve_project(folder: Path) -> AsyncIterator[RunningProject]:
    server = MutableServer(FIND)
    async with serve_app(server.app) as origin:
        made = project(folder / "project")
        settings = Settings.model_validate({"configs": made})
        found = RunningProject(server, None, None, made, origin, "")  # type: ignore[arg-type] # filled in below
        found.declare()
        found.lock(FIND)
        source = FolderSource(settings.project)
        taken, ready = prepare_from_source(source, settings, environ={})
        async with start_app(ready) as running:
            found.running = running
            found.reloading = Reloader(running, source, ready, taken, LastGoodBundle(folder))
            both = build_asgi_apps(
                running, base_url="http://127.0.0.1", stopping=ShutdownSignal(), reloading=found.reloading
            )
            async with serve_app(both.data) as here:
                found.url = f"{here}/shop/mcp"
                await found.until(None)
                yield found
                both.close_streams()
            await found.reloading.close()
            await both.close()


async def test_definition_that_was_looked_at_anew_is_served_again(tmp_path: Path) -> None:
    async with serve_project(tmp_path) as found:
        connection = found.running.upstreams.get("remote")
        found.server.tools = [CHANGED]
        await found.until("changed")
        found.lock(CHANGED)
        outcome = await found.reloading.reload("request")
        is_error, text = await found.called()
        kept = found.running.upstreams.get("remote")

    assert outcome.what == "published", outcome
    assert found.withheld() == []
    assert (is_error, "found it" in text) == (False, True)
    assert kept is connection


async def test_definition_that_flipped_is_served_once_the_lock_confirms_it(tmp_path: Path) -> None:
    async with serve_project(tmp_path) as found:
        assert (await found.called())[0] is False
        found.server.tools = [CHANGED]
        await found.until("changed")
        found.server.tools = [FIND]
        await found.until("changed-back")
        found.declare(every="2s")  # new revision, new connection, and the lock has not been compared yet
        assert (await found.reloading.reload("request")).what == "published"
        await found.until("changed-back")
        before, _ = await found.called()
        found.lock(FIND, confirmed="2026-11-17T09:00:00Z")
        outcome = await found.reloading.reload("request")
        after, text = await found.called()

    assert outcome.what == "published", outcome
    assert (before, after, "found it" in text) == (True, False, True)
    assert len(found.server.called) == 2


async def test_unreviewed_definition_is_blocked_from_the_first_moment(tmp_path: Path) -> None:
    async with serve_project(tmp_path) as found:
        assert (await found.called())[0] is False
        found.lock(CHANGED)  # the server's definition differs
        outcome = await found.reloading.reload("request")
        at_once = [each.why for each in found.withheld()]
        is_error, text = await found.called()

    assert outcome.what == "published"
    assert at_once == ["changed"]
    assert (is_error, "withheld" in text) == (True, True)
    assert len(found.server.called) == 1


async def test_changes_are_announced_once_however_many_reloads(tmp_path: Path) -> None:
    async with serve_project(tmp_path) as found:
        for number in range(3):
            (found.folder / "policies" / "roles.csv").write_text(
                f"g, user:you, role:clerk\ng, user:n{number}, role:clerk\n"
            )
            assert (await found.reloading.reload("request")).what == "published"
        found.server.tools = [CHANGED]
        await found.until("changed")
        definition_guard = found.running.service.published.definition_guard

    assert definition_guard is not None
    assert definition_guard.changes == {"remote": 1}


async def test_call_on_a_server_that_is_declared_anew_ends_on_its_own_connection(tmp_path: Path) -> None:
    async with serve_project(tmp_path) as found:
        before = found.running.upstreams.get("remote")
        found.server.hold = asyncio.Event()
        running = asyncio.create_task(found.called())
        async with asyncio.timeout(10):
            while not found.server.called:
                await asyncio.sleep(0.01)
        found.declare(every="2s")
        outcome = await found.reloading.reload("request")
        after = found.running.upstreams.get("remote")
        found.server.hold.set()
        is_error, text = await running
        async with asyncio.timeout(30):
            while found.running.revisions.draining:
                await asyncio.sleep(0.05)
        again = await found.called()

    assert outcome.what == "published"
    assert after is not before
    assert (is_error, "found it" in text) == (False, True)
    assert again[0] is False


async def test_server_that_is_declared_no_more_is_let_go(tmp_path: Path) -> None:
    async with serve_project(tmp_path) as found:
        (found.folder / "configs" / "upstreams.yaml").unlink()
        (found.folder / "configs" / LOCK_FILE).unlink()
        outcome = await found.reloading.reload("request")
        async with found.client() as client:
            names = [each.name for each in (await client.list_tools()).tools]

    assert outcome.what == "published", outcome
    assert "remote_find" not in names
    assert found.reloading.status()["lastReload"]["outcome"] == "published"

"""Reloads with upstream servers: connections stay where their document does, and nothing unseen is ever served."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from changing_upstream import FIND, ChangingServer
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from upstream_gateway import project, upstream
from upstream_serving import listening

from gateway.config.lock_file import LOCK_FILE
from gateway.config.lock_text import lock_text
from gateway.governance.imports import ImportedDefinition
from gateway.governance.locks import Lock, LockedUpstream
from gateway.runtime.bundled import LastGood
from gateway.runtime.planes import planes
from gateway.runtime.reloading import Reloading, prepared_from
from gateway.runtime.running import Running, opened
from gateway.runtime.settings import Settings
from gateway.runtime.sourcing import FolderSource
from gateway.runtime.stopping import Stopping

pytestmark = pytest.mark.anyio

CHANGED: dict[str, Any] = {**FIND, "description": "Finds pages!"}
TERMS = {"include": ["*"], "trust": {"tier": "internal", "flags": []}, "onChange": "quarantine"}


@dataclass
class Served:
    server: ChangingServer
    running: Running
    reloading: Reloading
    folder: Path
    origin: str
    url: str

    def declare(self, *, every: str = "1s") -> None:
        transport = {"type": "streamable-http", "url": f"{self.origin}/mcp"}
        document = upstream("remote", transport, **{"import": TERMS}, health={"every": every})
        (self.folder / "configs" / "upstreams.yaml").write_text(yaml.safe_dump(document))

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
        """Wait until the tool is withheld for a reason, or served."""
        async with asyncio.timeout(10):
            while [each.why for each in self.withheld()] != ([] if why is None else [why]):
                await asyncio.sleep(0.01)

    def withheld(self) -> Any:
        vigil = self.running.service.published.vigil
        assert vigil is not None
        return vigil.all()


def write_lock(folder: Path, origin: str, definition: dict[str, Any], confirmed: str | None) -> None:
    read = ImportedDefinition.read("remote", definition)
    where = LockedUpstream("remote", {"default": ("streamable-http", f"{origin}/mcp")}, confirmed=confirmed)
    (folder / "configs" / LOCK_FILE).write_text(lock_text(Lock().with_upstream(where, [read])), encoding="utf-8")


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    server = ChangingServer(FIND)
    async with listening(server.app) as origin:
        made = project(folder / "project")
        settings = Settings.model_validate({"configs": made})
        found = Served(server, None, None, made, origin, "")  # type: ignore[arg-type] # filled in below
        found.declare()
        found.lock(FIND)
        source = FolderSource(settings.project)
        taken, ready = prepared_from(source, settings, environ={})
        async with opened(ready) as running:
            found.running = running
            found.reloading = Reloading(running, source, ready, taken, LastGood(folder))
            both = planes(running, base_url="http://127.0.0.1", stopping=Stopping(), reloading=found.reloading)
            async with listening(both.data) as here:
                found.url = f"{here}/shop/mcp"
                await found.until(None)
                yield found
                both.hush()
            await found.reloading.close()
            await both.close()


async def test_definition_that_was_looked_at_anew_is_served_again(tmp_path: Path) -> None:
    async with served(tmp_path) as found:
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
    async with served(tmp_path) as found:
        assert (await found.called())[0] is False
        found.server.tools = [CHANGED]
        await found.until("changed")
        found.server.tools = [FIND]
        await found.until("changed-back")
        found.declare(every="2s")  # another revision, another connection, and nobody has looked at the lock
        assert (await found.reloading.reload("request")).what == "published"
        await found.until("changed-back")
        before, _ = await found.called()
        found.lock(FIND, confirmed="2026-11-17T09:00:00Z")
        outcome = await found.reloading.reload("request")
        after, text = await found.called()

    assert outcome.what == "published", outcome
    assert (before, after, "found it" in text) == (True, False, True)
    assert len(found.server.called) == 2


async def test_definition_that_nobody_looked_at_is_withheld_from_the_first_moment(tmp_path: Path) -> None:
    async with served(tmp_path) as found:
        assert (await found.called())[0] is False
        found.lock(CHANGED)  # what the server brings is another one
        outcome = await found.reloading.reload("request")
        at_once = [each.why for each in found.withheld()]
        is_error, text = await found.called()

    assert outcome.what == "published"
    assert at_once == ["changed"]
    assert (is_error, "withheld" in text) == (True, True)
    assert len(found.server.called) == 1


async def test_changes_are_told_once_however_often_was_reloaded(tmp_path: Path) -> None:
    async with served(tmp_path) as found:
        for number in range(3):
            (found.folder / "policies" / "roles.csv").write_text(
                f"g, user:you, role:clerk\ng, user:n{number}, role:clerk\n"
            )
            assert (await found.reloading.reload("request")).what == "published"
        found.server.tools = [CHANGED]
        await found.until("changed")
        vigil = found.running.service.published.vigil

    assert vigil is not None
    assert vigil.changes == {"remote": 1}


async def test_call_on_a_server_that_is_declared_anew_ends_on_its_own_connection(tmp_path: Path) -> None:
    async with served(tmp_path) as found:
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
    async with served(tmp_path) as found:
        (found.folder / "configs" / "upstreams.yaml").unlink()
        (found.folder / "configs" / LOCK_FILE).unlink()
        outcome = await found.reloading.reload("request")
        async with found.client() as client:
            names = [each.name for each in (await client.list_tools()).tools]

    assert outcome.what == "published", outcome
    assert "remote_find" not in names
    assert found.reloading.status()["lastReload"]["outcome"] == "published"

"""Locking faulty lists: duplicate definitions are left out, and a failed list is not a list."""

from pathlib import Path
from typing import Any

import pytest

from gateway.app.project import ProjectFolders, load_project
from gateway.app.upstream_discovery import UpstreamDefinitions, discover, open_connections
from gateway.config.lock.pin_resolution import list_upstreams
from gateway.model.tools.backend import BackendError
from gateway.model.turns.events import now
from tests.backends.mcp.servers.asgi_host import serve_app
from tests.backends.mcp.servers.front_gateway import project, upstream
from tests.backends.mcp.servers.mutable_server import FIND, MutableServer

pytestmark = pytest.mark.anyio

TERMS = {
    "include": ["*"],
    "resources": [{"name": "notes", "uris": ["notes://*"]}],
    "trust": {"tier": "internal", "flags": []},
}


async def lock_server(folder: Path, server: MutableServer) -> UpstreamDefinitions:
    async with serve_app(server.app) as origin:
        transport = {"type": "streamable-http", "url": f"{origin}/mcp"}
        made = project(folder / "project", upstream("remote", transport, **{"import": TERMS}))
        assembled = load_project(ProjectFolders.from_folder(made), environ={}, environment=None, today=now().date())
        checked = list_upstreams(assembled.loaded)["remote"]
        async with open_connections(assembled, {}, made / "configs") as backends:
            return await discover("remote", checked, assembled, backends, folder=made / "configs", environment=None)


@pytest.mark.parametrize("times", [2, 3])
async def test_tool_that_comes_several_times_is_left_out(tmp_path: Path, times: int) -> None:
    other = {**FIND, "name": "open"}

    found = await lock_server(tmp_path, MutableServer(*[FIND] * times, other))

    assert [each.name for each in found.definitions] == ["open"]
    assert found.unreadable == ("tool 'find' is left out: the server lists it more than once",)


async def test_server_without_templates_has_none(tmp_path: Path) -> None:
    server = MutableServer(FIND)
    server.capabilities = {"tools": {}, "resources": {}}

    found = await lock_server(tmp_path, server)

    assert [each.name for each in found.definitions] == ["find"]


@pytest.mark.parametrize("answer", [{"resourceTemplates": "none"}, {"resourceTemplates": [], "nextCursor": "again"}])
async def test_templates_that_cannot_be_listed_are_not_taken_for_none(tmp_path: Path, answer: Any) -> None:
    server = MutableServer(FIND)
    server.capabilities = {"tools": {}, "resources": {}}
    server.answers["resources/templates/list"] = answer

    with pytest.raises(BackendError, match="list of resourceTemplates"):
        await lock_server(tmp_path, server)

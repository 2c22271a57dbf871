"""What is locked of lists that are not in order: what comes several times is left out, and what failed is no list."""

from pathlib import Path
from typing import Any

import pytest
from changing_upstream import FIND, ChangingServer
from upstream_gateway import project, upstream
from upstream_serving import listening

from gateway.assembly import Project, assemble
from gateway.config.pins import upstreams_of
from gateway.core.events import now
from gateway.governance.ports import BackendFailed
from gateway.runtime.bringing import Brought, brought, reaching

pytestmark = pytest.mark.anyio

TERMS = {
    "include": ["*"],
    "resources": [{"name": "notes", "uris": ["notes://*"]}],
    "trust": {"tier": "internal", "flags": []},
}


async def locked(folder: Path, server: ChangingServer) -> Brought:
    async with listening(server.app) as origin:
        transport = {"type": "streamable-http", "url": f"{origin}/mcp"}
        made = project(folder / "project", upstream("remote", transport, **{"import": TERMS}))
        assembled = assemble(Project.at(made), environ={}, environment=None, today=now().date())
        checked = upstreams_of(assembled.loaded)["remote"]
        async with reaching(assembled, {}, made / "configs") as backends:
            return await brought("remote", checked, assembled, backends, folder=made / "configs", environment=None)


@pytest.mark.parametrize("times", [2, 3])
async def test_tool_that_comes_several_times_is_left_out(tmp_path: Path, times: int) -> None:
    other = {**FIND, "name": "open"}

    found = await locked(tmp_path, ChangingServer(*[FIND] * times, other))

    assert [each.name for each in found.definitions] == ["open"]
    assert found.unreadable == ("tool 'find' is left out: the server has it more than once",)


async def test_server_without_templates_has_none(tmp_path: Path) -> None:
    server = ChangingServer(FIND)
    server.capabilities = {"tools": {}, "resources": {}}

    found = await locked(tmp_path, server)

    assert [each.name for each in found.definitions] == ["find"]


@pytest.mark.parametrize("answer", [{"resourceTemplates": "none"}, {"resourceTemplates": [], "nextCursor": "again"}])
async def test_templates_that_cannot_be_listed_are_not_taken_for_none(tmp_path: Path, answer: Any) -> None:
    server = ChangingServer(FIND)
    server.capabilities = {"tools": {}, "resources": {}}
    server.answers["resources/templates/list"] = answer

    with pytest.raises(BackendFailed, match="list of resourceTemplates"):
        await locked(tmp_path, server)

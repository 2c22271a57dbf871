"""Resource templates and prompts that differ from the lock are neither listed nor served, whatever else is there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp_types import ResourceTemplateReference

from gateway.config.lock.lock_file import LOCK_FILE, Lock, LockedUpstream, render_lock
from gateway.registries.imported_definition import UpstreamDefinition
from tests.backends.mcp.servers.asgi_host import serve_app
from tests.backends.mcp.servers.front_gateway import Gateway, gateway, project, upstream
from tests.backends.mcp.servers.mutable_server import FIND, MutableServer

pytestmark = pytest.mark.anyio

DAYS = {"name": "days", "uriTemplate": "notes://days/{day}", "description": "One day."}
WEEKS = {"name": "weeks", "uriTemplate": "notes://weeks/{week}", "description": "One week."}
GREET = {"name": "greet", "description": "Greets somebody."}
TERMS = {
    "include": ["*"],
    "prompts": ["*"],
    "resources": [{"name": "notes", "uris": ["notes://*"]}],
    "trust": {"tier": "internal", "flags": []},
}
ROWS = """
p, role:clerk, shop, prompt:*,   invoke, internal, allow
p, role:clerk, shop, resource:*, read,   internal, allow
"""


@asynccontextmanager
async def serve_project(folder: Path) -> AsyncIterator[tuple[Gateway, MutableServer]]:
    server = MutableServer(FIND)
    server.capabilities = {"tools": {}, "prompts": {}, "resources": {}, "completions": {}}
    server.answers = {
        "prompts/list": {"prompts": [GREET]},
        "resources/templates/list": {"resourceTemplates": [DAYS, WEEKS]},
        "resources/list": {"resources": [{"name": "monday", "uri": "notes://days/monday"}]},
        "resources/read": {"contents": [{"uri": "notes://days/monday", "text": "Water the plants."}]},
        "completion/complete": {"completion": {"values": ["monday"]}},
    }
    async with serve_app(server.app) as origin:
        url = f"{origin}/mcp"
        transport = {"type": "streamable-http", "url": url}
        made = project(folder, upstream("remote", transport, **{"import": TERMS}, health={"every": "1s"}))
        documents = made / "configs" / "gateway.yaml"
        documents.write_text(documents.read_text().replace('- {tools: ["*"]}', "- {upstreams: [remote]}"))
        with (made / "policies" / "policy.csv").open("a") as policy:
            policy.write(ROWS)
        locked = [
            UpstreamDefinition.read("remote", FIND),
            UpstreamDefinition.read("remote", GREET, kind="prompt"),
            *(UpstreamDefinition.read("remote", each, kind="resourceTemplate") for each in (DAYS, WEEKS)),
        ]
        lock = Lock().with_upstream(LockedUpstream("remote", {"default": ("streamable-http", url)}), locked)
        (made / "configs" / LOCK_FILE).write_text(render_lock(lock), encoding="utf-8")
        async with gateway(made) as started:
            yield started, server


async def until_withheld(started: Gateway, *names: str) -> None:
    with anyio.fail_after(10):
        while True:
            definition_guard = started.running.service.published.definition_guard
            if definition_guard is not None and {each.tool for each in definition_guard.list_blocked()} == set(names):
                return
            await anyio.sleep(0.01)


def change_template(server: MutableServer) -> None:
    server.answers["resources/templates/list"] = {"resourceTemplates": [{**DAYS, "description": "One day!"}, WEEKS]}


async def templates(client: Client) -> list[str]:
    return [each.name for each in (await client.list_resource_templates()).resource_templates]


async def test_changed_template_is_neither_listed_nor_followed(tmp_path: Path) -> None:
    announced: list[str] = []

    async def heard(message: Any) -> None:
        announced.append(getattr(message, "method", ""))

    async with (
        serve_project(tmp_path / "project") as (started, server),
        Client(started.url, mode="legacy", message_handler=heard) as client,
    ):
        assert await templates(client) == ["days", "weeks"]
        assert (await client.read_resource("notes://days/monday")).contents
        change_template(server)
        await until_withheld(started, "template days")
        with anyio.fail_after(10):
            while "notifications/resources/list_changed" not in announced:
                await anyio.sleep(0.01)

        assert await templates(client) == ["weeks"]
        with pytest.raises(MCPError, match="there is no such resource"):
            await client.read_resource("notes://days/monday")
        with pytest.raises(MCPError, match="nothing of that name to complete"):
            await client.complete(ResourceTemplateReference(uri=DAYS["uriTemplate"]), {"name": "day", "value": "m"})
        assert (await client.list_resources()).resources == []  # unreadable ones are not listed
        assert (await client.read_resource("notes://weeks/1")).contents


async def test_nothing_is_followed_before_templates_were_compared(tmp_path: Path) -> None:
    async with serve_project(tmp_path / "project") as (started, server):
        change_template(server)
        async with Client(started.url) as client:
            with pytest.raises(MCPError, match="there is no such resource"):
                await client.read_resource("notes://days/monday")


@pytest.mark.parametrize("method", ["prompts/list", "resources/templates/list"])
async def test_server_that_refuses_one_list_cannot_change_what_is_on_another(tmp_path: Path, method: str) -> None:
    gone = {"prompts/list": ["prompt greet"], "resources/templates/list": ["template days", "template weeks"]}[method]
    async with serve_project(tmp_path / "project") as (started, server), Client(started.url) as client:
        assert [each.name for each in (await client.list_prompts()).prompts] == ["remote_greet"]
        del server.answers[method]
        server.tools = [{**FIND, "description": "Finds everything."}]

        await until_withheld(started, "find", *gone)

"""Resource templates and prompts that are not what was locked: neither listed nor followed, whatever else is there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from changing_upstream import FIND, ChangingServer
from mcp import Client, MCPError
from mcp_types import ResourceTemplateReference
from upstream_gateway import Gateway, gateway, project, upstream
from upstream_serving import listening

from gateway.config.lock_file import LOCK_FILE
from gateway.config.lock_text import lock_text
from gateway.governance.imports import ImportedDefinition
from gateway.governance.locks import Lock, LockedUpstream

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
async def served(folder: Path) -> AsyncIterator[tuple[Gateway, ChangingServer]]:
    server = ChangingServer(FIND)
    server.capabilities = {"tools": {}, "prompts": {}, "resources": {}, "completions": {}}
    server.answers = {
        "prompts/list": {"prompts": [GREET]},
        "resources/templates/list": {"resourceTemplates": [DAYS, WEEKS]},
        "resources/list": {"resources": [{"name": "monday", "uri": "notes://days/monday"}]},
        "resources/read": {"contents": [{"uri": "notes://days/monday", "text": "Water the plants."}]},
        "completion/complete": {"completion": {"values": ["monday"]}},
    }
    async with listening(server.app) as origin:
        url = f"{origin}/mcp"
        transport = {"type": "streamable-http", "url": url}
        made = project(folder, upstream("remote", transport, **{"import": TERMS}, health={"every": "1s"}))
        documents = made / "configs" / "gateway.yaml"
        documents.write_text(documents.read_text().replace('- {tools: ["*"]}', "- {upstreams: [remote]}"))
        with (made / "policies" / "policy.csv").open("a") as policy:
            policy.write(ROWS)
        locked = [
            ImportedDefinition.read("remote", FIND),
            ImportedDefinition.read("remote", GREET, kind="prompt"),
            *(ImportedDefinition.read("remote", each, kind="resourceTemplate") for each in (DAYS, WEEKS)),
        ]
        lock = Lock().with_upstream(LockedUpstream("remote", {"default": ("streamable-http", url)}), locked)
        (made / "configs" / LOCK_FILE).write_text(lock_text(lock), encoding="utf-8")
        async with gateway(made) as started:
            yield started, server


async def until_withheld(started: Gateway, *names: str) -> None:
    with anyio.fail_after(10):
        while True:
            vigil = started.running.service.published.vigil
            if vigil is not None and {each.tool for each in vigil.all()} == set(names):
                return
            await anyio.sleep(0.01)


def changed(server: ChangingServer) -> None:
    server.answers["resources/templates/list"] = {"resourceTemplates": [{**DAYS, "description": "One day!"}, WEEKS]}


async def templates(client: Client) -> list[str]:
    return [each.name for each in (await client.list_resource_templates()).resource_templates]


async def test_changed_template_is_neither_listed_nor_followed(tmp_path: Path) -> None:
    told: list[str] = []

    async def heard(message: Any) -> None:
        told.append(getattr(message, "method", ""))

    async with (
        served(tmp_path / "project") as (started, server),
        Client(started.url, mode="legacy", message_handler=heard) as client,
    ):
        assert await templates(client) == ["days", "weeks"]
        assert (await client.read_resource("notes://days/monday")).contents
        changed(server)
        await until_withheld(started, "template days")
        with anyio.fail_after(10):
            while "notifications/resources/list_changed" not in told:
                await anyio.sleep(0.01)

        assert await templates(client) == ["weeks"]
        with pytest.raises(MCPError, match="there is no such resource"):
            await client.read_resource("notes://days/monday")
        with pytest.raises(MCPError, match="nothing of that name to complete"):
            await client.complete(ResourceTemplateReference(uri=DAYS["uriTemplate"]), {"name": "day", "value": "m"})
        assert (await client.list_resources()).resources == []  # what cannot be read is not listed
        assert (await client.read_resource("notes://weeks/1")).contents


async def test_nothing_is_followed_before_templates_were_compared(tmp_path: Path) -> None:
    async with served(tmp_path / "project") as (started, server):
        changed(server)
        async with Client(started.url) as client:
            with pytest.raises(MCPError, match="there is no such resource"):
                await client.read_resource("notes://days/monday")


@pytest.mark.parametrize("method", ["prompts/list", "resources/templates/list"])
async def test_server_that_refuses_one_list_cannot_change_what_is_on_another(tmp_path: Path, method: str) -> None:
    gone = {"prompts/list": ["prompt greet"], "resources/templates/list": ["template days", "template weeks"]}[method]
    async with served(tmp_path / "project") as (started, server), Client(started.url) as client:
        assert [each.name for each in (await client.list_prompts()).prompts] == ["remote_greet"]
        del server.answers[method]
        server.tools = [{**FIND, "description": "Finds everything."}]

        await until_withheld(started, "find", *gone)

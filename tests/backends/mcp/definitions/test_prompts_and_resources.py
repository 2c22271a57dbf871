"""Prompts and resources of real servers, through the gateway, for real clients, each of either era.

They are read under the policy, in the envelope and on record; hidden ones look as if they did not exist.
"""

import base64
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import mcp_types as types
import orjson
import pytest
from mcp import Client, MCPError

from gateway.config.lock.lock_file import LOCK_FILE, Lock, LockedUpstream, render_lock
from gateway.model.turns.events import now
from gateway.policy.stop_list import Stop, StopTarget
from gateway.registries.imported_definition import UpstreamDefinition
from tests.backends.mcp.servers.asgi_host import App, Era, legacy_only, serve_app
from tests.backends.mcp.servers.front_gateway import Gateway, gateway, project, upstream
from tests.backends.mcp.servers.resource_server import make_resource_server

pytestmark = pytest.mark.anyio

MODERN = "2026-07-28"
WAYS = [(mode, era) for mode in (MODERN, "legacy") for era in ("modern", "legacy")]
every_way = pytest.mark.parametrize(("mode", "era"), WAYS, ids=[f"{mode}-to-{era}" for mode, era in WAYS])
TERMS: dict[str, Any] = {
    "include": ["*"],
    "prompts": ["*"],
    "resources": [{"name": "notes", "uris": ["notes://*"]}, {"name": "vault", "uris": ["vault://*"]}],
    "trust": {"tier": "internal", "flags": []},
    "onChange": "accept",
}
ROWS = """
p, role:clerk, shop, prompt:*,             invoke,   internal, allow
p, role:clerk, shop, prompt:remote.secret, discover, internal, deny
p, role:clerk, shop, resource:remote.notes, read,    internal, allow
"""


@asynccontextmanager
async def serve_resources(
    folder: Path, era: Era = "modern", *, render: str = "plain", terms: Any = TERMS, lock: Lock | None = None
) -> AsyncIterator[Gateway]:
    app: App = make_resource_server().streamable_http_app()
    async with serve_app(legacy_only(app) if era == "legacy" else app, lifespan="on") as origin:
        remote = upstream("remote", {"type": "streamable-http", "url": f"{origin}/mcp"}, **{"import": terms})
        made = project(folder / "project", remote, render=render)
        documents = made / "configs" / "gateway.yaml"
        documents.write_text(documents.read_text().replace('- {tools: ["*"]}', "- {upstreams: [remote]}"))
        with (made / "policies" / "policy.csv").open("a") as policy:
            policy.write(ROWS)
        if lock is not None:
            source = ("streamable-http", f"{origin}/mcp")
            locked = lock.with_upstream(LockedUpstream("remote", {"default": source}), lock.of("remote"))
            (made / "configs" / LOCK_FILE).write_text(render_lock(locked))
        async with gateway(made) as started:
            yield started


async def post_request(url: str, method: str, /, **params: Any) -> tuple[int, dict[str, Any]]:
    """Send a bare request without a session."""
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": MODERN, "mcp-method": method}
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    named = params.get("name") or params.get("uri")
    headers |= {"mcp-name": named} if named else {}
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as answer:
        return answer.status, await answer.json()


@every_way
async def test_prompts_are_listed_and_had(tmp_path: Path, mode: Any, era: Era) -> None:
    async with serve_resources(tmp_path, era) as started, Client(started.url, mode=mode) as client:
        listed = (await client.list_prompts()).prompts
        had: Any = await client.get_prompt("remote_greet", {"name": "Ana"})
        completed = await client.complete(types.PromptReference(name="remote_greet"), {"name": "name", "value": "to"})

    assert [(each.name, each.title) for each in listed] == [("remote_asking", None), ("remote_greet", "Greeting")]
    assert [each.name for each in listed[1].arguments or []] == ["name"]
    assert had.messages[0].content.text.startswith("Say hello to Ana.")
    assert completed.completion.values == ["today"]


@every_way
async def test_resources_keep_their_uris(tmp_path: Path, mode: Any, era: Era) -> None:
    async with serve_resources(tmp_path, era) as started, Client(started.url, mode=mode) as client:
        listed = (await client.list_resources()).resources
        templates = (await client.list_resource_templates()).resource_templates
        text: Any = (await client.read_resource("notes://today")).contents[0]
        blob: Any = (await client.read_resource("notes://picture")).contents[0]
        made: Any = (await client.read_resource("notes://days/monday")).contents[0]

    assert sorted(each.uri for each in listed) == ["notes://picture", "notes://today"]
    assert [each.uri_template for each in templates] == ["notes://days/{day}"]
    assert (text.uri, text.mime_type, text.text[:16]) == ("notes://today", "text/plain", "Water the plants")
    assert base64.b64decode(blob.blob) == b"\x89PNG not really"
    assert made.text == "Nothing on monday."


@pytest.mark.parametrize("mode", [MODERN, "legacy"])
async def test_servers_that_ask_first_are_answered_in_the_callers_way(tmp_path: Path, mode: Any) -> None:
    async def elicited(context: Any, params: Any) -> Any:
        return types.ElicitResult(action="accept", content={"name": "Ana"})

    async with (
        serve_resources(tmp_path) as started,
        Client(started.url, mode=mode, elicitation_callback=elicited) as client,
    ):
        had: Any = await client.get_prompt("remote_asking")

    assert had.messages[0].content.text == "for Ana"


async def test_texts_go_out_in_the_envelope_with_who_vouches_for_them(tmp_path: Path) -> None:
    async with serve_resources(tmp_path, render="envelope") as started:
        _, prompt = await post_request(started.url, "prompts/get", name="remote_greet", arguments={"name": "A"})
        _, resource = await post_request(started.url, "resources/read", uri="notes://today")
        _, listed = await post_request(started.url, "prompts/list")

    block, content = prompt["result"]["messages"][0]["content"], resource["result"]["contents"][0]
    for updates in (block, content):
        assert updates["text"].startswith("<untrusted_content_")
        assert updates["text"].count("<system_instructions>") == 0
        assert updates["_meta"] == {"tier": "internal", "trusted": False, "hazard": "extractable-instructions"}
    assert all(each["_meta"]["tier"] == "internal" for each in listed["result"]["prompts"])
    assert listed["result"]["cacheScope"] == "private"


async def test_hidden_and_unknown_are_the_same_bytes(tmp_path: Path) -> None:
    async with serve_resources(tmp_path) as started:
        hidden = await post_request(started.url, "prompts/get", name="remote_secret")
        absent = await post_request(started.url, "prompts/get", name="remote_nobody")
        vault = await post_request(started.url, "resources/read", uri="vault://keys")
        nowhere = await post_request(started.url, "resources/read", uri="notes://none")
        ref = {"type": "ref/resource", "uri": "vault://keys"}
        completed = await post_request(started.url, "completion/complete", ref=ref, argument={"name": "a", "value": ""})

    assert hidden == absent
    assert hidden[1]["error"] == {"code": -32602, "message": "there is no such prompt"}
    for (status, answer), uri in ((vault, "vault://keys"), (nowhere, "notes://none")):
        assert status == 400
        assert answer["error"] == {"code": -32602, "message": "there is no such resource", "data": {"uri": uri}}
    assert completed[1]["error"]["message"] == "there is nothing of that name to complete"


async def test_what_is_had_and_what_is_refused_is_on_record(tmp_path: Path) -> None:
    async with serve_resources(tmp_path) as started, Client(started.url) as client:
        await client.get_prompt("remote_greet", {"name": "Ana"})
        await client.read_resource("notes://today")
        with pytest.raises(MCPError):
            await client.read_resource("vault://keys")

    with sqlite3.connect(tmp_path / "project" / "data" / "gateway.db") as database:
        bodies = [orjson.loads(row[0]) for row in database.execute("SELECT body FROM audit ORDER BY at, seq")]
    updates = [
        (each["event"], each["target"]["tool"], each["decision"]["reason"]) for each in bodies if "target" in each
    ]
    assert updates == [
        ("call-settled", "prompt:remote_greet", "permitted"),
        ("call-settled", "resource:notes://today", "permitted"),
        ("call-decided", "resource:vault://keys", "unknown-tool"),
    ]


async def test_quarantined_upstreams_offer_nothing(tmp_path: Path) -> None:
    async with serve_resources(tmp_path) as started, Client(started.url) as client:
        stop = Stop(StopTarget("upstream", "remote"), "leaks", "user:ops", now())
        await started.running.controlled.stops.add(stop)
        prompts = (await client.list_prompts()).prompts
        resources = (await client.list_resources()).resources
        with pytest.raises(MCPError, match="there is no such prompt"):
            await client.get_prompt("remote_greet", {"name": "Ana"})

    assert (prompts, resources) == ([], [])


async def test_unreviewed_prompts_are_blocked(tmp_path: Path) -> None:
    greet = {"name": "greet", "title": "Greeting", "description": "Greets somebody.", "arguments": []}
    sly = UpstreamDefinition.read("remote", {**greet, "description": "It was another one."}, kind="prompt")
    lock = Lock().with_upstream(LockedUpstream("remote", {}), [sly])
    async with serve_resources(tmp_path, terms={**TERMS, "onChange": "quarantine"}, lock=lock) as started:
        _, had = await post_request(started.url, "prompts/get", name="remote_greet", arguments={"name": "A"})
        _, listed = await post_request(started.url, "prompts/list")
        definition_guard = started.running.service.published.definition_guard
        withheld = [] if definition_guard is None else [each.tool for each in definition_guard.list_blocked()]

    assert had["error"]["message"] == "there is no such prompt"
    assert listed["result"]["prompts"] == []
    assert "prompt greet" in withheld


async def test_nothing_of_a_tier_that_cannot_be_called_is_offered(tmp_path: Path) -> None:
    async with serve_resources(tmp_path, terms={**TERMS, "trust": {"tier": "quarantine", "flags": []}}) as started:
        _, had = await post_request(started.url, "prompts/get", name="remote_greet", arguments={"name": "A"})
        _, listed = await post_request(started.url, "prompts/list")
        _, read = await post_request(started.url, "resources/read", uri="notes://today")

    assert had["error"]["message"] == "there is no such prompt"
    assert listed["result"]["prompts"] == []
    assert read["error"]["message"] == "there is no such resource"


async def test_nothing_is_offered_that_no_document_asks_for(tmp_path: Path) -> None:
    terms = {key: value for key, value in TERMS.items() if key not in ("prompts", "resources")}
    async with serve_resources(tmp_path, terms=terms) as started:
        _, found = await post_request(started.url, "server/discover")
        prompts = await post_request(started.url, "prompts/list")
        read = await post_request(started.url, "resources/read", uri="notes://today")

    assert found["result"]["capabilities"].keys() & {"prompts", "completions"} == set()
    assert (prompts[0], prompts[1]["error"]["code"]) == (404, -32601)
    assert read[1]["error"]["message"] == "there is no such resource"


async def test_bad_requests_get_an_explanation(tmp_path: Path) -> None:
    async with serve_resources(tmp_path) as started:
        arguments = await post_request(started.url, "prompts/get", name="remote_greet", arguments={"name": 1})
        missing = await post_request(started.url, "prompts/get", name="remote_greet", arguments={})
        cursor = await post_request(started.url, "prompts/list", cursor="elsewhere")
        ref = await post_request(
            started.url, "completion/complete", ref={"type": "x"}, argument={"name": "a", "value": ""}
        )

    assert arguments[1]["error"]["message"] == "params.arguments must be an object of strings"
    assert missing[1]["error"]["code"] in (-32602, -32603)
    assert cursor[1]["error"] == {"code": -32602, "message": "the cursor is not valid for this list"}
    assert ref[1]["error"]["message"] == "params.ref must refer to a prompt or a resource"


async def test_changes_of_a_resource_reach_its_subscribers(tmp_path: Path) -> None:
    heard: list[str] = []

    async def updates(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            heard.append(str(message.params.uri))

    async with (
        serve_resources(tmp_path) as started,
        Client(started.url, mode="legacy", message_handler=updates) as client,
    ):
        await client.session.subscribe_resource("notes://today")
        with pytest.raises(MCPError, match="there is no such resource"):
            await client.session.subscribe_resource("vault://keys")
        with anyio.fail_after(10):
            while not heard:
                await client.call_tool("remote_touch", {"uri": "vault://keys"})
                await client.call_tool("remote_touch", {"uri": "notes://today"})
                await anyio.sleep(0.05)
        await client.session.unsubscribe_resource("notes://today")

    assert set(heard) == {"notes://today"}

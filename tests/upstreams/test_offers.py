"""Prompts and resources of real servers of either era, through the gateway, for real clients of either era: had under
the policy, in the envelope, on record; and what is hidden looks like what never was."""

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
from offering_upstream import offering
from upstream_gateway import Gateway, gateway, project, upstream
from upstream_serving import App, Era, legacy_only, listening

from gateway.config.lock_file import LOCK_FILE
from gateway.config.lock_text import lock_text
from gateway.core.events import now
from gateway.governance.imports import ImportedDefinition
from gateway.governance.locks import Lock, LockedUpstream
from gateway.governance.quarantines import Quarantine, Target

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
async def offered(
    folder: Path, era: Era = "modern", *, render: str = "plain", terms: Any = TERMS, lock: Lock | None = None
) -> AsyncIterator[Gateway]:
    app: App = offering().streamable_http_app()
    async with listening(legacy_only(app) if era == "legacy" else app, lifespan="on") as origin:
        remote = upstream("remote", {"type": "streamable-http", "url": f"{origin}/mcp"}, **{"import": terms})
        made = project(folder / "project", remote, render=render)
        documents = made / "configs" / "gateway.yaml"
        documents.write_text(documents.read_text().replace('- {tools: ["*"]}', "- {upstreams: [remote]}"))
        with (made / "policies" / "policy.csv").open("a") as policy:
            policy.write(ROWS)
        if lock is not None:
            source = ("streamable-http", f"{origin}/mcp")
            locked = lock.with_upstream(LockedUpstream("remote", {"default": source}), lock.of("remote"))
            (made / "configs" / LOCK_FILE).write_text(lock_text(locked))
        async with gateway(made) as started:
            yield started


async def posted(url: str, method: str, /, **params: Any) -> tuple[int, dict[str, Any]]:
    """A bare request without a session."""
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
    async with offered(tmp_path, era) as started, Client(started.url, mode=mode) as client:
        listed = (await client.list_prompts()).prompts
        had: Any = await client.get_prompt("remote_greet", {"name": "Ana"})
        completed = await client.complete(types.PromptReference(name="remote_greet"), {"name": "name", "value": "to"})

    assert [(each.name, each.title) for each in listed] == [("remote_asking", None), ("remote_greet", "Greeting")]
    assert [each.name for each in listed[1].arguments or []] == ["name"]
    assert had.messages[0].content.text.startswith("Say hello to Ana.")
    assert completed.completion.values == ["today"]


@every_way
async def test_resources_keep_their_uris(tmp_path: Path, mode: Any, era: Era) -> None:
    async with offered(tmp_path, era) as started, Client(started.url, mode=mode) as client:
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
        offered(tmp_path) as started,
        Client(started.url, mode=mode, elicitation_callback=elicited) as client,
    ):
        had: Any = await client.get_prompt("remote_asking")

    assert had.messages[0].content.text == "for Ana"


async def test_texts_go_out_in_the_envelope_with_who_vouches_for_them(tmp_path: Path) -> None:
    async with offered(tmp_path, render="envelope") as started:
        _, prompt = await posted(started.url, "prompts/get", name="remote_greet", arguments={"name": "A"})
        _, resource = await posted(started.url, "resources/read", uri="notes://today")
        _, listed = await posted(started.url, "prompts/list")

    block, content = prompt["result"]["messages"][0]["content"], resource["result"]["contents"][0]
    for told in (block, content):
        assert told["text"].startswith("<untrusted_content_")
        assert told["text"].count("<system_instructions>") == 0
        assert told["_meta"] == {"tier": "internal", "trusted": False, "hazard": "extractable-instructions"}
    assert all(each["_meta"]["tier"] == "internal" for each in listed["result"]["prompts"])
    assert listed["result"]["cacheScope"] == "private"


async def test_hidden_and_unknown_are_the_same_bytes(tmp_path: Path) -> None:
    async with offered(tmp_path) as started:
        hidden = await posted(started.url, "prompts/get", name="remote_secret")
        absent = await posted(started.url, "prompts/get", name="remote_nobody")
        vault = await posted(started.url, "resources/read", uri="vault://keys")
        nowhere = await posted(started.url, "resources/read", uri="notes://none")
        ref = {"type": "ref/resource", "uri": "vault://keys"}
        completed = await posted(started.url, "completion/complete", ref=ref, argument={"name": "a", "value": ""})

    assert hidden == absent
    assert hidden[1]["error"] == {"code": -32602, "message": "there is no such prompt"}
    for (status, answer), uri in ((vault, "vault://keys"), (nowhere, "notes://none")):
        assert status == 400
        assert answer["error"] == {"code": -32602, "message": "there is no such resource", "data": {"uri": uri}}
    assert completed[1]["error"]["message"] == "there is nothing of that name to complete"


async def test_what_is_had_and_what_is_refused_is_on_record(tmp_path: Path) -> None:
    async with offered(tmp_path) as started, Client(started.url) as client:
        await client.get_prompt("remote_greet", {"name": "Ana"})
        await client.read_resource("notes://today")
        with pytest.raises(MCPError):
            await client.read_resource("vault://keys")

    with sqlite3.connect(tmp_path / "project" / "data" / "gateway.db") as database:
        bodies = [orjson.loads(row[0]) for row in database.execute("SELECT body FROM audit ORDER BY at, seq")]
    told = [(each["event"], each["target"]["tool"], each["decision"]["reason"]) for each in bodies if "target" in each]
    assert told == [
        ("call-settled", "prompt:remote_greet", "permitted"),
        ("call-settled", "resource:notes://today", "permitted"),
        ("call-decided", "resource:vault://keys", "unknown-tool"),
    ]


async def test_quarantined_upstreams_offer_nothing(tmp_path: Path) -> None:
    async with offered(tmp_path) as started, Client(started.url) as client:
        stop = Quarantine(Target("upstream", "remote"), "leaks", "user:ops", now())
        await started.running.controlled.quarantines.add(stop)
        prompts = (await client.list_prompts()).prompts
        resources = (await client.list_resources()).resources
        with pytest.raises(MCPError, match="there is no such prompt"):
            await client.get_prompt("remote_greet", {"name": "Ana"})

    assert (prompts, resources) == ([], [])


async def test_prompts_that_nobody_looked_at_are_withheld(tmp_path: Path) -> None:
    greet = {"name": "greet", "title": "Greeting", "description": "Greets somebody.", "arguments": []}
    sly = ImportedDefinition.read("remote", {**greet, "description": "It was another one."}, kind="prompt")
    lock = Lock().with_upstream(LockedUpstream("remote", {}), [sly])
    async with offered(tmp_path, terms={**TERMS, "onChange": "quarantine"}, lock=lock) as started:
        _, had = await posted(started.url, "prompts/get", name="remote_greet", arguments={"name": "A"})
        _, listed = await posted(started.url, "prompts/list")
        vigil = started.running.service.published.vigil
        withheld = [] if vigil is None else [each.tool for each in vigil.all()]

    assert had["error"]["message"] == "there is no such prompt"
    assert listed["result"]["prompts"] == []
    assert "prompt greet" in withheld


async def test_nothing_of_a_tier_that_cannot_be_called_is_offered(tmp_path: Path) -> None:
    async with offered(tmp_path, terms={**TERMS, "trust": {"tier": "quarantine", "flags": []}}) as started:
        _, had = await posted(started.url, "prompts/get", name="remote_greet", arguments={"name": "A"})
        _, listed = await posted(started.url, "prompts/list")
        _, read = await posted(started.url, "resources/read", uri="notes://today")

    assert had["error"]["message"] == "there is no such prompt"
    assert listed["result"]["prompts"] == []
    assert read["error"]["message"] == "there is no such resource"


async def test_nothing_is_offered_that_no_document_asks_for(tmp_path: Path) -> None:
    terms = {key: value for key, value in TERMS.items() if key not in ("prompts", "resources")}
    async with offered(tmp_path, terms=terms) as started:
        _, found = await posted(started.url, "server/discover")
        prompts = await posted(started.url, "prompts/list")
        read = await posted(started.url, "resources/read", uri="notes://today")

    assert found["result"]["capabilities"].keys() & {"prompts", "completions"} == set()
    assert (prompts[0], prompts[1]["error"]["code"]) == (404, -32601)
    assert read[1]["error"]["message"] == "there is no such resource"


async def test_bad_requests_are_told_what_is_wrong(tmp_path: Path) -> None:
    async with offered(tmp_path) as started:
        arguments = await posted(started.url, "prompts/get", name="remote_greet", arguments={"name": 1})
        missing = await posted(started.url, "prompts/get", name="remote_greet", arguments={})
        cursor = await posted(started.url, "prompts/list", cursor="elsewhere")
        ref = await posted(started.url, "completion/complete", ref={"type": "x"}, argument={"name": "a", "value": ""})

    assert arguments[1]["error"]["message"] == "params.arguments is an object of strings"
    assert missing[1]["error"]["code"] in (-32602, -32603)
    assert cursor[1]["error"] == {"code": -32602, "message": "the cursor is not one of this list"}
    assert ref[1]["error"]["message"] == "params.ref is of a prompt or of a resource"


async def test_changes_of_a_resource_are_heard_by_whoever_subscribed(tmp_path: Path) -> None:
    heard: list[str] = []

    async def told(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            heard.append(str(message.params.uri))

    async with offered(tmp_path) as started, Client(started.url, mode="legacy", message_handler=told) as client:
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

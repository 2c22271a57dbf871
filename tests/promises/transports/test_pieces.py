"""Results of several pieces, and media: distinguished, queried one by one, stored, and never marked trusted."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.promises.transports import tools as promised_tools
from tests.promises.transports.conversations import TALKS, Conversation, LegacyTalk, McpTalk, RestTalk
from tests.promises.transports.gateway import Gateway, gateway_of
from tests.promises.transports.readers import body, content, envelope, offered, query, selectable
from tests.support.gateways.commands import run_gateway

pytestmark = pytest.mark.anyio

MEDIA_TOOLS = ("picture", "pictures", "found_picture", "distant_picture", "inert_papers", "clip")


async def post(gateway: Gateway, target: str, body: Any, **more: Any) -> Any:
    return await gateway.ask("POST", target, json.dumps(body).encode(), **more)


async def read(talk: McpTalk, uri: str) -> Any:
    return await talk.request("resources/read", f'"uri": {json.dumps(uri)}', name=uri)


# --- lists of artifacts ---


async def test_list_of_artifacts_honours_inline_false(talk: Conversation) -> None:
    reply = await talk.call("several_apart")
    record = await talk.record(reply)
    [shown] = await talk.gateway.shown(reply.turn, reply.id)

    assert (record["inline"], record["trusted"]) == (False, False)
    for text in (reply.text, shown["text"]):
        assert envelope(text)["kind"] == "artifact-handle"
        assert envelope(text)["authority"] == "untrusted"
        assert f"callId: {reply.id}#0\n" in text
        assert f"callId: {reply.id}#1\n" in text
        assert "first one" not in text
        assert "second one" not in text
    assert b"second one" not in json.dumps(reply.blocks).encode()


async def test_list_of_artifacts_is_shown_whole_where_it_is_inline(talk: Conversation) -> None:
    reply = await talk.call("several")

    assert body(reply.text) == "first one\n\nsecond one"


@pytest.mark.parametrize("tool", ["several", "several_apart"])
async def test_each_artifact_of_a_list_can_be_queried(talk: Conversation, tool: str) -> None:
    reply = await talk.call(tool)
    ids = [f"{reply.id}#0", f"{reply.id}#1"]

    assert await selectable(talk, "artifact_head") == ids
    assert [body((await talk.call("artifact_head", {"callId": id})).text) for id in ids] == ["first one", "second one"]
    for wrong in (reply.id, f"{reply.id}#2", f"{reply.id}#00", f"{reply.id}#-1", f"{reply.id}#", "#0", "#"):
        assert (await talk.call("artifact_head", {"callId": wrong})).is_error


@pytest.mark.parametrize("wire", TALKS, ids=lambda wire: str(wire.wire))
async def test_artifacts_of_a_list_outlive_a_restart(tmp_path: Path, wire: type[Conversation]) -> None:
    async with gateway_of(tmp_path) as gateway:
        before = wire(gateway)
        reply = await before.call("several_apart")
        first = await query(before, "artifact_head", reply, callId=f"{reply.id}#0")

    async with gateway_of(tmp_path) as gateway:
        after = wire(gateway)
        if wire is not LegacyTalk:  # its turn ended with the session
            after.turn = before.turn
            assert await selectable(after, "artifact_head") == [f"{reply.id}#0", f"{reply.id}#1"]
        asked = await after.call("artifact_head", {"callId": f"{reply.id}#1"})
        stranger = await wire(gateway, who="kim").call("artifact_head", {"callId": f"{reply.id}#1"})
        record = await gateway.record(first.id, first.turn)

    assert body(asked.text) == "second one"
    assert stranger.is_error
    assert "second one" not in stranger.text
    assert record["result"] == {"kind": "text", "text": "first one"}


async def test_rest_names_each_artifact_of_a_list(gateway: Gateway) -> None:
    reply = await RestTalk(gateway).call("several_apart")
    [result] = reply.blocks
    second = result["artifacts"][1]
    found = await gateway.get(second["href"])
    asked = await post(
        gateway, second["href"].replace("?", "/query?"), {"method": "grep", "arguments": {"pattern": "s"}}
    )
    unnamed = await post(gateway, f"/v1/artifacts/{reply.id}/query?turn={reply.turn}", {"method": "head"})
    whole = await gateway.get(f"/v1/artifacts/{reply.id}?turn={reply.turn}")

    assert [each["callId"] for each in result["artifacts"]] == [f"{reply.id}#0", f"{reply.id}#1"]
    assert [each["callId"] for each in whole["parts"]] == [f"{reply.id}#0", f"{reply.id}#1"]
    assert whole["queries"] == []
    assert (found["callId"], found["byteLength"], len(found["parts"])) == (f"{reply.id}#1", 10, 1)
    assert {each["method"] for each in found["queries"]} >= {"head", "grep"}
    assert asked.json["result"]["text"] == "second one"
    assert (unnamed.status, f"{reply.id}#1" in unnamed.body.decode()) == (400, True)
    for target in (second["contentHref"], second["href"].replace("?", "/content?")):
        assert (await gateway.ask("GET", target)).body == b"second one"
    for wrong in ("#2", "#x", "#"):
        assert (await gateway.ask("GET", f"/v1/artifacts/{quote(reply.id + wrong, safe='')}")).status == 404


async def test_mcp_links_each_artifact_of_a_list(talk: Conversation) -> None:
    if not isinstance(talk, McpTalk):
        return
    reply = await talk.call("several_apart")
    links = [each for each in reply.blocks if each["type"] == "resource_link"]
    contents = [(await read(talk, each["uri"]))["result"]["contents"][0] for each in links]
    listed = (await talk.request("resources/list"))["result"]["resources"]
    beyond = await read(talk, f"{links[0]['uri'][:-1]}2")
    whole = (await read(talk, links[0]["uri"].rpartition("/")[0]))["result"]["contents"][0]

    assert [each["name"] for each in links] == [f"several_apart {reply.id}#0", f"several_apart {reply.id}#1"]
    assert all(each["_meta"]["trusted"] is False for each in links)
    assert [body(each["text"]) for each in contents] == ["first one", "second one"]
    assert body(whole["text"]) == "first one\n\nsecond one"
    assert {each["uri"] for each in links} <= {each["uri"] for each in listed}
    assert "error" in beyond


async def test_id_of_a_piece_stays_its_own(gateway: Gateway) -> None:
    talk = RestTalk(gateway)
    several = await talk.call("several", id="mine")
    taken = await talk.call("say", {"text": "another"}, id="mine#1")

    assert several.id == "mine"
    assert taken.id.startswith("mine#1-")
    assert body((await talk.call("artifact_head", {"callId": "mine#1"})).text) == "second one"
    assert body((await talk.call("artifact_head", {"callId": taken.id})).text) == "another"


# --- media ---


@pytest.mark.parametrize("tool", ["picture", "distant_picture", "inert_papers"])
async def test_media_of_a_call_without_a_turn_can_be_downloaded(tmp_path: Path, tool: str) -> None:
    async with gateway_of(tmp_path) as gateway:
        called = (await post(gateway, f"/v1/catalogues/promises/tools/{tool}/call", {"arguments": {}})).json
        hrefs = [each["contentHref"] for each in called["result"]["media"]]
        first = [await gateway.ask("GET", href) for href in hrefs]
    async with gateway_of(tmp_path) as gateway:
        again = [await gateway.ask("GET", href) for href in hrefs]
        others = [await gateway.ask("GET", href, who="kim") for href in hrefs]

    assert [each.status for each in (*first, *again)] == [200] * 2 * len(hrefs)
    assert [each.body for each in first] == [each.body for each in again]
    assert first[0].body in (b"\x89PNG own", b"\x89PNG distant", b"own words")
    assert [each.status for each in others] == [404] * len(hrefs)


def find_trust(value: Any) -> Iterator[Any]:
    """Return every trust attribute in an answer, at any depth."""
    if isinstance(value, dict):
        yield from (each for key, each in value.items() if key == "trusted")
        for each in value.values():
            yield from find_trust(each)
    elif isinstance(value, list):
        for each in value:
            yield from find_trust(each)


@pytest.mark.parametrize("tool", MEDIA_TOOLS)
async def test_no_wire_calls_media_trusted(talk: Conversation, tool: str) -> None:
    turn = await talk.begin()
    async with talk.gateway.following(turn) as heard:
        reply = await talk.call(tool)
        answers: list[Any] = [reply.blocks, await talk.record(reply), await talk.gateway.records(turn)]
        answers.append(await talk.gateway.get(f"/v1/artifacts/{reply.id}?turn={turn}"))
        if isinstance(talk, McpTalk):
            for each in (await talk.request("resources/list"))["result"]["resources"]:
                if reply.id in each["uri"]:
                    answers.append((await read(talk, each["uri"]))["result"])
        else:
            called = await post(talk.gateway, f"/v1/catalogues/promises/tools/{tool}/call", {"arguments": {}})
            answers.append(called.json)
        prompt = json.dumps(await talk.gateway.shown(turn, reply.id)) if tool != "clip" else ""
        await talk.gateway.end(turn)
        await heard.wait_for_event("turnEnd")
    answers += [data for _, data in heard.events]
    words = [word for answer in answers for word in find_trust(answer)]

    assert words
    assert not any(words)
    assert "<trusted_content" not in reply.text + prompt


async def test_decision_log_calls_no_media_trusted(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        talk = RestTalk(gateway)
        await talk.call("trusted_say", {"text": "a"})
        for tool in MEDIA_TOOLS:
            await talk.call(tool)
        [database] = tmp_path.rglob("gateway.db")
    words = ("audit", "export", "--database", str(database), "--format", "jsonl")
    done = await asyncio.to_thread(run_gateway, *words, timeout=120)
    assert done.returncode == 0, done.stderr
    trusted = [line for line in done.stdout.splitlines() if '"envelope":"trusted"' in line.replace('": "', '":"')]

    assert len(trusted) == 1
    assert "trusted_say" in trusted[0]


async def test_distant_media_are_fetched_once_for_their_record(gateway: Gateway) -> None:
    called = await post(gateway, "/v1/catalogues/promises/tools/distant_picture/call", {"arguments": {}})
    fetched = promised_tools.done.fetched
    await gateway.ask("GET", called.json["result"]["media"][0]["contentHref"])

    assert (fetched, promised_tools.done.fetched) == (1, 1)


async def test_every_media_tool_is_published(talk: Conversation) -> None:
    await talk.begin()

    assert set(MEDIA_TOOLS) <= set(await offered(talk))
    assert await content(talk.gateway, await talk.call("picture")) == b"\x89PNG own"

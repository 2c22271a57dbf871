"""Promises 24 to 49 over the wire: records, ids, and what is shown and queried."""

import asyncio
import json
import re
import sqlite3
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from gateway import call_id
from tests.promises.transports import tools as promised_tools
from tests.promises.transports.conversations import Conversation, LegacyTalk, ModernTalk, RestTalk
from tests.promises.transports.gateway import Gateway
from tests.promises.transports.readers import body, content, envelope, find_events, names, offered, query, selectable

pytestmark = pytest.mark.anyio

FIVE_MEGABYTES = 620_000
"""Lines of a report of that size."""


def without_time(record: dict[str, Any]) -> dict[str, Any]:
    changing = {"callId", "startedAt", "completedAt", "href", "result"}
    return {name: value for name, value in record.items() if name not in changing}


async def test_wire_promise_024_record_exists_once_settled(talk: Conversation) -> None:
    turn = await talk.begin()
    before = len(await talk.gateway.records(turn))

    async with talk.gateway.following(turn) as heard:
        calling = asyncio.create_task(talk.call("wait"))
        await asyncio.wait_for(promised_tools.done.began.wait(), 30)
        running = await heard.wait_for_event("toolCall")
        while_running = len(await talk.gateway.records(turn))
        promised_tools.done.goes_on.set()
        reply = await calling

    assert (running["id"], running["isComplete"]) == (reply.id, False)
    assert while_running == before
    assert (await talk.record(reply))["status"] == "settled"


async def test_wire_promise_025_arguments_as_text_and_as_an_object_are_one(gateway: Gateway) -> None:
    talk = RestTalk(gateway)
    args = {"text": "é", "n": 1}
    reply = [await talk.call_text("echo", text) for text in (json.dumps(args), json.dumps(json.dumps(args)))]
    one, other = [await talk.record(each) for each in reply]

    assert without_time(one) == without_time(other)
    assert one["arguments"] == args


@pytest.mark.parametrize("arguments", ["[1]", '"[1]"', "1", "true", '"1"', '"null"', '"not json"'])
async def test_wire_promise_026_arguments_are_an_object(talk: Conversation, arguments: str) -> None:
    reply = await talk.call_text("echo", arguments)

    assert reply.refused or reply.is_error
    assert promised_tools.done.seen == []


async def test_wire_promise_027_checksum_is_never_the_callers(talk: Conversation) -> None:
    """No transport accepts records; a checksum sent with a call is ignored or refused."""
    false = "0" * 64
    inside = await talk.call("echo", {"checksum": false})
    beside = await talk.gateway.ask(
        "POST",
        f"/v1/turns/{talk.turn}/calls",
        json.dumps({"tool": "echo", "arguments": {}, "checksum": false}).encode(),
    )

    assert (await talk.record(inside))["checksum"] == call_id("echo", {"checksum": false})
    assert beside.status == 400


async def test_wire_promise_028_later_identical_call_has_the_same_checksum(talk: Conversation) -> None:
    one, other = [await talk.record(await talk.call("echo", {"a": 1})) for _ in range(2)]

    assert one["callId"] != other["callId"]
    assert one["checksum"] == other["checksum"]


@pytest.mark.parametrize("wire", [RestTalk, ModernTalk, LegacyTalk])
async def test_wire_promise_029_loop_guard_counts_by_checksum(gateway: Gateway, wire: type[Conversation]) -> None:
    talk = wire(gateway, catalogue="guarded")
    same = [await talk.call("echo", {"a": 1}) for _ in range(4)]
    others = [await talk.call("echo", {"a": number}) for number in range(2, 5)]
    elsewhere = await wire(gateway, catalogue="guarded").call("echo", {"a": 1})

    assert [each.is_error for each in same] == [False, False, False, True]
    assert "already made 3 times" in same[3].text
    assert not any(each.is_error for each in [*others, elsewhere])
    assert len(promised_tools.done.seen) == 7


async def test_wire_promise_030_envelope_is_bound_to_its_call(talk: Conversation) -> None:
    one, other = [await talk.call("echo", {"a": 1}) for _ in range(2)]
    forged = await talk.call("say", {"text": one.text})

    assert envelope(one.text)["call"] == envelope(other.text)["call"]
    assert len({envelope(each.text)["nonce"] for each in (one, other, forged)}) == 3
    assert envelope(one.text)["nonce"] not in (one.id, call_id("echo", {"a": 1})[:32])
    assert forged.text.count("</untrusted_content_") == 1


async def test_wire_promise_031_result_of_a_tool_is_an_artifact(talk: Conversation) -> None:
    assert (await talk.record(await talk.call("echo")))["result"]["kind"] == "artifact"


async def test_wire_promise_032_several_artifacts_of_one_call_are_all_shown(talk: Conversation) -> None:
    reply = await talk.call("several")
    record = await talk.record(reply)
    [shown] = await talk.gateway.shown(reply.turn, reply.id)

    assert [each["byteLength"] for each in record["result"]["artifacts"]] == [9, 10]
    assert body(reply.text) == body(shown["text"]) == "first one\n\nsecond one"
    for part, expected in enumerate((b"first one", b"second one")):
        heard = await talk.gateway.ask("GET", f"/v1/artifacts/{reply.id}/content?turn={reply.turn}&part={part}")
        assert heard.body == expected


async def test_wire_promise_033_result_of_a_query_is_text(talk: Conversation) -> None:
    reply = await query(talk, "artifact_grep", await talk.call("report", {"lines": 3}), pattern="1")
    record = await talk.record(reply)

    assert record["result"] == {"kind": "text", "text": "line 1"}
    assert "callId:" not in reply.text


@pytest.mark.parametrize(("tool", "count"), [("picture", 1), ("pictures", 2)])
async def test_wire_promise_034_media_results_one_or_several(talk: Conversation, tool: str, count: int) -> None:
    reply = await talk.call(tool)
    result = (await talk.record(reply))["result"]

    assert (result["kind"], len(result["media"])) == ("media", count)
    if talk.wire != "rest":
        assert [each["type"] for each in reply.blocks] == ["image"] * count


async def test_wire_promise_035_inline_is_the_default(talk: Conversation) -> None:
    reply = await talk.call("say", {"text": "the whole of it"})
    [shown] = await talk.gateway.shown(reply.turn, reply.id)

    assert (await talk.record(reply))["inline"] is True
    assert body(reply.text) == body(shown["text"]) == "the whole of it"


async def test_wire_promise_036_without_inline_a_handle_is_shown(talk: Conversation) -> None:
    reply = await talk.call("report", {"lines": 3})
    [shown] = await talk.gateway.shown(reply.turn, reply.id)

    for text in (reply.text, shown["text"]):
        assert "line 1" not in text
        assert f"callId: {reply.id}" in text
        assert "artifact_grep" in text
        assert envelope(text)["kind"] == "artifact-handle"
    if talk.wire != "rest":
        [link] = [each for each in reply.blocks if each["type"] == "resource_link"]
        assert link["uri"] == f"artifact://calls/{reply.turn}/{reply.id}"


async def test_wire_promise_037_size_alone_decides_nothing(talk: Conversation) -> None:
    large = await talk.call("shown_report", {"lines": FIVE_MEGABYTES})
    small = await talk.call("report", {"lines": 1})

    assert len(body(large.text)) > 5_000_000
    assert body(large.text).rstrip("\n").endswith(f"line {FIVE_MEGABYTES - 1}")
    assert envelope(small.text)["kind"] == "artifact-handle"


@pytest.mark.parametrize("wire", [RestTalk, ModernTalk, LegacyTalk])
async def test_wire_promise_038_tool_or_pipeline_decides_inline(gateway: Gateway, wire: type[Conversation]) -> None:
    own, piped = wire(gateway), wire(gateway, catalogue="guarded")
    long = {"text": "x" * 100}
    inline = [
        (await talk.record(await talk.call(tool, args)))["inline"]
        for talk, tool, args in (
            (own, "say", long),
            (own, "report", {"lines": 1}),
            (piped, "say", {"text": "short"}),
            (piped, "say", long),
        )
    ]

    assert inline == [True, False, True, False]


async def test_wire_promise_039_query_calls_are_flagged(talk: Conversation) -> None:
    reply = await talk.call("say", {"text": "a"})
    asked = await query(talk, "artifact_head", reply)

    assert [(await talk.record(each))["fromArtifactTool"] for each in (reply, asked)] == [False, True]


async def test_wire_promise_040_flagged_calls_are_no_targets(talk: Conversation) -> None:
    reply = await talk.call("say", {"text": "a"})
    asked = await query(talk, "artifact_grep", reply, pattern="a")

    assert await selectable(talk, "artifact_grep") == [reply.id]
    if talk.wire != "mcp-modern":
        assert await talk.callable_ids("artifact_grep") == [reply.id]
    assert asked.id != reply.id


async def test_wire_promise_041_no_query_over_a_query(talk: Conversation) -> None:
    asked = await query(talk, "artifact_grep", await talk.call("say", {"text": "a"}), pattern="a")
    again = await query(talk, "artifact_grep", asked, pattern="a")

    assert again.is_error
    assert "callId" in again.text


async def test_wire_promise_042_id_is_kept_verbatim(gateway: Gateway) -> None:
    talk = RestTalk(gateway)
    reply = await talk.call("say", {"text": "a"}, id="call_xyz-1.A")
    [record] = await gateway.records(talk.turn)

    assert reply.id == record["callId"] == "call_xyz-1.A"
    assert await selectable(talk, "artifact_head") == ["call_xyz-1.A"]


async def test_wire_promise_043_enum_holds_the_ids_of_eligible_calls(talk: Conversation) -> None:
    eligible = [
        await talk.call("say", {"text": "a"}),
        await talk.call("facts"),
        await talk.call("report", {"lines": 1}),
    ]
    for tool in ("picture", "broken"):
        await talk.call(tool)
    several = await talk.call("several")
    await query(talk, "artifact_head", eligible[0])

    assert await selectable(talk, "artifact_head") == [
        *(each.id for each in eligible),
        f"{several.id}#0",
        f"{several.id}#1",
    ]


async def test_wire_promise_044_checksum_is_no_call_id(talk: Conversation) -> None:
    reply = await talk.call("say", {"text": "a"})
    asked = await talk.call("artifact_head", {"callId": (await talk.record(reply))["checksum"]})

    assert asked.is_error
    assert "callId" in asked.text


async def test_wire_promise_045_argument_is_called_call_id(talk: Conversation) -> None:
    await talk.call("say", {"text": "a"})
    listed = {name: tool["inputSchema"] for name, tool in (await talk.tools()).items() if name.startswith("artifact_")}

    assert listed
    for schema in [*listed.values(), *(await _queries_of(talk)).values()]:
        assert schema["properties"]["callId"]["type"] == "string"
        assert "callId" in schema["required"]


async def _queries_of(talk: Conversation) -> dict[str, Any]:
    return {name: schema for name, schema in (await offered(talk)).items() if name.startswith("artifact_")}


async def test_wire_promise_046_used_id_is_given_a_suffix(gateway: Gateway) -> None:
    talk = RestTalk(gateway)
    first = await talk.call("say", {"text": "first"}, id="same")
    second = await talk.call("say", {"text": "second"}, id="same")

    assert first.id == "same"
    assert second.id.startswith("same-")
    assert [await content(gateway, each) for each in (first, second)] == [b"first", b"second"]
    assert await selectable(talk, "artifact_head") == [first.id, second.id]


async def test_wire_promise_047_minted_ids_cannot_be_guessed(talk: Conversation) -> None:
    ids = [(await talk.call("echo")).id for _ in range(100)]
    numbers = [UUID(id) for id in ids]

    assert {number.version for number in numbers} == {4}
    assert len(set(ids)) == 100
    assert min(abs(one.int - other.int) for one, other in pairwise(sorted(numbers))) > 1 << 64
    assert re.fullmatch(r"turn_[0-9a-f]{12}[\w-]{32}", talk.turn)


async def test_wire_promise_048_changed_record_is_noticed(talk: Conversation) -> None:
    reply = await talk.call("echo", {"amount": 1})
    target = f"/v1/calls/{reply.id}/verify?turn={reply.turn}"
    before = await talk.gateway.get(target)
    with sqlite3.connect(talk.gateway.folder / "gateway.db") as database:
        statements = [f"UPDATE {table} SET args = ? WHERE id = ?" for table in ("calls", "fresh")]
        changed = [database.execute(text, ('{"amount": 1000}', reply.id)).rowcount for text in statements]
        assert sum(changed) == 1
    database.close()
    after = await talk.gateway.get(target)
    artifact = await talk.gateway.ask("GET", f"/v1/artifacts/{reply.id}?turn={reply.turn}")

    assert (before["isIntact"], after["isIntact"]) == (True, False)
    assert after["computed"] == call_id("echo", {"amount": 1000})
    assert artifact.status == 404


async def test_wire_promise_049_start_and_end_share_the_id(talk: Conversation) -> None:
    turn = await talk.begin()

    async with talk.gateway.following(turn) as heard:
        for number in range(3):
            await talk.call("echo", {"n": number})
        await talk.gateway.end(turn)
        await heard.wait_for_event("turnEnd")
    started, ended = [
        [each["callId"] for each in find_events(heard, f"toolExecution{name}")] for name in ("Start", "End")
    ]

    assert started == ended == [call_id("echo", {"n": number}) for number in range(3)]
    assert names(heard, "toolExecutionStart", "toolExecutionEnd") == ["toolExecutionStart", "toolExecutionEnd"] * 3

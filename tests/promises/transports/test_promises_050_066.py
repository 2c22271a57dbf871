"""Promises 50 to 66 over the wire: classes of artifacts, their queries, and what they leave to others."""

from typing import Any

import pytest

from tests.promises.transports import tools as promised_tools
from tests.promises.transports.conversations import Conversation, LegacyTalk, ModernTalk, RestTalk
from tests.promises.transports.gateway import Gateway
from tests.promises.transports.readers import (
    BASE_SEVEN,
    JSON_TOOLS,
    body,
    content,
    envelope,
    names,
    queries,
    query,
    selectable,
)

pytestmark = pytest.mark.anyio


async def details(gateway: Gateway, reply: Any) -> dict[str, Any]:
    found: dict[str, Any] = await gateway.get(f"/v1/artifacts/{reply.id}?turn={reply.turn}")
    return found


async def test_wire_promise_050_each_class_adds_only_its_own_queries(talk: Conversation) -> None:
    own = {}
    for tool in ("raw", "facts", "page", "ledger"):
        listed = {each["tool"] for each in (await details(talk.gateway, await talk.call(tool)))["queries"]}
        assert listed >= BASE_SEVEN
        own[tool] = listed - BASE_SEVEN

    assert own["raw"] == set()
    assert own["facts"] == JSON_TOOLS
    assert own["ledger"] == {"artifact_ledger_sum", "artifact_ledger_raw"}
    assert all(name.startswith("artifact_md_") for name in own["page"])
    assert sum(map(len, own.values())) == len(set().union(*own.values()))


async def test_wire_promise_051_queries_of_a_subclass_stand_beside_the_base_seven(talk: Conversation) -> None:
    await talk.call("facts")

    assert await queries(talk) == BASE_SEVEN | JSON_TOOLS


async def test_wire_promise_052_narrowing_is_by_class(talk: Conversation) -> None:
    text, facts = await talk.call("say", {"text": "a"}), await talk.call("facts")
    wrong = await query(talk, "artifact_json_keys", text)

    assert await selectable(talk, "artifact_head") == [text.id, facts.id]
    assert await selectable(talk, "artifact_json_keys") == [facts.id]
    assert wrong.is_error


async def test_wire_promise_053_base_names_overlap_in_silence(talk: Conversation) -> None:
    turn = await talk.begin()

    async with talk.gateway.following(turn) as heard:
        for tool in ("facts", "page", "ledger"):
            assert not (await talk.call(tool)).is_error
        found = await queries(talk)
        await talk.gateway.end(turn)
        await heard.wait_for_event("turnEnd")

    assert found > BASE_SEVEN | JSON_TOOLS
    assert names(heard, "warning", "error") == []


async def test_wire_promise_054_queries_reveal_nothing_of_their_class(talk: Conversation) -> None:
    listed = (await details(talk.gateway, await talk.call("facts")))["queries"]

    assert {frozenset(each) for each in listed} == {frozenset({"tool", "method", "description", "inputSchema"})}


async def test_wire_promise_055_repeated_queries_are_one_tool(talk: Conversation) -> None:
    reply = await talk.call("repeating")
    listed = [name for name in await talk.tools() if name == "artifact_head"]

    assert await queries(talk) == BASE_SEVEN
    assert listed == ["artifact_head"]
    assert body((await query(talk, "artifact_head", reply, n=1)).text) == "1"


async def test_wire_promise_056_class_of_a_plug_in_gets_the_base_seven(talk: Conversation) -> None:
    reply = await talk.call("ledger")
    answers = {
        name: body((await query(talk, name, reply, **args)).text)
        for name, args in (("artifact_tail", {"n": 1}), ("artifact_line_count", {}), ("artifact_ledger_sum", {}))
    }

    assert answers == {"artifact_tail": "39", "artifact_line_count": "3", "artifact_ledger_sum": "42"}


async def test_wire_promise_057_query_that_answers_bytes_is_an_error_result(talk: Conversation) -> None:
    reply = await query(talk, "artifact_ledger_raw", await talk.call("ledger"))

    assert reply.is_error
    assert "it must return text" in reply.text


async def test_wire_promise_059_text_of_a_query_is_wrapped(talk: Conversation) -> None:
    reply = await query(talk, "artifact_head", await talk.call("say", {"text": "a"}))

    assert (await talk.record(reply))["result"] == {"kind": "text", "text": "a"}
    assert envelope(reply.text)["authority"] == "untrusted"


async def test_wire_promise_060_queries_are_recorded_and_observable(talk: Conversation) -> None:
    turn = await talk.begin()

    async with talk.gateway.following(turn) as heard:
        reply = await talk.call("say", {"text": "a"})
        asked = await query(talk, "artifact_head", reply)
        await talk.gateway.end(turn)
        await heard.wait_for_event("turnEnd")
    records = {each["callId"]: each for each in await talk.gateway.records(turn)}

    assert records[asked.id]["tool"] == "artifact_head"
    assert records[asked.id]["fromArtifactTool"] is True
    assert names(heard, "toolExecutionStart", "toolExecutionEnd") == ["toolExecutionStart", "toolExecutionEnd"] * 2


async def test_wire_promise_061_artifacts_ask_no_approver(talk: Conversation) -> None:
    """The gate is in front of the tool; an allowed result is read without another question."""
    paid = await talk.call("pay", {"amount": 5})
    read = await query(talk, "artifact_cat", paid)
    held = await talk.call("pay", {"amount": 501})

    assert body(read.text) == "paid"
    assert held.is_error
    assert await selectable(talk, "artifact_cat") == [paid.id]
    assert promised_tools.done.paid == [5]


async def test_wire_promise_062_equal_results_are_two_artifacts(talk: Conversation) -> None:
    one, other = [await talk.call("report", {"lines": 2}) for _ in range(2)]

    assert one.id != other.id
    assert [body((await query(talk, "artifact_head", each, n=1)).text) for each in (one, other)] == ["line 0"] * 2


async def test_wire_promise_063_only_a_declared_limit_limits(talk: Conversation) -> None:
    large = await talk.call("report", {"lines": 100_000})
    limited = await talk.call("limited", {"text": "x" * 1025})
    fitting = await talk.call("limited", {"text": "x" * 1024})

    assert len(await content(talk.gateway, large)) == 1_088_890
    assert limited.is_error
    assert "1024 bytes" in limited.text
    assert not fitting.is_error


async def test_wire_promise_064_body_that_is_not_inline_is_nowhere_in_the_prompt(talk: Conversation) -> None:
    reply = await talk.call("report", {"lines": 30})
    await query(talk, "artifact_line_count", reply)

    assert "line 29" not in str(await talk.gateway.prompt(reply.turn))
    assert "line 29" not in str(await talk.gateway.records(reply.turn))
    assert (await content(talk.gateway, reply)).endswith(b"line 29\n")


@pytest.mark.parametrize("wire", [RestTalk, ModernTalk, LegacyTalk])
@pytest.mark.parametrize("catalogue", ["promises", "guarded"])
async def test_wire_promise_065_redaction_changes_views_and_not_the_kept_bytes(
    gateway: Gateway, wire: type[Conversation], catalogue: str
) -> None:
    talk = wire(gateway, catalogue=catalogue)
    reply = await talk.call("staff")
    asked = await query(talk, "artifact_json_get", reply, path="$.password")
    views = [
        reply.text,
        asked.text,
        str(reply.blocks),
        str(await gateway.prompt(talk.turn)),
        str(await gateway.records(talk.turn)),
        str(await details(gateway, reply)),
        (await content(gateway, reply)).decode(),
    ]

    assert not any("hunter2" in view for view in views)
    assert "[redacted]" in views[1] + views[-1]
    assert b"hunter2" in gateway.kept()


async def test_wire_promise_066_acked_turn_has_no_query_tools(talk: Conversation) -> None:
    reply = await talk.call("facts")
    before = await queries(talk)
    await talk.gateway.end(reply.turn, "ack")

    assert before
    assert await queries(talk) == set()

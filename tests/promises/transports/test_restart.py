"""Promises made before a restart hold after it: records, artifacts, envelopes and turns."""

import asyncio
from pathlib import Path

import pytest

from tests.promises.transports.conversations import TALKS, Conversation, LegacyTalk
from tests.promises.transports.gateway import Gateway, gateway_of
from tests.promises.transports.readers import body, content, envelope, query, selectable

pytestmark = pytest.mark.anyio


async def fetch_records(gateway: Gateway, turn: str) -> list[dict[str, object]]:
    return [await gateway.record(each["callId"], turn) for each in await gateway.records(turn)]


@pytest.mark.parametrize("wire", TALKS, ids=lambda wire: str(wire.wire))
async def test_turn_goes_on_after_a_restart(tmp_path: Path, wire: type[Conversation]) -> None:
    async with gateway_of(tmp_path) as gateway:
        before = wire(gateway)
        report = await before.call("report", {"lines": 3})
        picture = await before.call("picture")
        several = await before.call("several")
        await query(before, "artifact_grep", report, pattern="1")
        records = await fetch_records(gateway, before.turn)
        prompt = await gateway.prompt(before.turn)

    async with gateway_of(tmp_path) as gateway:
        after = wire(gateway)
        if wire is not LegacyTalk:  # its session ended with the process, and its turn with the session
            after.turn = before.turn
            asked = await query(after, "artifact_grep", report, pattern="2")
            assert body(asked.text) == "line 2"
            assert await selectable(after, "artifact_head") == [report.id, f"{several.id}#0", f"{several.id}#1"]
        assert (await fetch_records(gateway, before.turn))[: len(records)] == records
        assert (await gateway.prompt(before.turn))[: len(prompt)] == prompt
        assert await content(gateway, picture) == b"\x89PNG own"
        assert await content(gateway, several) == b"first one"
        verified = await gateway.get(f"/v1/calls/{report.id}/verify?turn={report.turn}")
        assert verified["isIntact"] is True


@pytest.mark.parametrize("wire", TALKS, ids=lambda wire: str(wire.wire))
async def test_artifact_of_an_ended_turn_is_still_ones_own(tmp_path: Path, wire: type[Conversation]) -> None:
    async with gateway_of(tmp_path) as gateway:
        talk = wire(gateway)
        reply = await talk.call("report", {"lines": 2})
        await gateway.end(reply.turn)
        again = await query(wire(gateway), "artifact_head", reply)
        stranger = await query(wire(gateway, who="kim"), "artifact_head", reply)

    assert body(again.text).startswith("line 0")
    assert stranger.is_error
    assert "line 0" not in stranger.text


async def test_envelopes_of_two_turns_share_nothing(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        talks = [wire(gateway) for wire in TALKS]
        reply = await asyncio.gather(*(talk.call("say", {"text": "a"}) for talk in talks))

    assert len({envelope(each.text)["call"] for each in reply}) == 1
    assert len({envelope(each.text)["nonce"] for each in reply}) == len(TALKS)

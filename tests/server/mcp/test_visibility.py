"""Listed tools can be called, hidden tools cannot be called, and every refusal is recorded."""

from pathlib import Path

import pytest

from gateway.engine.service import Service
from gateway.model.caller import Principal
from gateway.storage.call_store import CallFilter
from tests.server.mcp.asgi_client import LegacyClient, Wire
from tests.server.mcp.project import ANA, BOSS, KIM, POLICY, TOOLS, small_service

pytestmark = pytest.mark.anyio

NAMES = [each["metadata"]["name"] for each in TOOLS]
SLOW = {"wait"}


@pytest.mark.parametrize("principal", [ANA, KIM, BOSS], ids=lambda principal: principal.subject)
async def test_known_and_callable_are_the_same_over_both_ways_of_talking(wire: Wire, principal: Principal) -> None:
    client = LegacyClient(wire, principal=principal)
    await client.begin()
    listed = {tool["name"] for tool in (await wire.modern("tools/list", principal=principal)).result["tools"]}
    in_session = {tool["name"] for tool in (await client.request("tools/list")).result["tools"]}

    for name in sorted(set(NAMES) - SLOW):
        modern = (await wire.call(name, {"wrong": 1}, principal=principal)).json
        legacy = (await client.call(name, {"wrong": 1})).json
        is_known = name in listed or name == "hidden"
        assert ("error" not in modern, "error" not in legacy) == (is_known, is_known), name

    assert {name for name in listed if not name.startswith("artifact_")} == in_session


async def test_refusal_is_a_result_and_on_record(wire: Wire, service: Service) -> None:
    refused = (await wire.call("boss_only", {"text": "a"})).result
    allowed = (await wire.call("boss_only", {"text": "a"}, principal=BOSS)).result

    calls, _ = await service.list_calls(CallFilter(subject=ANA.subject, tool="boss_only"))
    assert (refused["isError"], allowed["isError"]) == (True, False)
    assert [(call.decision, call.is_error) for call in calls] == [("deny", True)]


async def test_what_is_taken_away_is_gone_from_open_turns_at_once(wire: Wire, service: Service, tmp_path: Path) -> None:
    client = LegacyClient(wire)
    await client.begin()
    made = (await client.call("report", {"lines": 2})).result
    turn = {"gateway/turn": (await wire.call("echo", {"text": "a"})).result["_meta"]["gateway/turn"]}
    without_echo = f"{POLICY}p, user:ana, *, tool:echo, discover|invoke|read, internal, deny\n"

    async with small_service(tmp_path / "changed", policy=without_echo) as changed:
        service.publish(changed.published)
        listed = {tool["name"] for tool in (await client.request("tools/list")).result["tools"]}
        in_session = (await client.call("echo", {"text": "a"})).json
        by_handle = (await wire.call("echo", {"text": "a"}, meta=turn)).json
        still_there = (await client.call("artifact_head", {"callId": made["_meta"]["gateway/call"]})).result

    assert "echo" not in listed
    assert "artifact_head" in listed
    assert in_session["error"]["code"] == by_handle["error"]["code"] == -32602
    assert "line 1" in still_there["content"][0]["text"]

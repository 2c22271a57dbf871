"""Held calls over the wire: they wait, answer "pending", and run once after an approver grants them."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from gateway.model.turns.events import now
from gateway.policy.stop_list import Stop, StopTarget
from tests.support.gateways.gate_projects import (
    ANA,
    EVA,
    HELD,
    LEO,
    LIZ,
    code_of,
    grant,
    pay,
    pending_id,
    rule,
    start_gate_project,
)
from tests.support.gateways.projects import Caller, Reply, http_tool

pytestmark = pytest.mark.anyio

APPROVED = rule("leads-agree", HELD)
CALL = "/v1/catalogues/{catalogue}/tools/{name}/call"


async def over_modern(caller: Caller, **meta: Any) -> Any:
    answer = await caller.modern_call("desk", "pay", {"text": "x"}, **meta)
    return answer.json["result"]


async def over_legacy(caller: Caller) -> Any:
    session = await caller.begin_legacy("desk")
    answer = await caller.legacy("desk", "tools/call", {"name": "pay", "arguments": {"text": "x"}}, session=session)
    return answer.json["result"]


@pytest.mark.parametrize("call", [over_modern, over_legacy], ids=["modern", "legacy"])
async def test_held_call_over_mcp_runs_once_after_a_grant(call: Callable[[Caller], Any], tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, APPROVED) as (gateway, backend):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)

        held = await call(ana)
        pending = held["structuredContent"]
        [approval] = pending["approvals"]
        decided = await grant(liz, approval["id"])
        ran = await call(ana)
        third = await call(ana)

        assert held["isError"] is True
        assert "call again with the same arguments" in held["content"][0]["text"]
        assert pending["status"] == "pending"
        assert pending["retryAfter"] >= 5
        assert (approval["rule"], approval["reason"]) == ("leads-agree", "money leaves")
        assert held["_meta"]["gateway/pending"] == pending
        assert decided.json["state"] == "granted"
        assert (ran["isError"], backend.paths) == (False, ["/pay"])
        assert third["structuredContent"]["approvals"][0]["id"] != approval["id"]


async def test_held_call_over_rest_runs_once_after_a_grant(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, APPROVED) as (gateway, backend):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)

        held = await pay(ana)
        listed = await liz.rest("GET", "/v1/approvals")
        again = await pay(ana)
        id = pending_id(held)
        seen = await ana.rest("GET", held.json["pending"]["approvals"][0]["href"])
        await grant(liz, id)
        ran, third = await pay(ana), await pay(ana)

        assert held.header("retry-after") == str(held.json["pending"]["retryAfter"])
        assert held.json["isError"] is True
        assert [(each["id"], each["mayDecide"]) for each in listed.json["approvals"]] == [(id, True)]
        assert pending_id(again) == id
        assert (seen.json["state"], seen.json["mayDecide"]) == ("pending", False)
        assert (ran.status, ran.json["isError"], backend.paths) == (200, False, ["/pay"])
        assert pending_id(third) != id


async def test_call_that_waits_runs_as_soon_as_it_is_granted(tmp_path: Path) -> None:
    async with (
        start_gate_project(tmp_path, rule("leads-agree", HELD, holdFor="30s")) as (gateway, backend),
        asyncio.timeout(25),
    ):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)
        waiting = asyncio.create_task(pay(ana))

        found: list[Any] = []
        while not found:
            found = (await liz.rest("GET", "/v1/approvals")).json["approvals"]
        await grant(liz, found[0]["id"])
        answer = await waiting

        assert (answer.status, answer.json["isError"], backend.paths) == (200, False, ["/pay"])


async def test_waiting_client_hears_of_progress(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, rule("leads-agree", HELD, holdFor="1s")) as (gateway, backend):
        answer = await gateway.caller(ANA).modern_call("desk", "pay", {"text": "x"}, progressToken="p")

        assert b"the call waits for approval" in answer.body
        assert answer.json["result"]["structuredContent"]["status"] == "pending"
        assert backend.paths == []


async def test_approval_is_used_again_only_where_the_rule_allows_it(tmp_path: Path) -> None:
    reused = rule("leads-agree", {**HELD, "reuse": {"for": "5m"}})
    async with start_gate_project(tmp_path, reused) as (gateway, backend):
        ana = gateway.caller(ANA)
        await grant(gateway.caller(LIZ), pending_id(await pay(ana)))

        answers = [await pay(ana) for _ in range(3)]
        other = await pay(ana, "y")

        assert [each.status for each in answers] == [200] * 3
        assert (other.status, len(backend.paths)) == (202, 3)


async def test_hundred_racing_retries_run_once(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, APPROVED) as (gateway, backend):
        ana = gateway.caller(ANA)
        await grant(gateway.caller(LIZ), pending_id(await pay(ana)))

        answers = await asyncio.gather(*(pay(ana) for _ in range(100)))

        assert backend.paths == ["/pay"]
        assert sum(each.status == 200 and not each.json["isError"] for each in answers) == 1


@pytest.mark.parametrize("key", [None, "k-1"], ids=["without-key", "with-key"])
async def test_key_does_not_keep_a_held_call_from_running(key: str | None, tmp_path: Path) -> None:
    more = {} if key is None else {"idempotency_key": key}
    async with start_gate_project(tmp_path, APPROVED) as (gateway, backend):
        ana = gateway.caller(ANA)
        await grant(gateway.caller(LIZ), pending_id(await pay(ana, **more)))

        ran = await pay(ana, **more)
        third = await pay(ana, **more)

        assert (ran.status, ran.json["isError"], backend.paths) == (200, False, ["/pay"])
        assert third.status == (202 if key is None else 200)


async def test_two_of_two_have_to_agree(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, rule("leads-agree", {**HELD, "count": 2})) as (gateway, backend):
        ana = gateway.caller(ANA)
        id = pending_id(await pay(ana))

        first, twice = await grant(gateway.caller(LIZ), id), await grant(gateway.caller(LIZ), id)
        still = await pay(ana)
        second = await grant(gateway.caller(LEO), id)
        ran = await pay(ana)

        assert (first.json["state"], twice.status, still.status) == ("pending", 409, 202)
        assert (second.json["state"], ran.status, backend.paths) == ("granted", 200, ["/pay"])


@pytest.mark.parametrize(
    "check",
    [{"type": "loop", "sameCall": 1}, {"type": "budget", "calls": 1}, {"type": "rate", "limit": 1, "per": "1h"}],
    ids=lambda check: str(check["type"]),
)
async def test_approved_call_does_not_count_itself_twice(check: Any, tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, APPROVED, rule("once", check)) as (gateway, backend):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)
        turn = (await ana.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
        body = {"tool": "pay", "arguments": {"text": "x"}}
        await grant(liz, pending_id(await ana.rest("POST", f"/v1/turns/{turn}/calls", body)))

        ran = await ana.rest("POST", f"/v1/turns/{turn}/calls", body)

        assert (ran.status, ran.json["isError"], backend.paths) == (200, False, ["/pay"]), ran.json["result"]


async def test_answers_match_the_openapi_document(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, APPROVED) as (gateway, _):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)
        document = (await ana.rest("GET", "/v1/openapi.json")).json
        page = (await ana.rest("GET", "/v1/docs")).body.decode()
        held = await pay(ana)
        listed, shown = await liz.rest("GET", "/v1/approvals"), await liz.rest("GET", pending_href(held))
        granted = await grant(liz, pending_id(held), note="fine")
        other = pending_id(await pay(ana, "y"))
        rejected = await liz.rest("POST", f"/v1/approvals/{other}/reject", {})

    answers = {
        "callTool": held,
        "listApprovals": listed,
        "getApproval": shown,
        "resolveApproval": granted,
        "rejectApproval": rejected,
    }
    assert all(f'id="{name}"' in page for name in answers)
    for name, answer in answers.items():
        [operation] = [
            each for methods in document["paths"].values() for each in methods.values() if each["operationId"] == name
        ]
        described = operation["responses"][str(answer.status)]
        schema = {**described["content"]["application/json"]["schema"], "components": document["components"]}
        jsonschema_rs.Draft202012Validator(schema, validate_formats=True).validate(answer.json)
    assert "Retry-After" in document["paths"][CALL]["post"]["responses"]["202"]["headers"]


def pending_href(reply: Reply) -> str:
    return str(reply.json["pending"]["approvals"][0]["href"])


async def test_tool_stopped_while_its_call_waited_does_not_run(tmp_path: Path) -> None:
    async with (
        start_gate_project(tmp_path, rule("leads-agree", HELD, holdFor="30s")) as (gateway, backend),
        asyncio.timeout(25),
    ):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)
        waiting = asyncio.create_task(pay(ana))
        found: list[Any] = []
        while not found:
            found = (await liz.rest("GET", "/v1/approvals")).json["approvals"]

        stop = Stop(StopTarget("tool", "pay"), "pays too much", "test", now())
        await gateway.running.controlled.stops.add(stop)
        await grant(liz, found[0]["id"])
        answer = await waiting

        assert (code_of(answer), backend.paths) == ("the tool is quarantined", [])


# Who may decide


async def test_requester_cannot_decide_whatever_their_roles(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, APPROVED) as (gateway, backend):
        leo = gateway.caller(LEO)
        id = pending_id(await pay(leo))

        own = await grant(leo, id)

        assert (own.status, own.json["code"]) == (403, "E_OWN_REQUEST")
        assert pending_id(await pay(leo)) == id
        assert backend.paths == []


async def test_strangers_learn_nothing_of_an_approval(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, APPROVED) as (gateway, _):
        id = pending_id(await pay(gateway.caller(ANA)))
        eva = gateway.caller(EVA)

        asked = [await eva.rest("GET", f"/v1/approvals/{each}") for each in (id, "a" * 32)]
        voted = [await grant(eva, each) for each in (id, "a" * 32)]
        listed = await eva.rest("GET", "/v1/approvals?state=any")

        assert [each.status for each in (*asked, *voted)] == [404] * 4
        assert asked[0].body == asked[1].body
        assert voted[0].body == voted[1].body
        assert listed.json["approvals"] == []


@pytest.mark.parametrize("name", ["approver", "by", "subject", "principal", "roles"])
async def test_forged_approver_is_refused(name: str, tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, APPROVED) as (gateway, backend):
        ana = gateway.caller(ANA)
        id = pending_id(await pay(ana))

        forged = [await grant(caller, id, **{name: "user:liz"}) for caller in (ana, gateway.caller(LIZ))]

        assert [each.status for each in forged] == [400, 400]
        assert (await pay(ana)).status == 202
        assert backend.paths == []


async def test_refusal_ends_it_and_is_answered(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, APPROVED) as (gateway, backend):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)
        id = pending_id(await pay(ana))

        await liz.rest("POST", f"/v1/approvals/{id}/reject", {"note": "not today"})
        answer = await pay(ana)

        assert "an approver refused this call: 'not today'" in code_of(answer)
        assert backend.paths == []


async def test_resolution_that_does_not_fit_leaves_it_open(tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["approved"], "properties": {"approved": {"const": True}}}
    async with start_gate_project(tmp_path, rule("leads-agree", {**HELD, "resolution": schema})) as (gateway, backend):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)
        id = pending_id(await pay(ana))

        wrong = await grant(liz, id, resolution={"approved": "no"})
        right = await grant(liz, id, resolution={"approved": True})

        assert (wrong.status, wrong.json["code"], right.status) == (422, "E_INVALID_RESOLUTION", 200)
        assert ((await pay(ana)).status, backend.paths) == (200, ["/pay"])


async def test_tool_that_promises_its_output_answers_pending_beside_it(tmp_path: Path) -> None:
    def promising(port: int) -> Any:
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        output = {"schema": schema, "artifact": "json", "inline": True}
        return http_tool("promising", port, output=output)

    held = rule("leads-agree", HELD, tools=["promising"])
    async with start_gate_project(tmp_path, held, tools=[promising]) as (gateway, _):
        answer = await gateway.caller(ANA).modern_call("desk", "promising", {"text": "x"})
        result = answer.json["result"]

        assert "structuredContent" not in result
        assert result["_meta"]["gateway/pending"]["status"] == "pending"

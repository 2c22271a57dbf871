"""The spans of a session with calls of every kind, as trees: each event has its span, and each request one trace."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from gateway.model.turns.events import DispatchEnd, DispatchStart, IterationEnd, IterationStart, TurnEnd, TurnStart
from gateway.telemetry import names
from tests.support.gateways.gate_projects import ANA, HELD, LIZ, grant, pay, pending_id, rule
from tests.support.gateways.traced_sessions import (
    LEVELS,
    Tree,
    assert_executions,
    assert_no_orphan,
    start_traced_session,
    trees,
)

pytestmark = pytest.mark.anyio

REST_CALL = "POST /v1/catalogues/{catalogue}/tools/{name}/call"
CALL_IN_TURN = "POST /v1/turns/{turn}/calls"
NEVER = {"type": "arguments", "require": "args.text == 'no'", "message": "not here"}

EXECUTE = "execute_tool shown"
STEPS: dict[str, dict[str, list[str]]] = {
    "minimal": {EXECUTE: [], "tools/call shown": []},
    "normal": {EXECUTE: ["authorise", "backend python"], "tools/call shown": ["record"]},
    "full": {EXECUTE: [], "tools/call shown": []},
}
ALONE: dict[str, list[Tree]] = {
    "minimal": [("tools/call shown", [(EXECUTE, [])])],
    "normal": [("tools/call shown", [(EXECUTE, [])])],
    "full": [
        (
            "tools/call shown",
            [
                (
                    "turn",
                    [
                        (
                            "dispatch",
                            [
                                (
                                    "iteration",
                                    [(EXECUTE, [("authorise", []), ("backend python", [])]), ("record", [])],
                                )
                            ],
                        )
                    ],
                )
            ],
        )
    ],
}


@pytest.mark.parametrize("detail", LEVELS)
async def test_a_call_that_has_its_turn_to_itself(tmp_path: Path, detail: str) -> None:
    async with start_traced_session(tmp_path, detail) as made:
        await made.running.caller(ANA).modern_call("desk", "shown", {"text": "x"})
        await made.collector.named("tools/call shown")
        spans = {each.name: each for each in made.collector.spans}

    assert trees(made.collector.spans) == ALONE[detail]
    assert_no_orphan(made.collector.spans)
    assert {name: [each.name for each in spans[name].events] for name in STEPS[detail]} == STEPS[detail]
    assert all(each[names.STEP_SECONDS] >= 0 for name in STEPS[detail] for each in spans[name].events)
    assert_executions(made)


@pytest.mark.parametrize("detail", LEVELS)
async def test_the_calls_of_a_turn_that_a_client_opened_are_below_it(tmp_path: Path, detail: str) -> None:
    async with start_traced_session(tmp_path, detail) as made:
        ana = made.running.caller(ANA)
        turn = (await ana.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
        for tool in ("plain", "broken"):
            body = {"tool": tool, "arguments": {"text": "x"}}
            assert (await ana.rest("POST", f"/v1/turns/{turn}/calls", body)).status in (200, 424)
        await ana.rest("POST", f"/v1/turns/{turn}/end", {"as": "ack"})
        await made.collector.named("turn")
        await made.collector.named("POST /v1/turns/{turn}/end")

    spans = made.collector.spans
    assert_no_orphan(spans)
    [opened] = [each for each in trees(spans) if each[0] == "turn"]
    calls = opened[1]
    assert [each[0] for each in calls] == [CALL_IN_TURN] * 2
    assert sorted(each[0] for each in trees(spans)) == ["POST /v1/turns", "POST /v1/turns/{turn}/end", "turn"]
    steps: list[Tree] = [("authorise", [])] if detail == "full" else []
    backend: list[Tree] = [("backend python", [])] if detail == "full" else []
    record: list[Tree] = [("record", [])] if detail == "full" else []
    plain, broken = ("execute_tool plain", [*steps, ("POST", [])]), ("execute_tool broken", [*steps, *backend])
    assert [each[1] for each in calls] == [
        [("dispatch", [("iteration", [plain, *record])])],
        [("dispatch", [("iteration", [broken, *record])])],
    ]
    [span] = [each for each in spans if each.name == "turn"]
    assert span[names.TURN_ID] == turn
    assert_executions(made)


@pytest.mark.parametrize("detail", LEVELS)
async def test_every_event_of_a_session_of_every_kind_has_its_span(tmp_path: Path, detail: str) -> None:
    rules = [rule("never", NEVER, tools=("refused",)), rule("money", HELD)]
    async with start_traced_session(tmp_path, detail, rules=rules) as made:
        ana, liz = made.running.caller(ANA), made.running.caller(LIZ)
        kept = (await ana.modern_call("desk", "kept", {"text": "x"})).json["result"]["_meta"]
        await ana.modern_call("desk", "artifact_head", {"callId": kept["gateway/call"], "n": 1})
        await ana.modern_call("desk", "refused", {"text": "x"})
        await ana.modern_call("desk", "plain", {"text": 1})
        await ana.modern_call("desk", "broken", {"text": "x"})
        await grant(liz, pending_id(await pay(ana)))
        assert (await pay(ana)).status == 200
        old = await ana.begin_legacy("desk")
        for _ in range(2):
            called = {"name": "plain", "arguments": {"text": "x"}}
            await ana.legacy("desk", "tools/call", called, session=old)
        turn = (await ana.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
        await ana.rest("POST", f"/v1/turns/{turn}/calls", {"tool": "shown", "arguments": {"text": "x"}})
        await ana.rest("POST", f"/v1/turns/{turn}/end", {"as": "ack"})
        await made.collector.named("turn")

    spans = made.collector.spans
    assert_no_orphan(spans)
    assert_executions(made)
    counts = Counter(each.name for each in spans)
    assert counts["approval decide money"] == 1
    assert counts["gate money"] == 2
    assert counts["execute_tool artifact_head"] == 1
    assert counts["dispatch"] == counts["iteration"]
    if detail == "full":
        assert counts["dispatch"] == made.count(DispatchStart) == made.count(DispatchEnd)
        assert counts["iteration"] == made.count(IterationStart) == made.count(IterationEnd)
        assert counts["turn"] >= made.count(TurnEnd)
    assert made.count(TurnStart) > 0
    requests = [each for each in spans if each.kind == "SERVER"]
    per_trace = Counter(each.trace for each in requests)
    assert set(per_trace.values()) == {1}, "one trace for each request"


async def test_a_read_over_rest_is_an_execution_in_the_trace_of_its_request(tmp_path: Path) -> None:
    async with start_traced_session(tmp_path, "normal") as made:
        ana = made.running.caller(ANA)
        call = (await ana.modern_call("desk", "kept", {"text": "x"})).json["result"]["_meta"]["gateway/call"]
        assert (await ana.rest("GET", f"/v1/artifacts/{call}/content")).status == 200
        spans = await made.collector.named("execute_tool artifact_content")
        await asyncio.sleep(0)
        await made.collector.until(lambda known: any(each.name.startswith("GET /v1/artifacts") for each in known.spans))

    [server] = [each for each in made.collector.spans if each.name.startswith("GET /v1/artifacts")]
    assert [(each.trace, each.parent) for each in spans] == [server.address]
    assert (spans[0][names.READ], spans[0][names.DECISION]) == (True, "allow")
    assert_no_orphan(made.collector.spans)

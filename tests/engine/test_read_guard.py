"""Reads pass the same guard as calls: query tools and whole results, in the turn that made them and in others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.engine.call import Call, call_context
from gateway.engine.gates import read_guard
from gateway.engine.gates.guard import GuardDependencies
from gateway.engine.result_content import CallOutcome
from gateway.engine.turns.turn import Turn
from gateway.engine.turns.turn_calls import TurnCalls
from gateway.errors import NotPermitted, Refused, ToolDownstreamError, UnknownCall
from gateway.model.tools.backend import Invocation
from gateway.model.turns.events import now
from gateway.policy.authoriser import AccessDecision, AccessRequest
from gateway.policy.rules.gate_checks import ApprovalCheck, BudgetCheck, GateCheck, LoopCheck
from gateway.policy.rules.gate_rules import GateRule
from gateway.policy.stop_list import CallQuarantined, Stop, StopTarget
from gateway.registries.snapshot import CONTENT, ArtifactClass
from gateway.registries.tool_selection import Selector
from gateway.storage.call_store import StoredCall
from tests.engine.service_gateway import ANA, BOB, HERE, Gateway, Plan, running, trust
from tests.engine.turns.call_records import make_record

pytestmark = pytest.mark.anyio

NOTES = ArtifactClass("notes", SpooledArtifact, HERE)


def plan(*rules: GateRule, **fields: Any) -> Plan:
    made = Plan(gates={each.name: each for each in rules}, artifacts={"notes": NOTES})
    return made.tool("keep", "first\nsecret\n", inline=False, artifact="notes", **fields)


def rule(name: str, check: GateCheck, *tools: str, **match: Any) -> GateRule:
    return GateRule(name, Selector(tools=tools, **match), check, HERE)


async def make_artifact(gateway: Gateway, turn: Turn | None = None) -> tuple[Turn, str]:
    turn = turn or await gateway.service.turns.open(ANA, "desk")
    return turn, (await gateway.service.call_in_turn(turn, "keep", {})).record.id


async def run_query(gateway: Gateway, turn: Turn, call: str, query: str = "artifact_head", **args: Any) -> CallOutcome:
    return await gateway.service.call_in_turn(turn, query, {"callId": call, **args})


async def find_stored(gateway: Gateway, settled: CallOutcome) -> StoredCall:
    found = await gateway.store.find_call(settled.record.id, ANA, turn_id=settled.turn.id)
    assert found is not None
    return found


class Stopping:
    """A kill switch with one quarantine."""

    problem = None

    def __init__(self, target: str) -> None:
        self.quarantine = Stop(StopTarget.parse(target), "a test", "user:ops", now())

    def find_stop(self, *, tool: str, subject: str, upstream: str | None = None, is_consequential: bool) -> Stop | None:
        named = {f"tool:{tool}", f"principal:{subject}", f"upstream:{upstream}"}
        return self.quarantine if str(self.quarantine.target) in named else None


def stop(gateway: Gateway, target: str) -> None:
    published = replace(gateway.service.published, controls=GuardDependencies(switch=Stopping(target)))
    gateway.service.publish(published)


async def test_allowed_query_records_why_it_was_allowed(tmp_path: Path) -> None:
    async with running(tmp_path, plan()) as gateway:
        turn, call = await make_artifact(gateway)
        settled = await run_query(gateway, turn, call)
        stored = await find_stored(gateway, settled)

    assert "secret" in str(settled.record.results)
    assert (stored.decision, stored.because, settled.has_begun) == ("allow", "the default", True)


@pytest.mark.parametrize("object", ["artifact_head", "class:notes", "keep"])
@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_denied_reading_applies_in_whichever_turn(object: str, is_elsewhere: bool, tmp_path: Path) -> None:
    async with running(tmp_path, plan()) as gateway:
        turn, call = await make_artifact(gateway)
        gateway.grants.rows[object, "read"] = False
        if is_elsewhere:
            turn = await gateway.service.turns.open(ANA, "desk")
        settled = await run_query(gateway, turn, call)
        stored = await find_stored(gateway, settled)

    assert settled.record.is_error
    assert "secret" not in str(settled.record.results)
    assert (stored.decision, settled.reason, settled.has_begun) == ("deny", "not-permitted", False)
    assert turn.state.classes == (set() if is_elsewhere else {"notes"})


async def test_row_about_one_query_leaves_the_others(tmp_path: Path) -> None:
    async with running(tmp_path, plan()) as gateway:
        turn, call = await make_artifact(gateway)
        gateway.grants.rows["artifact_head", "read"] = False
        other = await run_query(gateway, turn, call, "artifact_tail")

    assert not other.record.is_error


async def test_policy_that_cannot_be_asked_permits_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, plan()) as gateway:
        turn, call = await make_artifact(gateway)
        decide = gateway.grants.decide

        def broken(request: AccessRequest) -> AccessDecision:
            if request.object == "tool:artifact_head":
                raise RuntimeError("broken")
            return decide(request)

        gateway.grants.decide = broken  # type: ignore[method-assign]  # replaced on purpose
        settled = await run_query(gateway, turn, call)

    assert (settled.record.is_error, settled.reason) == (True, "not-permitted")


@pytest.mark.parametrize("target", ["principal:user:ana", "tool:keep", "tool:artifact_head", "upstream:shop"])
async def test_what_is_stopped_is_not_read(target: str, tmp_path: Path) -> None:
    async with running(tmp_path, plan(upstream="shop")) as gateway:
        turn, call = await make_artifact(gateway)
        stored = await gateway.service.get_stored_call(ANA, call)
        stop(gateway, target)
        turn = await gateway.service.turns.find(ANA, turn.id)
        settled = await run_query(gateway, turn, call)
        assert (settled.record.is_error, settled.reason) == (True, "quarantined")
        if target != "tool:artifact_head":
            assert not gateway.service.may_read(ANA, stored)
            assert not gateway.service.may_read_turn(turn)
            with pytest.raises(CallQuarantined):
                await gateway.service.read(ANA, stored)
            with pytest.raises(CallQuarantined):
                await gateway.service.read_turn(turn)


async def test_rule_that_names_a_query_tool_decides(tmp_path: Path) -> None:
    closed = rule("closed", BudgetCheck(calls=0), "artifact_head")
    async with running(tmp_path, plan(closed)) as gateway:
        turn, call = await make_artifact(gateway)
        refused = await run_query(gateway, turn, call)
        allowed = await run_query(gateway, turn, call, "artifact_tail")
        stored = await find_stored(gateway, refused)

    assert (refused.record.is_error, refused.reason, stored.decision) == (True, "budget-spent", "deny")
    assert not allowed.record.is_error


@pytest.mark.parametrize(
    ("tools", "match", "is_held"),
    [
        (("*",), {}, False),
        ((), {"artifacts": ("notes",)}, False),
        ((), {"flags": ("egress",)}, False),
        (("artifact_*",), {}, True),
        (("artifact_head",), {"artifacts": ("notes",)}, True),
        (("artifact_head",), {"artifacts": ("text",)}, False),
    ],
)
async def test_people_are_asked_about_queries_that_a_rule_names(
    tools: tuple[str, ...], match: dict[str, Any], is_held: bool, tmp_path: Path
) -> None:
    async with running(tmp_path, plan()) as gateway:
        turn, call = await make_artifact(gateway)
        held = rule("held", ApprovalCheck(("role:lead",), "look"), *tools, **match)
        gateway.publish(gates={"held": held})
        turn = await gateway.service.turns.find(ANA, turn.id)
        settled = await run_query(gateway, turn, call)

    assert settled.record.is_error is is_held
    assert (settled.reason == "rule-held") is is_held  # without a store of approvals


async def test_other_rules_are_about_what_is_read_by_what_made_it(tmp_path: Path) -> None:
    async with running(tmp_path, plan(trust=trust("private", "egress"))) as gateway:
        turn, call = await make_artifact(gateway)
        outcomes = {}
        for flag in ("private", "egress"):
            gateway.publish(gates={"spent": rule("spent", BudgetCheck(calls=0), flags=(flag,))})
            turn = await gateway.service.turns.find(ANA, turn.id)
            outcomes[flag] = (await run_query(gateway, turn, call)).record.is_error

    assert outcomes == {"private": True, "egress": False}


async def test_the_same_query_is_counted(tmp_path: Path) -> None:
    async with running(tmp_path, plan(rule("loop", LoopCheck(2), "*"))) as gateway:
        turn, call = await make_artifact(gateway)
        answers = [(await run_query(gateway, turn, call)).record.is_error for _ in range(3)]

    assert answers == [False, False, True]
    assert turn.state.calls == 3


async def test_answers_of_queries_count_as_received(tmp_path: Path) -> None:
    async with running(tmp_path, plan()) as gateway:
        turn, call = await make_artifact(gateway)
        before = turn.state.bytes
        settled = await run_query(gateway, turn, call)

    assert turn.state.bytes - before == len(str(settled.record.results))


async def test_a_tool_that_queries_is_asked_for_the_query(tmp_path: Path) -> None:
    async def look(call: Invocation) -> Any:
        ctx: Any = call.ctx
        query = next(
            each
            for each in gateway.service.published.catalogues["desk"].queries.values()
            if each.name == "artifact_head"
        )
        return await query.run({"callId": call.args["id"]}, ctx.dispatch)

    async with running(tmp_path, plan().tool("look", look)) as gateway:
        turn, call = await make_artifact(gateway)
        seen = await gateway.service.call_in_turn(turn, "look", {"id": call})
        gateway.grants.rows["artifact_head", "read"] = False
        refused = await gateway.service.call_in_turn(turn, "look", {"id": call})

    assert not seen.record.is_error
    assert refused.record.is_error


async def test_guard_outside_of_a_served_call_raises(tmp_path: Path) -> None:
    async with running(tmp_path, plan()) as gateway:
        turn, call = await make_artifact(gateway)
        query = next(each for each in turn.query_tools() if each.name == "artifact_head")
        with pytest.raises(ToolDownstreamError) as raised:
            await query.run({"callId": call}, turn.ctx)

    assert isinstance(raised.value.cause, LookupError)


async def test_result_of_an_unknown_tool_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, plan()) as gateway:
        turn, _ = await make_artifact(gateway)
        served = Call("q", "artifact_head", {}, ANA, "desk", "r", turn=turn)
        with call_context(served), pytest.raises(NotPermitted):
            await gateway.service.published.guard.query("artifact_head", {"callId": "nothing"})

    assert (served.decision, served.reason) == ("deny", "not-permitted")


async def test_whole_results_are_read_by_rule_and_row(tmp_path: Path) -> None:
    async with running(tmp_path, plan(rule("once", LoopCheck(1), CONTENT))) as gateway:
        turn, call = await make_artifact(gateway)
        stored = await gateway.service.get_stored_call(ANA, call)
        await gateway.service.read(ANA, stored, into=turn)
        with pytest.raises(Refused):
            await gateway.service.read(ANA, stored, into=turn)
        gateway.grants.rows["class:notes", "read"] = False
        with pytest.raises(UnknownCall):
            await gateway.service.read(ANA, stored)
        with pytest.raises(UnknownCall):
            await gateway.service.read(ANA, replace(stored, identity="gone"))


async def test_turn_with_a_result_of_an_unknown_tool_is_not_read(tmp_path: Path) -> None:
    async with running(tmp_path, plan()) as gateway:
        turn, call = await make_artifact(gateway)
        await run_query(gateway, turn, call)
        assert gateway.service.may_read_turn(turn)
        record: Any = turn.ctx.turn_tool_calls[0]
        turn.ctx.add_stored_call(record.replace(id="other", tool="gone"))
        assert not gateway.service.may_read_turn(turn)


async def test_gates_that_are_remembered_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_guard, "_MOST_GATES", 1)
    async with running(tmp_path, plan()) as gateway:
        turn, call = await make_artifact(gateway)
        answers = [await run_query(gateway, turn, call, name) for name in ("artifact_head", "artifact_tail")]

    assert [each.record.is_error for each in answers] == [False, False]


async def test_query_without_a_guard_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, plan()) as gateway:
        turn, call = await make_artifact(gateway)
        turn.ctx.query_guard = None
        settled = await run_query(gateway, turn, call)
        stored = await find_stored(gateway, settled)

    assert "secret" not in str(settled.record.results)
    assert (stored.is_error, stored.decision) == (True, "deny")


def test_parts_belong_to_the_record_of_the_longest_name() -> None:
    calls = TurnCalls(make_record(each) for each in ("a", "a#1", "ab"))
    found = [calls.find_source(id) for id in ("a", "a#2", "a#1#0", "ab", "abc", "x")]

    assert [each and each.id for each in found] == ["a", "a", "a#1", "ab", None, None]


async def test_results_of_others_are_not_there(tmp_path: Path) -> None:
    async with running(tmp_path, plan()) as gateway:
        _, call = await make_artifact(gateway)
        turn = await gateway.service.turns.open(BOB, "desk")
        settled = await gateway.service.call_in_turn(turn, "artifact_head", {"callId": call})

    assert (settled.record.is_error, settled.reason) == (True, "arguments-invalid")

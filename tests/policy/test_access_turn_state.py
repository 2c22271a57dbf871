"""Turn state decides: taint, flows of artifact classes, loops; and what each call and read adds to it."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.app.project import ProjectFolders, load_project
from gateway.model.caller import Principal
from gateway.model.primitives.canonical_json import call_id
from gateway.model.primitives.containers import freeze
from gateway.policy.access import Access
from gateway.policy.access_answer import AccessAnswer, AccessQuestion
from gateway.policy.rules.conditions import compile_condition
from gateway.policy.rules.gate_checks import ArgumentsCheck, FlowCheck, LoopCheck, RateCheck
from gateway.policy.rules.turn_state import Taint, TurnState
from gateway.registries.diagnostics import Position
from gateway.registries.policy_cases import ExpectedReason
from gateway.registries.snapshot import ArtifactClass
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
REFUND = AccessQuestion(Principal("user:ana"), "desk", "refund_pay", NOON, {"order": "A1", "amount": 20})


@pytest.fixture(scope="module")
def access() -> Access:
    found = load_project(ProjectFolders.from_folder(SMALL), environ={}, today=NOON.date())
    assert found.access is not None, found.diagnostics
    return found.access


def with_flow(access: Access, **flow: Any) -> Access:
    order = replace(access.snapshot.artifacts["order"], **flow)
    return Access(replace(access.snapshot, artifacts={"order": order}), access.authoriser)


def with_rule(access: Access, **changes: Any) -> Access:
    rule = replace(access.snapshot.gates["large-refunds"], **changes)
    return Access(replace(access.snapshot, gates={rule.name: rule}), access.authoriser)


def after_reading_an_order(access: Access) -> TurnState:
    memory = TurnState()
    memory.record_call(access.taint_of_tool(access.snapshot.tools["order_read"]), "allow", at=NOON)
    return memory


def decided(answer: AccessAnswer) -> tuple[str, ExpectedReason | None]:
    return answer.decision, answer.because


@pytest.mark.parametrize(
    ("flow", "reason"),
    [
        pytest.param(
            {"max_tier": "internal"},
            "class:order: this turn has read order, which may not flow to tier 'partner', only up to 'internal'",
            id="tier",
        ),
        pytest.param(
            {"blocked_by": frozenset({"writes"})},
            "class:order: this turn has read order, which may not flow to tools with the flag 'writes'",
            id="flag",
        ),
        pytest.param(
            {"max_tier": "partner", "blocked_by": frozenset({"egress", "writes"})},
            "class:order: this turn has read order, which may not flow to tools with the flag 'writes'",
            id="flag-within-the-tier",
        ),
        pytest.param(
            {"max_tier": "forgotten"},
            "class:order: this turn has read order, which may not flow to tier 'partner', only up to 'forgotten'",
            id="unknown-tier",
        ),
    ],
)
def test_class_that_was_read_does_not_flow_where_it_must_not(access: Access, flow: dict[str, Any], reason: str) -> None:
    guarded = with_flow(access, **flow)

    before = guarded.decide_call(REFUND)
    after = guarded.decide_call(REFUND._replace(memory=after_reading_an_order(guarded)))

    assert decided(before) == ("allow", ExpectedReason("policy", "role:clerk"))
    assert decided(after) == ("deny", ExpectedReason("class", "order"))
    assert after.steps[-1].reason == reason
    assert after.steps[-1].position == guarded.snapshot.artifacts["order"].position


@pytest.mark.parametrize("flow", [{}, {"max_tier": "partner"}, {"blocked_by": frozenset({"egress"})}], ids=str)
def test_class_flows_where_it_may(access: Access, flow: dict[str, Any]) -> None:
    free = with_flow(access, **flow)

    answer = free.decide_call(REFUND._replace(memory=after_reading_an_order(free)))

    assert answer.decision == "allow"
    assert not [rule for rule in free.find_rules(free.snapshot.tools["refund_pay"], "desk") if "class" in rule.name]


def test_handler_is_given_the_flow_with_the_other_rules(access: Access) -> None:
    guarded = with_flow(access, blocked_by=frozenset({"writes"}))
    tool = guarded.snapshot.tools["refund_pay"]
    rules = guarded.find_rules(tool, "desk")

    outcome = guarded.evaluate_rules(REFUND._replace(memory=after_reading_an_order(guarded)), tool, rules)

    assert [rule.name for rule in rules] == ["class:order", "large-refunds"]
    assert outcome.decided_by is not None
    assert isinstance(outcome.decided_by.rule.check, FlowCheck)
    assert outcome.decided_by.because.startswith("class:order at ")
    assert outcome.decided_by.because.endswith(f"tools.yaml:{guarded.snapshot.artifacts['order'].position.line}")


def test_rule_narrowed_by_taint_holds_only_after_it(access: Access) -> None:
    tainted, _ = compile_condition('turn.saw("private-data")')
    careful = with_rule(access, when=tainted)

    assert careful.decide_call(REFUND).decision == "allow"
    assert decided(careful.decide_call(REFUND._replace(memory=after_reading_an_order(careful)))) == (
        "hold",
        ExpectedReason("gate", "large-refunds"),
    )


def test_denied_call_taints_nothing(access: Access) -> None:
    tainted, _ = compile_condition('turn.saw("private-data")')
    careful = with_rule(access, when=tainted)
    memory = TurnState()
    memory.record_call(careful.taint_of_tool(careful.snapshot.tools["order_read"]), "deny", at=NOON)

    assert careful.decide_call(REFUND._replace(memory=memory)).decision == "allow"


def test_loop_counts_the_very_same_call(access: Access) -> None:
    looping = with_rule(access, when=None, check=LoopCheck(2))
    memory = TurnState()
    for _ in range(2):
        memory.reserve_call(call_id("refund_pay", {"order": "A1", "amount": 20}))

    assert looping.decide_call(REFUND._replace(memory=memory)).decision == "deny"
    assert looping.decide_call(REFUND._replace(memory=memory, args={"order": "A2", "amount": 20})).decision == "allow"
    assert looping.decide_call(REFUND._replace(memory=memory, fingerprint="another")).decision == "allow"


def test_arguments_that_cannot_be_hashed_were_never_called_with(access: Access) -> None:
    looping = with_rule(access, when=None, check=LoopCheck(1))
    tool = replace(looping.snapshot.tools["refund_pay"], input_schema=None)
    open_to_all = Access(
        replace(looping.snapshot, tools={**looping.snapshot.tools, tool.name: tool}), looping.authoriser
    )

    assert open_to_all.decide_call(REFUND._replace(args={"order": object()})).decision == "allow"


def test_limits_are_reported_and_not_taken(access: Access) -> None:
    limited = with_rule(access, when=None, check=RateCheck(1, REFUND.at - REFUND.at))

    answer = limited.decide_call(REFUND)

    assert answer.outcome is not None
    assert [limit.rule for limit in answer.outcome.limits] == ["large-refunds"]
    assert answer.decision == "allow"


def test_judging_changes_no_memory(access: Access) -> None:
    guarded = with_flow(access, blocked_by=frozenset({"writes"}))
    memory = after_reading_an_order(guarded)
    before = memory.to_json()

    guarded.decide_call(REFUND._replace(memory=memory))

    assert memory.to_json() == before


def test_call_brings_the_flags_the_tier_and_the_declared_class(access: Access) -> None:
    tools = access.snapshot.tools

    assert access.taint_of_tool(tools["order_read"]) == Taint("order_read", ("private-data",), "internal", "order")
    assert access.taint_of_tool(tools["refund_pay"]) == Taint("refund_pay", ("writes",), "partner", None)


def test_reading_brings_what_the_tool_brings_and_the_class_it_was_kept_as(access: Access) -> None:
    assert access.taint_of_artifact("order_read") == access.taint_of_tool(access.snapshot.tools["order_read"])
    assert access.taint_of_artifact("refund_pay", artifact="order").artifact == "order"
    assert access.taint_of_artifact("refund_pay", artifact="text").artifact is None


def test_artifact_of_a_tool_that_is_gone_brings_the_worst(access: Access) -> None:
    flags = ("destructive", "egress", "private-data", "writes")

    assert access.taint_of_artifact("gone", artifact="order") == Taint("gone", flags, "quarantine", "order")


def test_requirement_names_the_part_that_is_not_met(access: Access) -> None:
    require, _ = compile_condition('args.amount < 10 && args.order != "B2"')
    assert require is not None
    strict = with_rule(access, when=None, check=ArgumentsCheck(require, "too much"))

    outcome = strict.decide_call(REFUND).outcome

    assert outcome is not None
    assert outcome.decided_by is not None
    assert outcome.decided_by.because.endswith("gates.yaml:3: args.amount < 10 is false")


def test_every_class_that_was_read_counts(access: Access) -> None:
    here = Position("artifacts.yaml", 9)
    order = access.snapshot.artifacts["order"]
    secret = ArtifactClass("secret", order.constructor, here, blocked_by=frozenset({"writes"}))
    both = Access(replace(access.snapshot, artifacts={"order": order, "secret": secret}), access.authoriser)
    memory = TurnState()
    memory.record_read(both.taint_of_artifact("order_read", artifact="secret"))

    assert decided(both.decide_call(REFUND._replace(memory=memory))) == ("deny", ExpectedReason("class", "secret"))


def test_frozen_arguments_are_the_same_call(access: Access) -> None:
    looping = with_rule(access, when=None, check=LoopCheck(1))
    memory = TurnState()
    memory.reserve_call(call_id("refund_pay", {"order": "A1", "amount": 20}))

    assert looping.decide_call(REFUND._replace(args=freeze(dict(REFUND.args)), memory=memory)).decision == "deny"


def test_tool_that_differs_is_seen_as_it_is(access: Access) -> None:
    tool = access.snapshot.tools["refund_pay"]
    renamed = replace(tool, labels={"system": "other"})
    condition, _ = compile_condition('tool.labels.system == "other"')
    [rule] = access.find_rules(tool, "desk")
    narrowed = replace(rule, when=condition)

    assert access.evaluate_rules(REFUND, tool, [narrowed]).decision == "allow"
    assert access.evaluate_rules(REFUND, renamed, [narrowed]).decision == "hold"
    assert access.evaluate_rules(REFUND, tool, [narrowed]).decision == "allow"

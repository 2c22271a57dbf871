"""What a turn remembers decides: taint, flows of artifact classes, loops; and what each call and reading brings."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.access import Access, Answer, Call
from gateway.assembly import Project, assemble
from gateway.config.linking.frozen import frozen
from gateway.core.canonical import call_id
from gateway.governance.cases import Because
from gateway.governance.conditions import compile_condition
from gateway.governance.diagnostics import Position
from gateway.governance.memory import Brought, TurnMemory
from gateway.governance.principals import Principal
from gateway.governance.rules import Arguments, Flow, Loop, Rate
from gateway.snapshot import ArtifactClass

SMALL = Path(__file__).parent / "projects" / "small"
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
REFUND = Call(Principal("user:ana"), "desk", "refund_pay", NOON, {"order": "A1", "amount": 20})


@pytest.fixture(scope="module")
def access() -> Access:
    found = assemble(Project.at(SMALL), environ={}, today=NOON.date())
    assert found.access is not None, found.diagnostics
    return found.access


def with_flow(access: Access, **flow: Any) -> Access:
    order = replace(access.snapshot.artifacts["order"], **flow)
    return Access(replace(access.snapshot, artifacts={"order": order}), access.authoriser)


def with_rule(access: Access, **changes: Any) -> Access:
    rule = replace(access.snapshot.gates["large-refunds"], **changes)
    return Access(replace(access.snapshot, gates={rule.name: rule}), access.authoriser)


def after_reading_an_order(access: Access) -> TurnMemory:
    memory = TurnMemory()
    memory.notes(access.brings(access.snapshot.tools["order_read"]), "allow", at=NOON)
    return memory


def decided(answer: Answer) -> tuple[str, Because | None]:
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

    before = guarded.call(REFUND)
    after = guarded.call(replace(REFUND, memory=after_reading_an_order(guarded)))

    assert decided(before) == ("allow", Because("policy", "role:clerk"))
    assert decided(after) == ("deny", Because("class", "order"))
    assert after.steps[-1].reason == reason
    assert after.steps[-1].position == guarded.snapshot.artifacts["order"].position


@pytest.mark.parametrize("flow", [{}, {"max_tier": "partner"}, {"blocked_by": frozenset({"egress"})}], ids=str)
def test_class_flows_where_it_may(access: Access, flow: dict[str, Any]) -> None:
    free = with_flow(access, **flow)

    answer = free.call(replace(REFUND, memory=after_reading_an_order(free)))

    assert answer.decision == "allow"
    assert not [rule for rule in free.rules_about(free.snapshot.tools["refund_pay"], "desk") if "class" in rule.name]


def test_handler_is_given_the_flow_with_the_other_rules(access: Access) -> None:
    guarded = with_flow(access, blocked_by=frozenset({"writes"}))
    tool = guarded.snapshot.tools["refund_pay"]
    rules = guarded.rules_about(tool, "desk")

    outcome = guarded.judged(replace(REFUND, memory=after_reading_an_order(guarded)), tool, rules)

    assert [rule.name for rule in rules] == ["class:order", "large-refunds"]
    assert outcome.decided_by is not None
    assert isinstance(outcome.decided_by.rule.check, Flow)
    assert outcome.decided_by.because.startswith("class:order at ")
    assert outcome.decided_by.because.endswith(f"tools.yaml:{guarded.snapshot.artifacts['order'].position.line}")


def test_rule_narrowed_by_taint_holds_only_after_it(access: Access) -> None:
    tainted, _ = compile_condition('turn.saw("private-data")')
    careful = with_rule(access, when=tainted)

    assert careful.call(REFUND).decision == "allow"
    assert decided(careful.call(replace(REFUND, memory=after_reading_an_order(careful)))) == (
        "hold",
        Because("gate", "large-refunds"),
    )


def test_denied_call_taints_nothing(access: Access) -> None:
    tainted, _ = compile_condition('turn.saw("private-data")')
    careful = with_rule(access, when=tainted)
    memory = TurnMemory()
    memory.notes(careful.brings(careful.snapshot.tools["order_read"]), "deny", at=NOON)

    assert careful.call(replace(REFUND, memory=memory)).decision == "allow"


def test_loop_counts_the_very_same_call(access: Access) -> None:
    looping = with_rule(access, when=None, check=Loop(2))
    memory = TurnMemory()
    for _ in range(2):
        memory.reserves(call_id("refund_pay", {"order": "A1", "amount": 20}))

    assert looping.call(replace(REFUND, memory=memory)).decision == "deny"
    assert looping.call(replace(REFUND, memory=memory, args={"order": "A2", "amount": 20})).decision == "allow"
    assert looping.call(replace(REFUND, memory=memory, fingerprint="another")).decision == "allow"


def test_arguments_that_cannot_be_hashed_were_never_called_with(access: Access) -> None:
    looping = with_rule(access, when=None, check=Loop(1))
    tool = replace(looping.snapshot.tools["refund_pay"], input_schema=None)
    open_to_all = Access(
        replace(looping.snapshot, tools={**looping.snapshot.tools, tool.name: tool}), looping.authoriser
    )

    assert open_to_all.call(replace(REFUND, args={"order": object()})).decision == "allow"


def test_limits_are_told_and_not_taken(access: Access) -> None:
    limited = with_rule(access, when=None, check=Rate(1, REFUND.at - REFUND.at))

    answer = limited.call(REFUND)

    assert answer.outcome is not None
    assert [limit.rule for limit in answer.outcome.limits] == ["large-refunds"]
    assert answer.decision == "allow"


def test_judging_changes_no_memory(access: Access) -> None:
    guarded = with_flow(access, blocked_by=frozenset({"writes"}))
    memory = after_reading_an_order(guarded)
    before = memory.to_json()

    guarded.call(replace(REFUND, memory=memory))

    assert memory.to_json() == before


def test_call_brings_the_flags_the_tier_and_the_declared_class(access: Access) -> None:
    tools = access.snapshot.tools

    assert access.brings(tools["order_read"]) == Brought("order_read", ("private-data",), "internal", "order")
    assert access.brings(tools["refund_pay"]) == Brought("refund_pay", ("writes",), "partner", None)


def test_reading_brings_what_the_tool_brings_and_the_class_it_was_kept_as(access: Access) -> None:
    assert access.brought_by("order_read") == access.brings(access.snapshot.tools["order_read"])
    assert access.brought_by("refund_pay", artifact="order").artifact == "order"
    assert access.brought_by("refund_pay", artifact="text").artifact is None


def test_artifact_of_a_tool_that_is_gone_brings_the_worst(access: Access) -> None:
    flags = ("destructive", "egress", "private-data", "writes")

    assert access.brought_by("gone", artifact="order") == Brought("gone", flags, "quarantine", "order")


def test_requirement_names_the_part_that_is_not_met(access: Access) -> None:
    require, _ = compile_condition('args.amount < 10 && args.order != "B2"')
    assert require is not None
    strict = with_rule(access, when=None, check=Arguments(require, "too much"))

    outcome = strict.call(REFUND).outcome

    assert outcome is not None
    assert outcome.decided_by is not None
    assert outcome.decided_by.because.endswith("gates.yaml:3: args.amount < 10 is false")


def test_every_class_that_was_read_counts(access: Access) -> None:
    here = Position("artifacts.yaml", 9)
    order = access.snapshot.artifacts["order"]
    secret = ArtifactClass("secret", order.constructor, here, blocked_by=frozenset({"writes"}))
    both = Access(replace(access.snapshot, artifacts={"order": order, "secret": secret}), access.authoriser)
    memory = TurnMemory()
    memory.reads(both.brought_by("order_read", artifact="secret"))

    assert decided(both.call(replace(REFUND, memory=memory))) == ("deny", Because("class", "secret"))


def test_frozen_arguments_are_the_same_call(access: Access) -> None:
    looping = with_rule(access, when=None, check=Loop(1))
    memory = TurnMemory()
    memory.reserves(call_id("refund_pay", {"order": "A1", "amount": 20}))

    assert looping.call(replace(REFUND, args=frozen(dict(REFUND.args)), memory=memory)).decision == "deny"


def test_tool_that_differs_is_seen_as_it_is(access: Access) -> None:
    tool = access.snapshot.tools["refund_pay"]
    renamed = replace(tool, labels={"system": "other"})
    condition, _ = compile_condition('tool.labels.system == "other"')
    [rule] = access.rules_about(tool, "desk")
    narrowed = replace(rule, when=condition)

    assert access.judged(REFUND, tool, [narrowed]).decision == "allow"
    assert access.judged(REFUND, renamed, [narrowed]).decision == "hold"
    assert access.judged(REFUND, tool, [narrowed]).decision == "allow"

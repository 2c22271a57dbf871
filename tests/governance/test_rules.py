"""Gate rules: deny beats hold beats allow, observers decide nothing, and failures stay on the safe side."""

from datetime import UTC, date, datetime, time
from itertools import permutations
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.governance.catalogues import GovernedTool, Selector
from gateway.governance.conditions import Condition, Scope, compile_condition
from gateway.governance.diagnostics import Position
from gateway.governance.rules import (
    SEVERITY,
    Approval,
    Arguments,
    Check,
    Counting,
    Decision,
    GateRule,
    Judgement,
    MayDo,
    Mode,
    Opening,
    Permission,
    Window,
    judge_call,
)

TOOL = GovernedTool("payment_refund", "internal", 0, frozenset({"writes"}), {"system": "payments"})
MONDAY = datetime(2026, 11, 16, 9, 30, tzinfo=UTC)


class Says:
    def __init__(self, decision: Decision) -> None:
        self.decision = decision

    def judge(self, scope: Scope, may: MayDo) -> Judgement:
        return Judgement(self.decision, "said so")


class Breaks:
    def judge(self, scope: Scope, may: MayDo) -> Judgement:
        raise OSError("secret")


def condition(source: str) -> Condition:
    compiled, problems = compile_condition(source)
    assert compiled is not None, problems
    return compiled


def scope(now: datetime = MONDAY, **args: Any) -> Scope:
    return Scope(args=args, caller={"roles": []}, tool={}, turn={"seen": []}, now=now)


def rule(check: Check, *, name: str = "r", when: str | None = None, mode: Mode = "enforce", **match: Any) -> GateRule:
    narrowed = None if when is None else condition(when)
    return GateRule(name, Selector(**match), check, Position("gates.yaml", 1), narrowed, mode)


def nobody(action: str, object: str) -> bool:
    return False


def decide(*rules: GateRule, at: Scope | None = None, may: MayDo = nobody) -> Decision:
    return judge_call(rules, TOOL, at or scope(), catalogue="support", may=may).decision


def test_call_without_rules_is_allowed() -> None:
    assert decide() == "allow"


@given(st.lists(st.sampled_from(sorted(SEVERITY)), min_size=1, max_size=4))
def test_gravest_decision_wins_in_any_order(decisions: list[Decision]) -> None:
    rules = [rule(Says(decision), name=f"r{n}") for n, decision in enumerate(decisions)]

    outcomes = {decide(*order) for order in permutations(rules)}

    assert outcomes == {max(decisions, key=SEVERITY.__getitem__)}


def test_outcome_names_the_verdict_that_decided() -> None:
    outcome = judge_call(
        [rule(Says("hold"), name="b"), rule(Says("hold"), name="a"), rule(Says("allow"), name="c")],
        TOOL,
        scope(),
        catalogue="support",
        may=nobody,
    )

    assert outcome.decided_by is not None
    assert outcome.decided_by.rule.name == "a"
    assert [verdict.rule.name for verdict in outcome.verdicts] == ["a", "b", "c"]


def test_observing_rule_is_heard_and_decides_nothing() -> None:
    outcome = judge_call([rule(Says("deny"), mode="observe")], TOOL, scope(), catalogue="support", may=nobody)

    assert (outcome.decision, outcome.decided_by) == ("allow", None)
    assert [verdict.judgement.decision for verdict in outcome.verdicts] == ["deny"]


def test_disabled_rule_and_rule_about_other_tools_are_not_asked() -> None:
    others = rule(Breaks(), tools=("ticket_*",))

    assert (
        judge_call([rule(Breaks(), mode="disabled"), others], TOOL, scope(), catalogue="support", may=nobody).verdicts
        == ()
    )


def test_condition_narrows_and_its_failure_does_not() -> None:
    large = rule(Says("hold"), when="args.amount > 500")

    assert decide(large, at=scope(amount=900)) == "hold"
    assert decide(large, at=scope(amount=10)) == "allow"
    [verdict] = judge_call([large], TOOL, scope(), catalogue="support", may=nobody).verdicts
    assert (verdict.judgement.decision, verdict.failure) == ("hold", "there is no 'amount'")


def test_check_that_breaks_denies_without_telling_its_secret() -> None:
    outcome = judge_call([rule(Breaks())], TOOL, scope(), catalogue="support", may=nobody)

    assert outcome.decision == "deny"
    assert outcome.decided_by is not None
    assert outcome.decided_by.judgement.reason == "the check failed: OSError"


def test_approval_holds_and_says_for_whom() -> None:
    outcome = judge_call(
        [rule(Approval(("role:lead",), "large refund", 2))], TOOL, scope(), catalogue="support", may=nobody
    )

    assert outcome.decision == "hold"
    assert outcome.verdicts[0].judgement.reason == "large refund: waits for 2 of role:lead"


@pytest.mark.parametrize(("granted", "decision"), [(True, "allow"), (False, "deny")])
def test_permission_asks_about_another_object(granted: bool, decision: Decision) -> None:
    asked: list[tuple[str, str]] = []

    def may(action: str, object: str) -> bool:
        asked.append((action, object))
        return granted

    assert decide(rule(Permission("invoke", "class:payment")), may=may) == decision
    assert asked == [("invoke", "class:payment")]


@pytest.mark.parametrize(
    ("args", "decision", "reason"),
    [
        ({"limit": 10}, "allow", "args.limit <= 500 holds"),
        ({"limit": 900}, "deny", "limit is at most 500"),
        ({}, "deny", "limit is at most 500 (there is no 'limit')"),
    ],
)
def test_requirement_on_arguments(args: dict[str, Any], decision: Decision, reason: str) -> None:
    check = Arguments(condition("args.limit <= 500"), "limit is at most 500")

    outcome = judge_call([rule(check)], TOOL, scope(**args), catalogue="support", may=nobody)

    assert (outcome.decision, outcome.verdicts[0].judgement.reason) == (decision, reason)


@pytest.mark.parametrize(
    ("moment", "decision"),
    [
        ("2026-11-16T09:30:00+00:00", "allow"),
        ("2026-11-16T06:59:59+00:00", "hold"),
        ("2026-11-16T07:00:00+00:00", "allow"),
        ("2026-11-16T17:00:00+00:00", "hold"),
        ("2026-11-21T10:00:00+00:00", "hold"),
        ("2026-12-24T10:00:00+00:00", "hold"),
        ("2026-07-06T06:30:00+00:00", "allow"),
    ],
    ids=["open", "a second early", "opens", "closes", "Saturday", "closed day", "summer time"],
)
def test_window_is_open_in_its_own_time_zone(moment: str, decision: Decision) -> None:
    weekdays = Opening(frozenset({"mon", "tue", "wed", "thu"}), time(8), time(18))
    window = Window(ZoneInfo("Europe/Berlin"), (weekdays,), frozenset({date(2026, 12, 24)}))

    assert decide(rule(window), at=scope(datetime.fromisoformat(moment))) == decision


def test_window_may_deny_outside() -> None:
    assert decide(rule(Window(ZoneInfo("UTC"), (), outside="deny"))) == "deny"


def test_counting_is_left_to_whoever_counts() -> None:
    assert decide(rule(Counting("rate"))) == "allow"

"""Gate rules: deny beats hold beats allow, observers decide nothing, and failures are safe."""

from datetime import UTC, date, datetime, time, timedelta
from itertools import permutations
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy import limits
from gateway.policy.rules.conditions import Condition, ConditionScope, compile_condition
from gateway.policy.rules.gate_checks import (
    ApprovalCheck,
    ArgumentsCheck,
    BudgetCheck,
    Decision,
    FlowCheck,
    GateCheck,
    Judgement,
    LoopCheck,
    PermissionCheck,
    PermissionLookup,
    QuotaCheck,
    RateCheck,
    WindowCheck,
    WindowInterval,
)
from gateway.policy.rules.gate_rules import SEVERITY, GateRule, RuleMode, evaluate_call
from gateway.policy.rules.turn_state import TurnState
from gateway.registries.diagnostics import Position
from gateway.registries.tool_selection import GovernedTool, Selector

TOOL = GovernedTool("payment_refund", "internal", 0, frozenset({"writes"}), {"system": "payments"})
MONDAY = datetime(2026, 11, 16, 9, 30, tzinfo=UTC)


class FixedCheck(GateCheck):
    def __init__(self, decision: Decision) -> None:
        self.decision = decision

    def judge(self, scope: ConditionScope, may: PermissionLookup) -> Judgement:
        return Judgement(self.decision, "said so")


class Breaks(GateCheck):
    def judge(self, scope: ConditionScope, may: PermissionLookup) -> Judgement:
        raise OSError("secret")


def condition(source: str) -> Condition:
    compiled, problems = compile_condition(source)
    assert compiled is not None, problems
    return compiled


def scope(now: datetime = MONDAY, **args: Any) -> ConditionScope:
    return ConditionScope(args=args, caller={"roles": []}, tool={}, turn=TurnState(), now=now)


def rule(
    check: GateCheck, *, name: str = "r", when: str | None = None, mode: RuleMode = "enforce", **match: Any
) -> GateRule:
    narrowed = None if when is None else condition(when)
    return GateRule(name, Selector(**match), check, Position("gates.yaml", 1), narrowed, mode)


def no_approver(action: str, object: str) -> bool:
    return False


def decide(*rules: GateRule, at: ConditionScope | None = None, may: PermissionLookup = no_approver) -> Decision:
    return evaluate_call(rules, TOOL, at or scope(), catalogue="support", may=may).decision


def test_call_without_rules_is_allowed() -> None:
    assert decide() == "allow"


@given(st.lists(st.sampled_from(sorted(SEVERITY)), min_size=1, max_size=4))
def test_gravest_decision_wins_in_any_order(decisions: list[Decision]) -> None:
    rules = [rule(FixedCheck(decision), name=f"r{n}") for n, decision in enumerate(decisions)]

    outcomes = {decide(*order) for order in permutations(rules)}

    assert outcomes == {max(decisions, key=SEVERITY.__getitem__)}


def test_outcome_names_the_verdict_that_decided() -> None:
    outcome = evaluate_call(
        [rule(FixedCheck("hold"), name="b"), rule(FixedCheck("hold"), name="a"), rule(FixedCheck("allow"), name="c")],
        TOOL,
        scope(),
        catalogue="support",
        may=no_approver,
    )

    assert outcome.decided_by is not None
    assert outcome.decided_by.rule.name == "a"
    assert [verdict.rule.name for verdict in outcome.verdicts] == ["a", "b", "c"]


def test_observing_rule_is_heard_and_decides_nothing() -> None:
    outcome = evaluate_call(
        [rule(FixedCheck("deny"), mode="observe")], TOOL, scope(), catalogue="support", may=no_approver
    )

    assert (outcome.decision, outcome.decided_by) == ("allow", None)
    assert [verdict.judgement.decision for verdict in outcome.verdicts] == ["deny"]


def test_disabled_rule_and_rule_about_other_tools_are_not_asked() -> None:
    others = rule(Breaks(), tools=("ticket_*",))

    assert (
        evaluate_call(
            [rule(Breaks(), mode="disabled"), others], TOOL, scope(), catalogue="support", may=no_approver
        ).verdicts
        == ()
    )


def test_condition_narrows_and_its_failure_does_not() -> None:
    large = rule(FixedCheck("hold"), when="args.amount > 500")

    assert decide(large, at=scope(amount=900)) == "hold"
    assert decide(large, at=scope(amount=10)) == "allow"
    [verdict] = evaluate_call([large], TOOL, scope(), catalogue="support", may=no_approver).verdicts
    assert (verdict.judgement.decision, verdict.failure) == ("hold", "there is no 'amount'")


def test_check_that_breaks_denies_without_leaking_its_secret() -> None:
    outcome = evaluate_call([rule(Breaks())], TOOL, scope(), catalogue="support", may=no_approver)

    assert outcome.decision == "deny"
    assert outcome.decided_by is not None
    assert outcome.decided_by.judgement.reason == "the check failed: OSError"


def test_approval_holds_and_names_the_approvers() -> None:
    outcome = evaluate_call(
        [rule(ApprovalCheck(("role:lead",), "large refund", 2))], TOOL, scope(), catalogue="support", may=no_approver
    )

    assert outcome.decision == "hold"
    assert outcome.verdicts[0].judgement.reason == "large refund: waits for 2 of role:lead"


@pytest.mark.parametrize(("granted", "decision"), [(True, "allow"), (False, "deny")])
def test_permission_asks_about_another_object(granted: bool, decision: Decision) -> None:
    asked: list[tuple[str, str]] = []

    def may(action: str, object: str) -> bool:
        asked.append((action, object))
        return granted

    assert decide(rule(PermissionCheck("invoke", "class:payment")), may=may) == decision
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
    check = ArgumentsCheck(condition("args.limit <= 500"), "limit is at most 500")

    outcome = evaluate_call([rule(check)], TOOL, scope(**args), catalogue="support", may=no_approver)

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
    weekdays = WindowInterval(frozenset({"mon", "tue", "wed", "thu"}), time(8), time(18))
    window = WindowCheck(ZoneInfo("Europe/Berlin"), (weekdays,), frozenset({date(2026, 12, 24)}))

    assert decide(rule(window), at=scope(datetime.fromisoformat(moment))) == decision


def test_window_may_deny_outside() -> None:
    assert decide(rule(WindowCheck(ZoneInfo("UTC"), (), outside="deny"))) == "deny"


def turn(**made: int) -> TurnState:
    """A turn that has made these calls, each that many times."""
    memory = TurnState()
    for checksum, times in made.items():
        for _ in range(times):
            memory.reserve_call(checksum)
    return memory


@pytest.mark.parametrize(
    ("check", "limit"),
    [
        (RateCheck(60, timedelta(minutes=1), 20, ("subject", "tool")), limits.RateLimit),
        (QuotaCheck(5, timedelta(days=1), ("tenant",)), limits.QuotaLimit),
    ],
    ids=["rate", "quota"],
)
def test_limits_allow_and_are_left_to_the_limiter(check: RateCheck | QuotaCheck, limit: type) -> None:
    outcome = evaluate_call([rule(check, name="fair")], TOOL, scope(), catalogue="support", may=no_approver)

    [left] = outcome.limits
    assert outcome.decision == "allow"
    assert isinstance(left, limit)
    assert (left.rule, left.limit, left.per, left.by, left.enforced) == (
        "fair",
        check.limit,
        check.per,
        check.by,
        True,
    )


def test_only_limits_that_apply_are_taken_and_observing_ones_stop_no_call() -> None:
    check = RateCheck(1, timedelta(seconds=1))
    rules = [
        rule(check, name="always"),
        rule(check, name="elsewhere", tools=("ticket_*",)),
        rule(check, name="never", when="false"),
        rule(check, name="off", mode="disabled"),
        rule(check, name="watching", mode="observe"),
        rule(FixedCheck("allow"), name="other"),
    ]

    outcome = evaluate_call(rules, TOOL, scope(), catalogue="support", may=no_approver)

    assert [(limit.rule, limit.enforced) for limit in outcome.limits] == [("always", True), ("watching", False)]


@pytest.mark.parametrize(
    ("made", "decision", "reason"),
    [
        (2, "allow", "the same call was made 2 of 3 times in this turn"),
        (3, "deny", "the same call was made 3 times in this turn"),
        (9, "deny", "the same call was made 9 times in this turn"),
    ],
)
def test_loop_stops_the_same_call(made: int, decision: Decision, reason: str) -> None:
    again = scope()._replace(turn=turn(same=made, other=50), fingerprint="same")

    assert LoopCheck(3).judge(again, no_approver) == Judgement(decision, reason)
    assert LoopCheck(3, "hold").judge(again, no_approver).decision == ("allow" if decision == "allow" else "hold")


@pytest.mark.parametrize(
    ("budget", "decision"),
    [
        (BudgetCheck(calls=6), "allow"),
        (BudgetCheck(calls=5), "deny"),
        (BudgetCheck(calls=1, on_exhausted="hold"), "hold"),
        (BudgetCheck(bytes=101), "allow"),
        (BudgetCheck(bytes=100), "deny"),
        (BudgetCheck(calls=6, bytes=100), "deny"),
        (BudgetCheck(calls=6, bytes=101), "allow"),
    ],
)
def test_budget_of_a_turn_is_used_up(budget: BudgetCheck, decision: Decision) -> None:
    memory = turn(a=5)
    memory.add_bytes(100)

    assert budget.judge(scope()._replace(turn=memory), no_approver).decision == decision


def test_flow_denies_once_the_class_was_read() -> None:
    flow = FlowCheck("customer-record", "which may not flow to tools with the flag 'egress'")
    memory = TurnState()
    memory.classes.add("customer-record")

    assert flow.judge(scope(), no_approver) == Judgement("allow", "this turn has not read customer-record")
    assert flow.judge(scope()._replace(turn=memory), no_approver) == Judgement(
        "deny", "this turn has read customer-record, which may not flow to tools with the flag 'egress'"
    )


def test_verdict_names_the_rule_its_place_and_the_part_that_decided() -> None:
    narrowed = rule(FixedCheck("hold"), name="large", when='args.currency == "EUR" && (args.amount > 500 || args.vip)')
    required = rule(ArgumentsCheck(condition("args.amount < 5 && true"), "too much"), name="small")

    outcome = evaluate_call(
        [narrowed, required], TOOL, scope(amount=900, currency="EUR"), catalogue="support", may=no_approver
    )

    assert [verdict.because for verdict in outcome.verdicts] == [
        'large at gates.yaml:1: args.currency == "EUR" && (args.amount > 500 || args.vip) is true',
        "small at gates.yaml:1: args.amount < 5 is false",
    ]
    assert outcome.verdicts[1].leaf is not None
    assert "900" not in outcome.verdicts[1].because


def test_verdict_without_a_condition_names_its_rule() -> None:
    [verdict] = evaluate_call([rule(FixedCheck("deny"))], TOOL, scope(), catalogue="support", may=no_approver).verdicts

    assert (verdict.because, verdict.leaf) == ("r at gates.yaml:1", None)


def test_verdict_for_a_call_has_no_deciding_part() -> None:
    [verdict] = evaluate_call(
        [rule(FixedCheck("allow"), when="true")], TOOL, scope(), catalogue="support", may=no_approver
    ).verdicts

    assert verdict.leaf is None


def test_outcome_names_every_hold_and_what_observers_would_have_refused() -> None:
    rules = [
        rule(FixedCheck("hold"), name="a"),
        rule(FixedCheck("hold"), name="b"),
        rule(FixedCheck("allow"), name="c"),
        rule(FixedCheck("deny"), name="d", mode="observe"),
        rule(FixedCheck("allow"), name="e", mode="observe"),
    ]

    outcome = evaluate_call(rules, TOOL, scope(), catalogue="support", may=no_approver)

    assert outcome.decision == "hold"
    assert [held.name for held in outcome.holds] == ["a", "b"]
    assert [verdict.rule.name for verdict in outcome.observed_refusals] == ["d"]


BERLIN = WindowCheck(
    ZoneInfo("Europe/Berlin"),
    (
        WindowInterval(frozenset({"mon", "thu"}), time(8), time(12)),
        WindowInterval(frozenset({"mon"}), time(14), time(18)),
    ),
    frozenset({date(2026, 11, 19)}),
)


@pytest.mark.parametrize(
    ("moment", "opens"),
    [
        ("2026-11-16T05:00:00+00:00", "2026-11-16T07:00:00+00:00"),
        ("2026-11-16T12:00:00+00:00", "2026-11-16T13:00:00+00:00"),
        ("2026-11-16T18:00:00+00:00", "2026-11-23T07:00:00+00:00"),
        ("2027-03-27T12:00:00+00:00", "2027-03-29T06:00:00+00:00"),
        ("2026-11-15T23:30:00-10:00", "2026-11-16T13:00:00+00:00"),
    ],
    ids=["today", "after-lunch", "not-on-a-closed-day", "over-a-change-of-clocks", "wherever-now-is"],
)
def test_window_states_when_it_opens(moment: str, opens: str) -> None:
    judgement = BERLIN.judge(scope(datetime.fromisoformat(moment)), no_approver)

    assert judgement.decision == ("allow" if judgement.until is None else "hold")
    assert BERLIN.opens_at(datetime.fromisoformat(moment)) == datetime.fromisoformat(opens)


def test_window_that_never_opens_is_reported_as_such() -> None:
    assert WindowCheck(ZoneInfo("UTC"), ()).judge(scope(), no_approver).until is None


@pytest.mark.parametrize(
    ("check", "when", "reads"),
    [
        (RateCheck(1, timedelta(hours=1)), None, False),
        (RateCheck(1, timedelta(hours=1)), 'caller.subject == "user:ana"', False),
        (RateCheck(1, timedelta(hours=1)), "args.amount > 1", True),
        (RateCheck(1, timedelta(hours=1), by=("call",)), None, True),
        (QuotaCheck(1, timedelta(hours=1)), None, False),
        (QuotaCheck(1, timedelta(hours=1), sum=("amount",)), None, True),
        (LoopCheck(1), None, True),
        (LoopCheck(1, within=timedelta(hours=1)), None, True),
        (BudgetCheck(1), None, False),
        (BudgetCheck(1, within=timedelta(hours=1)), None, False),
        (FixedCheck("deny"), None, False),
        (ArgumentsCheck(condition("args.amount > 1"), "too little"), None, True),
    ],
)
def test_rule_knows_whether_it_reads_arguments(check: GateCheck, when: str | None, reads: bool) -> None:
    rule = GateRule("r", Selector(), check, Position("g.yaml", 1), None if when is None else condition(when))

    assert rule.reads_arguments is reads

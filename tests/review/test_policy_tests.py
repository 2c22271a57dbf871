"""Policy cases that hold, the reasons why others fail, and what they leave untested."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from gateway.app.project import LoadedProject, ProjectFolders, load_project
from gateway.model.caller import Principal
from gateway.policy.access import Access
from gateway.policy.rules.conditions import compile_condition
from gateway.policy.rules.gate_checks import BudgetCheck, LoopCheck, PermissionCheck, RateCheck
from gateway.registries.diagnostics import Position
from gateway.registries.policy_cases import EarlierCall, ExpectedReason, PolicyCase
from gateway.registries.snapshot import Deprecation
from gateway.review.policy_tests import CaseResult, list_testable_actions, measure_coverage, run_cases
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
ANA, BOT, EVE = Principal("user:ana"), Principal("agent:bot"), Principal("user:eve")
LARGE = ExpectedReason("gate", "large-refunds")
SAME = EarlierCall("refund_pay", {"order": "A1", "amount": 20}, times=2)
READ = EarlierCall("order_read", {"order": "A1"})
OLD = replace(READ, ago=timedelta(hours=2))
GONE = EarlierCall("gone")
RECENTLY = 'turn.calls.exists(c, c.tool == "order_read" && c.age < duration("1h"))'


@pytest.fixture(scope="module")
def project() -> LoadedProject:
    return load_project(ProjectFolders.from_folder(SMALL), environ={}, today=NOON.date())


@pytest.fixture(scope="module")
def access(project: LoadedProject) -> Access:
    assert project.access is not None, project.diagnostics
    return project.access


def refund(expected: Any, because: ExpectedReason | None = None, *, amount: object = 20, **changes: Any) -> PolicyCase:
    args = {"order": "A1", "amount": amount}
    place = Position("case.yaml", 1)
    case = PolicyCase("desk", "a case", ANA, "desk", NOON, place, expected, "refund_pay", args, because=because)
    return replace(case, **changes)


def listing(*names: str, principal: Principal = ANA, catalogue: str = "desk") -> PolicyCase:
    place = Position("case.yaml", 1)
    return PolicyCase("desk", "a case", principal, catalogue, NOON, place, frozenset(names))


def with_rule(access: Access, **changes: Any) -> Access:
    rule = replace(access.snapshot.gates["large-refunds"], **changes)
    return Access(replace(access.snapshot, gates={**access.snapshot.gates, rule.name: rule}), access.authoriser)


def result_of(access: Access, case: PolicyCase) -> CaseResult:
    [result] = run_cases(access, [case])
    assert result.passed is (result.failure == ())
    return result


def explain_failure(access: Access, case: PolicyCase) -> list[str]:
    """The lines of a failure, with file names instead of paths."""
    return [line.replace(f"{SMALL.as_posix()}/", "") for line in result_of(access, case).failure]


def test_cases_of_the_project_hold(access: Access) -> None:
    assert [result.failure for result in run_cases(access, access.snapshot.cases)] == [()] * 4


@pytest.mark.parametrize(
    ("case", "passed"),
    [
        pytest.param(refund("allow"), True, id="decision-alone"),
        pytest.param(refund("allow", ExpectedReason("policy", "role:clerk")), True, id="and-reason"),
        pytest.param(refund("allow", ExpectedReason("policy", "role:lead")), False, id="wrong-reason"),
        pytest.param(refund("deny", ExpectedReason("policy", "role:clerk")), False, id="wrong-decision"),
        pytest.param(refund("deny", ExpectedReason("policy", "role:clerk"), principal=EVE), False, id="nobody-decided"),
        pytest.param(refund("hold", LARGE, amount=900), True, id="gate"),
        pytest.param(refund("hold", ExpectedReason("policy", "large-refunds"), amount=900), False, id="kind-of-reason"),
        pytest.param(listing("order_read", "refund_pay"), True, id="listing"),
        pytest.param(listing("order_read"), False, id="extra-tool"),
        pytest.param(listing("order_read", "refund_pay", "more"), False, id="missing-tool"),
        pytest.param(listing(principal=EVE), True, id="nothing-listed"),
    ],
)
def test_case_holds_only_if_decision_and_reason_are_as_expected(access: Access, case: PolicyCase, passed: bool) -> None:
    assert result_of(access, case).passed is passed


@pytest.mark.parametrize(
    ("changes", "case", "line"),
    [
        pytest.param(
            {},
            refund("hold", LARGE, amount=400),
            "gate large-refunds: args.amount > 500 is false for amount 400   configs/gates.yaml:3",
            id="condition",
        ),
        pytest.param(
            {"mode": "disabled"},
            refund("hold", LARGE, amount=900),
            "gate large-refunds: it is disabled   configs/gates.yaml:3",
            id="disabled",
        ),
        pytest.param(
            {"mode": "observe"},
            refund("hold", LARGE, amount=900),
            "gate large-refunds: only observes; it would decide hold, A large refund: waits for 1 of role:lead"
            "   configs/gates.yaml:3",
            id="observes",
        ),
        pytest.param(
            {"catalogues": frozenset({"elsewhere"})},
            refund("hold", LARGE, amount=900),
            "gate large-refunds: it does not apply to calls of refund_pay in desk   configs/gates.yaml:3",
            id="other-catalogue",
        ),
        pytest.param(
            {"check": PermissionCheck("invoke", "tool:refund_pay")},
            refund("hold", LARGE, amount=900),
            "gate large-refunds: allow, invoke on tool:refund_pay is permitted   configs/gates.yaml:3",
            id="allows",
        ),
        pytest.param(
            {},
            refund("hold", LARGE, amount="x"),
            "gate large-refunds: it was not evaluated, because of the arguments: they do not fit the schema: "
            "'amount': value is not of type \"number\"   configs/gates.yaml:3",
            id="earlier-step",
        ),
        pytest.param(
            {},
            refund("hold", ExpectedReason("gate", "large-refund"), amount=900),
            "gate large-refund: there is no such rule; did you mean 'large-refunds'?",
            id="unknown",
        ),
        pytest.param(
            {},
            refund("hold", ExpectedReason("gate", "zzz"), amount=900),
            "gate zzz: there is no such rule",
            id="unlike-any",
        ),
    ],
)
def test_gate_that_did_not_decide_explains_why(
    access: Access, changes: dict[str, Any], case: PolicyCase, line: str
) -> None:
    assert explain_failure(with_rule(access, **changes), case)[0] == line


def test_condition_that_fails_is_reported_with_the_verdict(access: Access) -> None:
    tool = replace(access.snapshot.tools["refund_pay"], input_schema=None)
    unchecked = Access(replace(access.snapshot, tools={tool.name: tool}), access.authoriser)

    [line, *_] = explain_failure(with_rule(unchecked, mode="observe"), refund("hold", LARGE, args={}))

    assert "; its condition could not be evaluated: there is no 'amount'   " in line


def test_other_gate_that_decided_is_reported_too(access: Access) -> None:
    stricter = replace(access.snapshot.gates["large-refunds"], name="zz-deny", check=PermissionCheck("read", "class:x"))
    both = {**access.snapshot.gates, "zz-deny": stricter}

    lines = explain_failure(
        Access(replace(access.snapshot, gates=both), access.authoriser), refund("hold", LARGE, amount=900)
    )

    assert lines == [
        "gate large-refunds: hold, A large refund: waits for 1 of role:lead   configs/gates.yaml:3",
        "gates: zz-deny: read on class:x is not permitted   configs/gates.yaml:3",
    ]


@pytest.mark.parametrize(
    ("case", "expected", "got", "lines"),
    [
        pytest.param(
            refund("deny", ExpectedReason("policy", "role:agent")),
            "deny by role:agent",
            "allow by role:clerk",
            ["gates: no rule applies", "policy: allowed to role:clerk by policies/policy.csv:2"],
            id="policy",
        ),
        pytest.param(
            refund("allow", principal=BOT),
            "allow",
            "deny",
            ["policy: denied to role:agent by policies/policy.csv:5"],
            id="denied",
        ),
        pytest.param(
            refund("allow", principal=EVE),
            "allow",
            "deny",
            ["audience: the caller is not in the audience of desk   configs/catalogues.yaml:3"],
            id="audience",
        ),
        pytest.param(
            refund("deny", ExpectedReason("tier", "quarantine"), amount=900),
            "deny by tier quarantine",
            "hold by gate large-refunds",
            ["gates: large-refunds: A large refund: waits for 1 of role:lead   configs/gates.yaml:3"],
            id="tier",
        ),
    ],
)
def test_failure_states_what_was_expected_and_what_decided(
    access: Access, case: PolicyCase, expected: str, got: str, lines: list[str]
) -> None:
    result = result_of(access, case)

    assert (result.expected, result.got) == (expected, got)
    assert explain_failure(access, case) == lines


@pytest.mark.parametrize(
    ("case", "line"),
    [
        pytest.param(
            listing("refund_pay"), "extra order_read: allowed to role:clerk by policies/policy.csv:2", id="extra"
        ),
        pytest.param(
            listing("order_read", "refund_pay", "refund_pya"),
            "missing refund_pya: there is no such tool in desk; did you mean 'refund_pay'?",
            id="misspelt",
        ),
        pytest.param(listing("zzz", catalogue="no"), "missing zzz: there is no such tool in no", id="no-catalogue"),
        pytest.param(
            listing("order_read", principal=EVE),
            "missing order_read: the caller is not in the audience of desk   configs/catalogues.yaml:3",
            id="audience",
        ),
    ],
)
def test_listing_states_what_is_missing_and_what_is_too_much(access: Access, case: PolicyCase, line: str) -> None:
    assert line in explain_failure(access, case)


def test_listing_counts_the_tools(access: Access) -> None:
    result = result_of(access, listing("order_read"))

    assert (result.expected, result.got, result.listed) == ("1 tool", "2 tools", ("order_read", "refund_pay"))


def test_hidden_retired_and_unseen_tools_have_a_reason(access: Access) -> None:
    snapshot = access.snapshot
    retired = replace(
        snapshot.tools["order_read"],
        lifecycle="deprecated",
        deprecation=Deprecation(date(2026, 1, 1), date(2026, 2, 1)),
    )
    desk = replace(snapshot.catalogues["desk"], hidden=frozenset({"refund_pay"}), audience=frozenset({"user:eve"}))
    tools = {**snapshot.tools, "order_read": retired}
    hiding = Access(
        replace(snapshot, tools=tools, catalogues={"desk": replace(desk, audience=frozenset({"role:clerk"}))}),
        access.authoriser,
    )
    for_eve = Access(replace(snapshot, catalogues={"desk": replace(desk, hidden=frozenset())}), access.authoriser)

    assert explain_failure(hiding, listing("order_read", "refund_pay")) == [
        "missing order_read: it is deprecated and not in use on that day   configs/tools.yaml:3",
        "missing refund_pay: it is hidden in desk   configs/catalogues.yaml:3",
    ]
    assert explain_failure(for_eve, listing("order_read", principal=EVE)) == [
        "missing order_read: no row of the policy matches",
    ]


def test_coverage_names_rows_rules_and_tools(project: LoadedProject, access: Access) -> None:
    rows = [row.position for row in project.policies.permissions]
    results = run_cases(access, [*access.snapshot.cases, listing(principal=Principal("user:kim"))])

    coverage = measure_coverage(access, results, rows=rows)

    assert [row.line for row in coverage.used_rows] == [2, 4, 5]
    assert [row.line for row in coverage.idle_rows] == [3]
    assert (coverage.used_rules, coverage.idle_rules) == (("large-refunds",), ())
    assert (coverage.called_tools, coverage.uncalled_tools) == (("refund_pay",), ("order_read",))


def test_without_cases_nothing_is_covered(project: LoadedProject, access: Access) -> None:
    coverage = measure_coverage(access, [], rows=[row.position for row in project.policies.permissions])

    assert (coverage.used_rows, len(coverage.idle_rows)) == ((), 4)
    assert (coverage.used_rules, coverage.idle_rules) == ((), ("large-refunds",))
    assert coverage.called_tools == ()


@pytest.mark.parametrize(
    ("changes", "used", "idle"),
    [
        pytest.param({"mode": "observe"}, ("large-refunds",), (), id="observing"),
        pytest.param({"mode": "disabled"}, (), (), id="disabled"),
        pytest.param({"check": RateCheck(5, timedelta(minutes=1))}, (), (), id="counting"),
        pytest.param({"check": PermissionCheck("invoke", "tool:refund_pay")}, (), ("large-refunds",), id="allowing"),
    ],
)
def test_rule_is_used_if_it_held_or_denied_or_would_have(
    access: Access, changes: dict[str, Any], used: tuple[str, ...], idle: tuple[str, ...]
) -> None:
    changed = with_rule(access, **changes)

    coverage = measure_coverage(changed, run_cases(changed, [refund("hold", amount=900)]), rows=[])

    assert (coverage.used_rules, coverage.idle_rules) == (used, idle)


def test_unknown_tools_are_not_covered_by_asking_for_them(access: Access) -> None:
    results = run_cases(access, [refund("deny", tool="nothing")])

    assert measure_coverage(access, results, rows=[]).called_tools == ()


def test_permissions_that_rules_ask_for_are_among_the_actions(access: Access) -> None:
    assert list_testable_actions(access) == {"discover", "invoke"}
    assert list_testable_actions(with_rule(access, check=PermissionCheck("read", "class:order"))) == {
        "discover",
        "invoke",
        "read",
    }


@pytest.mark.parametrize(
    ("check", "calls", "expected"),
    [
        pytest.param(LoopCheck(3), (SAME,), "allow", id="twice"),
        pytest.param(LoopCheck(3), (replace(SAME, times=3),), "deny", id="three-times"),
        pytest.param(
            LoopCheck(3), (replace(SAME, times=3, args={"order": "B2", "amount": 20}),), "allow", id="other-call"
        ),
        pytest.param(BudgetCheck(calls=4), (SAME, replace(READ, times=2)), "deny", id="budget-of-calls"),
        pytest.param(BudgetCheck(calls=5), (SAME, replace(READ, times=2)), "allow", id="within-the-budget"),
        pytest.param(BudgetCheck(bytes=2_000), (replace(READ, times=2, bytes=1_000),), "deny", id="budget-of-bytes"),
    ],
)
def test_case_declares_earlier_calls(access: Access, check: Any, calls: tuple[EarlierCall, ...], expected: Any) -> None:
    counting = with_rule(access, when=None, check=check)

    assert result_of(counting, refund(expected, calls=calls)).passed


@pytest.mark.parametrize(
    ("when", "calls", "expected"),
    [
        pytest.param('turn.saw("private-data")', (READ,), "hold", id="taint"),
        pytest.param('turn.saw("private-data")', (SAME,), "allow", id="no-taint"),
        pytest.param(RECENTLY, (replace(READ, ago=timedelta(minutes=59)),), "hold", id="recently"),
        pytest.param(RECENTLY, (replace(READ, ago=timedelta(minutes=60)),), "allow", id="long-ago"),
        pytest.param("turn.calls[0].tool == 'order_read'", (SAME, OLD), "hold", id="oldest-first"),
        pytest.param("turn.saw('egress') && 'quarantine' in turn.tiers", (GONE,), "hold", id="unknown-tool"),
    ],
)
def test_earlier_calls_bring_what_their_tools_bring(
    access: Access, when: str, calls: tuple[EarlierCall, ...], expected: Any
) -> None:
    condition, _ = compile_condition(when)

    assert result_of(with_rule(access, when=condition), refund(expected, calls=calls)).passed


def test_case_about_a_flow_names_the_class(access: Access) -> None:
    order = replace(access.snapshot.artifacts["order"], blocked_by=frozenset({"writes"}))
    guarded = Access(replace(access.snapshot, artifacts={"order": order}), access.authoriser)
    case = refund("deny", ExpectedReason("class", "order"), read=frozenset({"order"}))

    assert result_of(guarded, case).passed
    assert result_of(guarded, replace(case, read=frozenset(), calls=(READ,))).passed
    assert explain_failure(guarded, replace(case, expected="allow")) == [
        "gates: class:order: this turn has read order, which may not flow to tools with the flag 'writes'"
        "   configs/tools.yaml:28"
    ]

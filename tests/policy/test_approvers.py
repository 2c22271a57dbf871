"""Possible approvers: rules whose calls could never be approved are reported."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.policy.approver_directory import ApproverDirectory, check_approvers
from gateway.policy.rules.gate_checks import ApprovalCheck, PermissionCheck
from gateway.policy.rules.gate_rules import GateRule
from gateway.registries.diagnostics import Position
from gateway.registries.tool_selection import Selector

HERE = Position("gates.yaml", 3)
ANA_LEADS = ApproverDirectory({"user:ana": frozenset({"role:lead"})}, named=frozenset({"user:ana"}))


def check_rule(*approvers: str, count: int = 1, people: ApproverDirectory, **changes: Any) -> list[str]:
    rule = GateRule("large", Selector(), ApprovalCheck(approvers, "look", count), HERE)
    return [found.message for found in check_approvers([replace(rule, **changes)], people)]


@pytest.mark.parametrize(
    ("approvers", "people"),
    [
        pytest.param(["role:lead"], ANA_LEADS, id="linked"),
        pytest.param(["user:ana"], ANA_LEADS, id="named"),
        pytest.param(["role:lead"], ApproverDirectory({}, outside=frozenset({"role:lead"}), is_open=True), id="issuer"),
        pytest.param(
            ["role:lead"],
            ApproverDirectory({"role:boss": frozenset({"role:lead"})}, outside=frozenset({"role:boss"}), is_open=True),
            id="issuer-through-a-role",
        ),
        pytest.param(["user:anybody"], ApproverDirectory({}, is_open=True), id="subject-of-an-issuer"),
        pytest.param(["role:nobody", "user:ana"], ANA_LEADS, id="one-of-two"),
        pytest.param(
            ["role:lead"],
            ApproverDirectory(
                {"user:you": frozenset({"role:a"}), "role:a": frozenset({"role:lead", "role:a"})},
                named=frozenset({"user:you"}),
            ),
            id="through-a-circle",
        ),
    ],
)
def test_satisfiable_rule_is_no_problem(approvers: list[str], people: ApproverDirectory) -> None:
    assert check_rule(*approvers, people=people) == []


@pytest.mark.parametrize(
    ("approvers", "people", "message"),
    [
        pytest.param(["role:x"], ANA_LEADS, "no one can approve: no subject is or holds role:x", id="role"),
        pytest.param(["user:bo"], ANA_LEADS, "no one can approve: no subject is or holds user:bo", id="subject"),
        pytest.param(
            ["role:lead"],
            ApproverDirectory({}, outside=frozenset({"role:other"}), is_open=True),
            "no one can approve: no subject is or holds role:lead",
            id="issuer-that-does-not-give-it",
        ),
        pytest.param(
            ["role:lead"],
            replace(ANA_LEADS, common_subject="user:ana"),
            "only user:ana could approve, but every caller is user:ana and requesters never approve",
            id="only-the-requester",
        ),
    ],
)
def test_unsatisfiable_rule_is_reported(approvers: list[str], people: ApproverDirectory, message: str) -> None:
    assert check_rule(*approvers, people=people) == [message]


def test_more_approvals_than_approvers_are_reported() -> None:
    assert check_rule("role:lead", count=2, people=ANA_LEADS) == ["2 approvals are required, but only 1 can approve"]


def test_rules_that_rest_or_have_no_approvers_are_no_problem() -> None:
    assert check_rule("role:x", people=ANA_LEADS, mode="disabled") == []
    assert check_rule("role:x", people=ANA_LEADS, check=PermissionCheck("invoke", "class:x")) == []
    assert len(check_rule("role:x", people=ANA_LEADS, mode="observe")) == 1

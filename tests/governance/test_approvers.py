"""Who could ever approve: rules whose calls would wait in vain are told."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.governance.approvers import People, approver_problems
from gateway.governance.catalogues import Selector
from gateway.governance.diagnostics import Position
from gateway.governance.rules import Approval, GateRule, Permission

HERE = Position("gates.yaml", 3)
ANA_LEADS = People({"user:ana": frozenset({"role:lead"})}, named=frozenset({"user:ana"}))


def told(*approvers: str, count: int = 1, people: People, **changes: Any) -> list[str]:
    rule = GateRule("large", Selector(), Approval(approvers, "look", count), HERE)
    return [found.message for found in approver_problems([replace(rule, **changes)], people)]


@pytest.mark.parametrize(
    ("approvers", "people"),
    [
        pytest.param(["role:lead"], ANA_LEADS, id="linked"),
        pytest.param(["user:ana"], ANA_LEADS, id="named"),
        pytest.param(["role:lead"], People({}, outside=frozenset({"role:lead"}), is_open=True), id="issuer"),
        pytest.param(
            ["role:lead"],
            People({"role:boss": frozenset({"role:lead"})}, outside=frozenset({"role:boss"}), is_open=True),
            id="issuer-through-a-role",
        ),
        pytest.param(["user:anybody"], People({}, is_open=True), id="subject-of-an-issuer"),
        pytest.param(["role:nobody", "user:ana"], ANA_LEADS, id="one-of-two"),
        pytest.param(
            ["role:lead"],
            People(
                {"user:you": frozenset({"role:a"}), "role:a": frozenset({"role:lead", "role:a"})},
                named=frozenset({"user:you"}),
            ),
            id="through-a-circle",
        ),
    ],
)
def test_rule_that_somebody_can_satisfy_is_no_problem(approvers: list[str], people: People) -> None:
    assert told(*approvers, people=people) == []


@pytest.mark.parametrize(
    ("approvers", "people", "message"),
    [
        pytest.param(["role:x"], ANA_LEADS, "nobody can approve: no subject is or holds role:x", id="role"),
        pytest.param(["user:bo"], ANA_LEADS, "nobody can approve: no subject is or holds user:bo", id="subject"),
        pytest.param(
            ["role:lead"],
            People({}, outside=frozenset({"role:other"}), is_open=True),
            "nobody can approve: no subject is or holds role:lead",
            id="issuer-that-does-not-give-it",
        ),
        pytest.param(
            ["role:lead"],
            replace(ANA_LEADS, nobody="user:ana"),
            "only user:ana could approve, who is also everybody that calls: a requester never approves",
            id="only-the-requester",
        ),
    ],
)
def test_rule_that_nobody_can_satisfy_is_told(approvers: list[str], people: People, message: str) -> None:
    assert told(*approvers, people=people) == [message]


def test_more_approvals_than_approvers_are_told() -> None:
    assert told("role:lead", count=2, people=ANA_LEADS) == ["2 approvals are asked for, but only 1 can approve"]


def test_rules_that_rest_or_ask_nobody_are_no_problem() -> None:
    assert told("role:x", people=ANA_LEADS, mode="disabled") == []
    assert told("role:x", people=ANA_LEADS, check=Permission("invoke", "class:x")) == []
    assert len(told("role:x", people=ANA_LEADS, mode="observe")) == 1

"""CEL conditions: checked when declared, safe when they fail."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.governance.conditions import Condition, ConditionProblem, Evaluation, Scope, compile_condition, under


def condition(source: str) -> Condition:
    compiled, problems = compile_condition(source)
    assert problems == []
    assert compiled is not None
    return compiled


def scope(**given: Any) -> Scope:
    values = {
        "args": {"amount": 600, "currency": "EUR", "workspace": "/srv/repos/a"},
        "caller": {"subject": "user:ana", "roles": ["role:engineer"], "tenant": "acme"},
        "tool": {"name": "payment_refund", "tier": "internal", "flags": ["writes"], "labels": {"system": "payments"}},
        "turn": {"seen": ["untrusted-output"], "calls": [{"tool": "lookup", "age": timedelta(minutes=5)}]},
        "now": datetime(2026, 11, 16, 10, tzinfo=UTC),
        **given,
    }
    return Scope(**values)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ('args.amount > 500 && args.currency in ["EUR", "GBP"]', True),
        ("args.amount > 600", False),
        ("args.amount > 500.5", True),
        ('turn.saw("untrusted-output")', True),
        ('turn.saw("egress")', False),
        ('turn.calls.exists(c, c.tool == "lookup" && c.age < duration("1h"))', True),
        ('turn.calls.all(c, c.age < duration("1m"))', False),
        ('glob(tool.name, "payment_*")', True),
        ('under(args.workspace, "/srv/repos")', True),
        ('"role:engineer" in caller.roles && tool.labels.system == "payments"', True),
        ("has(args.note)", False),
        ('now < timestamp("2027-01-01T00:00:00Z")', True),
        ('args.currency.matches("^(E+)+UR$")', True),
        ("size(turn.calls) == 1 && now.getFullYear() == 2026", True),
    ],
)
def test_expression_sees_the_call(source: str, value: bool) -> None:
    assert condition(source).applies(scope()) == Evaluation(value)
    assert condition(source).is_met(scope()) == Evaluation(value)


@pytest.mark.parametrize(
    ("source", "failure"),
    [
        ("args.missing > 1", "there is no 'missing'"),
        ('args.amount + "a" == "b"', "No such overload: the operation is not defined for the given operand types"),
        ("args.amount", "the expression gives int, not true or false"),
    ],
)
def test_failing_expression_errs_on_the_safe_side(source: str, failure: str) -> None:
    assert condition(source).applies(scope()) == Evaluation(True, failure)
    assert condition(source).is_met(scope()) == Evaluation(False, failure)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (
            "args.amount >",
            ConditionProblem("unexpected the end of the expression", column=14),
        ),
        ("args.amount >\n* 3", ConditionProblem("unexpected '*'", line=2, column=1)),
        ("arg.amount > 5", ConditionProblem("there is no variable 'arg'", width=3, help="did you mean 'args'?")),
        (
            "true &&\n  zebra == 1",
            ConditionProblem(
                "there is no variable 'zebra'",
                line=2,
                column=3,
                width=5,
                help="known variables: args, caller, tool, turn, now",
            ),
        ),
        (
            'turn.sawn("x")',
            ConditionProblem("there is no function 'sawn'", column=6, width=4, help="did you mean 'saw'?"),
        ),
        ("frobnicate(args)", ConditionProblem("there is no function 'frobnicate'", width=10)),
        ("x" * 5000, ConditionProblem("the expression is longer than 4096 characters")),
        ("", ConditionProblem("unexpected the end of the expression")),
    ],
)
def test_wrong_expression_is_a_problem_when_declared(source: str, problem: ConditionProblem) -> None:
    assert compile_condition(source) == (None, [problem])


def test_every_unknown_name_is_reported() -> None:
    _, problems = compile_condition("foo > 1 && bar(2)")

    assert [problem.message for problem in problems] == ["there is no variable 'foo'", "there is no function 'bar'"]


def test_deep_nesting_is_refused() -> None:
    compiled, problems = compile_condition("(" * 1000 + "true" + ")" * 1000)

    assert compiled is None
    assert len(problems) == 1


@pytest.mark.parametrize(
    ("path", "root", "inside"),
    [
        ("/srv/repos/a/b", "/srv/repos", True),
        ("/srv/repos", "/srv/repos/", True),
        ("/srv/repos/../secrets", "/srv/repos", False),
        ("/srv/repos/a/../../repos/b", "/srv/repos", True),
        ("/srv/repository", "/srv/repos", False),
        ("//srv/repos/a", "/srv/repos", True),
        ("srv/repos/a", "/srv/repos", False),
        ("/srv/repos/a\0/../../etc", "/srv/repos", False),
        ("/anything", "/", True),
        ("/a", "a", False),
        (7, "/a", False),
        ("/a", None, False),
    ],
)
def test_path_is_normalised_before_it_is_compared(path: Any, root: Any, inside: bool) -> None:
    assert under(path, root) is inside


def test_condition_shows_its_source() -> None:
    assert repr(condition("true")) == "Condition('true')"

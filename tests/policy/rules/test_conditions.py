"""CEL conditions: checked when declared, safe when they fail."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.model.primitives.deadline import to_microseconds
from gateway.policy.rules.conditions import Condition, ConditionScope, Evaluation, compile_condition, is_path_under
from gateway.policy.rules.expression_analysis import ConditionProblem
from gateway.policy.rules.turn_state import Taint, TurnState


def condition(source: str) -> Condition:
    compiled, problems = compile_condition(source)
    assert problems == []
    assert compiled is not None
    return compiled


NOW = datetime(2026, 11, 16, 10, tzinfo=UTC)


def remembering() -> TurnState:
    memory = TurnState()
    memory.record_call(
        Taint("lookup", ("untrusted-output",), "partner", "ticket"), "allow", at=NOW - timedelta(minutes=5)
    )
    return memory


def scope(**given: Any) -> ConditionScope:
    values = {
        "args": {"amount": 600, "currency": "EUR", "workspace": "/srv/repos/a"},
        "caller": {"subject": "user:ana", "roles": ["role:engineer"], "tenant": "acme"},
        "tool": {"name": "payment_refund", "tier": "internal", "flags": ["writes"], "labels": {"system": "payments"}},
        "turn": remembering(),
        "now": NOW,
        **given,
    }
    return ConditionScope(**values)


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
    assert condition(source).evaluate(scope()) == Evaluation(value)
    assert condition(source).evaluate_requirement(scope()) == Evaluation(value)


@pytest.mark.parametrize(
    ("source", "failure"),
    [
        ("args.missing > 1", "there is no 'missing'"),
        ('args.amount + "a" == "b"', "No such overload: the operation is not defined for the given operand types"),
        ("args.amount", "the expression gives int, not true or false"),
    ],
)
def test_failing_expression_errs_on_the_safe_side(source: str, failure: str) -> None:
    assert condition(source).evaluate(scope()) == Evaluation(True, failure)
    assert condition(source).evaluate_requirement(scope()) == Evaluation(False, failure)


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
    assert is_path_under(path, root) is inside


def test_condition_shows_its_source() -> None:
    assert repr(condition("true")) == "Condition('true')"


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ('"partner" in turn.tiers && "ticket" in turn.classes', True),
        ('"untrusted-output" in turn.seen', True),
        ('turn.calls.exists(c, c.tool == "lookup" && c.tier == "partner" && c.decision == "allow")', True),
        ('turn.calls.exists(c, "untrusted-output" in c.flags)', True),
        ('turn.calls.filter(c, c.tool == "lookup").size() >= 1 && turn.calls.size() == 1', True),
        ('turn.calls[0].age == duration("5m")', True),
        ('turn.calls.exists(c, c["tool"] == "lookup")', True),
        ('turn.calls.map(c, c).exists(c, c.tool == "lookup")', True),
        ('turn["seen"][0] == "untrusted-output"', True),
        ('args["currency"] == "EUR" && has(args.amount)', True),
        ("size(args) == 3", True),
        ("args.exists(name, name == 'workspace')", True),
        ('caller["subject"] == "user:ana" && size(tool) == 4', True),
        ('args.currency == "turn.calls"', False),
        ('true // turn.nothing and args["nothing"]', True),
    ],
)
def test_expression_is_shown_what_it_looks_at(source: str, value: bool) -> None:
    assert condition(source).evaluate(scope()) == Evaluation(value)


def test_ages_grow_with_the_moment_of_the_call() -> None:
    recently = condition('turn.calls.exists(c, c.tool == "lookup" && c.age < duration("1h"))')

    assert recently.evaluate_requirement(scope()).value
    assert not recently.evaluate_requirement(scope(now=NOW + timedelta(hours=1))).value
    assert not recently.evaluate_requirement(scope(turn=TurnState())).value


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("caller.subjct == 'a'", ConditionProblem("caller has no 'subjct'", 1, 8, 6, "did you mean 'subject'?")),
        (
            "tool.kind == 'a'",
            ConditionProblem("tool has no 'kind'", 1, 6, 4, "known fields: name, tier, flags, labels"),
        ),
        ("size(turn.cals) > 1", ConditionProblem("turn has no 'cals'", 1, 11, 4, "did you mean 'calls'?")),
        (
            "true &&\n turn.calls.exists(c, c.tol == 'x')",
            ConditionProblem("calls have no 'tol'", 2, 25, 3, "did you mean 'tool'?"),
        ),
        (
            "args.list.all(tool, tool == 1)",
            ConditionProblem("'tool' is a variable already", 1, 15, 4, "bind another name"),
        ),
        ("max(1, 2) == 2", ConditionProblem("there is no function 'max'", 1, 1, 3, "did you mean 'map'?")),
    ],
)
def test_misspelt_field_is_a_problem_when_declared(source: str, problem: ConditionProblem) -> None:
    assert compile_condition(source) == (None, [problem])


@pytest.mark.parametrize(
    "source", ["args.caller.nothing == 1", "args . tool . nothing == 1", "args.items.exists(c, c.nothing == 1)"]
)
def test_fields_of_arguments_are_not_known_when_declared(source: str) -> None:
    assert compile_condition(source)[1] == []


TEN = str(list(range(10)))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        pytest.param(
            f"{TEN}.all(a, {TEN}.all(b, {TEN}.all(c, a + b + c > 0)))",
            "comprehensions are nested deeper than 2",
            id="nested-all-bomb",
        ),
        pytest.param(
            " && ".join(f"{TEN}.exists(a, a > {n})" for n in range(9)),
            "there are more than 8 comprehensions",
            id="many-comprehensions",
        ),
        pytest.param(
            "[args.s].map(a, a + a).map(b, b + b).map(c, c + c) == []",
            "'map' is used more than 2 times",
            id="doubling-chain",
        ),
        pytest.param(
            f"[args.s].map(a, {'a + ' * 9}a) == []", "'map' names its variable more than 8 times", id="growing-map"
        ),
        pytest.param(f"{'args.s + ' * 65}args.s == ''", "there are more than 64 sums", id="sums"),
        pytest.param(
            f"{list(range(300))}.exists(a, {list(range(300))}.exists(b, a == b))",
            "the list literals are too long for the comprehensions",
            id="long-literals",
        ),
        pytest.param("true || " * 1_250 + "true", "the expression is longer than 4096 characters", id="ten-kilobytes"),
    ],
)
def test_work_without_bound_is_a_problem_when_declared(source: str, message: str) -> None:
    compiled, problems = compile_condition(source)

    assert compiled is None
    assert message in [problem.message for problem in problems]


@pytest.mark.parametrize(
    ("source", "args"),
    [
        ("args.a.all(x, args.a.exists(y, x == y))", {"a": list(range(300))}),
        ("args.a.filter(x, x > 0).size() > 0", {"a": list(range(300))}),
        ("args.a.all(x, x.all(y, y > 0))", {"a": [list(range(300))]}),
        ("args.a.exists(x, x < 0)", {"a": list(range(30_000))}),
        ("size(args.a) > 0", {"a": {"b": [{"c": list(range(30_000))}]}}),
    ],
    ids=["nested", "list-making", "inner", "long", "hidden-inside"],
)
def test_evaluation_that_would_take_long_errs_on_the_safe_side(source: str, args: dict[str, Any]) -> None:
    found = condition(source)

    assert found.evaluate(scope(args=args)).value
    assert not found.evaluate_requirement(scope(args=args)).value
    assert "too many elements to evaluate" in str(found.evaluate(scope(args=args)).failure) or "too many" in str(
        found.evaluate(scope(args=args)).failure
    )


def test_nesting_that_would_exhaust_the_stack_is_not_followed() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    assert condition("size(args.a) > 5").evaluate_requirement(scope(args={"a": deep})) == Evaluation(
        False, "the arguments are too many, or nested too deeply, to evaluate"
    )


def test_arguments_that_are_not_looked_at_cost_nothing() -> None:
    huge = {"amount": 900, "rows": list(range(1_000_000))}

    assert condition("args.amount > 500").evaluate_requirement(scope(args=huge)) == Evaluation(True)


@pytest.mark.parametrize(
    ("source", "args", "failure"),
    [
        ("args.amount * args.amount > 1", {"amount": 2**62}, "a number is out of range"),
        ("1 / args.amount > 1", {"amount": 0}, "something is divided by zero"),
        ("args.list[5] == 1", {"list": []}, "an index is out of bounds"),
        ('"x".matches(args.pattern)', {"pattern": "(hunter2"}, "matches() fails"),
        ('args[args.name] == "x"', {"name": "hunter2"}, "a key that the expression looks up is missing"),
        ("args.text == 'a'", {"text": "hunter2\ud800"}, "it cannot be evaluated (ValueError)"),
        ("args.amount > 1", {"amount": object()}, "it cannot be evaluated (ValueError)"),
    ],
    ids=["overflow", "division", "index", "pattern", "key", "surrogate", "object"],
)
def test_failure_shows_no_argument(source: str, args: dict[str, Any], failure: str) -> None:
    assert condition(source).evaluate_requirement(scope(args=args)) == Evaluation(False, failure)
    assert condition(source).evaluate(scope(args=args)) == Evaluation(True, failure)


@pytest.mark.parametrize(
    ("expression", "seen", "answer"),
    [
        ('caller.saw("egress", "1h")', timedelta(minutes=59), True),
        ('caller.saw("egress", "1h")', timedelta(minutes=61), False),
        ('caller.saw("egress", "30d")', timedelta(days=29), True),
        ('caller.saw("egress", "1h")', timedelta(seconds=-5), True),
        ('caller.saw("writes", "1h")', timedelta(0), False),
        ("caller . saw ( 'egress' , '10ms' ) || turn.saw(\"egress\")", timedelta(seconds=1), False),
    ],
)
def test_caller_is_asked_what_they_saw_in_any_turn(expression: str, seen: timedelta, answer: bool) -> None:
    condition, problems = compile_condition(expression)
    assert condition is not None, problems
    moment = datetime(2026, 11, 16, 12, tzinfo=UTC)
    sightings = {"egress": to_microseconds(moment - seen)}
    scope = ConditionScope({}, {"subject": "user:ana"}, {}, TurnState(), moment, "", sightings)

    assert condition.evaluate(scope).value is answer
    assert condition.watched_flags in ({"egress"}, {"writes"})


@pytest.mark.parametrize(
    "expression",
    [
        'caller.saw("egress")',
        'caller.saw("egress", args.within)',
        'caller.saw(args.flag, "1h")',
        'caller.saw("egress", "1y")',
        'caller.saw("egress", "31d")',
        'turn.saw("egress", "1h")',
        'args.saw("egress", "1h")',
        'saw(turn, "egress")',
        'saw(caller, "egress", "1h")',
        'args.turn.saw("egress")',
    ],
)
def test_saw_that_could_not_be_known_is_a_problem(expression: str) -> None:
    condition, problems = compile_condition(expression)

    assert condition is None
    assert any("saw" in each.message for each in problems)

"""Simple expressions: the closures say what the CEL library says, or leave it to the library."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.policy.rules.conditions import Condition, ConditionScope, Evaluation, compile_condition
from gateway.policy.rules.simple_expression import Unsure, compile_simple
from gateway.policy.rules.turn_state import TurnState
from tests.policy.rules.test_conditions import NOW, condition, scope

FIELDS = ("a", "b", "c", "missing")
LIKELY = st.sampled_from([0, 1, 2, "a", "ab", "agent:x", True, False])
UNLIKELY = st.sampled_from(
    [-1, 2**53 + 1, 2**63, 2**70, -0.0, 1.0, 1.5, float("nan"), "", "é", "\ud800", "\ue000", None]
)
VALUES = LIKELY | LIKELY | UNLIKELY | st.lists(LIKELY | UNLIKELY, max_size=2) | st.just({"a": 1})
NUMBERS = ["0", "1", "2", "-1", "9007199254740993"]
TEXTS = ['"a"', "'ab'", '"agent:"', '""']
ODD = [
    "1u",
    "0x1",
    "1.0",
    "1e3",
    "007",
    "null",
    r'"\x61"',
    'r"a"',
    '"é"',
    'b"a"',
    "[]",
    "(1)",
    "-(1)",
    "9223372036854775808",
]
LITERALS = st.sampled_from([*NUMBERS, *NUMBERS, *TEXTS, *TEXTS, "true", "false", *ODD])
ARGUMENT = st.sampled_from([f"args.{name}" for name in FIELDS])
FIELD = ARGUMENT | st.sampled_from(
    ['args["a"]', "caller.subject", "caller.tenant", "caller.roles", "tool.name", "tool.flags", "tool.labels.system"]
)
VALUE = ARGUMENT | LITERALS | FIELD | FIELD.map("size({})".format)
ORDER = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
LISTS = (
    st.lists(st.sampled_from(NUMBERS), max_size=3) | st.lists(st.sampled_from(TEXTS)) | st.lists(LITERALS, max_size=2)
)
LEAVES = (
    st.tuples(ARGUMENT, ORDER, LITERALS).map(" ".join)
    | st.tuples(VALUE, ORDER, VALUE).map(" ".join)
    | st.tuples(VALUE, LISTS.map(lambda found: f"[{', '.join(found)}]") | FIELD).map(" in ".join)
    | st.tuples(FIELD, st.sampled_from(["startsWith", "endsWith", "contains"]), VALUE).map(
        lambda parts: f"{parts[0]}.{parts[1]}({parts[2]})"
    )
    | FIELD.map("has({})".format)
)


def join(truth: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    joined = st.tuples(truth, st.sampled_from([" && ", " || "]), truth)
    odd = st.tuples(truth, st.sampled_from([" == ", " < "]), VALUE)
    return (
        joined.map("".join)
        | joined.map(lambda parts: f"({parts[0]}){parts[1]}({parts[2]})")
        | truth.map("!({})".format)
        | odd.map("".join)
    )


EXPRESSIONS = LEAVES | st.recursive(LEAVES, join, max_leaves=4)
NAMES = st.sampled_from(["a", "ab", "agent:x", "é"])
ARGUMENTS = st.dictionaries(st.sampled_from(FIELDS[:3]), VALUES)
CALLERS = st.fixed_dictionaries(
    {"subject": NAMES, "roles": st.lists(NAMES, max_size=2), "tenant": st.none() | NAMES},
)


def by_library(found: Condition, about: ConditionScope, *, safe: bool) -> Evaluation:
    """What the library says, whatever the closures would have said."""
    plain = Condition(found.source, found._program, found._needs)
    plain._simple = None
    return plain._evaluate(about, safe=safe)


@given(source=EXPRESSIONS, args=ARGUMENTS, caller=CALLERS, safe=st.booleans())
@settings(max_examples=1500)
@example(source='args.a.startsWith("a")', args={"a": "ab"}, caller={}, safe=True)
@example(source='args.a.endsWith("b")', args={"a": "ab"}, caller={}, safe=False)
@example(source='args.a.contains("ba")', args={"a": "aba"}, caller={}, safe=False)
@example(source="args.a == 1 || args.b == 2", args={"a": 1, "b": 2**70}, caller={}, safe=False)
@example(source="args.a == 1 || args.b == 2", args={"a": 1}, caller={}, safe=False)
@example(source="args.a == 1 && args.b", args={"a": 0, "b": 1}, caller={}, safe=True)
@example(source="args.a < args.b", args={"a": "\ud800", "b": "\ue000"}, caller={}, safe=True)
@example(source="args.a == args.b", args={"a": True, "b": 1}, caller={}, safe=True)
@example(source="args.a == 1u", args={"a": 1}, caller={}, safe=True)
@example(source="args.a in [1, 2]", args={"a": 1.0}, caller={}, safe=True)
def test_closures_agree_with_the_library(source: str, args: dict[str, Any], caller: dict[str, Any], safe: bool) -> None:
    found, _ = compile_condition(source)
    if found is None:
        return
    about = scope(args=args, caller={"subject": "user:ana", "roles": [], "tenant": None, **caller})

    assert found._evaluate(about, safe=safe) == by_library(found, about, safe=safe), source


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ('args.currency == "EUR"', True),
        ("args.amount > 600", False),
        ('args.amount >= 600 && args.currency in ["EUR", "GBP"]', True),
        ('!(args.currency != "EUR") || has(args.note)', True),
        ("size(args.currency) == 3 && args.amount != 5", True),
        ('"role:engineer" in caller.roles', True),
        ('caller.subject.startsWith("agent:")', False),
        ('tool.name.endsWith("refund") && tool.name.contains("_")', True),
    ],
)
def test_simple_expressions_need_no_library(source: str, value: bool) -> None:
    simple = compile_simple(source)

    assert simple is not None
    assert simple(scope()) is value
    assert condition(source).evaluate(scope()) == Evaluation(value)


@pytest.mark.parametrize(
    ("source", "args"),
    [
        ("args.amount > 600", {}),
        ("args.amount > 600", {"amount": 700.5}),
        ("args.amount > 600", {"amount": None}),
        ("args.amount > 600", {"amount": {}}),
        ("args.amount > 600 || args.big > 1", {"amount": 700, "big": 2**64}),
        ("args.amount in [1, 2]", {"amount": "1"}),
        ("size(args.amount) > 1", {"amount": 3}),
        ('args.amount.startsWith("a")', {"amount": 3}),
        ('args.note == "a"', {"note": "é"}),
        ('"a" in args.note', {"note": "abc"}),
        ('"a" in args.note', {"note": ["a"] * 100}),
    ],
)
def test_values_that_may_be_compared_differently_are_left_to_the_library(source: str, args: dict[str, Any]) -> None:
    simple = compile_simple(source)

    assert simple is not None
    with pytest.raises(Unsure):
        simple(scope(args=args))


@pytest.mark.parametrize(
    "source",
    [
        "args.a",
        "args.a.b == 1",
        "args.a == 1u",
        "args.a == null",
        'args.a == "\\x61"',
        'args.a == "é"',
        "args.a == 9223372036854775808",
        "args.a in []",
        'args.a in [1, "a"]',
        "args.a in [args.b]",
        "args.a + 1 == 2",
        "args.a == 1 ? true : false",
        'turn.saw("egress")',
        'args == {"a": 1}',
        'under(args.a, "/srv")',
        "args.a ==",
    ],
)
def test_other_expressions_are_left_to_the_library(source: str) -> None:
    assert compile_simple(source) is None


def test_scope_has_its_variables_where_the_closures_look() -> None:
    empty = ConditionScope({"a": 1}, {"subject": "s"}, {"name": "n"}, TurnState(), NOW)

    assert empty[:3] == (empty.args, empty.caller, empty.tool)

"""Which part of a condition decided."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.rules.conditions import Condition, ConditionScope, compile_condition
from gateway.policy.rules.deciding_part import find_deciding_part
from gateway.policy.rules.turn_state import TurnState

ARGS: dict[str, Any] = {"amount": 900, "currency": "EUR", "path": "/a && b", "order": {"total": 7}, "on": True}


def scope(args: dict[str, Any] = ARGS) -> ConditionScope:
    caller = {"subject": "user:ana", "roles": ["role:clerk"], "tenant": None}
    tool = {"name": "pay", "tier": "internal", "flags": ["writes"], "labels": {}}
    memory = TurnState()
    memory.flags.add("egress")
    return ConditionScope(args, caller, tool, memory, datetime(2026, 11, 16, tzinfo=UTC))


def condition(source: str) -> Condition:
    compiled, problems = compile_condition(source)
    assert compiled is not None, problems
    return compiled


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("args.amount > 1000", "args.amount > 1000 is false for amount 900"),
        ('args.amount > 500 && args.currency == "GBP"', 'args.currency == "GBP" is false for currency "EUR"'),
        ("args.amount > 1000 && args.missing", "args.amount > 1000 is false for amount 900"),
        ("args.missing && args.amount > 1000", "args.amount > 1000 is false for amount 900"),
        ("args.amount > 1000 || args.amount < 5", "args.amount > 1000 is false for amount 900"),
        ("args.amount > 1000 || args.amount < 5000", "args.amount < 5000 is true for amount 900"),
        ("args.amount > 1 && args.on", "args.amount > 1 && args.on is true for amount 900, on true"),
        ("(args.on && (args.amount < 5 || !args.on)) || false", "args.amount < 5 is false for amount 900"),
        ("(args.on) && (args.amount < 5)", "args.amount < 5 is false for amount 900"),
        ("args.on && args.missing > 1", "args.missing > 1 cannot be evaluated: there is no 'missing'"),
        ("args.order.total == 8", "args.order.total == 8 is false for order.total 7"),
        ('args["currency"] == "a"', 'args["currency"] == "a" is false for currency "EUR"'),
        ('args.path.startsWith("/x")', 'args.path.startsWith("/x") is false for path "/a && b"'),
        ("has(args.missing)", "has(args.missing) is false"),
        ('turn.saw("private")', 'turn.saw("private") is false'),
        ('"args.amount" == "x"', '"args.amount" == "x" is false'),
    ],
)
def test_smallest_part_that_decided_is_reported(source: str, expected: str) -> None:
    assert str(find_deciding_part(condition(source), scope())) == expected


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("args.path == 'a && b' || args.amount < 5", "args.path == 'a && b'"),
        ('args.path == "a \\" && b" || false', 'args.path == "a \\" && b"'),
        ("args.path == r'\\' || false", "args.path == r'\\'"),
        ('args.path == """a "&& b""" || false', 'args.path == """a "&& b"""'),
        ("b'a||' == br'\\||' || false", "b'a||' == br'\\||'"),
        ("[true && false, true].all(each, each) && args.on", "[true && false, true].all(each, each)"),
        ("{'a': true && false}.a && args.on", "{'a': true && false}.a"),
        ("false ? true || true : false && true", "false ? true || true : false && true"),
        ("!(args.on && true) && args.on", "!(args.on && true)"),
    ],
)
def test_only_operators_outside_brackets_and_texts_split(source: str, part: str) -> None:
    leaf = find_deciding_part(condition(source), scope())

    assert (leaf.source, leaf.value) == (part, False)


def test_comments_neither_split_nor_are_shown() -> None:
    source = "args.on // a || b\n && args.amount // what is refunded\n < 5"

    assert str(find_deciding_part(condition(source), scope())) == "args.amount < 5 is false for amount 900"


def test_long_and_strange_values_are_shortened_and_harmless() -> None:
    leaf = find_deciding_part(condition("size(args.text) < 5"), scope({"text": "\x1b[31m" + "x" * 500}))

    assert str(leaf) == 'size(args.text) < 5 is false for text "\\u001b[31m' + "x" * 49 + "…"


def test_value_that_is_no_json_is_reported_by_its_kind() -> None:
    leaf = find_deciding_part(condition("args.when == 1"), scope({"when": datetime(2026, 1, 1, tzinfo=UTC)}))

    assert str(leaf).endswith("for when <datetime>")


def test_deep_expression_is_looked_into_only_so_far() -> None:
    depth = 40
    source = "(args.on && " * depth + "args.amount < 5" + ")" * depth

    leaf = find_deciding_part(condition(source), scope())

    assert leaf.value is False
    assert len(leaf.source) < len(source)


LEAVES = st.sampled_from(
    [
        *("true", "false", "args.on", "!args.on", "args.amount > 1000", "args.amount <= 900", "args.missing", "3"),
        *("args.path == '&& || ('", 'args.currency != "//"', "[1, 2].exists(x, x > 1 || false)", "args.on ? 1 : 2"),
        *('turn.saw("egress")', "r')' == ')' // comment &&\n", "1 / 0 == 1", "'a' in args.order"),
    ]
)


def joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    spaced = st.lists(parts, min_size=2, max_size=4)
    both = [spaced.map(operator.join) for operator in (" && ", "||", " ||\n ")]
    return st.one_of(*both, parts.map(lambda inside: f"({inside})"), parts.map(lambda inside: f"!({inside})"))


@given(st.recursive(LEAVES, joined, max_leaves=12))
def test_leaf_agrees_with_the_whole_expression(source: str) -> None:
    whole = condition(source)

    leaf = find_deciding_part(whole, scope())

    answer = whole.evaluate_requirement(scope())
    assert leaf.value == (None if answer.failure else answer.value)
    assert "\n" not in str(leaf)
    assert len(leaf.source) <= len(source)


@given(st.text(alphabet="ab&|()[]{}'\"\\r?:!/\n .,1=<>", max_size=30))
def test_nothing_that_compiles_makes_it_raise(source: str) -> None:
    compiled, _ = compile_condition(source.replace("a", "args"))
    if compiled is not None:
        str(find_deciding_part(compiled, scope()))

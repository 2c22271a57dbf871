"""Conditions compared with the schemas of their tools: impossible ones are reported, possible ones are not."""

import random
import string
from typing import Any

import pytest

from gateway.model.schema.schema import Schema
from gateway.policy.rules.cel_syntax_tree import parse_expression
from gateway.policy.rules.condition_lint import ConditionMistake, find_mistakes
from gateway.policy.rules.conditions import CEL, compile_condition
from gateway.policy.rules.constant_value import constant_value
from gateway.policy.rules.schema_lookup import SchemaView

Json = dict[str, Any]

REFUND: Json = {
    "type": "object",
    "properties": {
        "amount": {"type": "integer", "minimum": 1, "maximum": 1000},
        "price": {"type": "number"},
        "note": {"type": ["string", "null"]},
        "priority": {"enum": ["low", "normal", "high"]},
        "urgent": {"type": "boolean"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        "lines": {
            "type": "array",
            "items": {"type": "object", "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}}},
        },
        "address": {"type": "object", "properties": {"city": {"type": "string"}}},
        "address2": {"$ref": "#/$defs/address"},
        "choice": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "extra": {"type": "object"},
        "any": {},
        "odd-name": {"type": "string"},
    },
    "$defs": {"address": {"type": "object", "properties": {"zip": {"type": "string"}}}},
}


def mistakes(source: str, *schemas: Json | None, is_requirement: bool = False) -> list[ConditionMistake]:
    assert compile_condition(source)[1] == [], source
    closed = [None if each is None else Schema(each).describe() for each in schemas or (REFUND,)]
    tools = [{"args": None if each is None else SchemaView(each, each)} for each in closed]
    return find_mistakes(source, tools, is_requirement=is_requirement)


@pytest.mark.parametrize(
    ("source", "code", "token", "help"),
    [
        ("args.amuont > 500", "unknown-argument", "amuont", "did you mean 'amount'?"),
        ("args.Amount > 500", "unknown-argument", "Amount", "did you mean 'amount'?"),
        ("has(args.amounts)", "unknown-argument", "amounts", "did you mean 'amount'?"),
        ('args["amuont"] > 500', "unknown-argument", '"amuont"', "did you mean 'amount'?"),
        ('args["odd_name"] == "x"', "unknown-argument", '"odd_name"', "did you mean 'odd-name'?"),
        ('args.address.cty == "x"', "unknown-argument", "cty", "did you mean 'city'?"),
        ('args.address2.zpi == "x"', "unknown-argument", "zpi", "did you mean 'zip'?"),
        ("args.amount.value > 5", "unknown-argument", "value", "args.amount has no fields"),
        ("args.lines.all(l, l.cuont > 5)", "unknown-argument", "cuont", "did you mean 'count'?"),
        ("args.lines[0].cuont > 5", "unknown-argument", "cuont", "did you mean 'count'?"),
        ('args.amount == "500"', "argument-type", 'args.amount == "500"', "write 500 without quotes"),
        ('"500" == args.amount', "argument-type", '"500" == args.amount', "write 500 without quotes"),
        ('args.amount > "500"', "argument-type", 'args.amount > "500"', "write 500 without quotes"),
        ("args.note == 5", "argument-type", "args.note == 5", "compare it with null or text"),
        ("args.address.city == 5", "argument-type", "args.address.city == 5", 'write "5" in quotes'),
        ('args.urgent == "true"', "argument-type", 'args.urgent == "true"', "write true without quotes"),
        (
            "args.amount == null",
            "argument-type",
            "args.amount == null",
            "write has(args.amount) to test whether it is given",
        ),
        ('args.amount in ["1", 2]', "argument-type", '"1"', "write 1 without quotes"),
        ('args.amount.startsWith("5")', "argument-type", "args.amount", "compare it in another way"),
        ('under(args.amount, "/srv")', "argument-type", "args.amount", "compare it in another way"),
        ("size(args.amount) > 3", "argument-type", "args.amount", "compare it in another way"),
        ("args.amount.exists(x, x > 3)", "argument-type", "args.amount", "compare it in another way"),
        ('"a" in args.amount', "argument-type", "args.amount", "compare them with =="),
        ("5 in args.tags", "argument-type", "5", 'write "5" in quotes'),
        ("args.amount && true", "argument-type", "args.amount", "compare it with a value"),
        ("!args.note", "argument-type", "args.note", "compare it with a value"),
        ("args.lines.all(l, l.count == l.sku)", "argument-type", "l.count == l.sku", "compare it with a number"),
        ('args.priority == "hihg"', "argument-value", '"hihg"', "did you mean 'high'?"),
        ('args.priority in ["low", "hihg"]', "argument-value", '"hihg"', "did you mean 'high'?"),
        ('args.priority != "zzz"', "argument-value", '"zzz"', "it is one of: 'low', 'normal', 'high'"),
        ('"c" in args.tags', "argument-value", '"c"', "it is one of: 'a', 'b'"),
        ("args.amount > 1000", "argument-value", "1000", "it is at least 1 and at most 1000"),
        ("0 >= args.amount", "argument-value", "0", "it is at least 1 and at most 1000"),
        ("args.amount == 2000", "argument-value", "2000", "it is at least 1 and at most 1000"),
        ("false", "constant-condition", "false", "correct the condition, or write mode: disabled"),
        ("args.amount > 500 && false", "constant-condition", "args.amount > 500 && false", None),
        ('args.note == "a" && args.note == "b"', "constant-condition", 'args.note == "a" && args.note == "b"', None),
        (
            "args.amount > 500 && args.amount < 500",
            "constant-condition",
            "args.amount > 500 && args.amount < 500",
            None,
        ),
        (
            'args.note in ["a"] && args.note == "b"',
            "constant-condition",
            'args.note in ["a"] && args.note == "b"',
            None,
        ),
        ('caller.subject == "a" && "b" == caller.subject', "constant-condition", "caller.subject", None),
    ],
)
def test_mistake_is_reported_at_its_token(source: str, code: str, token: str, help: str | None) -> None:
    (found,) = mistakes(source)

    assert found.code == code
    assert source[found.start : found.start + found.width].startswith(token)
    assert help is None or found.help == help
    assert found.help


@pytest.mark.parametrize(
    "source",
    [
        *("args.amount > 500", "args.amount >= 1000", "args.amount == 1.0", "args.price > 500", "args.price == 5"),
        *('args.note == "x"', "args.note == null", "args.note != null", 'args.choice == "x"', "args.choice == null"),
        *('args.priority == "high"', 'args.priority in ["low", "high"]', "args.urgent", "!args.urgent", "args.any"),
        *(
            '"a" in args.tags',
            "args.tags.exists(t, t == 'a')",
            "size(args.tags) > 2",
            'args.any == "x"',
            "args.any > 2",
        ),
        *("args.lines.all(l, l.count < 5 && l.sku != '')", "args.lines[0].count > 1", "args.extra.whatever == 5"),
        *(
            '"key" in args.extra',
            'args.extra["a"]["b"] > 1',
            'args["odd-name"] == "x"',
            "args.address.city == caller.subject",
        ),
        *(
            "has(args.note) && args.note.startsWith('x')",
            "args.address2.zip.matches('^1')",
            "double(args.amount) > 0.5",
        ),
        *("args.amount > 5 && args.amount <= 5 || args.urgent", "args.amount >= 5 && args.amount <= 5", "true"),
        *(
            "args.note == 'a' || args.note == 'b'",
            'args.note in ["a", "b"] && args.note == "b"',
            "now > timestamp('2026-01-01T00:00:00Z')",
        ),
        *(
            'turn.calls.exists(c, c.tool == "x" && c.age < 5.0)',
            "size(turn.calls) > args.amount",
            'args.urgent ? true : args.note == "x"',
        ),
        *("args.amount * 2 > 500", "args.amount + args.price > 1.5", "-args.amount < 0", 'args.note + "x" == "yx"'),
    ],
)
def test_condition_that_may_hold_is_silent(source: str) -> None:
    assert mistakes(source) == []


def test_requirement_that_is_always_or_never_met_is_reported() -> None:
    assert [each.message for each in mistakes("true", is_requirement=True)] == [
        "the condition is always true: the rule requires nothing"
    ]
    assert [each.message for each in mistakes("1 > 2", is_requirement=True)] == [
        "the condition is never true: every call is refused"
    ]


def test_tools_of_a_rule_count_together() -> None:
    other: Json = {"type": "object", "properties": {"sum": {"type": "string", "enum": ["5"]}}}
    opened: Json = {**other, "additionalProperties": True}

    assert mistakes("args.amount > 5", REFUND, other) == [], "one of them takes it"
    assert mistakes("args.amuont > 5", REFUND, None) == [], "one that nobody knows may take it"
    assert [each.code for each in mistakes("args.amuont > 5", REFUND, other)] == ["unknown-argument"]
    assert [each.code for each in mistakes('args.amount == "5"', REFUND, other)] == ["argument-type"]
    assert [each.code for each in mistakes("args.address.cty == ''", REFUND, other)] == ["unknown-argument"]
    assert mistakes("args.total > 5", opened) == [], "it takes what it does not list"
    assert [each.code for each in mistakes("args.sums == '5'", opened)] == ["unknown-argument"], "a slip of the pen"
    assert mistakes("args.sums == '5'", {"type": "object", "additionalProperties": True}) == []
    assert (
        mistakes("args.ab == 5", {"type": "object", "patternProperties": {"^a": {}}, "properties": {"abc": {}}}) == []
    )


def test_condition_of_a_rule_without_tools_is_not_judged() -> None:
    assert find_mistakes("args.amuont > 500", []) == []


def test_thousands_of_misspelt_arguments_are_all_reported_and_right_ones_are_not() -> None:
    choose = random.Random(12)
    for _ in range(1_500):
        names = {
            "".join(choose.choices(string.ascii_lowercase + "_", k=choose.randint(3, 12))).strip("_") or "xyz"
            for _ in range(4)
        }
        name = choose.choice(sorted(names))
        slip = _misspell(choose, name)
        if slip in names or not slip.isidentifier() or slip in ("in", "true", "false", "null"):
            continue
        schema = {"type": "object", "properties": {each: {"type": "integer"} for each in sorted(names)}}
        deep = choose.random() < 0.3
        root = {"type": "object", "properties": {"outer": schema}} if deep else schema
        closed = Schema(root).describe()
        tools = [{"args": SchemaView(closed, closed)}]
        path = f"args.outer.{slip}" if deep else f"args.{slip}"
        template = choose.choice(
            ("{} > 500", "has({})", "true && !({} == 5)", "size([1]) < {}", "[1,2].exists(x, x == {})")
        )

        found = find_mistakes(template.format(path), tools)

        assert [each.code for each in found] == ["unknown-argument"], (template, path, names)
        assert template.format(path)[found[0].start :].startswith(slip)
        assert find_mistakes(template.format(path.replace(slip, name)), tools) == []


def _misspell(choose: random.Random, name: str) -> str:
    at = choose.randrange(len(name))
    return choose.choice(
        (
            name[:at] + name[at + 1 :],
            name[:at] + name[at : at + 1] + name[at:],
            name[:at] + name[at : at + 1].upper() + name[at + 1 :],
            name[:at] + "q" + name[at + 1 :],
            f"{name}s",
            name.replace("_", "") if "_" in name else f"{name}_",
            name[::-1],
        )
    )


VALUES: dict[str, list[Any]] = {
    "string": ["", "a", "b", "5"],
    "integer": [0, 5, -3],
    "number": [0.5, 5, -1.5],
    "boolean": [True, False],
    "null": [None],
    "array": [[], ["a"], [5]],
    "object": [{}, {"a": 1}],
}
LITERALS = ['"a"', '"5"', "5", "0.5", "true", "null", "-3"]


def test_no_condition_that_holds_for_valid_arguments_is_called_impossible() -> None:
    """Generated schemas, values that they accept and expressions that are true of them: nothing may be reported."""
    choose = random.Random(7)
    met = reported = 0
    for _ in range(3_000):
        types = choose.sample(sorted(VALUES), choose.choice((1, 1, 2)))
        field: Json = {"type": types if len(types) > 1 else types[0]}
        if choose.random() < 0.3:
            field = {"enum": [choose.choice(VALUES[choose.choice(types)]) for _ in range(2)]}
        elif choose.random() < 0.2:
            field = {choose.choice(("anyOf", "oneOf")): [{"type": each} for each in types]}
        elif choose.random() < 0.2:
            field |= {
                choose.choice(("minimum", "exclusiveMinimum")): -1,
                choose.choice(("maximum", "exclusiveMaximum")): 5,
            }
        document = Schema({"type": "object", "properties": {"x": field, "y": {}}})
        closed = document.describe()
        args = {"x": choose.choice([each for kind in types for each in VALUES[kind]]), "y": 1}
        if not document.is_valid(args):
            continue
        source = _comparison(choose)
        if choose.random() < 0.3:
            source = f"{source} {choose.choice(('&&', '||'))} {_comparison(choose)}"
        found = find_mistakes(source, [{"args": SchemaView(closed, closed)}])
        reported += bool(found)
        try:
            holds = CEL.compile(source).execute({"args": args})
        except Exception:  # a failed evaluation proves nothing about the condition
            continue
        if holds is True and not any(sign in source for sign in ("!=", "||", "!")):
            met += 1
            assert found == [], (source, field, args)
    assert met > 80
    assert reported > 400


def _comparison(choose: random.Random) -> str:
    literal = choose.choice(LITERALS)
    operator = choose.choice(("==", "==", "!=", "<", ">", "<=", ">=", "in"))
    if operator == "in":
        return choose.choice((f"args.x in [{literal}]", f"{literal} in args.x"))
    return choose.choice((f"args.x {operator} {literal}", f"{literal} {operator} args.x"))


def test_constant_answers_are_those_of_the_interpreter() -> None:
    choose = random.Random(3)
    known = 0
    for _ in range(1_200):
        source = _constant(choose, 3)
        tree = parse_expression(source)
        assert tree is not None, source
        answer = constant_value(tree)
        if answer is not None:
            known += 1
            assert CEL.compile(source).execute({}) is answer, source
    assert known > 600


def _constant(choose: random.Random, depth: int) -> str:
    if depth == 0:
        kind = choose.choice((["1", "2", "2.0", "-1"], ['"a"', "'b'", 'r"a"'], ["true", "false"]))
        if kind[0] == "true":
            return choose.choice(kind)
        return f"({choose.choice(kind)} {choose.choice(('==', '!=', '<', '>', '<=', '>='))} {choose.choice(kind)})"
    match choose.randrange(4):
        case 0:
            return f"!({_constant(choose, depth - 1)})"
        case 1:
            return _constant(choose, 0)
        case _:
            joint = choose.choice((" && ", " || "))
            return f"({joint.join(_constant(choose, depth - 1) for _ in range(choose.randint(2, 3)))})"


@pytest.mark.parametrize(
    "source",
    [
        *(
            "(" * 500 + "a" + ")" * 500,
            "!" * 2_000 + "a",
            "a" + ".a" * 2_000,
            "a" + "-1" * 1_000,
            "-" * 300 + "1",
            "[" * 900,
        ),
        *(
            "",
            " ",
            "a b",
            "a.",
            "a[",
            "a ? b",
            "{a",
            "`x`",
            "a.b(",
            '"',
            "1 ..",
            "a..b",
            "\ud800",
            "a.1",
            '"\\U99999999"',
        ),
    ],
)
def test_text_that_is_no_expression_or_too_deep_has_no_tree(source: str) -> None:
    assert parse_expression(source) is None
    assert find_mistakes(source, [{}]) == []


def test_long_chains_of_and_stay_flat() -> None:
    source = " && ".join(["args.amount > 5"] * 200)

    assert mistakes(source) == []


def test_any_text_is_parsed_or_not_and_never_fails() -> None:
    choose = random.Random(5)
    alphabet = [
        '"',
        "'",
        "\\",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "args",
        ".",
        "a",
        "1",
        " ",
        "&&",
        "||",
        "!",
        "in",
        "?",
        ":",
        ",",
        "-",
        "==",
    ]
    for _ in range(5_000):
        source = "".join(choose.choices(alphabet, k=choose.randint(1, 12)))
        tree = parse_expression(source)
        if tree is not None:
            constant_value(tree)
            find_mistakes(source, [{"args": SchemaView(REFUND, REFUND)}])


def test_alternatives_inside_one_another_are_followed() -> None:
    nested: Json = {"type": "string"}
    for _ in range(80):
        nested = {"anyOf": [nested, {"type": "string"}]}

    (found,) = mistakes("args.x == 5", {"type": "object", "properties": {"x": nested}})

    assert found.code == "argument-type"


def test_schema_that_refers_in_circles_or_elsewhere_is_unknown() -> None:
    for reference in ("#/$defs/a", "#anchor", "https://example.com/x", "#/nowhere", "#/properties/y/0"):
        root: Json = {
            "type": "object",
            "properties": {"x": {"$ref": reference}, "y": [1]},
            "$defs": {"a": {"$ref": "#/$defs/a"}},
        }
        view = SchemaView(root, root)
        assert find_mistakes("args.x.y == 1 && args.x == 'a'", [{"args": view}]) == []

"""Expressions, schemas and stages inside documents: what is wrong is pointed at."""

import pytest

from gateway.config.programs import check_programs
from gateway.config.source import read_text


def check(text: str) -> list[tuple[str, str, str, str | None]]:
    documents, problems = read_text(text, "a.yaml")
    assert problems == []
    return [(str(found.position), found.code, found.message, found.help) for found in check_programs(documents)]


@pytest.mark.parametrize(
    ("when", "column", "message", "help"),
    [
        ("arg.amount > 5", 15, "there is no variable 'arg'", "did you mean 'args'?"),
        ("'args.amount > zebra'", 30, "there is no variable 'zebra'", "known variables: args, caller, tool, turn, now"),
        ("args.amount >", 28, "unexpected the end of the expression", None),
        ('"turn.sawn(\\"x\\")"', 15, "there is no function 'sawn'", "did you mean 'saw'?"),
    ],
    ids=["plain", "quoted", "syntax", "escaped: the whole scalar"],
)
def test_wrong_token_of_an_expression_is_pointed_at(when: str, column: int, message: str, help: str | None) -> None:
    assert check(f"kind: GateRule\nspec: {{when: {when}}}".replace("spec: {when:", "spec: { when:")) == [
        (f"a.yaml:2:{column}", "bad-condition", message, help)
    ]


def test_expression_over_several_lines_is_pointed_at_as_a_whole() -> None:
    text = "kind: GateRule\nspec:\n  check:\n    require: |\n      args.a > 1 &&\n      zebra\n"

    assert [(position, code) for position, code, *_ in check(text)] == [("a.yaml:4:14", "bad-condition")]


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("kind: Tool\nspec: {input: {schema: {type: objekt}}}", "a.yaml:2:16"),
        ("kind: Tool\nspec: {output: {schema: {minimum: x}}}", "a.yaml:2:17"),
        ("kind: GateRule\nspec: {check: {resolution: {required: 7}}}", "a.yaml:2:16"),
    ],
)
def test_schema_that_is_none_is_pointed_at(text: str, position: str) -> None:
    [(found, code, message, _)] = check(text)

    assert (found, code) == (position, "bad-schema")
    assert message


def test_stages_are_checked_in_their_phase() -> None:
    text = "kind: Pipeline\nspec:\n  call: [{use: retry}, {use: timeout}]\n  turnOutput: [{use: gates}]"

    assert [(position, code) for position, code, *_ in check(text)] == [
        ("a.yaml:3:30", "stage-order"),
        ("a.yaml:4:22", "stage-phase"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "kind: GateRule\nspec: {when: 'args.amount > 500', check: {require: 'true', resolution: {type: object}}}",
        "kind: Tool\nspec: {input: {schema: {type: object}}}",
        "kind: Pipeline\nspec: {call: [{use: gates}, {use: timeout}]}",
        "kind: GateRule\nspec: {when: 7, check: [a]}",
        "kind: GateRule\nspec: {when: ''}",
        "kind: Tool\nspec: {input: {schema: 7}}",
        "kind: Pipeline\nspec: {call: [gates, {use: 7}]}",
        "kind: Pipeline\nspec: {call: 7}",
        "kind: 7",
        "a: b",
    ],
)
def test_right_ones_and_wrong_shapes_are_passed_over(text: str) -> None:
    assert check(text) == []

"""Expressions, schemas, paths and stages inside documents: every fault is reported at its position."""

from collections.abc import Mapping

import pytest

from gateway.config.document_checks import check_embedded_code
from gateway.config.environment_variables import substitute_environment
from gateway.config.yaml.parser import parse_text

NO_ENVIRONMENT: Mapping[str, str] = {}


def check(text: str, environ: Mapping[str, str] = NO_ENVIRONMENT) -> list[tuple[str, str, str, str | None]]:
    documents, problems = parse_text(text, "a.yaml")
    assert problems == []
    documents = [substitute_environment(document, environ)[0] for document in documents]
    return [
        (str(found.position), found.code, found.message, found.help) for found in check_embedded_code(documents, {})
    ]


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


def test_expression_from_the_environment_is_compiled_and_never_shown() -> None:
    text = 'kind: GateRule\nspec: {when: "args.amount > ${LIMIT}"}'

    assert check(text, {"LIMIT": "500"}) == []
    [(position, code, message, help)] = check(text, {"LIMIT": "hunter2"})
    assert (position, code) == ("a.yaml:2:14", "bad-condition")
    assert "hunter2" not in f"{message}{help}"


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("kind: Tool\nspec: {input: {schema: {type: objekt}}}", "a.yaml:2:31"),
        ("kind: Tool\nspec: {output: {schema: {minimum: x}}}", "a.yaml:2:35"),
        ("kind: GateRule\nspec: {check: {resolution: {required: 7}}}", "a.yaml:2:39"),
    ],
)
def test_schema_that_is_none_is_pointed_at(text: str, position: str) -> None:
    [(found, code, message, _)] = check(text)

    assert (found, code) == (position, "bad-schema")
    assert message


def test_schema_with_a_value_from_the_environment_is_not_quoted() -> None:
    text = 'kind: Tool\nspec: {input: {schema: {type: "${KIND}"}}}'

    [(position, code, message, help)] = check(text, {"KIND": "hunter2"})

    assert (position, code) == ("a.yaml:2:31", "bad-schema")
    assert "hunter2" not in f"{message}{help}"


def test_stages_are_checked_in_their_phase() -> None:
    text = (
        "kind: Pipeline\nspec:\n  call: [{use: retry}, {use: timeout, with: {after: 5s}}]\n  turnOutput: [{use: gates}]"
    )

    assert [(position, code) for position, code, *_ in check(text)] == [
        ("a.yaml:3:30", "stage-order"),
        ("a.yaml:4:22", "stage-phase"),
    ]


NOT_SHOWN = "the value is not valid here; it comes from the environment, so it is not shown"
UNIT = "write a number and a unit: 10s, 5m, 2h, 1d"
NEEDS_AFTER = (
    "missing-field",
    "spec.call[0].with needs 'after'",
    "Maximum duration of everything that the stage wraps.",
)
KEYS = "subject, tenant, catalogue, arguments"


@pytest.mark.parametrize(
    ("stage", "column", "problem"),
    [
        (
            "retry, with: {attempt: 3}",
            30,
            ("unknown-field", "'attempt' is not a field of spec.call[0].with", "did you mean 'attempts'?"),
        ),
        (
            "gates, with: {x: 1}",
            30,
            ("unknown-field", "'x' is not a field of spec.call[0].with", "this mapping has no fields"),
        ),
        ("timeout", 10, NEEDS_AFTER),
        ("timeout, with: {}", 25, NEEDS_AFTER),
        ("timeout, with: {after: 5}", 39, ("wrong-type", "expected a duration, got a number", UNIT)),
        ("timeout, with: {after: 5 s}", 39, ("bad-duration", UNIT, None)),
        (
            "cache, with: {for: 5m, by: [tenant, subjct]}",
            52,
            ("wrong-value", f"'subjct' is not one of: {KEYS}", "did you mean 'subject'?"),
        ),
        ("cache, with: {for: 5m, by: []}", 43, ("wrong-value", "needs at least 1 entry", None)),
        ("retry, with: {attempts: 11}", 40, ("wrong-value", "must be at most 10", None)),
        ("retry, with: {attempts: true}", 40, ("wrong-type", "expected a whole number, got true or false", None)),
        ("concurrency, with: {limit: 0}", 43, ("wrong-value", "must be at least 1", None)),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_options_are_checked_by_the_model_of_their_stage(
    stage: str, column: int, problem: tuple[str, str, str | None]
) -> None:
    assert check(f"kind: Pipeline\nspec:\n  call: [{{use: {stage}}}]") == [(f"a.yaml:3:{column}", *problem)]


def test_options_of_every_phase_are_checked() -> None:
    text = """\
kind: Pipeline
spec:
  turnInput: [{use: select-tools, with: {a: 1}}]
  dispatchInput: [{use: loop-guard, with: {a: 1}}]
  call: [7, {use: cache, with: {for: 1m, a: 1}}, {use: timeout, with: {after: 1s, a: 1}}]
  dispatchOutput: [{use: redact, with: {a: 1}}]
  turnOutput: [{use: audit-summary, with: {a: 1}}]
"""

    assert [(position, code) for position, code, *_ in check(text)] == [
        (f"a.yaml:{place}", "unknown-field") for place in ("3:42", "4:44", "5:42", "5:83", "6:41", "7:44")
    ]


def test_option_from_the_environment_is_read_but_never_shown() -> None:
    text = "kind: Pipeline\nspec:\n  call:\n  - {use: cache, with: {for: '${KEEP:-5m}', by: ['${BY}']}}"

    assert check(text, {"BY": "tenant"}) == []
    assert check(text, {"BY": "hunter2", "KEEP": "hunter3"}) == [
        ("a.yaml:4:30", "bad-duration", UNIT, None),
        ("a.yaml:4:50", "wrong-value", NOT_SHOWN, None),
    ]


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("kind: Tool\nspec: {backend: {pick: '$.ticket['}}", "a.yaml:2:24"),
        ("kind: ArtifactClass\nspec: {redact: [$.card, $..iban, '$[?(@.a ==)]']}", "a.yaml:2:34"),
        ("kind: ArtifactClass\nspec: {redact: ['$" + ".a" * 2000 + "']}", "a.yaml:2:17"),
    ],
    ids=["pick", "redact", "long"],
)
def test_path_that_is_none_is_pointed_at(text: str, position: str) -> None:
    [(found, code, message, _)] = check(text)

    assert (found, code) == (position, "bad-path")
    assert message.startswith("the path ")
    assert "\n" not in message


def test_path_from_the_environment_is_never_shown() -> None:
    [(_, code, message, help)] = check("kind: Tool\nspec: {backend: {pick: '$[${KEY}'}}", {"KEY": "?hunter2("})

    assert (code, message) == (
        "bad-path",
        "the path is not a valid JSONPath; it comes from the environment, so it is not shown",
    )
    assert "hunter2" not in str(help)


@pytest.mark.parametrize(
    "text",
    [
        "kind: GateRule\nspec: {when: 'args.amount > 500', check: {require: 'true', resolution: {type: object}}}",
        "kind: Tool\nspec: {input: {schema: {type: object}}}",
        "kind: Pipeline\nspec: {call: [{use: gates}, {use: timeout, with: {after: 5s}}]}",
        "kind: GateRule\nspec: {when: 7, check: [a]}",
        "kind: GateRule\nspec: {when: ''}",
        "kind: Tool\nspec: {input: {schema: 7}}",
        "kind: Pipeline\nspec: {call: [gates, {use: 7}]}",
        "kind: Pipeline\nspec: {call: 7}",
        "kind: Pipeline\nspec: {call: {use: timeout}}",
        "kind: Pipeline\nspec: {call: [{use: timeout, with: 7}, {with: {a: 1}}]}",
        "kind: Pipeline\nspec: {call: [{use: timeout, with: null}]}",
        "kind: Pipeline\nspec: {call: [{use: retry, with: {unlessFlags: [writes]}}], turnInput: [{use: select-tools}]}",
        "kind: Tool\nspec: {backend: {pick: '$.items[*].name'}}",
        "kind: Tool\nspec: {backend: {pick: 7}}",
        "kind: ArtifactClass\nspec: {redact: [$.a, 7, a, {b: c}]}",
        "kind: ArtifactClass\nspec: {redact: $.a}",
        "kind: 7",
        "a: b",
    ],
)
def test_right_ones_and_wrong_shapes_are_passed_over(text: str) -> None:
    assert check(text) == []

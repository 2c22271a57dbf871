"""Environment variables in values: substitutions, refusals, and their positions."""

import pytest

from gateway.config.environment_variables import EnvUse, substitute_environment
from gateway.config.yaml.document import MAX_BYTES, YamlDocument
from gateway.config.yaml.parser import parse_text
from gateway.registries.diagnostics import Diagnostic, Position

ENVIRON = {"HOST": "example.com", "EMPTY": "", "LOOP": "${HOST} $$ ${LOOP}", "PORT": "80", "BROKEN": "\udcff"}


def document(text: str) -> YamlDocument:
    (read,), problems = parse_text(text, "a.yaml")
    assert problems == []
    return read


def substitute(value: str) -> object:
    after, problems, _ = substitute_environment(document(f"a: {value}\n"), ENVIRON)
    assert problems == []
    return after.data["a"]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${HOST}", "example.com"),
        ("https://${HOST}:${PORT}/x", "https://example.com:80/x"),
        ("${PORT}", "80"),
        ("${EMPTY}", ""),
        ("'a${EMPTY}b'", "ab"),
        ("${HOST:-other}", "example.com"),
        ("${UNSET:-other}", "other"),
        ("${EMPTY:-other}", "other"),
        ("'${UNSET:-}'", ""),
        ("${UNSET:-http://localhost:4318}", "http://localhost:4318"),
        ("${UNSET:-costs $$5}", "costs $5"),
        ("${HOST:?say where}", "example.com"),
        ("$$", "$"),
        ("$${HOST}", "${HOST}"),
        ("$$${HOST}", "$example.com"),
        ("^[a-z]+$", "^[a-z]+$"),
        ("$.items[*].name", "$.items[*].name"),
        ("$HOST", "$HOST"),
        ("${LOOP}", "${HOST} $$ ${LOOP}"),
        ("|\n  one ${HOST}\n  two ${PORT}", "one example.com\ntwo 80\n"),
        ("plain", "plain"),
        ("5", 5),
        ("null", None),
    ],
)
def test_value_is_filled_in(written: str, value: object) -> None:
    assert substitute(written) == value


NOT_SET = "environment variable DATA is not set"
GIVE = "set DATA, or give a default: ${DATA:-…}"
FORMS = "write ${NAME}, ${NAME:-default} or ${NAME:?what to do}, and $$ for a dollar"
NESTED = "nested variables are not supported"


@pytest.mark.parametrize(
    ("written", "code", "message", "help", "column", "width"),
    [
        ("x-${DATA}", "env-missing", NOT_SET, GIVE, 6, 7),
        ("'x ${DATA:?set DATA to a folder}'", "env-missing", NOT_SET, "set DATA to a folder", 7, 29),
        ("${EMPTY:?fill it}", "env-missing", "environment variable EMPTY is empty", "fill it", 4, 17),
        ("${DATA:?}", "env-missing", NOT_SET, GIVE, 4, 9),
        ('"\\t${DATA}"', "env-missing", NOT_SET, GIVE, 4, 11),
        ("|\n  x ${DATA}", "env-missing", NOT_SET, GIVE, 4, 1),
        ("x\n  ${DATA}", "env-missing", NOT_SET, GIVE, 4, 1),
        ("${BROKEN}", "env-encoding", "environment variable BROKEN is not UTF-8", "set BROKEN to UTF-8 text", 4, 9),
        ("a ${HOST", "env-syntax", "'${' is not closed", "close it with '}', or write $${ for the text itself", 6, 6),
        ("'${}'", "env-syntax", "'${}' does not name an environment variable", FORMS, 5, 3),
        ("${1X}", "env-syntax", "'${1X}' does not name an environment variable", FORMS, 4, 5),
        ("${HOST-x}", "env-syntax", "'${HOST-x}' does not name an environment variable", FORMS, 4, 9),
        ("'${ HOST }'", "env-syntax", "'${ HOST }' does not name an environment variable", FORMS, 5, 9),
        ("|\n  ${A\n  B}", "env-syntax", "'${A\\nB}' does not name an environment variable", FORMS, 4, 1),
        ("${A:-${HOST}}", "env-syntax", NESTED, "set one variable to the whole value", 4, 12),
    ],
)
def test_problem_points_at_the_reference(
    written: str, code: str, message: str, help: str, column: int, width: int
) -> None:
    before = document(f"a: {written}\n")

    after, problems, _ = substitute_environment(before, ENVIRON)

    assert problems == [Diagnostic(code, message, Position("a.yaml", 1, column, width), help=help)]
    assert after is before


def test_every_problem_of_a_value_is_reported() -> None:
    _, problems, _ = substitute_environment(document("a: ${ONE}${TWO}\nb: [{c: '${3}'}]\n"), {})

    assert [(each.code, each.position.line, each.position.column) for each in problems] == [
        ("env-missing", 1, 4),
        ("env-missing", 1, 10),
        ("env-syntax", 2, 10),
    ]


def test_long_reference_is_cut_in_the_message() -> None:
    _, (problem,), _ = substitute_environment(document(f"a: ${{{'-' * 500}}}\n"), {})

    assert len(problem.message) < 120


def test_keys_are_never_touched() -> None:
    before = document("'${HOST}': {'$$': 1}\n")

    assert substitute_environment(before, ENVIRON) == (before, [], [])


def test_what_came_from_the_environment_is_remembered() -> None:
    before = document("a: [x, 'y ${HOST}', '${UNSET:-z}', '${EMPTY:-z}', $$]\nb: {c: '${PORT}'}\nd: same\n")

    after, problems, _ = substitute_environment(before, ENVIRON)

    assert problems == []
    assert after.data == {"a": ["x", "y example.com", "z", "z", "$"], "b": {"c": "80"}, "d": "same"}
    assert after.substituted == {("a", 1), ("b", "c")}
    assert after.written == {
        ("a", 1): "y ${HOST}",
        ("a", 2): "${UNSET:-z}",
        ("a", 3): "${EMPTY:-z}",
        ("a", 4): "$$",
        ("b", "c"): "${PORT}",
    }
    assert after.positions is before.positions
    assert before.data["b"] == {"c": "${PORT}"}


@pytest.mark.parametrize("value", ["^[a-z]+$", "$.items", "'${NONE} ${HOST}'", "'${'"])
def test_value_that_stays_as_it_is_has_no_second_form(value: str) -> None:
    before = document(f"a: {value}\n")

    assert substitute_environment(before, ENVIRON)[0] is before


def test_uses_are_listed_for_people() -> None:
    _, _, uses = substitute_environment(document("a: ${HOST}/${DIR:-/tmp}\nb: ${KEY:?get one}\nc: $${NOT}\n"), ENVIRON)

    assert uses == [
        EnvUse("HOST", Position("a.yaml", 1, 4, 7), is_set=True),
        EnvUse("DIR", Position("a.yaml", 1, 12, 12), is_set=False, default="/tmp"),
        EnvUse("KEY", Position("a.yaml", 2, 4, 15), is_set=False),
    ]


def test_aliased_value_is_filled_wherever_it_is_used() -> None:
    before = document("a: &x {u: '${HOST}'}\nb: *x\nc: &y '${NONE}'\n")

    after, problems, _ = substitute_environment(before, ENVIRON)

    assert after.data["b"] == {"u": "example.com"}
    assert after.substituted == {("a", "u"), ("b", "u")}
    assert after.written == {("a", "u"): "${HOST}", ("b", "u"): "${HOST}"}
    assert problems[0].position == Position("a.yaml", 3, 4, 12)


def test_many_dollars_take_one_pass() -> None:
    assert substitute("'" + "$" * 200_000 + "'") == "$" * 100_000
    assert substitute("'" + "$${" * 100_000 + "'") == "${" * 100_000


def test_small_file_cannot_grow_without_limit() -> None:
    before = document("a: ['${BIG}', '${BIG}']\nb: ${BIG}\n")

    after, (problem,), _ = substitute_environment(before, {"BIG": "x" * (MAX_BYTES // 2)})

    assert (problem.code, problem.position) == ("env-limit", Position("a.yaml", 2, 4, 6))
    assert len(after.data["a"][1]) == MAX_BYTES // 2
    assert after.data["b"] == "${BIG}"


def test_problems_are_reported_up_to_a_hundred_variables() -> None:
    before = document("a: '" + "${NONE}" * 5_000 + "'\nb: ${HOST}\n")

    after, problems, _ = substitute_environment(before, ENVIRON)

    assert after is before
    assert [each.code for each in problems] == ["env-missing"] * 100 + ["too-many-problems"]

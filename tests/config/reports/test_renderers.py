"""Reports: the text for people, compared with files, and the formats for programs."""

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.environment_variables import substitute_environment
from gateway.config.reports.renderers import ReportFormat, render_report, render_summary
from gateway.config.yaml.parser import parse_bytes
from gateway.registries.diagnostics import Diagnostic, Position
from tests.support.paths import ROOT

GOLDEN = ROOT / "tests" / "golden" / "sources"
SECRET = "s3cr3t-value"

ERROR = Diagnostic(
    "unknown-field",
    "'max_output' is not a field of spec.limits",
    Position("configs/a.yaml", 9, 33, 10),
    help="did you mean 'maxOutput'?",
)
WARNING = Diagnostic(
    "name-style",
    "100% of: odd,\nnames",
    Position("configs/ü, b:%.yaml", 2, 1, 3),
    severity="warning",
    related=(("like this", Position("configs/a.yaml", 1)),),
)


def no_sources(file: str) -> None:
    return None


def text_of(diagnostic: Diagnostic, line: str) -> str:
    return render_report([diagnostic], sources=lambda file: "\n" * (diagnostic.position.line - 1) + line)


def at(column: int, width: int = 1) -> Diagnostic:
    return Diagnostic("code", "message", Position("a.yaml", 1, column, width))


@pytest.mark.parametrize("source", sorted(GOLDEN.glob("*.yaml")), ids=lambda path: path.stem)
def test_broken_source_gives_the_kept_text(source: Path) -> None:
    documents, problems = parse_bytes(source.read_bytes(), source.name)
    for document in documents:
        problems += substitute_environment(document, {"TOKEN": SECRET})[1]

    shown = render_report(problems, sources=lambda file: (GOLDEN / file).read_text(encoding="utf-8", errors="replace"))

    kept = source.with_suffix(".txt")
    if os.environ.get("GATEWAY_UPDATE_GOLDEN"):
        kept.write_text(shown, encoding="utf-8")
    assert shown == kept.read_text(encoding="utf-8")
    assert SECRET not in shown


def test_text_has_message_line_caret_and_help() -> None:
    line = "  limits: {timeout: 10 seconds,  max_output: 1MiB}"

    assert text_of(ERROR, line) == (
        "configs/a.yaml:9:33: unknown-field: 'max_output' is not a field of spec.limits\n"
        "  |\n"
        f"9 | {line}\n"
        f"  | {' ' * 32}^^^^^^^^^^\n"
        "  = did you mean 'maxOutput'?\n"
        "\n"
        "1 error\n"
    )


def test_without_source_only_the_words_remain() -> None:
    assert render_report([WARNING, ERROR], sources=no_sources) == (
        "configs/a.yaml:9:33: unknown-field: 'max_output' is not a field of spec.limits\n"
        "  = did you mean 'maxOutput'?\n"
        "\n"
        "configs/ü, b:%.yaml:2:1: warning: name-style: 100% of: odd,␊names\n"
        "  = like this: configs/a.yaml:1:1\n"
        "\n"
        "1 error, 1 warning\n"
    )


def test_gutter_is_as_wide_as_the_line_number() -> None:
    found = Diagnostic("code", "message", Position("a.yaml", 100, 2, 2), help="help")

    assert text_of(found, "abcd").splitlines()[1:5] == ["    |", "100 | abcd", "    |  ^^", "    = help"]


@pytest.mark.parametrize(
    ("line", "column", "width", "shown", "caret"),
    [
        ("\ta: b", 2, 1, "    a: b", "    ^"),
        ("a:\tb", 3, 1, "a:    b", "  ^^^^"),
        ("漢字: x", 5, 1, "漢字: x", "      ^"),
        ("漢字: x", 1, 2, "漢字: x", "^^^^"),
        ("e\u0301: x", 5, 1, "e\u0301: x", "   ^"),
        ("a: \x1b[31m", 4, 1, "a: ␛[31m", "   ^"),
        ("a:\x00\x7f", 4, 1, "a:␀<U+007F>", "   ^^^^^^^^"),
        ("a: \u202eb", 5, 1, "a: <U+202E>b", "           ^"),
        ("a:\xa0b", 4, 1, "a:<U+00A0>b", "          ^"),
        ("a:", 3, 1, "a:", "  ^"),
        ("a:", 9, 4, "a:", "  ^"),
        ("a: b   ", 4, 1, "a: b", "   ^"),
        ("abc", 2, 99, "abc", " ^^"),
    ],
)
def test_caret_stands_under_the_token(line: str, column: int, width: int, shown: str, caret: str) -> None:
    assert text_of(at(column, width), line).splitlines()[2:4] == [f"1 | {shown}", f"  | {caret}"]


@pytest.mark.parametrize("column", [1, 30, 61, 62, 500, 940, 941, 1_000])
def test_long_line_is_cut_around_the_caret(column: int) -> None:
    line = "".join(chr(ord("a") + index % 26) for index in range(1_000))

    shown, caret = text_of(at(column, 3), line).splitlines()[2:4]

    assert len(shown) <= 4 + 122
    assert shown[caret.index("^") : caret.index("^") + caret.count("^")] == line[column - 1 : column + 2]
    assert shown.startswith("1 | …") == (column > 61)
    assert shown.endswith("…") == (column <= 940)


def test_caret_does_not_run_out_of_a_cut_line() -> None:
    shown, caret = text_of(at(1, 5_000), "x" * 10_000).splitlines()[2:4]

    assert caret == "  | " + "^" * 120
    assert shown == "1 | " + "x" * 120 + "…"


@pytest.mark.parametrize("line", ["", "   "])
def test_empty_lines_are_not_shown(line: str) -> None:
    assert "|" not in text_of(at(1), line)


def test_line_past_the_end_is_not_shown() -> None:
    assert "|" not in render_report([Diagnostic("code", "message", Position("a.yaml", 9))], sources=lambda file: "a: 1")


def test_lines_are_counted_as_the_parser_does() -> None:
    source = "a: 1\r\nb: 2\rc: x\u2028\nd: 4\nd: 5\n"
    _, problems = parse_bytes(source.encode(), "a.yaml")

    assert "\n6 | d: 5\n" in render_report(problems, sources=lambda file: source)


def test_file_names_cannot_steer_a_terminal() -> None:
    shown = render_report(
        [Diagnostic("code", "message", Position("\x1b[2J\n.yaml", 1), help="\x07")], sources=no_sources
    )

    assert shown == "␛[2J␊.yaml:1:1: code: message\n  = ␇\n\n1 error\n"


def test_each_file_is_asked_for_once() -> None:
    asked: list[str] = []

    render_report([at(1), at(2), at(3)], sources=lambda file: asked.append(file))

    assert asked == ["a.yaml"]


@pytest.mark.parametrize(
    ("errors", "warnings", "words"),
    [(0, 0, "no problems"), (1, 0, "1 error"), (3, 1, "3 errors, 1 warning"), (0, 2, "2 warnings")],
)
def test_summary_counts_what_was_found(errors: int, warnings: int, words: str) -> None:
    assert render_summary([ERROR] * errors + [WARNING] * warnings) == words


def test_json_is_a_list_of_objects() -> None:
    first, second = json.loads(render_report([WARNING, ERROR], sources=no_sources, output="json"))

    assert first == {
        "file": "configs/a.yaml",
        "line": 9,
        "column": 33,
        "width": 10,
        "severity": "error",
        "code": "unknown-field",
        "message": "'max_output' is not a field of spec.limits",
        "help": "did you mean 'maxOutput'?",
        "related": [],
    }
    assert second["related"] == [{"message": "like this", "file": "configs/a.yaml", "line": 1, "column": 1, "width": 1}]


def test_github_commands_are_escaped() -> None:
    assert render_report([WARNING, ERROR], sources=no_sources, output="github") == (
        "::error file=configs/a.yaml,line=9,col=33,endColumn=43,title=unknown-field::"
        "'max_output' is not a field of spec.limits%0Adid you mean 'maxOutput'?\n"
        "::warning file=configs/ü%2C b%3A%25.yaml,line=2,col=1,endColumn=4,title=name-style::"
        "100%25 of: odd,␊names%0Alike this: configs/a.yaml:1:1\n"
    )


def test_github_file_name_cannot_start_a_command() -> None:
    shown = render_report(
        [Diagnostic("code", "x", Position("a\r\n::stop.yaml", 1))], sources=no_sources, output="github"
    )

    assert shown == "::error file=a%0D%0A%3A%3Astop.yaml,line=1,col=1,endColumn=2,title=code::x\n"


def test_sarif_names_rules_results_and_regions() -> None:
    log = json.loads(render_report([WARNING, ERROR], sources=no_sources, output="sarif"))

    (run,) = log["runs"]
    assert log["version"] == "2.1.0"
    assert run["tool"]["driver"] == {"name": "agent-gateway", "rules": [{"id": "name-style"}, {"id": "unknown-field"}]}
    assert run["columnKind"] == "unicodeCodePoints"
    assert run["results"][0] == {
        "ruleId": "unknown-field",
        "ruleIndex": 1,
        "level": "error",
        "message": {"text": "'max_output' is not a field of spec.limits\ndid you mean 'maxOutput'?"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": "configs/a.yaml"},
                    "region": {"startLine": 9, "startColumn": 33, "endColumn": 43},
                }
            }
        ],
    }
    assert run["results"][1]["level"] == "warning"
    assert run["results"][1]["relatedLocations"][0]["message"] == {"text": "like this"}
    place = run["results"][1]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "configs/%C3%BC%2C%20b%3A%25.yaml"}


def test_sarif_gives_absolute_paths_as_file_addresses() -> None:
    log = json.loads(
        render_report([Diagnostic("c", "m", Position("/etc/a b.yaml", 1))], sources=no_sources, output="sarif")
    )

    location = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"] == {"uri": "file:///etc/a%20b.yaml"}


def test_junit_has_a_case_for_each_file() -> None:
    other = Diagnostic("wrong-type", 'a "<b>" & c\x00', Position("configs/a.yaml", 12))

    shown = render_report([other, WARNING, ERROR], sources=no_sources, output="junit")

    suites = ElementTree.fromstring(shown)
    suite = suites[0]
    assert suites.attrib == suite.attrib
    assert suite.attrib == {"name": "gateway check", "tests": "2", "failures": "1", "errors": "0"}
    failing, passing = suite
    assert failing.attrib == {"classname": "gateway.check", "name": "configs/a.yaml"}
    assert failing[0].attrib == {"type": "unknown-field", "message": "2 errors"}
    assert (failing[0].text or "").splitlines() == [
        "configs/a.yaml:9:33: unknown-field: 'max_output' is not a field of spec.limits",
        "  = did you mean 'maxOutput'?",
        'configs/a.yaml:12:1: wrong-type: a "<b>" & c␀',
    ]
    assert [each.tag for each in passing] == ["system-out"]
    assert passing.attrib["name"] == "configs/ü, b:%.yaml"


@pytest.mark.parametrize(
    ("output", "empty"),
    [("text", "no problems\n"), ("json", "[]\n"), ("github", "")],
)
def test_no_problems_have_a_message_in_every_format(output: ReportFormat, empty: str) -> None:
    assert render_report([], sources=no_sources, output=output) == empty


@pytest.mark.parametrize("output", ["text", "json", "github", "sarif", "junit"])
def test_order_of_finding_does_not_show(output: ReportFormat) -> None:
    found = [ERROR, WARNING, at(3), at(1)]

    assert render_report(found, sources=no_sources, output=output) == render_report(
        [*reversed(found), ERROR], sources=no_sources, output=output
    )


@given(line=st.text(max_size=300), column=st.integers(1, 400), width=st.integers(1, 400))
def test_any_line_can_be_shown(line: str, column: int, width: int) -> None:
    shown = render_report([at(column, width)], sources=lambda file: line)

    assert all(character.isprintable() or character == "\n" for character in shown)
    assert shown.count("\n") <= 6


@given(words=st.text(), file=st.text(min_size=1))
def test_any_words_make_valid_xml_and_json(words: str, file: str) -> None:
    found = [Diagnostic("code", words, Position(file, 1), help=words, related=((words, Position(file, 2)),))]

    ElementTree.fromstring(render_report(found, sources=no_sources, output="junit"))
    json.loads(render_report(found, sources=no_sources, output="sarif"))
    json.loads(render_report(found, sources=no_sources, output="json"))
    assert render_report(found, sources=no_sources, output="github").count("\n") == 1

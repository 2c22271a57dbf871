"""`gateway test`: run the policy cases of a project, and print the results for people or for programs."""

import json
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from os.path import basename
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich.cells import cell_len
from rich.console import Console

from gateway.app import LoadedProject, ProjectFolders
from gateway.cli.options import DEFAULT_FOLDER, DayOption, EnvironmentOption, FolderArgument, PoliciesOption
from gateway.cli.output import fail, print_document, print_line, print_table, stdout
from gateway.cli.project_loader import find_project, load_with_environ, require_snapshot, require_valid
from gateway.config import escape_invisible
from gateway.registries import ExpectedReason, PolicyCase, Position
from gateway.review import CaseResult, Coverage, list_testable_actions, measure_coverage, run_cases

_WIDEST: Final = 72
"""Width to which names of cases are aligned; longer ones exceed it."""

_DECISION: Final = len("allow")
_MENTIONED: Final = 8
"""How many rules that decided nothing the summary names; `--coverage` lists all of them."""

_MARKS: Final = {True: ("✓", "green"), False: ("✗", "red")}
_PLAIN_MARKS: Final = {True: ("ok  ", "green"), False: ("FAIL", "red")}


def print_results(console: Console, results: Sequence[CaseResult]) -> None:
    """Print each file with its cases, each case with the deciding row or rule, or with the reason of its failure."""
    marks = _MARKS if _can_print(console, "✓✗") else _PLAIN_MARKS
    width = min(_WIDEST, max((cell_len(escape_invisible(result.case.name)) for result in results), default=0))
    for file, of_file in groupby(results, key=lambda result: result.case.position.file):
        print_line(console, (escape_invisible(file), "bold"))
        for result in of_file:
            name = escape_invisible(result.case.name)
            gap = " " * max(0, width - cell_len(name))
            print_line(console, "  ", marks[result.passed], f" {name}{gap}  ", _describe(result))
            for line in result.failure:
                print_line(console, f"      {escape_invisible(line)}")


def format_summary(results: Sequence[CaseResult], coverage: Coverage | None) -> str:
    """Return `4 passed, 1 failed; rules that decided nothing: policy.csv:2 :4, gate fair-use   (5 of 8 used)`."""
    failed = sum(not result.passed for result in results)
    counted = f"{len(results) - failed} passed" + (f", {failed} failed" if failed else "")
    if coverage is None:
        return counted
    used = len(coverage.used_rows) + len(coverage.used_rules)
    idle = len(coverage.idle_rows) + len(coverage.idle_rules)
    if not idle:
        return f"{counted}; every rule decided a case"
    rows = coverage.idle_rows[:_MENTIONED]
    rules = coverage.idle_rules[: _MENTIONED - len(rows)]
    named = ", ".join((*_by_file(rows), *(f"gate {name}" for name in rules)))
    more = idle - len(rows) - len(rules)
    rest = f" and {more} more" if more else ""
    return f"{counted}; rules that decided nothing: {named}{rest}   ({used} of {used + idle} used)"


def format_results_json(results: Sequence[CaseResult], coverage: Coverage | None) -> str:
    failed = sum(not result.passed for result in results)
    document = {
        "passed": len(results) - failed,
        "failed": failed,
        "cases": [_object(result) for result in results],
        "coverage": _coverage_object(coverage) if coverage else None,
    }
    return json.dumps(document, indent=2) + "\n"


def format_results_junit(results: Sequence[CaseResult]) -> str:
    """Return JUnit XML with a suite for each document. Other characters than ASCII are escaped."""
    suites = [(suite, list(found)) for suite, found in groupby(results, key=lambda result: result.case.suite)]
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites name="gateway test" {_junit_counts(results)}>',
        *(line for suite, found in suites for line in _suite(suite, found)),
        "</testsuites>",
        "",
    ]
    return "\n".join(lines).encode("ascii", "xmlcharrefreplace").decode()


def format_position(position: Position) -> str:
    return f"{position.file}:{position.line}"


def _describe(result: CaseResult) -> str:
    if not result.passed:
        return escape_invisible(f"expected {result.expected}, got {result.got}")
    decided = escape_invisible(format_position(result.position)) if result.position else ""
    return f"{result.got:{_DECISION}}  {decided}".rstrip()


def _can_print(console: Console, marks: str) -> bool:
    try:
        marks.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _by_file(rows: Iterable[Position]) -> Iterator[str]:
    for file, of_file in groupby(rows, key=lambda row: row.file):
        yield f"{basename(file)}{' '.join(f':{row.line}' for row in of_file)}"


def _object(result: CaseResult) -> dict[str, Any]:
    case = result.case
    return {
        "suite": case.suite,
        "name": case.name,
        "file": case.position.file,
        "line": case.position.line,
        "passed": result.passed,
        "expected": _expected_object(case),
        "got": _got_object(result),
        "decidedAt": format_position(result.position) if result.position else None,
        "failure": list(result.failure),
    }


def _expected_object(case: PolicyCase) -> dict[str, Any]:
    if not isinstance(case.expected, str):
        return {"tools": sorted(case.expected)}
    return {"decision": case.expected, "because": _because_object(case.because)}


def _got_object(result: CaseResult) -> dict[str, Any]:
    if result.answer is None:
        return {"tools": sorted(result.listed)}
    return {"decision": result.answer.decision, "because": _because_object(result.answer.because)}


def _because_object(because: ExpectedReason | None) -> dict[str, str] | None:
    return {because.kind: because.name} if because else None


def _coverage_object(coverage: Coverage) -> dict[str, Any]:
    return {
        "policyRows": {
            "used": [*map(format_position, coverage.used_rows)],
            "idle": [*map(format_position, coverage.idle_rows)],
        },
        "gateRules": {"used": list(coverage.used_rules), "idle": list(coverage.idle_rules)},
        "tools": {"called": list(coverage.called_tools), "uncalled": list(coverage.uncalled_tools)},
    }


def _suite(name: str, results: Sequence[CaseResult]) -> Iterator[str]:
    yield f'  <testsuite name="{_xml(name)}" {_junit_counts(results)}>'
    for result in results:
        case = result.case
        where = f'file="{_xml(case.position.file)}" line="{case.position.line}"'
        opening = f'    <testcase classname="{_xml(name)}" name="{_xml(case.name)}" {where}'
        if result.passed:
            yield f"{opening}/>"
        else:
            reason = "\n".join(map(_xml, result.failure))
            yield f'{opening}>\n      <failure message="{_xml(_describe(result))}">{reason}</failure>\n    </testcase>'
    yield "  </testsuite>"


def _junit_counts(results: Sequence[CaseResult]) -> str:
    return f'tests="{len(results)}" failures="{sum(not result.passed for result in results)}" errors="0"'


def _xml(words: str) -> str:
    return escape(escape_invisible(words), quote=True)


def run_tests(
    folder: FolderArgument = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    on: DayOption = None,
    filter: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only cases with this text in their name or in the name of their suite."),
    ] = None,
    output: Annotated[
        Literal["text", "json", "junit"], typer.Option(help="For people, or the format of a program.")
    ] = "text",
    coverage: Annotated[
        bool,
        typer.Option("--coverage", help="List the rules that decided no case, and the tools without a case."),
    ] = False,
    fail_on_empty: Annotated[bool, typer.Option("--fail-on-empty", help="No case at all counts as a failure.")] = False,
) -> None:
    """Run the policy tests of a project. Exit code 0: all cases hold, 1: some do not, or the project has errors."""
    project = _project(folder, policies)
    found = require_valid(load_with_environ(project, environment=environment, today=on), project)
    cases = _choose_cases(require_snapshot(found).cases, filter)
    results, covered = _run(found, cases, is_whole=filter is None)
    if output == "text":
        _print(found, results, covered, lists_coverage=coverage)
    else:
        print_document(
            format_results_json(results, covered) if output == "json" else format_results_junit(results),
            is_json=output == "json",
        )
    if any(not result.passed for result in results) or (fail_on_empty and not results):
        raise typer.Exit(1)


def _project(folder: Path, policies: Path | None) -> ProjectFolders:
    """Return the project. Its folder of policies may be given instead, if `configs` is beside it."""
    is_policies = policies is None and (folder / "model.conf").is_file() and not (folder / "configs").is_dir()
    if is_policies and (folder.parent / "configs").is_dir():
        return find_project(folder.parent, folder)
    return find_project(folder, policies)


def _choose_cases(cases: Sequence[PolicyCase], text: str | None) -> list[PolicyCase]:
    if text is None:
        return list(cases)
    wanted = text.casefold()
    chosen = [case for case in cases if wanted in case.name.casefold() or wanted in case.suite.casefold()]
    if not chosen:
        fail(f"no case, and no suite, has {text!r} in its name")
    return chosen


def _run(found: LoadedProject, cases: list[PolicyCase], *, is_whole: bool) -> tuple[list[CaseResult], Coverage | None]:
    """Return the results, and the coverage if all cases ran: for a selection it would be misleading."""
    assert found.access is not None, "a valid project has one"  # noqa: S101 - `require_valid` checked it
    results = run_cases(found.access, cases)
    testable = list_testable_actions(found.access)
    rows = [row.position for row in found.policies.permissions if not testable.isdisjoint(row.actions.text.split("|"))]
    return results, measure_coverage(found.access, results, rows=rows) if is_whole else None


def _print(found: LoadedProject, results: list[CaseResult], coverage: Coverage | None, *, lists_coverage: bool) -> None:
    console = stdout()
    if not results:
        print_line(console, "there are no policy tests; write cases in a document of kind PolicyTest")
        return
    print_results(console, results)
    if coverage is not None and lists_coverage:
        _print_coverage(found, coverage)
    print_line(console, format_summary(results, coverage))


def _print_coverage(found: LoadedProject, coverage: Coverage) -> None:
    snapshot = require_snapshot(found)
    idle = set(coverage.idle_rows)
    texts = {row.position: ", ".join(row.texts) for row in found.policies.permissions if row.position in idle}
    rows = [
        *((format_position(position), text) for position, text in texts.items()),
        *((format_position(snapshot.gates[name].position), f"GateRule {name}") for name in coverage.idle_rules),
        *((format_position(snapshot.tools[name].position), f"Tool {name}") for name in coverage.uncalled_tools),
    ]
    if rows:
        print_table(stdout(), ("no case is about", ""), rows)

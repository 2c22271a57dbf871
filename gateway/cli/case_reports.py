"""Results of policy cases for people and for programs."""

import json
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from os.path import basename
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console

from gateway.cli.console import print_line
from gateway.config.report_text import visible
from gateway.governance.cases import Because, PolicyCase
from gateway.governance.diagnostics import Position
from gateway.review.policy_tests import CaseResult, Coverage

_WIDEST: Final = 72
"""Cells of a case's name that others are aligned to; longer ones stick out."""

_DECISION: Final = len("allow")
_MENTIONED: Final = 8
"""Rules that decided nothing and are named in the summary; `--coverage` lists them all."""

_MARKS: Final = {True: ("✓", "green"), False: ("✗", "red")}
_PLAIN_MARKS: Final = {True: ("ok  ", "green"), False: ("FAIL", "red")}


def print_results(console: Console, results: Sequence[CaseResult]) -> None:
    """Each file with its cases, each case with what decided, or why it does not hold."""
    marks = _MARKS if _can_print(console, "✓✗") else _PLAIN_MARKS
    width = min(_WIDEST, max((cell_len(visible(result.case.name)) for result in results), default=0))
    for file, of_file in groupby(results, key=lambda result: result.case.position.file):
        print_line(console, (visible(file), "bold"))
        for result in of_file:
            name = visible(result.case.name)
            gap = " " * max(0, width - cell_len(name))
            print_line(console, "  ", marks[result.passed], f" {name}{gap}  ", _told(result))
            for line in result.failure:
                print_line(console, f"      {visible(line)}")


def summary(results: Sequence[CaseResult], coverage: Coverage | None) -> str:
    """`4 passed, 1 failed; rules that decided nothing: policy.csv:2 :4, gate fair-use   (5 of 8 used)`."""
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


def as_json(results: Sequence[CaseResult], coverage: Coverage | None) -> str:
    failed = sum(not result.passed for result in results)
    document = {
        "passed": len(results) - failed,
        "failed": failed,
        "cases": [_object(result) for result in results],
        "coverage": _coverage_object(coverage) if coverage else None,
    }
    return json.dumps(document, indent=2) + "\n"


def as_junit(results: Sequence[CaseResult]) -> str:
    """A suite for each document. Whatever is not ASCII is escaped, so that no encoding can break it."""
    suites = [(suite, list(found)) for suite, found in groupby(results, key=lambda result: result.case.suite)]
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites name="gateway test" {_counts(results)}>',
        *(line for suite, found in suites for line in _suite(suite, found)),
        "</testsuites>",
        "",
    ]
    return "\n".join(lines).encode("ascii", "xmlcharrefreplace").decode()


def place(position: Position) -> str:
    return f"{position.file}:{position.line}"


def _told(result: CaseResult) -> str:
    if not result.passed:
        return visible(f"expected {result.expected}, got {result.got}")
    decided = visible(place(result.position)) if result.position else ""
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
        "decidedAt": place(result.position) if result.position else None,
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


def _because_object(because: Because | None) -> dict[str, str] | None:
    return {because.kind: because.name} if because else None


def _coverage_object(coverage: Coverage) -> dict[str, Any]:
    return {
        "policyRows": {"used": [*map(place, coverage.used_rows)], "idle": [*map(place, coverage.idle_rows)]},
        "gateRules": {"used": list(coverage.used_rules), "idle": list(coverage.idle_rules)},
        "tools": {"called": list(coverage.called_tools), "uncalled": list(coverage.uncalled_tools)},
    }


def _suite(name: str, results: Sequence[CaseResult]) -> Iterator[str]:
    yield f'  <testsuite name="{_xml(name)}" {_counts(results)}>'
    for result in results:
        case = result.case
        where = f'file="{_xml(case.position.file)}" line="{case.position.line}"'
        opening = f'    <testcase classname="{_xml(name)}" name="{_xml(case.name)}" {where}'
        if result.passed:
            yield f"{opening}/>"
        else:
            told = "\n".join(map(_xml, result.failure))
            yield f'{opening}>\n      <failure message="{_xml(_told(result))}">{told}</failure>\n    </testcase>'
    yield "  </testsuite>"


def _counts(results: Sequence[CaseResult]) -> str:
    return f'tests="{len(results)}" failures="{sum(not result.passed for result in results)}" errors="0"'


def _xml(words: str) -> str:
    return escape(visible(words), quote=True)

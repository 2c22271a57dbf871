"""Diagnostics for other programs: JSON, GitHub workflow commands, SARIF 2.1.0 and JUnit XML."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any, Final
from urllib.parse import quote

from gateway.config.report_text import headline, notes, summary, visible
from gateway.governance.diagnostics import Diagnostic, Position

_SARIF_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def json_list(diagnostics: Sequence[Diagnostic]) -> str:
    """A list of objects; `help` is `null` where there is none."""
    return _json([_as_object(each) for each in diagnostics])


def github(diagnostics: Sequence[Diagnostic]) -> str:
    """One workflow command a line: an annotation at the line of the change."""
    return "".join(f"{_command(each)}\n" for each in diagnostics)


def sarif(diagnostics: Sequence[Diagnostic]) -> str:
    """A log with one run; columns count characters."""
    codes = sorted({each.code for each in diagnostics})
    run = {
        "tool": {"driver": {"name": "agent-gateway", "rules": [{"id": code} for code in codes]}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(each, rule=codes.index(each.code)) for each in diagnostics],
    }
    return _json({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})


def junit(diagnostics: Sequence[Diagnostic]) -> str:
    """A test case for each file with problems: it fails on errors and prints warnings."""
    files = [(file, list(found)) for file, found in groupby(diagnostics, key=lambda each: each.position.file)]
    failed = sum(any(each.is_error for each in found) for _, found in files)
    counts = f'tests="{len(files)}" failures="{failed}" errors="0"'
    return "\n".join(
        (
            '<?xml version="1.0" encoding="UTF-8"?>',
            f'<testsuites name="gateway check" {counts}>',
            f'  <testsuite name="gateway check" {counts}>',
            *(_test_case(file, found) for file, found in files),
            "  </testsuite>",
            "</testsuites>",
            "",
        )
    )


def _as_object(diagnostic: Diagnostic) -> dict[str, Any]:
    return {
        **_place(diagnostic.position),
        "severity": diagnostic.severity,
        "code": diagnostic.code,
        "message": diagnostic.message,
        "help": diagnostic.help,
        "related": [{"message": words, **_place(position)} for words, position in diagnostic.related],
    }


def _place(position: Position) -> dict[str, Any]:
    return {"file": position.file, "line": position.line, "column": position.column, "width": position.width}


def _command(diagnostic: Diagnostic) -> str:
    position = diagnostic.position
    properties: Mapping[str, object] = {
        "file": position.file,
        "line": position.line,
        "col": position.column,
        "endColumn": position.column + position.width,
        "title": diagnostic.code,
    }
    given = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    return f"::{diagnostic.severity} {given}::{_data(_told(diagnostic))}"


def _told(diagnostic: Diagnostic) -> str:
    return "\n".join((visible(diagnostic.message), *notes(diagnostic)))


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _data(words).replace(":", "%3A").replace(",", "%2C")


def _result(diagnostic: Diagnostic, *, rule: int) -> dict[str, Any]:
    related = [{**_location(at), "message": {"text": visible(words)}} for words, at in diagnostic.related]
    return {
        "ruleId": diagnostic.code,
        "ruleIndex": rule,
        "level": diagnostic.severity,
        "message": {"text": _told(diagnostic)},
        "locations": [_location(diagnostic.position)],
        **({"relatedLocations": related} if related else {}),
    }


def _location(position: Position) -> dict[str, Any]:
    region = {
        "startLine": position.line,
        "startColumn": position.column,
        "endColumn": position.column + position.width,
    }
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(position.file)}, "region": region}}


def _uri(file: str) -> str:
    """A relative reference for a relative path: it is resolved against the repository."""
    path = quote(file, errors="replace")
    return f"file://{path}" if path.startswith("/") else path


def _test_case(file: str, found: Sequence[Diagnostic]) -> str:
    told = _xml(
        "\n".join(line for each in found for line in (headline(each), *(f"  = {note}" for note in notes(each))))
    )
    errors = [each for each in found if each.is_error]
    if errors:
        inside = f'<failure type="{_xml(errors[0].code)}" message="{_xml(summary(found))}">{told}</failure>'
    else:
        inside = f"<system-out>{told}</system-out>"
    return f'    <testcase classname="gateway.check" name="{_xml(visible(file))}">\n      {inside}\n    </testcase>'


def _xml(words: str) -> str:
    return escape(words, quote=True)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"

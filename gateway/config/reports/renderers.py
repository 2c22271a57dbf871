"""Render diagnostics as text, JSON, GitHub workflow commands, SARIF 2.1.0 and JUnit XML.

The text has the message, the source line, a caret under the token, and what to do:

configs/a.yaml:9:33: unknown-field: 'max_output' is not a field of spec.limits
  |
9 |   limits: {timeout: 10 seconds, max_output: 1MiB}
  |                                 ^^^^^^^^^^
  = did you mean 'maxOutput'?

All formats have the same order, and the same bytes for the same problems. Source lines come from the files, never from
loaded data, so values from the environment are not printed.
"""

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any, Final, Literal
from urllib.parse import quote

from gateway.config.yaml.document import split_lines
from gateway.model import escape_character, escape_invisible, is_unseen
from gateway.registries import Diagnostic, Position, sort_diagnostics

SourceLines = Callable[[str], str | None]

_WINDOW: Final = 120
"""Maximum number of characters of a line that are shown, about half of them before the caret."""

_MORE: Final = "…"


def render_text(diagnostics: Sequence[Diagnostic], sources: SourceLines) -> str:
    """Return one block per problem and a line with their number."""
    of_problems = ("\n".join(block) for block in render_blocks(diagnostics, sources))
    return "\n\n".join((*of_problems, render_summary(diagnostics))) + "\n"


def render_blocks(diagnostics: Iterable[Diagnostic], sources: SourceLines) -> Iterator[list[str]]:
    """Yield the lines of each problem: the headline, then the source line and the help, if known."""
    known: dict[str, list[str]] = {}

    def line_at(position: Position) -> str | None:
        if position.file not in known:
            source = sources(position.file)
            known[position.file] = [] if source is None else split_lines(source)
        of_file = known[position.file]
        return of_file[position.line - 1] if position.line <= len(of_file) else None

    for each in diagnostics:
        yield list(_block(each, line_at(each.position)))


def render_summary(diagnostics: Iterable[Diagnostic]) -> str:
    """Return `3 errors, 1 warning`, or `no problems`."""
    severities = [each.severity for each in diagnostics]
    counts = ((severities.count(severity), severity) for severity in ("error", "warning"))
    return ", ".join(f"{count} {word}{'s' * (count != 1)}" for count, word in counts if count) or "no problems"


def render_headline(diagnostic: Diagnostic) -> str:
    """Return `file:line:column: code: message`; warnings have `warning: ` before the code."""
    severity = "" if diagnostic.is_error else "warning: "
    return escape_invisible(f"{diagnostic.position}: {severity}{diagnostic.code}: {diagnostic.message}")


def render_notes(diagnostic: Diagnostic) -> list[str]:
    """Return the help and the related positions."""
    help = [escape_invisible(diagnostic.help)] if diagnostic.help else []
    return help + [escape_invisible(f"{words}: {position}") for words, position in diagnostic.related]


def _block(diagnostic: Diagnostic, line: str | None) -> Iterator[str]:
    number = str(diagnostic.position.line)
    gutter = " " * len(number)
    yield render_headline(diagnostic)
    if line is not None and line.strip():
        shown, caret = _excerpt(line, diagnostic.position)
        yield f"{gutter} |"
        yield f"{number} | {shown}"
        yield f"{gutter} | {caret}"
    yield from (f"{gutter} = {note}" for note in render_notes(diagnostic))


def _excerpt(line: str, position: Position) -> tuple[str, str]:
    """Return the line, or its part around the token, and the carets below it."""
    token = min(position.column - 1, len(line))
    start = 0 if len(line) <= _WINDOW else max(0, token - _WINDOW // 2)
    end = min(len(line), start + _WINDOW)
    before, after = _MORE * (start > 0), _MORE * (end < len(line))
    carets = sum(map(_cells, line[token : min(end, token + position.width)])) or 1
    indent = len(before) + sum(map(_cells, line[start:token]))
    shown = "".join(map(escape_character, line[start:end])).rstrip()
    return f"{before}{shown}{after}", " " * indent + "^" * carets


def _cells(character: str) -> int:
    """Return the number of terminal columns of the character."""
    if is_unseen(character):
        return len(escape_character(character))
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


_SARIF_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def render_json(diagnostics: Sequence[Diagnostic]) -> str:
    """Return a list of objects; `help` is `null` if there is none."""
    return _json([_as_object(each) for each in diagnostics])


def render_github(diagnostics: Sequence[Diagnostic]) -> str:
    """Return one workflow command per line, each an annotation of a source line."""
    return "".join(f"{_command(each)}\n" for each in diagnostics)


def render_sarif(diagnostics: Sequence[Diagnostic]) -> str:
    """Return a log with one run; columns count characters."""
    codes = sorted({each.code for each in diagnostics})
    run = {
        "tool": {"driver": {"name": "agent-gateway", "rules": [{"id": code} for code in codes]}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(each, rule=codes.index(each.code)) for each in diagnostics],
    }
    return _json({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})


def render_junit(diagnostics: Sequence[Diagnostic]) -> str:
    """Return a test case for each file with problems, which fails on errors and prints warnings."""
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
    return f"::{diagnostic.severity} {given}::{_data(_full_text(diagnostic))}"


def _full_text(diagnostic: Diagnostic) -> str:
    return "\n".join((escape_invisible(diagnostic.message), *render_notes(diagnostic)))


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _data(words).replace(":", "%3A").replace(",", "%2C")


def _result(diagnostic: Diagnostic, *, rule: int) -> dict[str, Any]:
    related = [{**_location(at), "message": {"text": escape_invisible(words)}} for words, at in diagnostic.related]
    return {
        "ruleId": diagnostic.code,
        "ruleIndex": rule,
        "level": diagnostic.severity,
        "message": {"text": _full_text(diagnostic)},
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
    """Return a `file:` URI for an absolute path, else a reference relative to the repository."""
    path = quote(file, errors="replace")
    return f"file://{path}" if path.startswith("/") else path


def _test_case(file: str, found: Sequence[Diagnostic]) -> str:
    text = _xml(
        "\n".join(
            line for each in found for line in (render_headline(each), *(f"  = {note}" for note in render_notes(each)))
        )
    )
    errors = [each for each in found if each.is_error]
    if errors:
        inside = f'<failure type="{_xml(errors[0].code)}" message="{_xml(render_summary(found))}">{text}</failure>'
    else:
        inside = f"<system-out>{text}</system-out>"
    name = _xml(escape_invisible(file))
    return f'    <testcase classname="gateway.check" name="{name}">\n      {inside}\n    </testcase>'


def _xml(words: str) -> str:
    return escape(words, quote=True)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


ReportFormat = Literal["text", "json", "github", "sarif", "junit"]


def render_report(diagnostics: Iterable[Diagnostic], *, sources: SourceLines, output: ReportFormat = "text") -> str:
    """Render all problems, each once, by position. `sources` returns the text of a file, or `None`."""
    found = sort_diagnostics(diagnostics)
    if output == "text":
        return render_text(found, sources)
    formats: dict[str, Callable[[list[Diagnostic]], str]] = {
        "json": render_json,
        "github": render_github,
        "sarif": render_sarif,
        "junit": render_junit,
    }
    return formats[output](found)

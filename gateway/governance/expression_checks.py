"""What is wrong with an expression, told when it is declared: syntax, names nobody knows, work without bound."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.governance.diagnostics import did_you_mean
from gateway.governance.expressions import MACROS, Comprehension, Text, fields_of, line_and_column, looks_of
from gateway.governance.sightings import LONGEST, parse_duration

MAX_LENGTH: Final = 4_096
MAX_DEPTH: Final = 2
"""Comprehensions inside one another: each multiplies what is gone through."""

MAX_COMPREHENSIONS: Final = 8
MAX_MAPS: Final = 2
MAX_MENTIONS: Final = 8
"""Of a variable that a `map` binds: what it makes grows by each."""

MAX_SUMS: Final = 64
"""`+` in one expression: texts and lists grow by it."""

MAX_STEPS: Final = 65_536
"""Elements that comprehensions may go through in one evaluation, at about a microsecond each."""

VARIABLES: Final = ("args", "caller", "tool", "turn", "now")
FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "caller": ("subject", "roles", "tenant"),
    "tool": ("name", "tier", "flags", "labels"),
    "turn": ("calls", "seen", "tiers", "classes"),
}
CALL_FIELDS: Final = ("tool", "flags", "tier", "decision", "age")
OWN_FUNCTIONS: Final = ("under", "glob", "saw")

_STANDARD_FUNCTIONS: Final = (
    *("size", "contains", "startsWith", "endsWith", "matches", "has", "dyn", "type"),
    *("int", "uint", "double", "string", "bytes", "duration", "timestamp"),
    *("getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfYear", "getDayOfWeek"),
    *("getHours", "getMinutes", "getSeconds", "getMilliseconds"),
)
_FUNCTIONS: Final = frozenset({*OWN_FUNCTIONS, *_STANDARD_FUNCTIONS, *MACROS})
_SYNTAX: Final = re.compile(r"ERROR: <input>:(\d+):(\d+): Syntax error: ([^\n]*)")


@dataclass(frozen=True, slots=True)
class ConditionProblem:
    """What is wrong with an expression; `line` and `column` count from 1 inside it."""

    message: str
    line: int = 1
    column: int = 1
    width: int = 1
    help: str | None = None


def syntax_problems(told: str) -> list[ConditionProblem]:
    """The first of what the parser says; the others follow from it."""
    found = [
        ConditionProblem(_readable(reason), int(line), int(column)) for line, column, reason in _SYNTAX.findall(told)
    ]
    return found[:1] or [ConditionProblem("the expression cannot be parsed")]


def problems_of(text: Text, program: Any) -> list[ConditionProblem]:
    return [
        *_unknown_variables(text, program.variables()),
        *_unknown_functions(text, program.functions()),
        *_unknown_fields(text),
        *_unclear_looks(text),
        *_without_bound(text),
    ]


def _readable(reason: str) -> str:
    """The first half of the parser's sentence; the second lists the token classes of its grammar."""
    what = reason.partition(" expecting ")[0].replace("'<EOF>'", "the end of the expression")
    return what.replace("mismatched input", "unexpected").replace("extraneous input", "unexpected")


def _unknown_variables(text: Text, names: Iterable[str]) -> Iterator[ConditionProblem]:
    bound = {each.name for each in text.comprehensions}
    for name in names:
        if name not in VARIABLES and name not in bound:
            help = did_you_mean(name, VARIABLES) or f"known variables: {', '.join(VARIABLES)}"
            yield _problem(text, f"there is no variable {name!r}", _place(text, name), len(name), help)
    for each in text.comprehensions:
        if each.name in VARIABLES:
            place = text.plain.index(each.name, each.start)
            yield _problem(text, f"{each.name!r} is a variable already", place, len(each.name), "bind another name")


def _unknown_functions(text: Text, names: Iterable[str]) -> Iterator[ConditionProblem]:
    for name in names:
        if name not in _FUNCTIONS and name.isidentifier() and name[0] != "_":
            help = did_you_mean(name, sorted(_FUNCTIONS))
            yield _problem(text, f"there is no function {name!r}", _place(text, name), len(name), help)


def _unknown_fields(text: Text) -> Iterator[ConditionProblem]:
    for root, known in FIELDS.items():
        yield from _misspelt(text, root, f"{root} has no", known=known, end=len(text.plain))
    for each in text.comprehensions:
        if each.is_over_calls:
            yield from _misspelt(text, each.name, "calls have no", known=CALL_FIELDS, start=each.start, end=each.end)


def _unclear_looks(text: Text) -> Iterator[ConditionProblem]:
    """What is asked of `saw` is known when it is declared: only that is kept of what callers have seen."""
    for place, within in looks_of(text):
        span = None if within is None else parse_duration(within)
        if span is None:
            help = 'write turn.saw("untrusted-output"), or caller.saw("untrusted-output", "1h")'
            yield _problem(text, "saw asks the turn for a flag, or the caller for a flag and a time", place, 3, help)
        elif span > LONGEST:
            yield _problem(text, "caller.saw looks back 30 days at most", place, 3, None)


def _misspelt(
    text: Text, root: str, words: str, *, known: tuple[str, ...], end: int, start: int = 0
) -> Iterator[ConditionProblem]:
    for name, place in fields_of(root, text.plain[start:end]):
        if name not in known:
            help = did_you_mean(name, known) or f"known fields: {', '.join(known)}"
            yield _problem(text, f"{words} {name!r}", start + place, len(name), help)


def _without_bound(text: Text) -> Iterator[ConditionProblem]:
    """What could take minutes, or all memory, for one call."""
    found = text.comprehensions
    deep = next((each for each in found if each.depth > MAX_DEPTH), None)
    if deep is not None:
        yield _at(text, deep, f"comprehensions are nested deeper than {MAX_DEPTH}")
    if len(found) > MAX_COMPREHENSIONS:
        yield _at(text, found[MAX_COMPREHENSIONS], f"there are more than {MAX_COMPREHENSIONS} comprehensions")
    if text.literals**text.power > MAX_STEPS:
        yield _at(text, found[0], "the lists that are written out are too long to be gone through")
    maps = [each for each in found if each.macro == "map"]
    if len(maps) > MAX_MAPS:
        yield _at(text, maps[MAX_MAPS], f"'map' is used more than {MAX_MAPS} times")
    for each in maps:
        if len(re.findall(rf"(?<![\w.]){each.name}\b", text.plain[each.start : each.end])) > MAX_MENTIONS + 1:
            yield _at(text, each, f"'map' names its variable more than {MAX_MENTIONS} times")
    if text.plain.count("+") > MAX_SUMS:
        place = [match.start() for match in re.finditer(r"\+", text.plain)][MAX_SUMS]
        yield _problem(text, f"there are more than {MAX_SUMS} sums", place, 1, "split the rule")


def _at(text: Text, each: Comprehension, message: str) -> ConditionProblem:
    return _problem(text, message, text.plain.rindex(each.macro, 0, each.start), len(each.macro), "split the rule")


def _place(text: Text, name: str) -> int:
    match = re.search(rf"\b{re.escape(name)}\b", text.plain)
    return match.start() if match else 0


def _problem(text: Text, message: str, start: int, width: int, help: str | None) -> ConditionProblem:
    line, column = line_and_column(text.source, start)
    return ConditionProblem(message, line, column, width, help)

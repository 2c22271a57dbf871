"""Analysis of an expression's text: the fields of each variable that it uses, its comprehensions, their depth.

CEL itself reports names only. This analysis finds misspelt fields and unbounded work when a condition is declared, and
limits the values a condition receives to those it reads. Nothing is evaluated here.

The problems of an expression are reported when it is declared: syntax, unknown names, unbounded work.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from gateway.registries import suggest_name

LONGEST_LOOKBACK: Final = timedelta(days=30)
"""How far back `caller.saw` can look; older sightings are dropped."""

_DURATION: Final = re.compile(r"([1-9][0-9]{0,8})(ms|s|m|h|d)")
_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONG: Final = r'"""(?:\\[\s\S]|[^\\])*?"""', r"'''(?:\\[\s\S]|[^\\])*?'''"
_SHORT: Final = r'"(?:\\.|[^"\\\n])*"', r"'(?:\\.|[^'\\\n])*'"
_RAW: Final = r'"""[\s\S]*?"""', r"'''[\s\S]*?'''", r'"[^"\n]*"', r"'[^'\n]*'"
TOKEN: Final = re.compile(
    rf"(?P<comment>//[^\n]*)|(?P<text>[bB]?(?:[rR](?:{'|'.join(_RAW)})|{'|'.join((*_LONG, *_SHORT))}))"
    r"|(?P<word>\w+)|(?P<operator>&&|\|\|)|(?P<other>[\s\S])"
)
MACROS: Final = ("exists_one", "exists", "all", "map", "filter")

_COMPREHENSION: Final = re.compile(rf"\.\s*({'|'.join(MACROS)})\s*\(\s*([A-Za-z_]\w*)\s*,")
_CALLS: Final = re.compile(r"(?<![\w.])turn\s*\.\s*calls\s*$")
_CALLS_MENTIONED: Final = re.compile(r"(?<![\w.])turn\s*\.\s*calls\b")
_GONE_THROUGH: Final = re.compile(rf"\s*\.\s*(?:{'|'.join(MACROS)}|size)\s*\(")
_SIZED: Final = re.compile(r"(?<!\w)size\s*\(\s*turn\s*\.\s*calls$")
_FIELD: Final = re.compile(r"\s*\.\s*([A-Za-z_]\w*)\b(?!\s*\()")
_INDEX: Final = re.compile(r"""\s*\[\s*(?:"([\w.-]+)"|'([\w.-]+)')\s*\]""")
_TEXT: Final = r"(?:\"[^\"\\\n]*\"|'[^'\\\n]*')"
_SAW: Final = re.compile(rf"(?<![\w.])turn\s*\.\s*saw\s*\(\s*(?P<flag>{_TEXT})\s*\)")
_CALLER_SAW: Final = re.compile(
    rf"(?<![\w.])caller\s*\.\s*(?P<name>saw)\s*\(\s*(?P<flag>{_TEXT})\s*,\s*(?P<within>{_TEXT})\s*\)"
)
_SAW_MENTIONED: Final = re.compile(r"(?:(?<![\w.])(?P<root>\w+)\s*\.\s*)?(?<!\w)(?P<name>saw)\s*\(")
_NOT_NEWLINE: Final = re.compile(r"[^\n]")


@dataclass(frozen=True, slots=True)
class Comprehension:
    """`range.macro(name, …)`: its variable is bound between the brackets at `start` and `end`.

    `depth` counts the enclosing comprehensions, itself included.
    """

    macro: str
    name: str
    start: int
    end: int
    depth: int
    is_over_calls: bool


@dataclass(frozen=True, slots=True)
class ExpressionText:
    """An expression, the same with texts and comments blanked, and its comprehensions in the order of their start."""

    source: str
    plain: str
    comprehensions: tuple[Comprehension, ...]

    @property
    def power(self) -> int:
        """How work grows with the largest collection: 0 without comprehensions, 2 for one nested in another.

        A macro that builds a list adds one, because CEL copies the list for each element it adds.
        """
        depth = max((each.depth for each in self.comprehensions), default=0)
        return depth + any(each.macro in ("map", "filter") for each in self.comprehensions)

    @property
    def literals(self) -> int:
        """An upper bound of the number of elements in any list literal."""
        return self.plain.count(",") + 1

    @classmethod
    def of(cls, source: str) -> "ExpressionText":
        plain = TOKEN.sub(lambda token: _blank(token) if token.lastgroup in ("text", "comment") else token[0], source)
        return cls(source, plain, tuple(_comprehensions(plain)))


def find_fields(root: str, plain: str) -> Iterator[tuple[str, int]]:
    """Yield each `root.name` that is not a call, and the place of the name."""
    for mention in _mentions(root, plain):
        field = _FIELD.match(plain, mention)
        if field:
            yield field[1], field.start(1)


def find_read_fields(root: str, text: ExpressionText, start: int = 0, end: int | None = None) -> frozenset[str] | None:
    """Return the fields of a variable that an expression reads; `None` if it also reads the whole."""
    found: set[str] = set()
    for mention in _mentions(root, text.plain[:end], start):
        field = _FIELD.match(text.plain, mention)
        index = _INDEX.match(text.source, mention)
        if field is None and index is None:
            return None
        found.add(field[1] if field else next(name for name in index.groups() if name) if index else "")
    return frozenset(found)


def find_read_call_fields(text: ExpressionText) -> frozenset[str] | None:
    """Return the fields of calls that an expression reads; `None` for all, if they cannot be determined.

    A comprehension may iterate over the result of another, so the fields of all of them count.
    """
    mentions = _CALLS_MENTIONED.finditer(text.plain)
    if not all(
        _GONE_THROUGH.match(text.plain, each.end()) or _SIZED.search(text.plain[: each.end()]) for each in mentions
    ):
        return None
    found: set[str] = set()
    for each in text.comprehensions:
        body = text.plain.index(",", each.start) + 1
        fields = find_read_fields(each.name, text, body, each.end)
        if fields is None:
            return None
        found |= fields
    return frozenset(found)


def find_saw_flags(source: str) -> Iterator[tuple[str, int]]:
    """Yield the literal flags in `turn.saw("…")` and `caller.saw("…", "…")`, and their places."""
    for pattern in (_SAW, _CALLER_SAW):
        for match in pattern.finditer(source):
            yield match["flag"][1:-1], match.start("flag")


def find_caller_flags(text: ExpressionText) -> Iterator[str]:
    """Yield the literal flags in `caller.saw("…", "…")`."""
    for match in _CALLER_SAW.finditer(text.source):
        yield match["flag"][1:-1]


def find_unclear_saws(text: ExpressionText) -> Iterator[tuple[int, str | None]]:
    """Yield each use of `saw` except `turn.saw(…)` with one value: its place, and how far back `caller.saw` looks.

    The second is `None` for any other way to write it.
    """
    whole = {match.start("name"): match["within"][1:-1] for match in _CALLER_SAW.finditer(text.source)}
    for mention in _SAW_MENTIONED.finditer(text.plain):
        place = mention.start("name")
        is_turn = mention["root"] == "turn" and not _has_two(text.plain, mention.end())
        if not is_turn:
            yield place, whole.get(place)


def _has_two(plain: str, start: int) -> bool:
    """Whether there is a comma between the brackets that open just before `start`."""
    depth = 0
    for character in plain[start:]:
        if character == "," and not depth:
            return True
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return False


def line_and_column(source: str, start: int) -> tuple[int, int]:
    """Return line and column; both count from 1."""
    return source.count("\n", 0, start) + 1, start - source.rfind("\n", 0, start)


def _blank(token: re.Match[str]) -> str:
    return _NOT_NEWLINE.sub(" ", token[0])


def _mentions(root: str, plain: str, start: int = 0) -> Iterator[int]:
    """Yield where each mention of a variable ends; fields of the same name are not mentions."""
    for match in re.compile(rf"(?<![\w.]){root}\b").finditer(plain, start):
        if not plain[: match.start()].rstrip().endswith("."):
            yield match.end()


def _comprehensions(plain: str) -> list[Comprehension]:
    found: list[Comprehension] = []
    for match in _COMPREHENSION.finditer(plain):
        start = plain.index("(", match.start())
        depth = 1 + sum(each.start < match.start() < each.end for each in found)
        is_over_calls = _CALLS.search(plain, 0, match.start()) is not None
        found.append(Comprehension(match[1], match[2], start, _find_end(plain, start), depth, is_over_calls))
    return found


def _find_end(plain: str, opening: int) -> int:
    depth = 0
    for place in range(opening, len(plain)):
        depth += (plain[place] in "([{") - (plain[place] in ")]}")
        if depth == 0:
            return place
    return len(plain)


MAX_LENGTH: Final = 4_096
MAX_DEPTH: Final = 2
"""Nested comprehensions: each multiplies the elements to visit."""

MAX_COMPREHENSIONS: Final = 8
MAX_MAPS: Final = 2
MAX_MENTIONS: Final = 8
"""Mentions of the variable of a `map`: its result grows with each."""

MAX_SUMS: Final = 64
"""`+` in one expression: texts and lists grow with each."""

MAX_STEPS: Final = 65_536
"""Elements that comprehensions may visit in one evaluation, at about a microsecond each."""

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
    """A problem of an expression; `line` and `column` count from 1 inside it."""

    message: str
    line: int = 1
    column: int = 1
    width: int = 1
    help: str | None = None


def check_syntax(output: str) -> list[ConditionProblem]:
    """Return the first error of the parser; the others follow from it."""
    found = [
        ConditionProblem(_readable(reason), int(line), int(column)) for line, column, reason in _SYNTAX.findall(output)
    ]
    return found[:1] or [ConditionProblem("the expression cannot be parsed")]


def check_expression(text: ExpressionText, program: Any) -> list[ConditionProblem]:
    return [
        *_unknown_variables(text, program.variables()),
        *_unknown_functions(text, program.functions()),
        *_unknown_fields(text),
        *_unclear_saws(text),
        *_without_bound(text),
    ]


def _readable(reason: str) -> str:
    """Return the first half of the parser's sentence; the second lists the token classes of its grammar."""
    what = reason.partition(" expecting ")[0].replace("'<EOF>'", "the end of the expression")
    return what.replace("mismatched input", "unexpected").replace("extraneous input", "unexpected")


def _unknown_variables(text: ExpressionText, names: Iterable[str]) -> Iterator[ConditionProblem]:
    bound = {each.name for each in text.comprehensions}
    for name in names:
        if name not in VARIABLES and name not in bound:
            help = suggest_name(name, VARIABLES) or f"known variables: {', '.join(VARIABLES)}"
            yield _problem(text, f"there is no variable {name!r}", _place(text, name), len(name), help)
    for each in text.comprehensions:
        if each.name in VARIABLES:
            place = text.plain.index(each.name, each.start)
            yield _problem(text, f"{each.name!r} is a variable already", place, len(each.name), "bind another name")


def _unknown_functions(text: ExpressionText, names: Iterable[str]) -> Iterator[ConditionProblem]:
    for name in names:
        if name not in _FUNCTIONS and name.isidentifier() and name[0] != "_":
            help = suggest_name(name, sorted(_FUNCTIONS))
            yield _problem(text, f"there is no function {name!r}", _place(text, name), len(name), help)


def _unknown_fields(text: ExpressionText) -> Iterator[ConditionProblem]:
    for root, known in FIELDS.items():
        yield from _misspelt(text, root, f"{root} has no", known=known, end=len(text.plain))
    for each in text.comprehensions:
        if each.is_over_calls:
            yield from _misspelt(text, each.name, "calls have no", known=CALL_FIELDS, start=each.start, end=each.end)


def _unclear_saws(text: ExpressionText) -> Iterator[ConditionProblem]:
    """Yield uses of `saw` that are unclear at load: sightings are recorded only for flags that rules name literally."""
    for place, within in find_unclear_saws(text):
        span = None if within is None else parse_duration(within)
        if span is None:
            help = 'write turn.saw("untrusted-output"), or caller.saw("untrusted-output", "1h")'
            yield _problem(text, "saw takes a flag (turn.saw), or a flag and a time (caller.saw)", place, 3, help)
        elif span > LONGEST_LOOKBACK:
            yield _problem(text, "caller.saw looks back at most 30 days", place, 3, None)


def parse_duration(text: str) -> timedelta | None:
    """Parse a number and a unit, as in documents; `None` for anything else."""
    found = _DURATION.fullmatch(text)
    return None if found is None else timedelta(milliseconds=int(found[1]) * _UNITS[found[2]])


def _misspelt(
    text: ExpressionText, root: str, words: str, *, known: tuple[str, ...], end: int, start: int = 0
) -> Iterator[ConditionProblem]:
    for name, place in find_fields(root, text.plain[start:end]):
        if name not in known:
            help = suggest_name(name, known) or f"known fields: {', '.join(known)}"
            yield _problem(text, f"{words} {name!r}", start + place, len(name), help)


def _without_bound(text: ExpressionText) -> Iterator[ConditionProblem]:
    """Yield what could take minutes, or all memory, for one call."""
    found = text.comprehensions
    deep = next((each for each in found if each.depth > MAX_DEPTH), None)
    if deep is not None:
        yield _at(text, deep, f"comprehensions are nested deeper than {MAX_DEPTH}")
    if len(found) > MAX_COMPREHENSIONS:
        yield _at(text, found[MAX_COMPREHENSIONS], f"there are more than {MAX_COMPREHENSIONS} comprehensions")
    if text.literals**text.power > MAX_STEPS:
        yield _at(text, found[0], "the list literals are too long for the comprehensions")
    maps = [each for each in found if each.macro == "map"]
    if len(maps) > MAX_MAPS:
        yield _at(text, maps[MAX_MAPS], f"'map' is used more than {MAX_MAPS} times")
    for each in maps:
        if len(re.findall(rf"(?<![\w.]){each.name}\b", text.plain[each.start : each.end])) > MAX_MENTIONS + 1:
            yield _at(text, each, f"'map' names its variable more than {MAX_MENTIONS} times")
    if text.plain.count("+") > MAX_SUMS:
        place = [match.start() for match in re.finditer(r"\+", text.plain)][MAX_SUMS]
        yield _problem(text, f"there are more than {MAX_SUMS} sums", place, 1, "split the rule")


def _at(text: ExpressionText, each: Comprehension, message: str) -> ConditionProblem:
    return _problem(text, message, text.plain.rindex(each.macro, 0, each.start), len(each.macro), "split the rule")


def _place(text: ExpressionText, name: str) -> int:
    match = re.search(rf"\b{re.escape(name)}\b", text.plain)
    return match.start() if match else 0


def _problem(text: ExpressionText, message: str, start: int, width: int, help: str | None) -> ConditionProblem:
    line, column = line_and_column(text.source, start)
    return ConditionProblem(message, line, column, width, help)

"""What the text of an expression mentions: which fields of which variable, which comprehensions, how deep.

CEL itself tells names only. What is read here lets a condition be checked for misspelt fields and for work without
bound when it is declared, and be shown no more than it looks at when it is evaluated. Nothing is evaluated here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

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

    `depth` counts the comprehensions it stands in, itself too.
    """

    macro: str
    name: str
    start: int
    end: int
    depth: int
    is_over_calls: bool


@dataclass(frozen=True, slots=True)
class Text:
    """An expression, the same with texts and comments as spaces, and its comprehensions in the order they begin in."""

    source: str
    plain: str
    comprehensions: tuple[Comprehension, ...]

    @property
    def power(self) -> int:
        """How work grows with the largest collection: 0 without comprehensions, 2 for one in another.

        What makes a list counts once more, because CEL copies the list for each element it adds.
        """
        depth = max((each.depth for each in self.comprehensions), default=0)
        return depth + any(each.macro in ("map", "filter") for each in self.comprehensions)

    @property
    def literals(self) -> int:
        """At least as many as the elements of any list that is written out."""
        return self.plain.count(",") + 1

    @classmethod
    def of(cls, source: str) -> "Text":
        plain = TOKEN.sub(lambda token: _blank(token) if token.lastgroup in ("text", "comment") else token[0], source)
        return cls(source, plain, tuple(_comprehensions(plain)))


def fields_of(root: str, plain: str) -> Iterator[tuple[str, int]]:
    """Each `root.name` that is not a call, and where the name stands."""
    for mention in _mentions(root, plain):
        field = _FIELD.match(plain, mention)
        if field:
            yield field[1], field.start(1)


def looked_at(root: str, text: Text, start: int = 0, end: int | None = None) -> frozenset[str] | None:
    """The fields of a variable that an expression looks at; `None` if it also looks at the whole."""
    found: set[str] = set()
    for mention in _mentions(root, text.plain[:end], start):
        field = _FIELD.match(text.plain, mention)
        index = _INDEX.match(text.source, mention)
        if field is None and index is None:
            return None
        found.add(field[1] if field else next(name for name in index.groups() if name) if index else "")
    return frozenset(found)


def looked_at_in_calls(text: Text) -> frozenset[str] | None:
    """The fields of calls that an expression looks at; `None` for all, where that cannot be told.

    What one comprehension goes through may be what another made, so all of them count alike.
    """
    mentions = _CALLS_MENTIONED.finditer(text.plain)
    if not all(
        _GONE_THROUGH.match(text.plain, each.end()) or _SIZED.search(text.plain[: each.end()]) for each in mentions
    ):
        return None
    found: set[str] = set()
    for each in text.comprehensions:
        body = text.plain.index(",", each.start) + 1
        fields = looked_at(each.name, text, body, each.end)
        if fields is None:
            return None
        found |= fields
    return frozenset(found)


def flags_given_to_saw(source: str) -> Iterator[tuple[str, int]]:
    """Flags written out in `turn.saw("…")` and `caller.saw("…", "…")`, and where each stands."""
    for pattern in (_SAW, _CALLER_SAW):
        for match in pattern.finditer(source):
            yield match["flag"][1:-1], match.start("flag")


def flags_given_to_caller(text: Text) -> Iterator[str]:
    """Flags written out in `caller.saw("…", "…")`."""
    for match in _CALLER_SAW.finditer(text.source):
        yield match["flag"][1:-1]


def looks_of(text: Text) -> Iterator[tuple[int, str | None]]:
    """Each use of `saw` but `turn.saw(…)` with one value: where it stands, and how far back `caller.saw` looks.

    `None` for any other way to write it.
    """
    whole = {match.start("name"): match["within"][1:-1] for match in _CALLER_SAW.finditer(text.source)}
    for mention in _SAW_MENTIONED.finditer(text.plain):
        place = mention.start("name")
        is_turn = mention["root"] == "turn" and not _has_two(text.plain, mention.end())
        if not is_turn:
            yield place, whole.get(place)


def _has_two(plain: str, start: int) -> bool:
    """Whether a comma stands between brackets that open just before `start`."""
    depth = 0
    for character in plain[start:]:
        if character == "," and not depth:
            return True
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return False


def line_and_column(source: str, start: int) -> tuple[int, int]:
    """Both count from 1."""
    return source.count("\n", 0, start) + 1, start - source.rfind("\n", 0, start)


def _blank(token: re.Match[str]) -> str:
    return _NOT_NEWLINE.sub(" ", token[0])


def _mentions(root: str, plain: str, start: int = 0) -> Iterator[int]:
    """Where each mention of a variable ends; fields of that name are none."""
    for match in re.compile(rf"(?<![\w.]){root}\b").finditer(plain, start):
        if not plain[: match.start()].rstrip().endswith("."):
            yield match.end()


def _comprehensions(plain: str) -> list[Comprehension]:
    found: list[Comprehension] = []
    for match in _COMPREHENSION.finditer(plain):
        start = plain.index("(", match.start())
        depth = 1 + sum(each.start < match.start() < each.end for each in found)
        is_over_calls = _CALLS.search(plain, 0, match.start()) is not None
        found.append(Comprehension(match[1], match[2], start, _closing(plain, start), depth, is_over_calls))
    return found


def _closing(plain: str, opening: int) -> int:
    depth = 0
    for place in range(opening, len(plain)):
        depth += (plain[place] in "([{") - (plain[place] in ")]}")
        if depth == 0:
            return place
    return len(plain)

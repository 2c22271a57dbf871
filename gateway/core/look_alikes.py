"""Finds what a reader could take for one of our tags, however it is spelled.

A tag is recognised by its skeleton: character references are decoded (named, decimal, hexadecimal, with and without
`;`, escaped any number of times), compatibility forms, case and accents are folded, what nobody sees is dropped, and
letters of other alphabets count as the Latin letters they look like. White space may stand anywhere.

Expressions find the few places where a tag could begin; from there the skeleton is made up to the next character that
no tag can hold. A bracket is such a character, so nothing is read for two tags: time is linear, whatever the text is.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from html.entities import html5
from typing import Final, cast

from gateway.core.confusables import BRACKETS, DASHES, IGNORABLE, LETTERS, SLASHES, UNDERSCORES

AMPERSANDS: Final = "&\uff06\ufe60"

_NAMES: Final = (
    "trusted-content",
    "untrusted-content",
    "system-instruction",
    "memory_",
    "memories.",
    "retrieved_",
    "message_",
    "thought_",
    "peer-agent-output",
)
"""`-` stands for any separators or none, `_` for an underscore, `.` for the end of the word."""
_PAIRS: Final = {"m": "rn", "d": "ci"}
"""Letters of a skeleton that look like one: `l` is an `i` there."""
_ASCII_TWINS: Final = dict(zip("4@369l1|05$7", "aaeggiiiosst", strict=True))
_LIGATURES: Final = {
    "\ufb05": "st",
    "\ufb06": "st",
    "\xdf": "ss",
    "\u1e9e": "ss",
    "\u03b2": "ss",
    "\u1d7a": "th",
    "\u33cc": "in",
    "\u33b1": "ns",
}
_COMPATIBLE: Final = (
    "aa-24f 2b0-2e4 1d00-1dbf 1e00-1eff 2070-209c 2100-218f 2460-24ff 2c7c-2c7d a7f2-a7f9 ab5c-ab69 ff21-ff5a "
    "10780-107ba 1d400-1d7ff 1f110-1f16c"
)
"""Where the characters are that fold to a Latin letter."""
_MARKS: Final = "300-30ff a640-abff fb1e fe20-fe2f 10000-1efff"
"""Where the combining marks are."""
_IN_HEAD: Final = "/!? "
_FIRST_PIECE: Final = 32
_LARGEST_PIECE: Final = 4096

_ESCAPES: Final = r"(?:(?:amp|AMP|#0*+38(?![0-9])|#[xX]0*+26(?![0-9A-Fa-f]));?)*+"
"""An ampersand that was escaped any number of times."""
_REFERENCE: Final = re.compile(
    rf"{_ESCAPES}"
    r"(?:#0*+([0-9]{1,7})(?![0-9])|#[xX]0*+([0-9A-Fa-f]{1,6})(?![0-9A-Fa-f])|([A-Za-z][A-Za-z0-9]{0,30}))"
)


def characters(ranges: str) -> Iterator[str]:
    """The characters of a list of hexadecimal ranges."""
    for entry in ranges.split():
        first, _, last = entry.partition("-")
        yield from map(chr, range(int(first, 16), int(last or first, 16) + 1))


STARTS: Final = frozenset("<").union(characters(BRACKETS))
"""What a look-alike begins with, unless that is a reference."""


def find_look_alikes(text: str) -> list[int]:
    """Where look-alikes of our tags begin, in order."""
    is_ascii = text.isascii()
    found: set[int] = set()
    if "<" in text:
        found.update(match.start() for match in _PLAIN.finditer(text))
    if "&" in text:
        found.update(match.start() for match in _ESCAPED_PLAIN.finditer(text))
    if "&" in text or not is_ascii:
        has_foreign = not is_ascii and any(each in text for each in AMPERSANDS[1:])
        foreign = (_FOREIGN_REFERENCES,) if has_foreign else ()
        for prospects in _ASCII_PROSPECTS if is_ascii else (*_PROSPECTS, *foreign):
            found.update(match.start() for match in prospects.finditer(text) if _is_tag(text, match.start()))
    return sorted(found)


# --- expressions ---


def _class(chars: Iterable[str], more: str = "") -> str:
    """A character class."""
    ranges: list[list[int]] = []
    for point in sorted(map(ord, chars)):
        if ranges and point <= ranges[-1][1] + 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    written = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)
    return f"[{more}{written}]"


def _tag_expression(spelling: Mapping[str, str], blank: str, end: str) -> str:
    """A head and one of the names, each letter as it is spelled, with blanks anywhere."""
    return f"{spelling['head']}*+(?:{'|'.join(_spelled(name, spelling, blank, end) for name in _NAMES)})"


def _spelled(name: str, spelling: Mapping[str, str], blank: str, end: str) -> str:
    parts: list[str] = []
    for letter in name:
        if letter == ".":
            parts[-1] += end
            continue
        part = spelling.get(letter, letter)
        if letter == "-":
            part = f"(?:{part}{blank})*+"
        elif pair := _PAIRS.get(letter):
            part = f"(?:{part}|{blank.join(spelling.get(each, each) for each in pair)})"
        parts.append(part)
    return blank.join(parts)


def _bracket_reference() -> str:
    """What stands behind the ampersand of a reference to a bracket."""
    names: dict[str, set[str]] = {}
    for name, text in html5.items():
        if text[0] in STARTS:
            names.setdefault(name[0], set()).add(name[1:].removesuffix(";"))
    longest_first = {first: sorted(rest, key=lambda each: (-len(each), each)) for first, rest in names.items()}
    named = "|".join(f"{first}(?:{'|'.join(rest)})" for first, rest in sorted(longest_first.items()))
    points = {ord(char) for char in STARTS} | {0x8B}  # which browsers read as Windows does
    decimal = "|".join(map(str, sorted(points)))
    hexadecimal = "|".join("".join(f"[{each}{each.upper()}]" for each in f"{point:x}") for point in sorted(points))
    return rf"{_ESCAPES}(?:#0*+(?:{decimal})(?![0-9])|#[xX]0*+(?:{hexadecimal})(?![0-9A-Fa-f])|{named});?"


_ASCII_BLANK: Final = r"\x00-\x20\x7f"
_ASCII_HEAD: Final = r"/\\!?"
_ASCII_LETTERS: Final = {
    letter: f"{letter}{letter.upper()}{''.join(twin for twin, meant in _ASCII_TWINS.items() if meant == letter)}"
    for letter in LETTERS
} | {"i": "iIlL1|"}
_TO_BRACKET: Final = _bracket_reference()
_ASCII_TAG: Final = _tag_expression(
    {
        **{letter: f"[{spelled}]" for letter, spelled in _ASCII_LETTERS.items()},
        "-": "[-_]",
        "head": f"[{_ASCII_BLANK}{_ASCII_HEAD}]",
    },
    f"[{_ASCII_BLANK}]*+",
    rf"(?![a-zA-Z0-9]|&(?!{_TO_BRACKET})|[^\x00-\x7f])",
)
_PLAIN: Final = re.compile(f"<{_ASCII_TAG}")
"""A tag of nothing but ASCII."""
_ESCAPED_PLAIN: Final = re.compile(f"&{_TO_BRACKET}{_ASCII_TAG}")
"""The same behind a reference."""

_ANY_START: Final = _class([*STARTS, *AMPERSANDS])[1:-1]
_FOREIGN_IN_REFERENCE: Final = _class(characters(f"{IGNORABLE} ff03 fe5f ff10-ff19 ff21-ff3a ff41-ff5a ff1b fe54"))
_FOLDED_LATER: Final = (
    rf"(?=[{_ASCII_BLANK}{_ASCII_HEAD}_\-{''.join(_ASCII_LETTERS.values())}]*+(?:&(?!{_TO_BRACKET})|[^\x00-\x7f]))"
)
_LONG_ENOUGH: Final = rf"(?=[^{_ANY_START}]{{7}}|[^{_ANY_START}]{{0,6}}[{AMPERSANDS}])"
"""The shortest name has seven letters, and references may stand for them."""
_IN_REFERENCE: Final = rf"(?:[#0-9A-Za-z;]|{_FOREIGN_IN_REFERENCE})"
_ASCII_PROSPECTS: Final = (
    re.compile(f"<{_FOLDED_LATER}{_LONG_ENOUGH}"),
    re.compile(f"&{_TO_BRACKET}{_FOLDED_LATER}{_LONG_ENOUGH}"),
)
"""Where something could begin that is a tag only once it is folded."""
_PROSPECTS: Final = (
    *_ASCII_PROSPECTS,
    re.compile(f"{_class(characters(BRACKETS))}{_LONG_ENOUGH}"),
    re.compile(f"&(?=[#0-9A-Za-z;]*+{_FOREIGN_IN_REFERENCE}){_IN_REFERENCE}{{2}}{_LONG_ENOUGH}"),
)
_FOREIGN_REFERENCES: Final = re.compile(f"[{AMPERSANDS[1:]}]{_IN_REFERENCE}{{2}}{_LONG_ENOUGH}")
_RUN: Final = re.compile(f"{_IN_REFERENCE}++")
_TAG: Final = re.compile("<" + _tag_expression({"-": "[-_]", "head": f"[{_IN_HEAD}]"}, " *+", r"(?![^\W_])"))
"""The skeleton of a tag."""
_NOT_IN_SKELETON: Final = re.compile(rf"[^{''.join(LETTERS)}_/!? -]")
_AMPERSAND: Final = re.compile(f"[{AMPERSANDS}]")


# --- skeletons ---


@cache
def _skeletons() -> dict[int, str]:
    """What each character is in a skeleton; those that are missing have no place in a tag."""
    table = dict.fromkeys(characters(IGNORABLE), "")
    table |= {char: "" for char in characters(_MARKS) if unicodedata.category(char)[0] == "M"}
    table |= {char: " " for char in map(chr, range(0x3001)) if char.isspace() or unicodedata.category(char) == "Cc"}
    for letter, listed in LETTERS.items():
        table |= dict.fromkeys((letter, letter.upper(), *characters(listed)), letter)
    table |= {"L": "i", **_ASCII_TWINS, **_LIGATURES}
    for char in characters(_COMPATIBLE):
        folded = _fold(char)
        if folded in LETTERS or folded == "l":
            table.setdefault(char, "i" if folded == "l" else folded)
    table |= dict.fromkeys(characters(DASHES), "-")
    table |= dict.fromkeys(characters(UNDERSCORES), "_")
    table |= {**dict.fromkeys(characters(SLASHES), "/"), "!": "!", "?": "?"}
    return {ord(char): meant for char, meant in table.items()}


def _fold(char: str) -> str:
    """A character without its compatibility form, case and accents."""
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", char).casefold())
    return "".join(each for each in folded if unicodedata.category(each)[0] != "M").casefold()


def _is_tag(text: str, start: int) -> bool:
    """Whether a bracket is there and what follows is one of our names, once everything is decoded."""
    char, end = _reference(text, start) if text[start] in AMPERSANDS else (text[start], start + 1)
    return char[:1] in STARTS and _TAG.match("<" + "".join(_skeleton(text, end))) is not None


def _skeleton(text: str, position: int) -> Iterator[str]:
    """The skeleton of what follows a bracket, up to the first character that no tag can hold."""
    table, size = _skeletons(), _FIRST_PIECE
    while position < len(text):
        if text[position] in AMPERSANDS:
            char, position = _reference(text, position)
            piece = char.translate(table)
            if not char or _NOT_IN_SKELETON.search(piece):
                return
            yield piece
            continue
        ampersand = _AMPERSAND.search(text, position, position + size)
        end = position + size if ampersand is None else ampersand.start()
        piece = text[position:end].translate(table)
        foreign = _NOT_IN_SKELETON.search(piece)
        if foreign is not None:
            yield piece[: foreign.end()]
            return
        yield piece
        position, size = end, min(2 * size, _LARGEST_PIECE)


def _reference(text: str, start: int) -> tuple[str, int]:
    """What the reference at a place stands for, and where it ends. It stands for nothing if no tag can hold it."""
    run = _RUN.match(text, start + 1)
    if run is None:
        return "", start + 1
    written, places = run[0], cast("Sequence[int]", range(run.start(), run.end()))
    if not written.isascii():
        folded = [(unicodedata.normalize("NFKC", char), at) for char, at in zip(written, places, strict=True)]
        kept = [(char, at) for char, at in folded if char.isascii()]
        written, places = "".join(char for char, _ in kept), [at for _, at in kept]
    found = _REFERENCE.match(written)
    if found is None:
        return "", start + 1
    char, end = _meant(found)
    end += written.startswith(";", end)
    return char, places[end - 1] + 1


def _meant(found: re.Match[str]) -> tuple[str, int]:
    """The character of a reference, and where its number or name ends."""
    decimal, hexadecimal, name = found.groups()
    if name is None:
        return _character(int(decimal) if decimal else int(hexadecimal, 16)), found.end()
    known = _names()
    for length in range(len(name), 1, -1):
        if name[:length] in known:
            return known[name[:length]], found.start(3) + length
    return "", found.end()


def _character(number: int) -> str:
    """As browsers read it: the upper control characters are those of Windows."""
    if 0x80 <= number < 0xA0:
        return bytes([number]).decode("cp1252", "replace")
    return chr(number) if number < 0x110000 else ""


@cache
def _names() -> dict[str, str]:
    """The named references that can take part in a tag."""
    table = _skeletons()
    named = {name.removesuffix(";"): text for name, text in html5.items()}
    return {name: text for name, text in named.items() if text[0] in STARTS or all(ord(each) in table for each in text)}

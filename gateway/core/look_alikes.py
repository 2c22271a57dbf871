"""Finds what a reader could take for one of our tags, however it is spelled.

A tag is recognised by its skeleton: character references are decoded (named, decimal, hexadecimal, with and without
`;`, escaped any number of times), compatibility forms, case and accents are folded, what nobody sees is dropped, and
letters of other alphabets count as the Latin letters they look like. White space may stand anywhere.

Expressions find the few places where a tag could begin; from there the skeleton is made up to the next character that
no tag can hold. A bracket is such a character, so nothing is read for two tags: time is linear, whatever the text is.
Texts with many such places are flattened first: a copy of the same length, in which each character is the ASCII
character it looks like, lets one expression dismiss nearly all of the places.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from html.entities import html5
from typing import Final

from gateway.core.confusables import BRACKETS, DASHES, IGNORABLE, LETTERS, SLASHES, UNDERSCORES

AMPERSANDS: Final = "&\uff06\ufe60"
_EACH_AMPERSAND: Final = tuple(AMPERSANDS)

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
_FLATTENED_AT_ONCE: Final = 1 << 15
"""Characters; one call that flattens more would keep other threads waiting."""
_FLAT_PER_PLACE: Final = 64
"""Flattening so many characters takes about as long as examining one place."""
_LONGEST_KEPT: Final = 32

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
        expressions = _ASCII_PROSPECTS if is_ascii else (*_PROSPECTS, *foreign)
        prospects = [match.start() for each in expressions for match in each.finditer(text)]
        found.update(_tags_among(text, prospects))
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


def _any_of(words: Iterable[str]) -> str:
    """An expression for the longest of some words, which reads each character once."""
    tails: dict[str, list[str]] = {}
    is_optional = False
    for word in words:
        if word:
            tails.setdefault(word[0], []).append(word[1:])
        is_optional = is_optional or not word
    branches = "|".join(f"{first}{_any_of(rest)}" for first, rest in sorted(tails.items()))
    return f"(?:{branches}){'?' if is_optional else ''}" if branches else ""


def _bracket_reference() -> str:
    """What stands behind the ampersand of a reference to a bracket."""
    named = _any_of({name.removesuffix(";") for name, text in html5.items() if text[0] in STARTS})
    points = {ord(char) for char in STARTS} | {0x8B}  # which browsers read as Windows does
    decimal = _any_of(map(str, points))
    hexadecimal = re.sub(
        "[a-f]", lambda found: f"[{found[0]}{found[0].upper()}]", _any_of(f"{each:x}" for each in points)
    )
    return rf"{_ESCAPES}(?:#0*+{decimal}(?![0-9])|#[xX]0*+{hexadecimal}(?![0-9A-Fa-f])|{named});?"


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
_FOREIGN_RANGES: Final = f"{IGNORABLE} ff03 fe5f ff10-ff19 ff21-ff3a ff41-ff5a ff1b fe54"
_FOREIGN_IN_REFERENCE: Final = _class(characters(_FOREIGN_RANGES))
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
_FLAT_TAG: Final = re.compile(
    _tag_expression(
        {
            **{letter: f"(?:[{spelled}]|(?=&))" for letter, spelled in {**_ASCII_LETTERS, "_": "_"}.items()},
            "-": "[-_]",
            "head": f"[{_ASCII_BLANK}{_ASCII_HEAD}]",
        },
        f"[{_ASCII_BLANK}]*+",
        "",
    )
)
"""What follows the bracket of a tag in a flat text. An ampersand may stand for anything that follows."""
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


@cache
def _flat() -> dict[int, int]:
    """The ASCII character that each other one looks like: DEL if it is not seen, an ampersand if it is several."""
    table = {point: ord(meant) if len(meant) == 1 else 0x7F for point, meant in _skeletons().items() if point > 0x7F}
    return table | dict.fromkeys(map(ord, [*AMPERSANDS, *_LIGATURES]), 0x26)


def _flattened(text: str) -> str:
    if text.isascii():
        return text
    table, step = _flat(), _FLATTENED_AT_ONCE
    return "".join([text[at : at + step].translate(table) for at in range(0, len(text), step)])


def _tags_among(text: str, prospects: list[int]) -> Iterator[int]:
    """The places where a bracket is and one of our names follows, once everything is decoded."""
    flat = _flattened(text) if len(prospects) * _FLAT_PER_PLACE > len(text) else ""
    for start in prospects:
        char, end = _reference(text, start) if text[start] in AMPERSANDS else (text[start], start + 1)
        if char[:1] not in STARTS or (flat and not _may_follow(text, flat, end)):
            continue
        if _TAG.match("<" + "".join(_skeleton(text, end))):
            yield start


def _may_follow(text: str, flat: str, position: int) -> bool:
    """Whether a flat text has one of our names at a place, as far as it can be read there."""
    if text.startswith(_EACH_AMPERSAND, position):
        return _referred(_reference(text, position)[0]) is not None
    return _FLAT_TAG.match(flat, position) is not None


def _skeleton(text: str, position: int) -> Iterator[str]:
    """The skeleton of what follows a bracket, up to the first character that no tag can hold."""
    table, size = _skeletons(), _FIRST_PIECE
    while position < len(text):
        if text[position] in AMPERSANDS:
            char, position = _reference(text, position)
            referred = _referred(char)
            if referred is None:
                return
            yield referred
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


@lru_cache(maxsize=4096)
def _referred(char: str) -> str | None:
    """The skeleton of what a reference stands for; None if no tag can hold it."""
    piece = char.translate(_skeletons())
    return piece if char and not _NOT_IN_SKELETON.search(piece) else None


def _reference(text: str, start: int) -> tuple[str, int]:
    """What the reference at a place stands for, and where it ends. It stands for nothing if no tag can hold it."""
    run = _RUN.match(text, start + 1)
    if run is None:
        return "", start + 1
    written = run[0]
    char, length = _kept_decoded(written) if len(written) <= _LONGEST_KEPT else _decoded(written)
    return char, start + 1 + length


def _decoded(written: str) -> tuple[str, int]:
    """What a reference stands for that begins a text, and its length."""
    plain = written if written.isascii() else _plain(written)
    found = _REFERENCE.match(plain)
    if found is None:
        return "", 0
    char, end = _meant(found)
    end += plain.startswith(";", end)
    return char, end if plain is written else _length_of(written, end)


_kept_decoded: Final = lru_cache(maxsize=4096)(_decoded)


def _plain(written: str) -> str:
    """The ASCII characters of a reference, without those that nobody sees."""
    table, step = _plain_characters(), _FLATTENED_AT_ONCE
    return "".join([written[at : at + step].translate(table) for at in range(0, len(written), step)])


@cache
def _plain_characters() -> dict[int, str]:
    folded = {char: unicodedata.normalize("NFKC", char) for char in characters(_FOREIGN_RANGES)}
    return {ord(char): plain if plain.isascii() else "" for char, plain in folded.items()}


def _length_of(written: str, count: int) -> int:
    """How many characters the first ASCII characters of a reference take."""
    at = 0
    while count > (held := len(_plain(piece := written[at : at + _LARGEST_PIECE]))):
        count, at = count - held, at + len(piece)
    table = _plain_characters()
    while count:
        count -= table.get(ord(written[at]), "seen") != ""
        at += 1
    return at


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

"""Find text that a reader could mistake for a tag of a trust envelope, however it is spelled.

A tag is recognised by its skeleton: character references are decoded (named, decimal, hexadecimal, with and without
`;`, escaped any number of times), compatibility forms, case and accents are folded, invisible characters are dropped,
and letters of other alphabets become the Latin letters they look like. White space is allowed anywhere.

Regular expressions find the few candidates, places where a tag could begin. From there the skeleton is built up to the
next character that no tag can contain. A bracket is such a character, so no text is read twice: the time is always
linear. A text with many candidates is flattened first: a copy of the same length, in which each character is the ASCII
character it looks like, lets one expression dismiss nearly all candidates.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from html.entities import html5
from typing import Final

from gateway.model.envelopes.confusables import BRACKETS, DASHES, IGNORABLE, LETTERS, SLASHES, UNDERSCORES

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
"""`-` matches any separators or none, `_` an underscore, `.` the end of the word."""
_PAIRS: Final = {"m": "rn", "d": "ci"}
"""Two letters of a skeleton that look like one: `l` is an `i` in a skeleton."""
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
"""Ranges of characters that fold to a Latin letter."""
_MARKS: Final = "300-30ff a640-abff fb1e fe20-fe2f 10000-1efff"
"""Ranges of combining marks."""
_IN_HEAD: Final = "/!? "
_FIRST_PIECE: Final = 32
_LARGEST_PIECE: Final = 4096
_FLATTENED_AT_ONCE: Final = 1 << 15
"""Characters per call; a longer call would block other threads."""
_FLAT_PER_CANDIDATE: Final = 64
"""Flattening this many characters takes about as long as examining one candidate."""
_LONGEST_CACHED: Final = 32

_ESCAPES: Final = r"(?:(?:amp|AMP|#0*+38(?![0-9])|#[xX]0*+26(?![0-9A-Fa-f]));?)*+"
"""An ampersand that was escaped any number of times."""
_REFERENCE: Final = re.compile(
    rf"{_ESCAPES}"
    r"(?:#0*+([0-9]{1,7})(?![0-9])|#[xX]0*+([0-9A-Fa-f]{1,6})(?![0-9A-Fa-f])|([A-Za-z][A-Za-z0-9]{0,30}))"
)


def characters(ranges: str) -> Iterator[str]:
    """Yield the characters of a list of hexadecimal ranges."""
    for entry in ranges.split():
        first, _, last = entry.partition("-")
        yield from map(chr, range(int(first, 16), int(last or first, 16) + 1))


STARTS: Final = frozenset("<").union(characters(BRACKETS))
"""The first characters of look-alikes, besides character references."""


def find_look_alikes(text: str) -> list[int]:
    """Return the positions where look-alikes of our tags begin, in order."""
    is_ascii = text.isascii()
    found: set[int] = set()
    if "<" in text:
        found.update(match.start() for match in _PLAIN.finditer(text))
    if "&" in text:
        found.update(match.start() for match in _ESCAPED_PLAIN.finditer(text))
    if "&" in text or not is_ascii:
        has_foreign = not is_ascii and any(each in text for each in AMPERSANDS[1:])
        foreign = (_FOREIGN_REFERENCES,) if has_foreign else ()
        expressions = _ASCII_CANDIDATES if is_ascii else (*_CANDIDATES, *foreign)
        candidates = [match.start() for each in expressions for match in each.finditer(text)]
        found.update(_find_tags(text, candidates))
    return sorted(found)


# --- expressions ---


def _class(chars: Iterable[str], more: str = "") -> str:
    """Return a character class of a regular expression."""
    ranges: list[list[int]] = []
    for point in sorted(map(ord, chars)):
        if ranges and point <= ranges[-1][1] + 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    written = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)
    return f"[{more}{written}]"


def _tag_expression(spelling: Mapping[str, str], blank: str, end: str) -> str:
    """Return an expression for a head and one of the names, with blanks anywhere; `spelling` gives the letters."""
    return f"{spelling['head']}*+(?:{'|'.join(_spell(name, spelling, blank, end) for name in _NAMES)})"


def _spell(name: str, spelling: Mapping[str, str], blank: str, end: str) -> str:
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
    """Return an expression that matches the longest of the words and reads each character once."""
    tails: dict[str, list[str]] = {}
    is_optional = False
    for word in words:
        if word:
            tails.setdefault(word[0], []).append(word[1:])
        is_optional = is_optional or not word
    branches = "|".join(f"{first}{_any_of(rest)}" for first, rest in sorted(tails.items()))
    return f"(?:{branches}){'?' if is_optional else ''}" if branches else ""


def _bracket_reference() -> str:
    """Return an expression for a reference to a bracket, without its ampersand."""
    named = _any_of({name.removesuffix(";") for name, text in html5.items() if text[0] in STARTS})
    points = {ord(char) for char in STARTS} | {0x8B}  # browsers read it as Windows-1252
    decimal = _any_of(map(str, points))
    hexadecimal = re.sub(
        "[a-f]", lambda found: f"[{found[0]}{found[0].upper()}]", _any_of(f"{each:x}" for each in points)
    )
    return rf"{_ESCAPES}(?:#0*+{decimal}(?![0-9])|#[xX]0*+{hexadecimal}(?![0-9A-Fa-f])|{named});?"


_ASCII_BLANK: Final = r"\x00-\x20\x7f"
_ASCII_HEAD: Final = r"/\\!?"
_ASCII_LETTERS: Final = {
    letter: f"{letter}{letter.upper()}{''.join(twin for twin, latin in _ASCII_TWINS.items() if latin == letter)}"
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
"""A tag of ASCII characters only."""
_ESCAPED_PLAIN: Final = re.compile(f"&{_TO_BRACKET}{_ASCII_TAG}")
"""The same, with a reference for its bracket."""

_ANY_START: Final = _class([*STARTS, *AMPERSANDS])[1:-1]
_FOREIGN_RANGES: Final = f"{IGNORABLE} ff03 fe5f ff10-ff19 ff21-ff3a ff41-ff5a ff1b fe54"
_FOREIGN_IN_REFERENCE: Final = _class(characters(_FOREIGN_RANGES))
_FOLDED_LATER: Final = (
    rf"(?=[{_ASCII_BLANK}{_ASCII_HEAD}_\-{''.join(_ASCII_LETTERS.values())}]*+(?:&(?!{_TO_BRACKET})|[^\x00-\x7f]))"
)
_LONG_ENOUGH: Final = rf"(?=[^{_ANY_START}]{{7}}|[^{_ANY_START}]{{0,6}}[{AMPERSANDS}])"
"""The shortest name has seven letters, which may be references."""
_IN_REFERENCE: Final = rf"(?:[#0-9A-Za-z;]|{_FOREIGN_IN_REFERENCE})"
_ASCII_CANDIDATES: Final = (
    re.compile(f"<{_FOLDED_LATER}{_LONG_ENOUGH}"),
    re.compile(f"&{_TO_BRACKET}{_FOLDED_LATER}{_LONG_ENOUGH}"),
)
"""Starts of text that may become a tag once it is folded."""
_CANDIDATES: Final = (
    *_ASCII_CANDIDATES,
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
"""The part of a tag after its bracket, in a flat text. An ampersand matches anything that follows."""
_RUN: Final = re.compile(f"{_IN_REFERENCE}++")
_TAG: Final = re.compile("<" + _tag_expression({"-": "[-_]", "head": f"[{_IN_HEAD}]"}, " *+", r"(?![^\W_])"))
"""The skeleton of a tag."""
_NOT_IN_SKELETON: Final = re.compile(rf"[^{''.join(LETTERS)}_/!? -]")
_AMPERSAND: Final = re.compile(f"[{AMPERSANDS}]")


# --- skeletons ---


@cache
def _skeletons() -> dict[int, str]:
    """Return the skeleton of each character; a character that is missing cannot be part of a tag."""
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
    return {ord(char): latin for char, latin in table.items()}


def _fold(char: str) -> str:
    """Return a character without its compatibility form, case and accents."""
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", char).casefold())
    return "".join(each for each in folded if unicodedata.category(each)[0] != "M").casefold()


@cache
def _flat() -> dict[int, int]:
    """Map each character to the ASCII one it looks like: DEL if it is invisible, an ampersand if it is several."""
    table = {point: ord(latin) if len(latin) == 1 else 0x7F for point, latin in _skeletons().items() if point > 0x7F}
    return table | dict.fromkeys(map(ord, [*AMPERSANDS, *_LIGATURES]), 0x26)


def _flatten(text: str) -> str:
    if text.isascii():
        return text
    table, step = _flat(), _FLATTENED_AT_ONCE
    return "".join([text[at : at + step].translate(table) for at in range(0, len(text), step)])


def _find_tags(text: str, candidates: list[int]) -> Iterator[int]:
    """Yield the candidates that are a bracket followed by one of our names, once everything is decoded."""
    flat = _flatten(text) if len(candidates) * _FLAT_PER_CANDIDATE > len(text) else ""
    for start in candidates:
        char, end = _reference(text, start) if text[start] in AMPERSANDS else (text[start], start + 1)
        if char[:1] not in STARTS or (flat and not _may_follow(text, flat, end)):
            continue
        if _TAG.match("<" + "".join(_skeleton(text, end))):
            yield start


def _may_follow(text: str, flat: str, position: int) -> bool:
    """Whether one of our names may follow at `position`, judged by the flat text up to the next reference."""
    if text.startswith(_EACH_AMPERSAND, position):
        return _reference_skeleton(_reference(text, position)[0]) is not None
    return _FLAT_TAG.match(flat, position) is not None


def _skeleton(text: str, position: int) -> Iterator[str]:
    """Yield the skeleton of the text after a bracket, up to the first character that no tag can contain."""
    table, size = _skeletons(), _FIRST_PIECE
    while position < len(text):
        if text[position] in AMPERSANDS:
            char, position = _reference(text, position)
            referred = _reference_skeleton(char)
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
def _reference_skeleton(char: str) -> str | None:
    """Return the skeleton of a decoded reference; `None` if no tag can contain it."""
    piece = char.translate(_skeletons())
    return piece if char and not _NOT_IN_SKELETON.search(piece) else None


def _reference(text: str, start: int) -> tuple[str, int]:
    """Decode the reference at `start`: return its text, empty if no tag can contain it, and its end."""
    run = _RUN.match(text, start + 1)
    if run is None:
        return "", start + 1
    written = run[0]
    char, length = _decode_cached(written) if len(written) <= _LONGEST_CACHED else _decode(written)
    return char, start + 1 + length


def _decode(written: str) -> tuple[str, int]:
    """Decode the reference at the start of `written`: return its text and its length."""
    plain = written if written.isascii() else _plain(written)
    found = _REFERENCE.match(plain)
    if found is None:
        return "", 0
    char, end = _match_text(found)
    end += plain.startswith(";", end)
    return char, end if plain is written else _length_of(written, end)


_decode_cached: Final = lru_cache(maxsize=4096)(_decode)


def _plain(written: str) -> str:
    """Return the ASCII form of a reference, without invisible characters."""
    table, step = _plain_characters(), _FLATTENED_AT_ONCE
    return "".join([written[at : at + step].translate(table) for at in range(0, len(written), step)])


@cache
def _plain_characters() -> dict[int, str]:
    folded = {char: unicodedata.normalize("NFKC", char) for char in characters(_FOREIGN_RANGES)}
    return {ord(char): plain if plain.isascii() else "" for char, plain in folded.items()}


def _length_of(written: str, count: int) -> int:
    """Return how many characters of `written` make up its first `count` ASCII characters."""
    at = 0
    while count > (held := len(_plain(piece := written[at : at + _LARGEST_PIECE]))):
        count, at = count - held, at + len(piece)
    table = _plain_characters()
    while count:
        count -= table.get(ord(written[at]), "seen") != ""
        at += 1
    return at


def _match_text(found: re.Match[str]) -> tuple[str, int]:
    """Return the text of a matched reference, and where its number or name ends."""
    decimal, hexadecimal, name = found.groups()
    if name is None:
        return _character(int(decimal) if decimal else int(hexadecimal, 16)), found.end()
    known = _names()
    for length in range(len(name), 1, -1):
        if name[:length] in known:
            return known[name[:length]], found.start(3) + length
    return "", found.end()


def _character(number: int) -> str:
    """Return the character of a number as browsers read it: upper control characters are Windows-1252."""
    if 0x80 <= number < 0xA0:
        return bytes([number]).decode("cp1252", "replace")
    return chr(number) if number < 0x110000 else ""


@cache
def _names() -> dict[str, str]:
    """Return the named references that can be part of a tag."""
    table = _skeletons()
    named = {name.removesuffix(";"): text for name, text in html5.items()}
    return {name: text for name, text in named.items() if text[0] in STARTS or all(ord(each) in table for each in text)}

"""Visible text: which characters a screen would obey, reorder or not draw, and how they are shown instead.

This is the one table of such characters; terminals, approvals, the lock file and pages of HTML use it.
"""

import unicodedata
from collections.abc import Iterator
from typing import Final, NamedTuple

BLANK_LETTERS: Final = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef"
"""Printable in Unicode, but blank on the screen; as the content of a regular expression's brackets."""

_MOST_MARKS: Final = 3
"""Combining marks on one letter; more of them are drawn over the lines above and below."""

_TAB: Final = "    "


def _expand(ranges: str) -> frozenset[str]:
    found: set[str] = set()
    parts = list(ranges)
    while parts:
        first = parts.pop(0)
        is_range = parts[:1] == ["-"]
        last = parts[1] if is_range else first
        parts = parts[2:] if is_range else parts
        found.update(map(chr, range(ord(first), ord(last) + 1)))
    return frozenset(found)


_BLANK: Final = _expand(BLANK_LETTERS)


class TextPiece(NamedTuple):
    """Text that can be shown as it is, or the name of one character that cannot: `U+200B`."""

    text: str
    is_name: bool = False


def is_unseen(character: str) -> bool:
    """Whether a screen would not draw the character, or would obey it. Line ends and tabs count."""
    return not character.isprintable() or character in _BLANK


def split_unseen(text: str) -> Iterator[TextPiece]:
    """Yield the text in pieces; characters that are not seen, and marks beyond a few on one letter, by their names."""
    start, marks = 0, 0
    for index, character in enumerate(text):
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if marks > _MOST_MARKS or is_unseen(character):
            if index > start:
                yield TextPiece(text[start:index])
            yield TextPiece(f"U+{ord(character):04X}", is_name=True)
            start = index + 1
    if start < len(text):
        yield TextPiece(text[start:])


def escape_invisible(text: str) -> str:
    """Return the text with a visible sign for every control or invisible character, for one line of a terminal."""
    return text if text.isprintable() and text.isascii() else "".join(map(escape_character, text))


def escape_character(character: str) -> str:
    if not is_unseen(character):
        return character
    if character == "\t":
        return _TAB
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else f"<U+{code:04X}>"

"""Characters that a reader does not see: marks that turn the direction of text, fillers, tags, selectors.

Whoever writes texts for people escapes all of them; whoever reviews texts forgives the few that scripts and emoji need.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

_BLANK_LETTERS: Final = (
    "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef"
)
"""Printable to Unicode, and yet nothing on the screen."""

_BLANK: Final = re.compile(f"[{_BLANK_LETTERS}]")
_BIDIRECTIONAL: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_JOINERS: Final = frozenset("\u200c\u200d\ufe0e\ufe0f")
"""Needed inside words of some scripts, and inside emoji."""


def is_seen(text: str) -> bool:
    """Whether every character shows; a line break does not."""
    return text.isprintable() and _BLANK.search(text) is None


def is_bidirectional(character: str) -> bool:
    return character in _BIDIRECTIONAL


def hidden_in(text: str) -> Iterator[tuple[int, str]]:
    """Characters that hide something, with their places. Tabs, line breaks and no-break spaces hide nothing.

    A joiner is forgiven behind a letter or a sign that is not ASCII, one at a time.
    """
    if text.isascii() and text.isprintable():
        return
    for index, character in enumerate(text):
        if character in "\t\n\r\xa0\u202f" or (character.isprintable() and not _BLANK.match(character)):
            continue
        if unicodedata.category(character) == "Zs":
            continue
        if character in _JOINERS and index and _is_joined(text[index - 1]):
            continue
        yield index, character


def _is_joined(before: str) -> bool:
    """Whether a joiner may stand behind the character: keycaps are the one case of ASCII."""
    if before in "#*0123456789":
        return True
    return not before.isascii() and before not in _JOINERS - {"\ufe0f"} and unicodedata.category(before)[0] in "LMSN"

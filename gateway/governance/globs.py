"""Patterns over names: `*` stands for any run of characters, everything else for itself, anchored at both ends."""

from typing import Any


def glob_matches(text: Any, pattern: Any) -> bool:
    """Whether the whole text fits the pattern. Linear in the text for each `*`; not a regular expression."""
    if not isinstance(text, str) or not isinstance(pattern, str):
        return False
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    *middle, last = rest
    if not text.startswith(first) or len(text) < len(first) + len(last) or not text.endswith(last):
        return False
    position, end = len(first), len(text) - len(last)
    for piece in middle:
        found = text.find(piece, position, end)
        if found < 0:
            return False
        position = found + len(piece)
    return True

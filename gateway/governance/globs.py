"""Patterns over names: `*` stands for any run of characters, everything else for itself, anchored at both ends."""

from itertools import product
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


def globs_overlap(first: str, second: str) -> bool:
    """Whether some text fits both patterns."""
    # `met[i][j]`: what is left of the first pattern from `i` on, and of the second from `j` on, can be one text
    met = [[False] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, j in product(range(len(first), -1, -1), range(len(second), -1, -1)):
        ours, theirs = first[i : i + 1], second[j : j + 1]
        if "*" in (ours, theirs):  # a star stands for nothing, or takes in what the other one has there
            met[i][j] = (bool(ours) and met[i + 1][j]) or (bool(theirs) and met[i][j + 1])
        else:
            met[i][j] = ours == theirs and (not ours or met[i + 1][j + 1])
    return met[0][0]

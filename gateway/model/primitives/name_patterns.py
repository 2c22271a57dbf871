"""The alphabets of names, glob patterns over names, and names that look alike.

- Globs: `*` matches any run of characters, everything else matches itself, anchored at both ends.
- Documents and policies share the alphabets, so that a policy can name everything that a document can define.
"""

import unicodedata
from itertools import product
from typing import Any, Final


def glob_matches(text: Any, pattern: Any) -> bool:
    """Whether the pattern matches the whole text. Takes linear time in the text for each `*`."""
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
    """Whether both patterns match some common text."""
    # `met[i][j]`: whether the first pattern from `i` on and the second from `j` on match a common text
    met = [[False] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, j in product(range(len(first), -1, -1), range(len(second), -1, -1)):
        ours, theirs = first[i : i + 1], second[j : j + 1]
        if "*" in (ours, theirs):  # a star matches nothing, or the next character of the other pattern
            met[i][j] = (bool(ours) and met[i + 1][j]) or (bool(theirs) and met[i][j + 1])
        else:
            met[i][j] = ours == theirs and (not ours or met[i + 1][j + 1])
    return met[0][0]


SUBJECT_KINDS: Final = ("user", "agent", "service", "role")
OBJECT_KINDS: Final = ("tool", "class", "catalogue", "approval", "prompt", "resource")
CONFIG_OBJECT: Final = "config"
"""The only object without a kind: the configuration of the gateway itself."""

NAME_REGEX: Final = r"[A-Za-z0-9_.-]{1,128}"
PATTERN_REGEX: Final = r"(?:[A-Za-z0-9_.-]|\*(?!\*)){1,128}"
"""A name that may contain single stars."""

SUBJECT_NAME_REGEX: Final = r"[A-Za-z0-9_.@+=/:~|-]{1,256}"
"""The part after a subject's kind; identity providers use `@`, `/`, `:` and `|` in it."""

_SEPARATORS: Final = str.maketrans("", "", "-_. ")
_TWINS: Final = str.maketrans(
    # Digits and the letters they resemble, then Cyrillic and Greek letters that look like Latin ones.
    "01358|" + "авеёкмнорсухіјѕһԁԛԝӏ" + "αβεηικνορτυχω",
    "olesbl" + "abeekmhopcyxijshdqwl" + "abenikvoptuxw",
)


def fold_name(name: str) -> str:
    """Return the name without case and separators: `Ticket-Create` and `ticket_create` fold to the same text."""
    return name.casefold().translate(_SEPARATORS)


def confusable_skeleton(name: str) -> str:
    """Return a skeleton that is equal for names that look alike.

    Compatibility forms, accents and look-alike letters are replaced, and so are `rn` (by `m`) and `vv` (by `w`).
    """
    decomposed = unicodedata.normalize("NFKD", name).casefold()
    bare = "".join(char for char in decomposed if not unicodedata.combining(char) and char.isprintable())
    return bare.translate(_SEPARATORS).translate(_TWINS).replace("rn", "m").replace("vv", "w")

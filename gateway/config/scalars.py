"""Which value an unquoted scalar stands for: null, true, false, a decimal number, or itself as text.

YAML 1.1 would read `22:30` as 1350, `012` as 10, `on` as true and `2026-11-16` as a date. Here all of them are
text, and so are `1e3`, `+1`, `.5`, `0x1F`, `.inf`, `True` and `Null`: a number is what everybody reads as that number.
"""

import math
import re
from typing import Final

Scalar = str | int | float | bool | None

_WORDS: Final[dict[str, Scalar]] = {"": None, "~": None, "null": None, "true": True, "false": False}
MERGE: Final = "<<"
"""The key that other readers replace by the fields of its value."""

_NOT_KEYS: Final = frozenset((MERGE, *_WORDS))
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?")
_NUMERIC: Final = frozenset("-0123456789")
_LONGEST_INTEGER: Final = 20
_INTEGERS: Final = range(-(1 << 63), 1 << 64)
"""What JSON writers, databases and other languages can hold."""


class OutOfRange(Exception):
    """A number that the programs around us could not hold."""


def plain(text: str) -> Scalar:
    """The value of an unquoted scalar; raises `OutOfRange`."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMERIC:
        return text
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    return _integer(text) if match[1] is None else _float(text)


def is_text_as_key(text: str) -> bool:
    """Whether an unquoted key is what it looks like.

    Whole numbers count as text, so that a table of status codes needs no quotes: JSON has text keys only.
    """
    if text in _NOT_KEYS:
        return False
    if text[0] not in _NUMERIC:
        return True
    match = _NUMBER.fullmatch(text)
    return match is None or match[1] is None


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER or (number := int(text)) not in _INTEGERS:
        raise OutOfRange
    return number


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise OutOfRange
    return number

"""JavaScript's truth, equality and order over JSON values, as filters of a JSONPath use them.

`UNDEFINED` stands for what is not there. One deliberate difference: lists and objects are equal when
their contents are, because identity means nothing in a parsed document.
"""

import math
import operator
import re
from collections.abc import Callable
from typing import Any, Final

from gateway.core.canonical import UNDEFINED
from gateway.core.patterns import Pattern

_NUMERIC: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def is_truthy(value: Any) -> bool:
    """Empty lists and objects count; 0, NaN, the empty text, null and what is not there do not."""
    if isinstance(value, dict | list):
        return True
    return value is not UNDEFINED and value == value and bool(value)


def is_same(left: Any, right: Any) -> bool:
    """`===`"""
    if left is UNDEFINED or right is UNDEFINED:
        return left is right
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def is_equal(left: Any, right: Any) -> bool:
    """`==`: null is like nothing at all, and a text is compared with a number as a number."""
    if _is_nothing(left) or _is_nothing(right):
        return _is_nothing(left) and _is_nothing(right)
    if isinstance(left, dict | list) or isinstance(right, dict | list) or type(left) is type(right):
        return is_same(left, right)
    return _number(left) == _number(right)


def _is_nothing(value: Any) -> bool:
    return value is None or value is UNDEFINED


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def decide(left: Any, right: Any) -> bool:
        if isinstance(left, str) and isinstance(right, str):
            return compare(left, right)
        return compare(_number(left), _number(right))

    return decide


def _number(value: Any) -> int | float:
    """The number JavaScript makes of a value; NaN, which equals nothing, where there is none."""
    if isinstance(value, int | float):
        return value
    if value is None:
        return 0
    if isinstance(value, str):
        text = value.strip()
        return float(text) if _NUMERIC.fullmatch(text) else math.nan if text else 0
    return math.nan


def _is_match(left: Any, right: Any) -> bool:
    return isinstance(left, str) and isinstance(right, Pattern) and right.matches(left)


COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": is_equal,
    "!=": lambda left, right: not is_equal(left, right),
    "===": is_same,
    "!==": lambda left, right: not is_same(left, right),
    "<": _ordered(operator.lt),
    "<=": _ordered(operator.le),
    ">": _ordered(operator.gt),
    ">=": _ordered(operator.ge),
    "=~": _is_match,
}

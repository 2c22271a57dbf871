"""Canonical JSON, printed byte for byte as JavaScript prints it, and the call id built on it.

Two paths give the same text: orjson where its output and JavaScript's agree, and a plain
walk where they differ (integral or extreme floats, integers past 2^53, keys above ASCII,
lone surrogates). Values outside the JSON grammar are refused, never converted.
"""

import re
from functools import lru_cache
from hashlib import sha256
from math import isfinite
from typing import Any, Final

import orjson

MAX_DEPTH: Final = 512
"""Deeper nesting is refused: the walk is recursive, and nothing real is this deep."""

_SAFE_INTEGER: Final = 2**53
_CACHED_NAME: Final = 128
_ALWAYS_ALIKE: Final = frozenset({str, bool, type(None)})
_NUMBERS: Final = frozenset({int, float})
_FLAT: Final = _ALWAYS_ALIKE | _NUMBERS
_CYCLE: Final = "the value contains itself; JSON has no cycles"
_NEEDS_ESCAPE: Final = re.compile(r'[\x00-\x1f"\\\ud800-\udfff]')
_SHORT_ESCAPES: Final = {
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
    '"': '\\"',
    "\\": "\\\\",
}


class _Undefined:
    """JavaScript's absent value: dropped in objects, `null` in arrays."""

    def __repr__(self) -> str:
        return "UNDEFINED"

    def __reduce__(self) -> str:
        return "UNDEFINED"  # copied and pickled by name: there is only one


UNDEFINED: Final = _Undefined()


def canonical(value: Any) -> str:
    """The canonical text of a JSON value.

    Raises `TypeError` for values outside the JSON grammar and for those that contain themselves, and
    `ValueError` for nesting past `MAX_DEPTH` and for two keys that are one text in JavaScript.
    """
    return _encode(value).decode()


def canonical_of_texts(value: Any) -> str:
    """The same for a value of our own making, with ASCII keys and no number that JavaScript prints in another way:
    nobody looks whether it is one.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError:  # half a surrogate pair in a text
        return canonical(value)


def call_id(tool: str, args: Any) -> str:
    """SHA-256 of the canonical `{"tool": tool, "args": args}`, in lower-case hex."""
    if not isinstance(tool, str):
        raise TypeError(f"the name of a tool is a string, not {type(tool).__name__}")
    return hashed_call(tool, _encode(args))


def hashed_call(tool: str, args: bytes) -> str:
    """The hash of a call by the text of its arguments."""
    return sha256(b'{"args":' + args + _tool_suffix(tool)).hexdigest()


def pretty(value: Any, indent: int = 2) -> str:
    """JSON for people and models: source key order, non-ASCII raw, numbers as JavaScript prints them."""
    return _pretty(value, " " * indent, "\n", Trail())


def js_number(number: int | float) -> str:
    """The text JavaScript prints for a number; `null` where JSON has none."""
    if isinstance(number, int):
        if -_SAFE_INTEGER < number < _SAFE_INTEGER:
            return int.__repr__(number)
        try:
            number = float(number)
        except OverflowError:
            return "null"
    if not isfinite(number):
        return "null"
    if number == 0:
        return "0"
    return _js_float(number)


def js_string(text: str) -> str:
    """A JSON string literal as JavaScript's `JSON.stringify` writes it."""
    try:
        return orjson.dumps(text).decode()
    except orjson.JSONEncodeError:  # half a surrogate pair
        pass
    # Two separate surrogate code points that form a pair are one character.
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return '"' + _NEEDS_ESCAPE.sub(_escape, text) + '"'


def _tool_suffix(tool: str) -> bytes:
    """What follows the arguments in the text that a call is hashed as."""
    # Callers may send any name, and only short ones are worth remembering.
    return _cached_suffix(tool) if len(tool) <= _CACHED_NAME else _suffix(tool)


def _suffix(tool: str) -> bytes:
    return b',"tool":' + js_string(tool).encode() + b"}"


_cached_suffix: Final = lru_cache(maxsize=4096)(_suffix)


def plain_text(value: Any) -> bytes | None:
    """The canonical text where no number or key in the value needs a closer look; it is exact, too."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS) if _orjson_agrees(value, 0) else None
    except orjson.JSONEncodeError:  # lone surrogates, or nesting past orjson's own limit
        return None


def _encode(value: Any) -> bytes:
    return plain_text(value) or _write(value, Trail()).encode()


def _orjson_agrees(value: Any, depth: int) -> bool:
    """Whether orjson prints `value` as JavaScript would. Never true for a value outside the grammar."""
    kind = type(value)
    if kind is dict:
        for key in value:
            if type(key) is not str or not key.isascii():
                return False
        items = value.values()
    elif kind is list:
        items = value
    else:
        return kind in _ALWAYS_ALIKE or (kind in _NUMBERS and _number_agrees(value))
    if depth > MAX_DEPTH:
        return False
    for item in items:  # a plain loop: `all()` over a generator costs twice as much here
        kind = type(item)
        if kind in _ALWAYS_ALIKE:
            continue
        if not (_number_agrees(item) if kind in _NUMBERS else _orjson_agrees(item, depth + 1)):
            return False
    return True


def _number_agrees(number: int | float) -> bool:
    if isinstance(number, int):
        return -_SAFE_INTEGER < number < _SAFE_INTEGER
    return 1e-5 < abs(number) < 1e15 and not number.is_integer()


def refuse_cycles(value: Any) -> None:
    """Raise `TypeError` for a value that contains itself.

    Without recursion, and each container once, however often it is shared: what walks a value with two ways
    back into itself does not come to an end.
    """
    if type(value) is dict and _FLAT.issuperset(map(type, value.values())):
        return  # what most arguments are
    entered: set[int] = set()
    left: set[int] = set()
    waiting: list[tuple[Any, bool]] = [(value, False)]
    while waiting:
        item, is_left = waiting.pop()
        if is_left:
            entered.discard(id(item))
            left.add(id(item))
        elif id(item) in entered:
            raise TypeError(_CYCLE)
        elif id(item) not in left and isinstance(item, dict | list | tuple):
            entered.add(id(item))
            waiting.append((item, True))
            members = item.values() if isinstance(item, dict) else item
            waiting.extend([(each, False) for each in members if type(each) not in _FLAT])


class Trail:
    """The containers between the root and the current value: finds cycles and bounds depth."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def enter(self, container: object) -> None:
        if id(container) in self._open:
            raise TypeError(_CYCLE)
        if len(self._open) >= MAX_DEPTH:
            raise ValueError(f"the value is nested deeper than {MAX_DEPTH} levels")
        self._open.add(id(container))

    def leave(self, container: object) -> None:
        self._open.discard(id(container))


# One frame per level, and no generators or comprehensions around the calls: those would be frames
# of their own, and `MAX_DEPTH` levels would not fit on Python's stack.


def _write(value: Any, trail: Trail) -> str:
    kind = type(value)
    if kind is not dict and kind is not list:
        return _scalar(value)
    trail.enter(value)
    parts: list[str] = []
    if kind is dict:
        for key, item in _sorted_members(value):
            parts.append(f"{js_string(key)}:{_write(item, trail)}")
    else:
        for item in value:
            parts.append(_write(None if item is UNDEFINED else item, trail))
    trail.leave(value)
    return "{" + ",".join(parts) + "}" if kind is dict else "[" + ",".join(parts) + "]"


def _pretty(value: Any, indent: str, newline: str, trail: Trail) -> str:
    is_object = isinstance(value, dict)
    if not is_object and not isinstance(value, list | tuple):
        return _scalar(value)
    trail.enter(value)
    inner = newline + indent
    rows: list[str] = []
    if is_object:
        for key, item in _members(value):
            rows.append(f"{js_string(key)}: {_pretty(item, indent, inner, trail)}")
    else:
        for item in value:
            rows.append(_pretty(None if item is UNDEFINED else item, indent, inner, trail))
    trail.leave(value)
    body = inner + ("," + inner).join(rows) + newline if rows else ""
    return "{" + body + "}" if is_object else "[" + body + "]"


def _sorted_members(value: dict[Any, Any]) -> list[tuple[str, Any]]:
    members = _members(value)
    by_units = {_utf16(member[0]): member for member in members}
    if len(by_units) < len(members):
        raise ValueError("two keys of an object are the same text, one of them written as a surrogate pair")
    return [by_units[units] for units in sorted(by_units)]


def _members(value: dict[Any, Any]) -> list[tuple[str, Any]]:
    for key in value:
        if type(key) is not str:
            raise TypeError(f"an object key is a string, not {type(key).__name__}")
    return [(key, item) for key, item in value.items() if item is not UNDEFINED]


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if value is True:  # bool before int: True == 1 in Python
        return "true"
    if value is False:
        return "false"
    kind = type(value)
    if kind is str:
        return js_string(value)
    if kind is int or kind is float:
        return js_number(value)
    raise TypeError(f"{kind.__name__} is outside the JSON grammar; convert it before the call")


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    return _SHORT_ESCAPES.get(char) or f"\\u{ord(char):04x}"


def _js_float(number: float) -> str:
    """Shortest digits that round-trip (Python's repr), laid out by JavaScript's rules."""
    mantissa, _, exponent_text = float.__repr__(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    point = len(whole) + int(exponent_text or 0)
    stripped = digits.lstrip("0")
    point -= len(digits) - len(stripped)
    digits = stripped.rstrip("0")
    sign = "-" if number < 0 else ""
    return sign + _place_point(digits, point)


def _place_point(digits: str, point: int) -> str:
    """`digits` with the decimal point after the first `point` of them (which may lie outside)."""
    if len(digits) <= point <= 21:
        return digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    exponent = point - 1
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e{'+' if exponent > 0 else '-'}{abs(exponent)}"

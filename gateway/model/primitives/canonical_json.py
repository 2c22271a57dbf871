"""Canonical JSON, byte for byte as JavaScript prints it, and the call id that is its hash.

Two writers give the same text: orjson where its output equals JavaScript's, and a slower
recursive one elsewhere (integral or extreme floats, integers past 2^53, non-ASCII keys,
lone surrogates). Values outside the JSON grammar are refused, never converted.
"""

import re
from functools import lru_cache
from hashlib import sha256
from math import isfinite
from typing import Any, Final

import orjson

MAX_DEPTH: Final = 512
"""Deeper nesting is refused: the writer is recursive, and real values are not this deep."""

_SAFE_INTEGER: Final = 2**53
_CACHED_NAME: Final = 128
_TEXT: Final = frozenset({str})
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
        return "UNDEFINED"  # copied and pickled by name: it is a singleton


UNDEFINED: Final = _Undefined()


def canonical(value: Any) -> str:
    """Return the canonical text of a JSON value.

    Raises `TypeError` for values that are outside the JSON grammar or contain themselves, and
    `ValueError` for nesting past `MAX_DEPTH` and for two keys that are the same text in JavaScript.
    """
    return _encode(value).decode()


def canonical_unchecked(value: Any) -> str:
    """Return the canonical text of a value that needs no check: ASCII keys, no numbers that JavaScript prints
    differently.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError:  # a lone surrogate in a text
        return canonical(value)


def call_id(tool: str, args: Any) -> str:
    """Return the SHA-256 of the canonical `{"tool": tool, "args": args}`, in lower-case hex."""
    if not isinstance(tool, str):
        raise TypeError(f"the name of a tool must be a string, not {type(tool).__name__}")
    return hash_call(tool, _encode(args))


def hash_call(tool: str, args: bytes) -> str:
    """Return the hash of a call from the text of its arguments."""
    # Callers may send any name, so only short ones are cached.
    suffix = _cached_suffix(tool) if len(tool) <= _CACHED_NAME else _suffix(tool)
    return sha256(b'{"args":' + args + suffix).hexdigest()


def to_pretty_json(value: Any, indent: int = 2) -> str:
    """Return indented JSON: keys in source order, non-ASCII unescaped, numbers as JavaScript prints them."""
    return _pretty(value, " " * indent, "\n", Trail())


def format_js_number(number: int | float) -> str:
    """Return the text JavaScript prints for a number; `null` for a number that JSON cannot express."""
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


def format_js_string(text: str) -> str:
    """Return a JSON string literal as JavaScript's `JSON.stringify` writes it."""
    try:
        return orjson.dumps(text).decode()
    except orjson.JSONEncodeError:  # a lone surrogate
        pass
    # Two separate surrogate code points that form a pair are one character.
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return '"' + _NEEDS_ESCAPE.sub(_escape, text) + '"'


def _suffix(tool: str) -> bytes:
    """Return the part of the hashed text that follows the arguments."""
    return b',"tool":' + format_js_string(tool).encode() + b"}"


_cached_suffix: Final = lru_cache(maxsize=4096)(_suffix)


def plain_text(value: Any) -> bytes | None:
    """Return the text if canonical and exact form are the same and orjson can write it; else `None`."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS) if _orjson_agrees(value, 0) else None
    except orjson.JSONEncodeError:  # lone surrogates, or nesting past orjson's own limit
        return None


def _encode(value: Any) -> bytes:
    return plain_text(value) or _write(value, Trail()).encode()


def _orjson_agrees(value: Any, depth: int) -> bool:
    """Whether orjson prints `value` as JavaScript would; false for a value outside the grammar."""
    kind = type(value)
    if kind is dict:
        if not (_TEXT.issuperset(map(type, value)) and "".join(value).isascii()):
            return False
        items = value.values()
    elif kind is list:
        items = value
    else:
        return kind in _ALWAYS_ALIKE or (kind in _NUMBERS and _number_agrees(value))
    if depth > MAX_DEPTH:
        return False
    if _ALWAYS_ALIKE.issuperset(map(type, items)):
        return True
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

    Not recursive, and visits each container once even if it is shared: the work stays linear, whereas visiting every
    path through a value with two cycles never ends.
    """
    if type(value) is dict and _FLAT.issuperset(map(type, value.values())):
        return  # most arguments are flat
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
    """The containers between the root and the current value; detects cycles and limits depth."""

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


# One stack frame per level: a generator or comprehension around the calls would add a frame per level,
# and `MAX_DEPTH` levels would not fit on Python's stack.


def _write(value: Any, trail: Trail) -> str:
    kind = type(value)
    if kind is not dict and kind is not list:
        return _scalar(value)
    trail.enter(value)
    parts: list[str] = []
    if kind is dict:
        for key, item in _sort_members(value):
            parts.append(f"{format_js_string(key)}:{_write(item, trail)}")
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
            rows.append(f"{format_js_string(key)}: {_pretty(item, indent, inner, trail)}")
    else:
        for item in value:
            rows.append(_pretty(None if item is UNDEFINED else item, indent, inner, trail))
    trail.leave(value)
    body = inner + ("," + inner).join(rows) + newline if rows else ""
    return "{" + body + "}" if is_object else "[" + body + "]"


def _sort_members(value: dict[Any, Any]) -> list[tuple[str, Any]]:
    members = _members(value)
    by_units = {_utf16(member[0]): member for member in members}
    if len(by_units) < len(members):
        raise ValueError("two keys of an object are the same text, one of them written as a surrogate pair")
    return [by_units[units] for units in sorted(by_units)]


def _members(value: dict[Any, Any]) -> list[tuple[str, Any]]:
    for key in value:
        if type(key) is not str:
            raise TypeError(f"an object key must be a string, not {type(key).__name__}")
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
        return format_js_string(value)
    if kind is int or kind is float:
        return format_js_number(value)
    raise TypeError(f"{kind.__name__} is outside the JSON grammar; convert it before the call")


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    return _SHORT_ESCAPES.get(char) or f"\\u{ord(char):04x}"


def _js_float(number: float) -> str:
    """Format the shortest digits that round-trip (Python's repr) by JavaScript's rules."""
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
    """Put the decimal point after the first `point` digits; `point` may be negative or past the end."""
    if len(digits) <= point <= 21:
        return digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    exponent = point - 1
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e{'+' if exponent > 0 else '-'}{abs(exponent)}"

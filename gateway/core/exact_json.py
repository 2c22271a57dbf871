"""Canonical JSON that loses nothing, and the fingerprint of a call that is made of it.

The model's canonical JSON prints numbers as JavaScript does, which rounds integers past 2^53: two account numbers
become one. That text stays what checksums are made of. Whatever *decides* whether two values are equal (idempotency,
hashes in the decision log, verification, approvals, loops, caches) uses the text of this module instead.

Values are equal as JSON values are, by the value that the parser gives: `1`, `1.0` and `1e0` are one number, and so are
`0` and `-0.0`; `true` is not `1`. Both forms are the same text unless a number in the value is a whole one of 2^53 or
more, so a fingerprint differs from the checksum only there.
"""

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import isfinite
from typing import Any, Final, NamedTuple

import orjson

from gateway.core.canonical import Trail, call_id, hashed_call, js_number, js_string, plain_text

_SAFE: Final = 2**53
_INTEGERS: Final = range(-(1 << 63), 1 << 64)
_LONGEST: Final = 20
_LONG_INTEGER: Final = re.compile(rb"[0-9]{19}")


class CallIdentity(NamedTuple):
    """A call by its contents: the model's checksum, the exact text of the arguments, and the exact digest of the call
    where it is another one than the checksum.
    """

    checksum: str
    text: str
    exact: str | None


def exact_json(value: Any) -> str:
    """Canonical JSON in which different values are different texts, and equal ones equal.

    Raises `TypeError` for values outside the JSON grammar and for those that contain themselves, and `ValueError` for
    nesting past `MAX_DEPTH`, for two keys that are one text, and for infinities and NaN: JSON has no text for them, and
    `null` is another value.
    """
    plain = plain_text(value)
    return _written(value, Trail()) if plain is None else plain.decode()


def exact_digest(value: Any) -> str:
    """SHA-256 of the exact text, in lower-case hex."""
    return sha256(exact_json(value).encode()).hexdigest()


def fingerprint_of(tool: str, args: Any) -> str:
    """The exact counterpart of `call_id`: SHA-256 of `{"args": args, "tool": tool}`."""
    return hashed_call(tool, exact_json(args).encode())


def plain_identity(tool: str, args: Any) -> CallIdentity | None:
    """What identifies a call, at once; `None` if a number or key of its arguments needs a closer look."""
    plain = plain_text(args)
    return None if plain is None else CallIdentity(hashed_call(tool, plain), plain.decode(), None)


def call_identity(tool: str, args: Any) -> CallIdentity:
    """Everything that identifies a call by its contents. Raises as `exact_json` does."""
    if (plain := plain_identity(tool, args)) is not None:
        return plain
    text = _written(args, Trail())
    checksum, exact = call_id(tool, args), hashed_call(tool, text.encode())
    return CallIdentity(checksum, text, None if exact == checksum else exact)


def is_short(value: Any, most: int) -> bool:
    """Whether the JSON text of a value has at most that many bytes; not for a value that orjson does not write."""
    try:
        return len(orjson.dumps(value)) <= most
    except orjson.JSONEncodeError:
        return False


def reads_exactly(content: bytes) -> bool:
    """Whether no integer of a JSON text is longer than 64 bits: orjson reads such a one as the nearest float."""
    if _LONG_INTEGER.search(content) is None:
        return True
    exact = True

    def look(digits: str) -> None:
        nonlocal exact
        exact = exact and len(digits) <= _LONGEST and int(digits) in _INTEGERS

    try:
        json.loads(content, parse_int=look)
    except (ValueError, RecursionError):
        return False
    return exact


def _written(value: Any, trail: Trail) -> str:
    # No comprehensions: their frames would halve the depth that fits on Python's stack.
    parts: list[str] = []
    if isinstance(value, Mapping):
        trail.enter(value)
        for key, item in _sorted(value):
            parts.append(f"{js_string(key)}:{_written(item, trail)}")
        trail.leave(value)
        return "{" + ",".join(parts) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        trail.enter(value)
        for item in value:
            parts.append(_written(item, trail))
        trail.leave(value)
        return "[" + ",".join(parts) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return js_string(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return _number(value)
    raise TypeError(f"{type(value).__name__} is outside the JSON grammar")


def _number(value: float) -> str:
    if not isfinite(value):
        raise ValueError("JSON has no infinite numbers and no NaN")
    return int.__repr__(int(value)) if value.is_integer() and abs(value) >= _SAFE else js_number(value)


def _sorted(value: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """In the order of UTF-16 units, as JavaScript sorts. Two keys that print alike would be one key to a reader."""
    by_units: dict[bytes, tuple[str, Any]] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise TypeError(f"an object key is a string, not {type(key).__name__}")
        by_units[key.encode("utf-16-be", "surrogatepass")] = (key, item)
    if len(by_units) < len(value):
        raise ValueError("two keys of an object are the same text, one of them written as a surrogate pair")
    return [by_units[units] for units in sorted(by_units)]

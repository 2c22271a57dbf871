"""JSON text, digest and call fingerprint that are equal only for equal values; and a bounded JSON reader.

The model's canonical JSON prints numbers as JavaScript does, which rounds integers past 2^53: two account numbers can
become one. Checksums hash that text. Code that *decides* whether two values are equal (idempotency, hashes in the
decision log, verification, approvals, loops, caches) uses the text of this module instead.

Values are equal if the parsed JSON values are: `1`, `1.0` and `1e0` are one number, and so are `0` and `-0.0`; `true`
is not `1`. Canonical and exact text differ only if the value has a whole number of 2^53 or more, so a fingerprint
differs from the checksum only then. A whole number of 10^21 or more is written as JavaScript does, with an exponent, if
a float holds it exactly: otherwise 49,000 times `1.5e300` would be 15 MB of digits.

JSON from outside has a bounded number of values, which is checked before any value is built. A small array takes two
bytes in a request and a hundred in memory, so a limit in bytes does not bound the memory. Every reader of JSON from
outside counts values here first. One separate thread parses large texts, one after the other: the parser holds the
interpreter lock, and several parsers at once would block the event loop until all of them are done.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from math import isfinite
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import orjson

from gateway.model.primitives.canonical_json import (
    Trail,
    call_id,
    format_js_number,
    format_js_string,
    hash_call,
    plain_text,
)

DEFAULT_VALUES: Final = 50_000
LARGE: Final = 64 << 10
"""Texts of at least this many bytes are parsed outside of the event loop."""

_WINDOW: Final = 32 << 10
"""Bytes that are examined in one step, which takes a few milliseconds at most."""
_BLANKS: Final = b" \t\r\n"

P = ParamSpec("P")
Result = TypeVar("Result")


class TooManyValues(ValueError):
    """A text has more values than allowed. None of them was built."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the JSON has more than {most} values")
        self.most = most


class _Bound:
    most = DEFAULT_VALUES


def set_value_limit(most: int) -> None:
    """Set the limit of this process for texts that are read without a limit of their own."""
    _Bound.most = most


def check_values(content: bytes | str, most: int | None = None) -> None:
    """Count texts, numbers, literals, lists and objects, but no keys. Raises `TooManyValues`.

    Invalid JSON is counted up to the error; the parser refuses it there.
    """
    most = _Bound.most if most is None else most
    if len(content) < 2 * most:  # a value needs two bytes, one of them a separator
        return
    at_most = 1
    for window in _windows(content):
        at_most += window.count(b",") + window.count(b"[") + window.count(b"{")
        if at_most > most:
            break
    else:
        return
    if _count_values(content, most) > most:
        raise TooManyValues(most)


def read_json(content: bytes | str, most: int | None = None) -> Any:
    """Parse JSON. Raises `TooManyValues`, and `orjson.JSONDecodeError` for invalid JSON."""
    check_values(content, most)
    return orjson.loads(content)


async def run_in_json_thread(read: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
    """Call `read` in the thread that parses large texts."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_reader(), lambda: read(*args, **kwargs))


@cache
def _reader() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="json")


def _windows(content: bytes | str) -> Iterator[bytes]:
    for start in range(0, len(content), _WINDOW):
        piece = content[start : start + _WINDOW]
        yield piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece


def _count_values(content: bytes | str, most: int) -> int:
    """Return the number of values, or any above `most`: the root, one per comma, one per container with members."""
    found = 1
    is_in_text = has_just_opened = False
    rest = b""
    for piece in _windows(content):
        window = rest + piece
        is_cut = (len(window) - len(window.rstrip(b"\\"))) % 2 == 1  # the window ends within an escape
        rest = window[-1:] if is_cut else b""
        plain = (window[:-1] if is_cut else window).replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = plain.split(b'"')
        outside = parts[is_in_text::2]
        is_in_text ^= len(parts) % 2 == 0
        if is_in_text:
            outside.append(b"")  # the unfinished text is a value
        skeleton = b'"'.join(outside).translate(None, _BLANKS)
        opened = skeleton.count(b"[") + skeleton.count(b"{")
        found += skeleton.count(b",") + opened - skeleton.count(b"[]") - skeleton.count(b"{}")
        if skeleton:
            found -= has_just_opened and skeleton[0] in b"]}"
            has_just_opened = skeleton[-1] in b"[{"
        if found > most + 1:  # the container that opens at the end of this window may be empty
            break
    return found


_SAFE: Final = 2**53
_EXPONENT_FROM: Final = 10**21
_INTEGERS: Final = range(-(1 << 63), 1 << 64)
_LONGEST: Final = 20
_LONG_INTEGER: Final = re.compile(rb"[0-9]{19}")


class CallIdentity(NamedTuple):
    """A call by its contents: checksum, exact text of the arguments, and fingerprint if it is not the checksum."""

    checksum: str
    text: str
    exact: str | None


def exact_json(value: Any) -> str:
    """Return canonical JSON in which two values have the same text if and only if they are equal.

    Raises `TypeError` for values that are outside the JSON grammar or contain themselves, and `ValueError` for nesting
    past `MAX_DEPTH`, for two keys that are the same text, and for infinities and NaN, which JSON cannot express.
    """
    plain = plain_text(value)
    return _write(value, Trail()) if plain is None else plain.decode()


def exact_digest(value: Any) -> str:
    """Return the SHA-256 of the exact text, in lower-case hex."""
    return sha256(exact_json(value).encode()).hexdigest()


def fingerprint_of(tool: str, args: Any) -> str:
    """Return the exact counterpart of `call_id`: the SHA-256 of `{"args": args, "tool": tool}`."""
    return hash_call(tool, exact_json(args).encode())


def fast_call_identity(tool: str, args: Any) -> CallIdentity | None:
    """Return the identity of a call by the fast path; `None` if the arguments need `call_identity`."""
    plain = plain_text(args)
    return None if plain is None else CallIdentity(hash_call(tool, plain), plain.decode(), None)


def call_identity(tool: str, args: Any) -> CallIdentity:
    """Return what identifies a call by its contents. Raises the same errors as `exact_json`."""
    if (plain := fast_call_identity(tool, args)) is not None:
        return plain
    text = _write(args, Trail())
    checksum, exact = call_id(tool, args), hash_call(tool, text.encode())
    return CallIdentity(checksum, text, None if exact == checksum else exact)


def is_short(value: Any, most: int) -> bool:
    """Whether the JSON text of a value has at most `most` bytes; false for a value that orjson cannot write."""
    try:
        return len(orjson.dumps(value)) <= most
    except orjson.JSONEncodeError:
        return False


def reads_exactly(content: bytes) -> bool:
    """Whether all integers of a JSON text fit into 64 bits: orjson rounds larger ones to the nearest float."""
    if _LONG_INTEGER.search(content) is None:
        return True
    exact = True

    def note_integer(digits: str) -> None:
        nonlocal exact
        exact = exact and len(digits) <= _LONGEST and int(digits) in _INTEGERS

    try:
        json.loads(content, parse_int=note_integer)
    except (ValueError, RecursionError):
        return False
    return exact


def _write(value: Any, trail: Trail) -> str:
    # No comprehensions: their stack frames would halve the possible depth.
    parts: list[str] = []
    if isinstance(value, Mapping):
        trail.enter(value)
        for key, item in _sort_members(value):
            parts.append(f"{format_js_string(key)}:{_write(item, trail)}")
        trail.leave(value)
        return "{" + ",".join(parts) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        trail.enter(value)
        for item in value:
            parts.append(_write(item, trail))
        trail.leave(value)
        return "[" + ",".join(parts) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return format_js_string(value)
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return _float(value)
    raise TypeError(f"{type(value).__name__} is outside the JSON grammar")


def _integer(value: int) -> str:
    """Return all digits; for a large integer that a float holds exactly, the float's text with an exponent."""
    if -_EXPONENT_FROM < value < _EXPONENT_FROM:
        return int.__repr__(value)
    try:
        nearest = float(value)
    except OverflowError:
        return int.__repr__(value)
    return format_js_number(nearest) if nearest == value else int.__repr__(value)


def _float(value: float) -> str:
    if not isfinite(value):
        raise ValueError("JSON has no infinite numbers and no NaN")
    # JavaScript rounds whole numbers between the two bounds to 17 digits and pads them with zeros.
    return (
        int.__repr__(int(value))
        if value.is_integer() and _SAFE <= abs(value) < _EXPONENT_FROM
        else format_js_number(value)
    )


def _sort_members(value: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """Return the members sorted by UTF-16 units, as JavaScript does. Raises `ValueError` for keys that print alike."""
    by_units: dict[bytes, tuple[str, Any]] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise TypeError(f"an object key must be a string, not {type(key).__name__}")
        by_units[key.encode("utf-16-be", "surrogatepass")] = (key, item)
    if len(by_units) < len(value):
        raise ValueError("two keys of an object are the same text, one of them written as a surrogate pair")
    return [by_units[units] for units in sorted(by_units)]

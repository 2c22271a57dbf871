"""Bodies of requests: read up to a limit, and parsed once, strictly.

JSON with a key given twice is refused: whoever looks at the first one and whoever looks at the last one would
disagree about what was asked. So is an integer that would be rounded. The number of values is bounded before any of
them is built, and large bodies are parsed outside of the event loop.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from decimal import Decimal
from typing import Any, Final

import orjson

from gateway.core.beginning import Begun
from gateway.core.bounded_json import LARGE, TooManyValues, check_values, read_apart

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MAX_DEPTH: Final = 128
"""Levels of a request's JSON; what a tool takes is not deeper."""


MAX_SECONDS: Final = 30.0
"""From the end of a request's headers to the end of its body."""

_CONTAINERS: Final = frozenset({dict, list})
_INTEGERS: Final = range(-(1 << 63), 1 << 64)
"""What is read exactly; beyond it readers round, each in its own way."""
_EXACT_DIGITS: Final = 15
"""Digits of a number that every double holds."""


class BodyTooLarge(Exception):
    """More bytes came than the limit allows, whatever the headers said."""


class BodyTooSlow(Exception):
    """The body did not come in time."""


class ClientGone(Exception):
    """The client went away before its request was complete."""


class NotStrictJson(ValueError):
    """The bytes are not JSON, or JSON that two readers could read in two ways."""


class TooManyBodyValues(NotStrictJson):
    """The JSON has more values than are read."""


async def read_body(receive: Receive, *, limit: int, within: float = MAX_SECONDS) -> bytes:
    """The whole body. Bytes past the limit are never kept, and nobody is waited for longer than `within` seconds."""
    body = begun_body(receive, limit, within)
    return body if isinstance(body, bytes) else await body


def begun_body(receive: Receive, limit: int, within: float = MAX_SECONDS) -> bytes | Awaitable[bytes]:
    """The same: itself if it is there, in one piece, as most are, and else what to wait for."""
    beginning: Begun[MutableMapping[str, Any]] = Begun(receive())  # type: ignore[arg-type]  # servers give coroutines
    if beginning.is_over and not beginning.value.get("more_body", False):
        return _piece(beginning.value, limit)
    return _read_within(within, beginning, receive, limit)


async def _read_within(
    seconds: float, beginning: Begun[MutableMapping[str, Any]], receive: Receive, limit: int
) -> bytes:
    try:
        async with asyncio.timeout(seconds):
            return await _read(beginning, receive, limit)
    except TimeoutError:
        raise BodyTooSlow() from None


async def _read(beginning: Begun[MutableMapping[str, Any]], receive: Receive, limit: int) -> bytes:
    message = beginning.value if beginning.is_over else await beginning
    pieces = [_piece(message, limit)]
    left = limit - len(pieces[0])
    while message.get("more_body", False):
        message = await receive()
        pieces.append(_piece(message, left))
        left -= len(pieces[-1])
    return b"".join(pieces)


def _piece(message: MutableMapping[str, Any], limit: int) -> bytes:
    if message["type"] == "http.disconnect":
        raise ClientGone()
    piece: bytes = message.get("body", b"")
    if len(piece) > limit:
        raise BodyTooLarge()
    return piece


async def parsed_strictly(body: bytes) -> Any:
    """What `strict_json` gives, without a pause for others if the body is large."""
    return strict_json(body) if len(body) < LARGE else await read_apart(strict_json, body)


def strict_json(body: bytes) -> Any:
    """The value. Raises `NotStrictJson` for everything that is not exactly one JSON value with every key once, and
    `TooManyBodyValues`, which is one, for too many values.
    """
    try:
        check_values(body)
        value = orjson.loads(body)
    except TooManyValues as error:
        raise TooManyBodyValues(str(error)) from None
    except orjson.JSONDecodeError as error:
        raise NotStrictJson(_reason(error)) from None
    # fewer brackets cannot be nested deeper, and each of them is closed
    if len(body) > 2 * MAX_DEPTH and body.count(b"{") + body.count(b"[") > MAX_DEPTH:
        _refuse_depth(value, MAX_DEPTH)
    if orjson.dumps(value) != body:  # a compact text that is written back as it came can be read in one way only
        _refuse_ambiguity(body)
    return value


def _reason(error: orjson.JSONDecodeError) -> str:
    return f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}"


def _refuse_depth(value: Any, left: int) -> None:
    """Iterative: the depth of what is looked at is what is being looked for."""
    level = [value] if type(value) in _CONTAINERS else []
    while level:
        if left == 0:
            raise NotStrictJson(f"nested deeper than {MAX_DEPTH} levels")
        left -= 1
        below = []
        for each in level:
            for child in each.values() if type(each) is dict else each:
                if type(child) in _CONTAINERS:
                    below.append(child)
        level = below


def _refuse_ambiguity(body: bytes) -> None:
    json.loads(body, object_pairs_hook=_unique, parse_int=_exact, parse_float=_unrounded)


def _unrounded(digits: str) -> None:
    """Refuse an integer that is written as a fraction or with an exponent, and would be rounded: 9007199254740993.0.

    Other numbers are the nearest double, and so is what programs write for one. Few digits are exact.
    """
    if len(digits) > _EXACT_DIGITS:
        number = Decimal(digits)
        is_integer = abs(number) < _INTEGERS.stop and number == number.to_integral_value()
        if is_integer and number != Decimal(repr(float(digits))):
            raise NotStrictJson("an integer would be rounded; write it without a fraction and an exponent")


def _exact(digits: str) -> None:
    if len(digits) > 20 or int(digits) not in _INTEGERS:
        raise NotStrictJson("an integer has more than 64 bits; send it as a string")


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise NotStrictJson("a key is given twice")

"""Request bodies: read up to a limit and parsed once, strictly.

JSON with a repeated key is refused, because parsers that take the first and parsers that take the last value would
disagree about the request. So is an integer that would be rounded. The number of values is checked before any of them
is built, and large bodies are parsed outside of the event loop.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from decimal import Decimal
from typing import Any, Final

import orjson

from gateway.model import LARGE, CompletedAwaitable, TooManyValues, check_values, run_in_json_thread

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MAX_DEPTH: Final = 128
"""Maximum nesting of a request's JSON; arguments of tools are not deeper."""

MAX_SECONDS: Final = 30.0
"""Maximum time from the end of a request's headers to the end of its body."""

_CONTAINERS: Final = frozenset({dict, list})
_INTEGERS: Final = range(-(1 << 63), 1 << 64)
"""Integers that are parsed exactly; larger ones are rounded, differently by each parser."""
_EXACT_DIGITS: Final = 15
"""Decimal digits that a double represents exactly."""


class BodyTooLarge(Exception):
    """The body has more bytes than the limit, whatever its headers promise."""


class BodyTooSlow(Exception):
    """The body did not arrive in time."""


class ClientGone(Exception):
    """The client disconnected before its request was complete."""


class NotStrictJson(ValueError):
    """The bytes are not JSON, or are JSON that two parsers could read differently."""


class TooManyBodyValues(NotStrictJson):
    """The JSON has too many values."""


async def read_body(receive: Receive, *, limit: int, within: float = MAX_SECONDS) -> bytes:
    """Return the whole body. Bytes past the limit are never stored; raises `BodyTooSlow` after `within` seconds."""
    body = start_body_read(receive, limit, within)
    return body if isinstance(body, bytes) else await body


def start_body_read(receive: Receive, limit: int, within: float = MAX_SECONDS) -> bytes | Awaitable[bytes]:
    """Return the body itself if it has arrived in one piece, as most have, else an awaitable of it."""
    beginning = receive()
    if isinstance(beginning, CompletedAwaitable) and not beginning.value.get("more_body", False):
        return _piece(beginning.value, limit)
    return _read_within(within, beginning, receive, limit)


async def _read_within(
    seconds: float, beginning: Awaitable[MutableMapping[str, Any]], receive: Receive, limit: int
) -> bytes:
    try:
        async with asyncio.timeout(seconds):
            return await _read(beginning, receive, limit)
    except TimeoutError:
        raise BodyTooSlow() from None


async def _read(beginning: Awaitable[MutableMapping[str, Any]], receive: Receive, limit: int) -> bytes:
    message = await beginning
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


async def parse_strict_json(body: bytes) -> Any:
    """Return what `strict_json` returns; a large body is parsed without blocking the event loop."""
    return strict_json(body) if len(body) < LARGE else await run_in_json_thread(strict_json, body)


def strict_json(body: bytes) -> Any:
    """Return the value. Raises `NotStrictJson` unless the body is exactly one JSON value without repeated keys, and its
    subclass `TooManyBodyValues` if it has too many values.
    """
    try:
        check_values(body)
        value = orjson.loads(body)
    except TooManyValues as error:
        raise TooManyBodyValues(str(error)) from None
    except orjson.JSONDecodeError as error:
        raise NotStrictJson(_reason(error)) from None
    # fewer brackets cannot be nested too deeply, and each of them has a closing one
    if len(body) > 2 * MAX_DEPTH and body.count(b"{") + body.count(b"[") > MAX_DEPTH:
        _refuse_depth(value, MAX_DEPTH)
    if orjson.dumps(value) != body:  # a text that serializes back to itself has one reading only
        _refuse_ambiguity(body)
    return value


def _reason(error: orjson.JSONDecodeError) -> str:
    return f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}"


def _refuse_depth(value: Any, left: int) -> None:
    """Raise `NotStrictJson` if the value is nested too deeply. Iterative, because the depth is not known yet."""
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
    json.loads(body, object_pairs_hook=_check_unique, parse_int=_check_integer, parse_float=_check_fraction)


def _check_fraction(digits: str) -> None:
    """Refuse an integer that is written as a fraction or with an exponent, and would be rounded: 9007199254740993.0.

    Other numbers become the nearest double, which is also what programs write. Numbers with few digits are exact.
    """
    if len(digits) > _EXACT_DIGITS:
        number = Decimal(digits)
        is_integer = abs(number) < _INTEGERS.stop and number == number.to_integral_value()
        if is_integer and number != Decimal(repr(float(digits))):
            raise NotStrictJson("an integer would be rounded; write it without a fraction and an exponent")


def _check_integer(digits: str) -> None:
    if len(digits) > 20 or int(digits) not in _INTEGERS:
        raise NotStrictJson("an integer has more than 64 bits; send it as a string")


def _check_unique(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise NotStrictJson("a key is given twice")

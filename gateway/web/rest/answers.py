"""Answers: JSON as it goes out, whatever callers put into the values that are shown to them again."""

import json
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from math import isfinite
from typing import Any, Final

import orjson

from gateway.web.problems import Response, bytes_response

NO_STORE: Final = {b"cache-control": b"no-store", b"x-content-type-options": b"nosniff"}
REVALIDATED: Final = {
    b"cache-control": b"private, no-cache",
    b"vary": b"authorization",
    b"x-content-type-options": b"nosniff",
}


def wire_json(value: Any) -> bytes:
    """The value as JSON. Arguments may hold what the fast encoder refuses: long integers, half surrogate pairs."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(_finite(value), separators=(",", ":"), default=_moment).encode()


def answer(body: Any, *, status: int = 200, headers: Mapping[bytes, bytes] | None = None) -> Response:
    return bytes_response(wire_json(body), status=status, headers={**NO_STORE, **(headers or {})})


def tagged(body: Any, *, revision: str, known: str | None) -> Response:
    """An answer with an ETag of the revision and of what this caller is shown; 304 if the caller has just that."""
    content = wire_json(body)
    tag = f'"{revision}-{sha256(content).hexdigest()[:24]}"'
    headers = {**REVALIDATED, b"etag": tag.encode()}
    if matches(known, tag):
        return not_modified(headers)
    return bytes_response(content, headers=headers)


def not_modified(headers: Mapping[bytes, bytes]) -> Response:
    return bare(304, headers)


def bare(status: int, headers: Mapping[bytes, bytes]) -> Response:
    """An answer without content."""

    async def respond(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": list(headers.items())})
        await send({"type": "http.response.body", "body": b""})

    return respond


def matches(known: str | None, tag: str) -> bool:
    """Whether an If-None-Match names the tag; weak ones count, as RFC 9110 has it for this header."""
    if known is None:
        return False
    return known.strip() == "*" or tag in [each.strip().removeprefix("W/") for each in known.split(",")]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def _moment(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not JSON")

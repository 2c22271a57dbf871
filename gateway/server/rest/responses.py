"""REST responses: JSON of any values, ETags, and the errors of invalid requests."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from math import isfinite
from typing import Any, Final

import orjson

from gateway.errors import GatewayError, ValidationException
from gateway.server.http.asgi import Response, bytes_response

NO_STORE: Final = {b"cache-control": b"no-store", b"x-content-type-options": b"nosniff"}
REVALIDATED: Final = {
    b"cache-control": b"private, no-cache",
    b"vary": b"authorization",
    b"x-content-type-options": b"nosniff",
}


def encode_json(value: Any) -> bytes:
    """Return the value as JSON. Arguments may hold values that orjson refuses: long integers, lone surrogates."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(_finite(value), separators=(",", ":"), default=_moment).encode()


def send_json(body: Any, *, status: int = 200, headers: Mapping[bytes, bytes] | None = None) -> Response:
    return bytes_response(encode_json(body), status=status, headers={**NO_STORE, **(headers or {})})


def etag_response(body: Any, *, revision: str, known: str | None) -> Response:
    """Return a response with an ETag of the revision and the content; 304 if the client has that already."""
    content = encode_json(body)
    tag = f'"{revision}-{sha256(content).hexdigest()[:24]}"'
    headers = {**REVALIDATED, b"etag": tag.encode()}
    if etag_matches(known, tag):
        return not_modified(headers)
    return bytes_response(content, headers=headers)


def not_modified(headers: Mapping[bytes, bytes]) -> Response:
    return empty_response(304, headers)


def empty_response(status: int, headers: Mapping[bytes, bytes]) -> Response:
    async def respond(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": list(headers.items())})
        await send({"type": "http.response.body", "body": b""})

    return respond


def etag_matches(known: str | None, tag: str) -> bool:
    """Whether If-None-Match has the tag; weak tags match, as RFC 9110 requires for this header."""
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


class InvalidRequest(GatewayError):
    """The request is invalid. `errors` has one entry per error: where it is, and what is wrong."""

    code = "E_INVALID_REQUEST"
    status = 400
    default_message = "the request is invalid"

    def __init__(self, message: str, *, help: str | None = None, details: Iterable[Mapping[str, Any]] = ()) -> None:
        super().__init__(message, help=help)
        self.errors = [{"at": json_pointer(each["path"]), "detail": each["message"]} for each in details]


class UnknownPath(GatewayError):
    code = "E_UNKNOWN_PATH"
    status = 404
    default_message = "nothing is served at this path"

    def __init__(self) -> None:
        super().__init__(help="/v1/docs lists all paths; they have no trailing slash")


class MethodNotAllowed(GatewayError):
    code = "E_METHOD_NOT_ALLOWED"
    status = 405
    default_message = "this path does not support the method"

    def __init__(self, allowed: Iterable[str]) -> None:
        names = sorted(allowed)
        self.allow = ", ".join(names)
        super().__init__(help=f"use {' or '.join(names)}")


class RequestTooLarge(GatewayError):
    code = "E_BODY_TOO_LARGE"
    status = 413
    default_message = "the body is larger than allowed"


class TooManyJsonValues(GatewayError):
    code = "E_TOO_MANY_VALUES"
    status = 413
    default_message = "the body has too many JSON values"

    def __init__(self, message: str) -> None:
        super().__init__(message, help="send less at a time; the operator sets the limit with GATEWAY_MAX_JSON_VALUES")


class RequestTooSlow(GatewayError):
    code = "E_BODY_TOO_SLOW"
    status = 408
    default_message = "the body did not arrive in time"


class UnsupportedContentType(GatewayError):
    code = "E_UNSUPPORTED_CONTENT"
    status = 415
    default_message = "the body must be JSON without a content encoding"

    def __init__(self) -> None:
        super().__init__(help="send the header 'Content-Type: application/json', and no Content-Encoding")


class TurnEnded(GatewayError):
    code = "E_TURN_OVER"
    status = 409
    default_message = "the turn has ended"


class TooManyStreams(GatewayError):
    code = "E_TOO_MANY_STREAMS"
    status = 429
    default_message = "too many streams of this turn's events are open"


def invalid_part(where: str, error: ValidationException, *, help: str | None = None) -> InvalidRequest:
    """Return the error for a part of the request. It repeats no value that the caller sent."""
    return InvalidRequest(f"{where}: {error.message}", help=help, details=error.details)


def json_pointer(path: Iterable[str | int]) -> str:
    """Return a JSON Pointer."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)

"""What a request itself can be refused for, before anything is looked up. Errors like any other: code, status, help."""

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.errors import GatewayError, ValidationException


class InvalidRequest(GatewayError):
    """`errors` has one entry per defect: where it is, and what is wrong."""

    code = "E_INVALID_REQUEST"
    status = 400
    default_message = "the request is invalid"

    def __init__(self, message: str, *, help: str | None = None, details: Iterable[Mapping[str, Any]] = ()) -> None:
        super().__init__(message, help=help)
        self.errors = [{"at": pointer(each["path"]), "detail": each["message"]} for each in details]


class UnknownPath(GatewayError):
    code = "E_UNKNOWN_PATH"
    status = 404
    default_message = "nothing is served at this path"

    def __init__(self) -> None:
        super().__init__(help="/v1/docs tells what is; paths end without a slash")


class MethodNotAllowed(GatewayError):
    code = "E_METHOD_NOT_ALLOWED"
    status = 405
    default_message = "this method is not for this path"

    def __init__(self, allowed: Iterable[str]) -> None:
        names = sorted(allowed)
        self.allow = ", ".join(names)
        super().__init__(help=f"use {' or '.join(names)}")


class TooLarge(GatewayError):
    code = "E_BODY_TOO_LARGE"
    status = 413
    default_message = "the body is larger than allowed"


class TooManyJsonValues(GatewayError):
    code = "E_TOO_MANY_VALUES"
    status = 413
    default_message = "the body has more JSON values than are read"

    def __init__(self, message: str) -> None:
        super().__init__(message, help="send less at a time; the gateway's operator sets GATEWAY_MAX_JSON_VALUES")


class TooSlow(GatewayError):
    code = "E_BODY_TOO_SLOW"
    status = 408
    default_message = "the body did not come in time"


class NotJsonContent(GatewayError):
    code = "E_UNSUPPORTED_CONTENT"
    status = 415
    default_message = "the body is JSON, not encoded otherwise"

    def __init__(self) -> None:
        super().__init__(help="send the header 'Content-Type: application/json', and no Content-Encoding")


class TurnOver(GatewayError):
    code = "E_TURN_OVER"
    status = 409
    default_message = "the turn has ended"


class TooManyStreams(GatewayError):
    code = "E_TOO_MANY_STREAMS"
    status = 429
    default_message = "too many streams of this turn's events are open"


def invalid(where: str, error: ValidationException, *, help: str | None = None) -> InvalidRequest:
    """What is wrong with a part of the request, by name: no value that was sent is repeated."""
    return InvalidRequest(f"{where}: {error.message}", help=help, details=error.details)


def pointer(path: Iterable[str | int]) -> str:
    """A JSON Pointer."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)

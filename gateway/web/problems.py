"""Errors on the wire: RFC 9457 problems for HTTP. One table; nothing else decides what an error looks like outside."""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import orjson

from gateway.errors import GatewayError

Response = Callable[[Any, Any, Any], Awaitable[None]]

PROBLEM_TYPE: Final = b"application/problem+json"


def problem(
    status: int, detail: str, *, code: str | None = None, help: str | None = None, **more: Any
) -> dict[str, Any]:
    """The members of a problem document. `code` is the error's stable name."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    body |= {"code": code} if code else {}
    body |= {"help": help} if help else {}
    return body | more


def problem_of(error: GatewayError) -> dict[str, Any]:
    """What a caller is told of an error of ours: its message is safe, its cause is for operators."""
    status = error.status if error.status in _STATUSES else 500
    return problem(status, error.message, code=error.code, help=error.help)


def refusal(error: GatewayError) -> Response:
    """The answer that an error of ours becomes: equal errors are equal bytes, whatever was asked for."""
    body = problem_of(error)
    if errors := getattr(error, "errors", None):
        body["errors"] = errors
    if call_id := getattr(error, "call_id", None):
        body |= {"callId": call_id, "turn": getattr(error, "turn_id", None)}
    headers = {b"cache-control": b"no-store", b"x-content-type-options": b"nosniff"}
    if allow := getattr(error, "allow", None):
        headers[b"allow"] = allow.encode()
    if (wait := retry_after(error)) is not None:
        headers[b"retry-after"] = b"%d" % wait
    return json_response(body, status=body["status"], type=PROBLEM_TYPE, headers=headers)


def retry_after(error: GatewayError) -> int | None:
    """Seconds after which the same request may succeed; `None` if repeating it is no use."""
    return _RETRY_AFTER.get(error.code, _SOON if error.status == HTTPStatus.SERVICE_UNAVAILABLE else None)


def problem_response(
    status: int,
    detail: str,
    *,
    code: str | None = None,
    help: str | None = None,
    headers: Mapping[bytes, bytes] | None = None,
) -> Response:
    return json_response(
        problem(status, detail, code=code, help=help), status=status, type=PROBLEM_TYPE, headers=headers
    )


def json_response(
    body: Any, *, status: int = 200, type: bytes = b"application/json", headers: Mapping[bytes, bytes] | None = None
) -> Response:
    return bytes_response(orjson.dumps(body), status=status, type=type, headers=headers)


def bytes_response(
    content: bytes,
    *,
    status: int = 200,
    type: bytes = b"application/json",
    headers: Mapping[bytes, bytes] | None = None,
) -> Response:
    """An ASGI answer without a framework in between."""
    listed = [(b"content-type", type), (b"content-length", str(len(content)).encode()), *(headers or {}).items()]

    async def respond(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": listed})
        await send({"type": "http.response.body", "body": content})

    return respond


_SOON: Final = 1
_RETRY_AFTER: Final = {"E_IDEMPOTENCY_RUNNING": _SOON, "E_TOO_MANY_STREAMS": 15}
"""Seconds after which the same request may go better, by the code of the error; every 503 has at least `_SOON`."""

_STATUSES: Final = frozenset(int(status) for status in HTTPStatus)

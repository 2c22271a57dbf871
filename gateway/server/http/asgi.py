"""ASGI types and helpers: scope keys, indexed request headers, responses, and errors as RFC 9457 problems.

Only this module decides how an error looks to HTTP callers.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping, Sequence
from http import HTTPStatus
from itertools import chain
from typing import Any, Final

import orjson

from gateway.errors import GatewayError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

SCOPE_PRINCIPAL: Final = "gateway.principal"
"""Scope key of the principal of an authenticated request."""

SCOPE_TASK: Final = "gateway.task"
"""Scope key of the task that answers the request, if the server sets it: `asyncio.current_task` is slower."""

SCOPE_STARTED: Final = "gateway.began"
"""Scope key of the `perf_counter` value at which the request was admitted."""

HEAD_SIZE: Final = "gateway.head_size"
"""Scope key of an upper bound of the header bytes, if the server knows one: counting them is slow."""


RawHeaders = Sequence[tuple[bytes, bytes]]

SCOPE_FIELDS: Final = "gateway.fields"
"""Scope key of the `HeaderFields` of a request."""

_NONE: Final[frozenset[bytes]] = frozenset()


class HeaderFields:
    """The headers of a request: the first value by lower-case name, and the names that are `repeated`."""

    __slots__ = ("_raw", "by_name", "repeated")

    def __init__(self, raw: RawHeaders) -> None:
        self._raw = raw
        self.by_name = dict(raw)
        self.repeated = _NONE
        if len(self.by_name) != len(raw):
            self.by_name = dict(reversed(raw))
            times = Counter(name for name, _ in raw)
            self.repeated = frozenset(name for name in times if times[name] > 1)

    @property
    def size(self) -> int:
        """Bytes of all names and values."""
        return sum(map(len, chain.from_iterable(self._raw)))

    def all(self, name: bytes) -> list[bytes]:
        """Return all values of a name, in order."""
        return [value for key, value in self._raw if key == name]


Response = Callable[[Any, Any, Any], Awaitable[None]]

PROBLEM_TYPE: Final = b"application/problem+json"


def build_problem(
    status: int, detail: str, *, code: str | None = None, help: str | None = None, **more: Any
) -> dict[str, Any]:
    """Return the members of a problem document. `code` is the error's stable name."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    body |= {"code": code} if code else {}
    body |= {"help": help} if help else {}
    return body | more


def to_problem(error: GatewayError) -> dict[str, Any]:
    """Return the problem document of an error: its message is safe for callers, its cause is for operators only."""
    status = error.status if error.status in _STATUSES else 500
    return build_problem(status, error.message, code=error.code, help=error.help)


def error_response(error: GatewayError) -> Response:
    """Return the response for an error: equal errors give equal bytes, whatever the request was."""
    body = to_problem(error)
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
    """Return the seconds after which the same request may succeed; `None` if repeating it is no use."""
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
        build_problem(status, detail, code=code, help=help), status=status, type=PROBLEM_TYPE, headers=headers
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
    """Return an ASGI response that needs no framework."""
    listed = [(b"content-type", type), (b"content-length", b"%d" % len(content)), *(headers or {}).items()]

    async def respond(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": listed})
        await send({"type": "http.response.body", "body": content})

    return respond


_SOON: Final = 1
_RETRY_AFTER: Final = {"E_IDEMPOTENCY_RUNNING": _SOON, "E_TOO_MANY_STREAMS": 15}
"""Retry-After in seconds by error code; every other 503 has `_SOON`."""

_STATUSES: Final = frozenset(int(status) for status in HTTPStatus)


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` until it is done (true) or the client disconnects (false). ASGI servers silently discard what is sent
    to a disconnected client, so `work` would not notice."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        await asyncio.sleep(0)  # a server whose receive never waits must not block the event loop

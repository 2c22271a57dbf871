"""Endpoint: one path as a raw ASGI application. It checks what an operation says of itself, then runs it.

Every failure leaves here as a problem document; what is not an error of ours says nothing of its cause.
"""

import logging
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

from gateway.core.schemas import Schema
from gateway.errors import GatewayError
from gateway.serving.observing import SeenRequest, three_fields
from gateway.web.bodies import ClientGone
from gateway.web.edge import PRINCIPAL, Receive, Scope, Send
from gateway.web.metering import BEGAN
from gateway.web.problems import Response, refusal
from gateway.web.rest.asking import Asked, read_json, read_query
from gateway.web.rest.documents import REQUESTS
from gateway.web.rest.operations import Operation, Rest
from gateway.web.rest.refusals import MethodNotAllowed, UnknownPath

MAX_BODY: Final = 4 << 20
"""Bytes of a request, unless the gateway is told otherwise."""

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Ready:
    """An operation with its schemas compiled."""

    operation: Operation
    query: Schema | None
    body: Schema | None


class Endpoint:
    def __init__(self, rest: Rest, operations: Iterable[Operation], *, max_body: int = MAX_BODY) -> None:
        self.operations = tuple(operations)
        self.path = self.operations[0].path
        self.max_body = max_body
        self._rest = rest
        self._ready: dict[str, _Ready] = {each.method: _compiled(each) for each in self.operations}
        self._allowed = {*self._ready, *(("HEAD",) if "GET" in self._ready else ())}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, meter = scope["method"], self._rest.service.meter
        began = scope.get(BEGAN) or perf_counter()
        seen = self._seen(method, scope)
        status = 0

        def noted(message: Any) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            return send(message)

        try:
            await self._answered(method, scope, receive, noted, seen)
        finally:
            if seen is not None:
                _tell(seen, status)
            if meter is not None:
                meter.responded(method, route=self.path, status=status, seconds=perf_counter() - began)

    def _seen(self, method: str, scope: Scope) -> SeenRequest | None:
        observer = self._rest.service.observer
        if observer is None or (caller := scope.get(PRINCIPAL)) is None or method not in self._ready:
            return None
        return observer.received(
            method,
            caller,
            fields=three_fields(scope["headers"]),
            peer=scope.get("client"),
            route=self._ready[method].operation.path,
        )

    async def _answered(
        self, method: str, scope: Scope, receive: Receive, send: Send, seen: SeenRequest | None
    ) -> None:
        try:
            response = await self._answer(method, scope, receive, seen)
        except GatewayError as error:
            response = refusal(error)
        except ClientGone:
            return
        except Exception:
            _log.exception("a request failed")
            response = refusal(GatewayError())
        await response(scope, receive, _without_body(send) if method == "HEAD" else send)

    async def _answer(self, method: str, scope: Scope, receive: Receive, seen: SeenRequest | None) -> Response:
        ready = self._ready.get("GET" if method == "HEAD" else method)
        if ready is None:
            raise MethodNotAllowed(self._allowed)
        operation, headers = ready.operation, scope["headers"]
        caller = None if operation.is_open else scope[PRINCIPAL]
        given = scope["query_string"]
        query = read_query(given, ready.query or _NOTHING) if ready.query or given else {}
        body = None
        if ready.body is not None:
            body = await read_json(receive, headers, limit=self.max_body, schema=ready.body)
        asked = Asked(caller, scope["path_params"], query, body, headers, method == "HEAD", seen)
        return await operation.run(self._rest, asked)


def _tell(seen: SeenRequest, status: int) -> None:
    if status:
        seen.answered(status=status)
    else:
        seen.abandoned()


async def nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    """Every path that is not one, a trailing slash included: paths are written one way."""
    send = _without_body(send) if scope["method"] == "HEAD" else send
    await refusal(UnknownPath())(scope, receive, send)


def _compiled(operation: Operation) -> _Ready:
    query = Schema(operation.query_schema) if operation.query else None
    return _Ready(operation, query, Schema(dict(REQUESTS[operation.body])) if operation.body else None)


def _without_body(send: Send) -> Send:
    async def send_head(message: Any) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return send_head


_NOTHING: Final = Schema({"type": "object", "properties": {}})

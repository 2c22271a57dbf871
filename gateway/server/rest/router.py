"""Routes of the REST API: one ASGI endpoint per path of the table, and one for all other paths below `/v1`.

An endpoint validates a request against its operation and runs it. Every error becomes a problem document; that of an
unexpected exception does not reveal its cause.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from time import perf_counter
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.routing import Route

from gateway.approvals import ApprovalService
from gateway.engine import RequestObservation, Service, TurnSync, get_trace_headers
from gateway.errors import GatewayError, ValidationException
from gateway.model import Schema
from gateway.policy import GrantService
from gateway.server.http.asgi import SCOPE_PRINCIPAL, SCOPE_STARTED, Receive, Response, Scope, Send, error_response
from gateway.server.http.json_body import (
    BodyTooLarge,
    BodyTooSlow,
    ClientGone,
    NotStrictJson,
    TooManyBodyValues,
    parse_strict_json,
    read_body,
)
from gateway.server.http.served_response import ServedResponse
from gateway.server.rest.api_documentation import REQUESTS
from gateway.server.rest.events import EventLogs
from gateway.server.rest.operation import RawHeaders, RestDependencies, RestOperation, RestRequest
from gateway.server.rest.operation_table import OPERATIONS
from gateway.server.rest.responses import (
    InvalidRequest,
    MethodNotAllowed,
    RequestTooLarge,
    RequestTooSlow,
    TooManyJsonValues,
    UnknownPath,
    UnsupportedContentType,
    invalid_part,
)

MAX_BODY: Final = 4 << 20
"""Default maximum bytes of a request."""

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _CompiledOperation:
    """An operation with its schemas compiled."""

    operation: RestOperation
    query: Schema | None
    body: Schema | None


class RestEndpoint:
    def __init__(
        self, rest: RestDependencies, operations: Iterable[RestOperation], *, max_body: int = MAX_BODY
    ) -> None:
        self.operations = tuple(operations)
        self.path = self.operations[0].path
        self.max_body = max_body
        self._rest = rest
        self._ready: dict[str, _CompiledOperation] = {each.method: _compile(each) for each in self.operations}
        self._allowed = {*self._ready, *(("HEAD",) if "GET" in self._ready else ())}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, meter = scope["method"], self._rest.service.meter
        began = scope.get(SCOPE_STARTED) or perf_counter()
        seen = self._observe(method, scope)
        sent = ServedResponse.of(send)
        try:
            await self._respond(method, scope, receive, sent.send, seen)
        finally:
            if seen is not None:
                _end_observation(seen, sent.status)
            if meter is not None:
                meter.record_rest_request(method, route=self.path, status=sent.status, seconds=perf_counter() - began)

    def _observe(self, method: str, scope: Scope) -> RequestObservation | None:
        observer = self._rest.service.observer
        if observer is None or (caller := scope.get(SCOPE_PRINCIPAL)) is None or method not in self._ready:
            return None
        return observer.start_request(
            method,
            caller,
            fields=get_trace_headers(scope["headers"], observer.trace_fields),
            peer=scope.get("client"),
            route=self._ready[method].operation.path,
        )

    async def _respond(
        self, method: str, scope: Scope, receive: Receive, send: Send, seen: RequestObservation | None
    ) -> None:
        try:
            response = await self._answer(method, scope, receive, seen)
        except GatewayError as error:
            response = error_response(error)
        except ClientGone:
            return
        except Exception:
            _log.exception("a request failed")
            response = error_response(GatewayError())
        await response(scope, receive, _without_body(send) if method == "HEAD" else send)

    async def _answer(self, method: str, scope: Scope, receive: Receive, seen: RequestObservation | None) -> Response:
        ready = self._ready.get("GET" if method == "HEAD" else method)
        if ready is None:
            raise MethodNotAllowed(self._allowed)
        operation, headers = ready.operation, scope["headers"]
        caller = None if operation.is_open else scope[SCOPE_PRINCIPAL]
        given = scope["query_string"]
        query = read_query(given, ready.query or _NOTHING) if ready.query or given else {}
        body = None
        if ready.body is not None:
            body = await read_json(receive, headers, limit=self.max_body, schema=ready.body)
        request = RestRequest(caller, scope["path_params"], query, body, headers, method == "HEAD", seen)
        return await operation.run(self._rest, request)


def _end_observation(seen: RequestObservation, status: int) -> None:
    if status:
        seen.end(status=status)
    else:
        seen.abandon()


async def unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 404 for every unknown path, including paths with a trailing slash."""
    send = _without_body(send) if scope["method"] == "HEAD" else send
    await error_response(UnknownPath())(scope, receive, send)


def _compile(operation: RestOperation) -> _CompiledOperation:
    query = Schema(operation.query_schema) if operation.query else None
    return _CompiledOperation(operation, query, Schema(dict(REQUESTS[operation.body])) if operation.body else None)


def _without_body(send: Send) -> Send:
    async def send_head(message: Any) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return send_head


_NOTHING: Final = Schema({"type": "object", "properties": {}})


class _UnknownPathEndpoint:
    """A class, because Starlette wraps plain functions and passes them its own requests."""

    __call__ = staticmethod(unknown_path)


def build_routes(
    service: Service,
    *,
    max_body: int = MAX_BODY,
    logs: EventLogs | None = None,
    approvals: ApprovalService | None = None,
    grants: GrantService | None = None,
    catch_up: TurnSync | None = None,
) -> list[Route]:
    """Return the routes for the root of the data plane. With its own `logs`, the application can end event streams."""
    rest = RestDependencies(service, logs or EventLogs(), approvals, catch_up, grants=grants)
    by_path = {
        path: list(operations)
        for path, operations in groupby(sorted(OPERATIONS, key=attrgetter("path")), key=attrgetter("path"))
    }
    # Starlette tries paths in order, and no two match the same request: calls, the most frequent ones, come first
    ordered = sorted(by_path, key=lambda path: (not path.endswith(("/call", "/calls")), path))
    served = [Route(path, RestEndpoint(rest, by_path[path], max_body=max_body)) for path in ordered]
    return [*served, Route("/v1/{rest:path}", _UnknownPathEndpoint()), Route("/v1", _UnknownPathEndpoint())]


_MAX_PARAMETERS: Final = 32


async def read_json(receive: Receive, headers: RawHeaders, *, limit: int, schema: Schema) -> Any:
    """Return the body exactly as it was sent. Raises a `GatewayError` for the caller if it is invalid."""
    named = dict(headers)
    kind = named.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json" or named.get(b"content-encoding", b"identity").lower() != b"identity":
        raise UnsupportedContentType()
    if len(named) != len(headers) and _disagree(headers):
        raise UnsupportedContentType()
    declared = named.get(b"content-length", b"0")
    if declared.isdigit() and int(declared[:20]) > limit:
        raise _too_large(limit)
    try:
        body = await parse_strict_json(await read_body(receive, limit=limit))
    except BodyTooLarge:
        raise _too_large(limit) from None
    except BodyTooSlow:
        raise RequestTooSlow() from None
    except TooManyBodyValues as error:
        raise TooManyJsonValues(f"the body cannot be read: {error}") from None
    except NotStrictJson as error:
        raise InvalidRequest(f"the body cannot be read: {error}") from None
    if not schema.accepts_parsed(body):
        _refuse(schema, body)
    return body


def _disagree(headers: RawHeaders) -> bool:
    """Whether Content-Type or Content-Encoding is given twice: two parsers may use different ones."""
    given = [name for name, _ in headers if name in (b"content-type", b"content-encoding")]
    return len(set(given)) != len(given)


def read_query(query: bytes, schema: Schema) -> dict[str, Any]:
    """Return parameters with their types and defaults. Raises `InvalidRequest` for unknown and repeated ones."""
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except ValueError:
        raise InvalidRequest("the query is not a list of parameters") from None
    given = dict(pairs)
    if len(given) != len(pairs):
        raise InvalidRequest("a query parameter is given twice")
    try:
        parameters: dict[str, Any] = schema.coerce(given)
    except ValidationException as error:
        raise invalid_part("the query", error) from None
    return parameters


def _refuse(schema: Schema, body: Any) -> None:
    try:
        schema.check(body)
    except ValidationException as error:
        raise invalid_part("the body", error, help=_members(schema, body)) from None


def _members(schema: Schema, body: Any) -> str | None:
    """Return a help text with the members that the body may have, if it has others."""
    known = schema.describe().get("properties", {})
    if not known or not isinstance(body, dict) or body.keys() <= known.keys():
        return None
    inside = "; put arguments of the tool into 'arguments'" if "arguments" in known else ""
    return f"the body may have {', '.join(known)}{inside}"


def _too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"the body is larger than {limit} bytes")

"""McpEndpoint: one catalogue over MCP at one address, for clients of every supported protocol revision.

The version header of a request, or its body if the two disagree, selects the session or the stateless protocol. The
caller is authenticated already; a caller outside the audience of the catalogue gets 404.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from gateway.approvals import ApprovalService
from gateway.engine import HeldCalls, Service
from gateway.errors import UnknownCatalogue
from gateway.mcp import (
    HTTP_STATUS,
    INVALID_REQUEST,
    META_VERSION,
    PARSE_ERROR,
    ProtocolError,
    check_envelope,
    get_request_id,
)
from gateway.model import LARGE, Principal
from gateway.server.http.asgi import SCOPE_FIELDS, SCOPE_PRINCIPAL, SCOPE_TASK, Receive, Scope, Send, problem_response
from gateway.server.http.json_body import (
    BodyTooLarge,
    BodyTooSlow,
    ClientGone,
    NotStrictJson,
    TooManyBodyValues,
    parse_strict_json,
    start_body_read,
    strict_json,
)
from gateway.server.mcp.mcp_request import NO_JSON, McpHeaders
from gateway.server.mcp.mcp_server import McpServer
from gateway.server.mcp.responses import send_empty, send_json_error, send_refusal
from gateway.server.mcp.session_protocol import SessionProtocol
from gateway.server.mcp.sessions import ClientSessions, SessionLimits
from gateway.server.mcp.stateless_protocol import StatelessProtocol
from gateway.server.mcp.subscriptions import Subscriptions
from gateway.server.mcp.suspended_calls import SuspendedCalls
from gateway.server.mcp.tasks import TaskMethods

MAX_BODY: Final = 4 << 20
_DEFAULT_LIMITS: Final = SessionLimits()


class McpEndpoint:
    """A raw ASGI application. `secret` signs request states; without one, they are valid in this process only."""

    def __init__(
        self,
        service: Service,
        catalogue: str,
        *,
        max_body: int = MAX_BODY,
        secret: bytes | None = None,
        limits: SessionLimits = _DEFAULT_LIMITS,
        approvals: ApprovalService | None = None,
        home: str = "",
    ) -> None:
        """Without `approvals` there are no tasks. `home` is the name of this gateway if there are several."""
        self._service = service
        self._catalogue = catalogue
        self._max_body = max_body
        served = McpServer(service, catalogue)
        self._suspended = SuspendedCalls(secret, home=home)
        self._subscriptions = Subscriptions(service, served.offering)
        self.sessions = ClientSessions(service, limits, may_hear=served.offering.may_notify)
        self._held = None if approvals is None else HeldCalls(service, approvals, catalogue)
        tasks = None if self._held is None else TaskMethods(served, self._held)
        self._stateless = StatelessProtocol(served, self._suspended, self._subscriptions, tasks)
        self._in_sessions = SessionProtocol(served, self.sessions)

    def close_streams(self) -> None:
        """End the streams of clients that only listen; running calls continue."""
        self._subscriptions.close()
        self.sessions.close_streams()

    async def close(self) -> None:
        """End all streams, suspended calls and sessions."""
        self._subscriptions.close()
        self._suspended.close()
        if self._held is not None:
            await self._held.close()
        await self.sessions.close()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        principal: Principal = scope[SCOPE_PRINCIPAL]
        if not self._is_for(principal):
            unknown = UnknownCatalogue()
            return problem_response(404, unknown.message, code=unknown.code)(scope, receive, send)
        headers = McpHeaders(scope[SCOPE_FIELDS], scope.get("client"), scope.get(SCOPE_TASK) or asyncio.current_task())
        match scope["method"]:
            case "POST":
                return self._post(headers, principal, receive, send)
            case "GET" if headers.uses_session:
                return self._in_sessions.get(headers, principal=principal, receive=receive, send=send)
            case "DELETE" if headers.uses_session:
                return self._in_sessions.delete(headers, principal=principal, send=send)
            case _:
                allowed = b"POST, GET, DELETE" if headers.uses_session else b"POST"
                wrong = ProtocolError(INVALID_REQUEST, "send messages with POST")
                return send_refusal(send, 405, wrong, headers=[(b"allow", allowed)])

    def _is_for(self, principal: Principal) -> bool:
        published = self._service.published
        found = published.snapshot.catalogues.get(self._catalogue)
        return (
            found is not None
            and "mcp" in found.protocols
            and published.access.is_in_audience(principal, self._catalogue)
        )

    def _post(self, headers: McpHeaders, principal: Principal, receive: Receive, send: Send) -> Awaitable[None]:
        refusal = NO_JSON if b"content-type" in headers.repeated else headers.media.refusal
        if refusal is not None:
            return send_json_error(send, refusal[0], INVALID_REQUEST, refusal[1])
        try:
            body = start_body_read(receive, self._max_body)
        except (ClientGone, BodyTooLarge) as error:
            return self._report_unread(error, send)
        if not isinstance(body, bytes):
            return self._take_when_read(body, headers, principal, receive, send)
        if len(body) >= LARGE:
            return self._take_large(body, headers, principal, receive, send)
        try:
            message = strict_json(body)
        except NotStrictJson as error:
            return _refuse_unreadable(error, send)
        return self._answer(message, headers, principal, receive, send)

    async def _take_when_read(
        self, coming: Awaitable[bytes], headers: McpHeaders, principal: Principal, receive: Receive, send: Send
    ) -> None:
        try:
            body = await coming
        except (ClientGone, BodyTooLarge, BodyTooSlow) as error:
            await self._report_unread(error, send)
        else:
            await self._take_large(body, headers, principal, receive, send)

    async def _report_unread(self, error: ClientGone | BodyTooLarge | BodyTooSlow, send: Send) -> None:
        """Send the error of a body that was not read; nothing if the client has disconnected."""
        if isinstance(error, BodyTooLarge):
            await send_json_error(send, 413, INVALID_REQUEST, f"the body has more than {self._max_body} bytes")
        elif isinstance(error, BodyTooSlow):
            await send_json_error(send, 408, INVALID_REQUEST, "the body did not arrive in time")

    async def _take_large(
        self, body: bytes, headers: McpHeaders, principal: Principal, receive: Receive, send: Send
    ) -> None:
        """Parse a large body without blocking the event loop, and answer its message."""
        try:
            message = await parse_strict_json(body)
        except NotStrictJson as error:
            await _refuse_unreadable(error, send)
        else:
            await self._answer(message, headers, principal, receive, send)

    def _answer(
        self, message: Any, headers: McpHeaders, principal: Principal, receive: Receive, send: Send
    ) -> Awaitable[None]:
        uses_session = headers.uses_session
        if uses_session and isinstance(message, list):
            return self._in_sessions.post(message, headers, principal=principal, send=send)
        try:
            check_envelope(message)
            if uses_session and not _is_stateless(message):
                return self._in_sessions.post(message, headers, principal=principal, send=send)
            if "method" not in message:
                raise ProtocolError(INVALID_REQUEST, "the gateway has sent no request that this response could answer")
            if "id" not in message:
                self._stateless.notification(headers)
                return send_empty(send, 202)
        except ProtocolError as error:
            return _refuse(error, message, send)
        return self._stateless.request(message, headers, principal, receive, send)


def _refuse_unreadable(error: NotStrictJson, send: Send) -> Awaitable[None]:
    if isinstance(error, TooManyBodyValues):
        return send_refusal(send, 413, ProtocolError(INVALID_REQUEST, str(error), {"code": "E_TOO_MANY_VALUES"}))
    return send_json_error(send, 400, PARSE_ERROR, str(error))


def _refuse(error: ProtocolError, message: Any, send: Send) -> Awaitable[None]:
    return send_refusal(send, HTTP_STATUS.get(error.code, 400), error, id=get_request_id(message))


def _is_stateless(message: Any) -> bool:
    """Whether a body has the version in `_meta`, as only requests without sessions do."""
    if message.get("method") == "initialize":
        return False
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and META_VERSION in meta

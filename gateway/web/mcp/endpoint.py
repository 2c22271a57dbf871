"""McpEndpoint: one catalogue over MCP at one address, for clients of every revision that is still spoken.

Which way of talking a request belongs to is decided by its version header, and by its body where the two disagree.
Who calls has been settled before; who is not in the audience finds nothing here.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from gateway.approvals.approving import Approvals
from gateway.core.bounded_json import LARGE
from gateway.errors import UnknownCatalogue
from gateway.governance.principals import Principal
from gateway.serving.held_tasks import HeldTasks
from gateway.serving.service import Service
from gateway.web.bodies import (
    BodyTooLarge,
    BodyTooSlow,
    ClientGone,
    NotStrictJson,
    TooManyBodyValues,
    begun_body,
    parsed_strictly,
    strict_json,
)
from gateway.web.edge import TASK, Receive, Scope, Send, principal_of
from gateway.web.fields import FIELDS
from gateway.web.mcp.headers import Headers
from gateway.web.mcp.legacy import LegacyWire
from gateway.web.mcp.listening import Listening
from gateway.web.mcp.messages import check_envelope, request_id
from gateway.web.mcp.modern import ModernWire
from gateway.web.mcp.parking import Parking
from gateway.web.mcp.protocol import (
    HANDSHAKE_DATES,
    HTTP_STATUS,
    INVALID_REQUEST,
    META_VERSION,
    PARSE_ERROR,
    ProtocolError,
)
from gateway.web.mcp.responses import empty, json_error, refuse
from gateway.web.mcp.serving import Served
from gateway.web.mcp.sessions import SessionLimits, Sessions
from gateway.web.mcp.tasks import Tasks
from gateway.web.problems import problem_response

MAX_BODY: Final = 4 << 20
_DEFAULT_LIMITS: Final = SessionLimits()


class McpEndpoint:
    """A raw ASGI application. `secret` seals request states; without one, those of a process end with it."""

    def __init__(
        self,
        service: Service,
        catalogue: str,
        *,
        max_body: int = MAX_BODY,
        secret: bytes | None = None,
        limits: SessionLimits = _DEFAULT_LIMITS,
        approvals: Approvals | None = None,
        home: str = "",
    ) -> None:
        """Without `approvals` there are no tasks. `home` is this gateway's name among several."""
        self._service = service
        self._catalogue = catalogue
        self._max_body = max_body
        served = Served(service, catalogue)
        self._parking = Parking(secret, home=home)
        self._listening = Listening(service, served.offering)
        self.sessions = Sessions(service, limits, may_hear=served.offering.may_hear)
        self._held = None if approvals is None else HeldTasks(service, approvals, catalogue)
        tasks = None if self._held is None else Tasks(served, self._held)
        self._modern = ModernWire(served, self._parking, self._listening, tasks)
        self._legacy = LegacyWire(served, self.sessions)

    def hush(self) -> None:
        """Tell everybody who only listens that it is over; what was called goes on."""
        self._listening.close()
        self.sessions.hush()

    async def close(self) -> None:
        """Tell everybody who listens that it is over, and end every session."""
        self._listening.close()
        self._parking.close()
        if self._held is not None:
            await self._held.close()
        await self.sessions.close()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        principal = principal_of(scope)
        if not self._is_for(principal):
            unknown = UnknownCatalogue()
            return problem_response(404, unknown.message, code=unknown.code)(scope, receive, send)
        headers = Headers(scope[FIELDS], scope.get("client"), scope.get(TASK) or asyncio.current_task())
        match scope["method"]:
            case "POST":
                return self._post(headers, principal, receive, send)
            case "GET" if _is_legacy(headers):
                return self._legacy.get(headers, principal=principal, receive=receive, send=send)
            case "DELETE" if _is_legacy(headers):
                return self._legacy.delete(headers, principal=principal, send=send)
            case _:
                allowed = b"POST, GET, DELETE" if _is_legacy(headers) else b"POST"
                wrong = ProtocolError(INVALID_REQUEST, "messages are posted")
                return refuse(send, 405, wrong, headers=[(b"allow", allowed)])

    def _is_for(self, principal: Principal) -> bool:
        published = self._service.published
        found = published.snapshot.catalogues.get(self._catalogue)
        return found is not None and "mcp" in found.protocols and published.access.admits(principal, self._catalogue)

    def _post(self, headers: Headers, principal: Principal, receive: Receive, send: Send) -> Awaitable[None]:
        media = headers.media
        if not media.is_json or b"content-type" in headers.repeated:
            return json_error(send, 415, INVALID_REQUEST, "the content type must be application/json")
        if media.is_compressed:
            return json_error(send, 415, INVALID_REQUEST, "the body must not be compressed")
        if not media.takes_json:
            return json_error(send, 406, INVALID_REQUEST, "the client must accept application/json")
        try:
            body = begun_body(receive, self._max_body)
        except (ClientGone, BodyTooLarge) as error:
            return self._not_read(error, send)
        if isinstance(body, bytes):
            if len(body) < LARGE:
                return self._take(body, headers, principal, receive, send)
            return self._take_large(body, headers, principal, receive, send)
        return self._take_later(body, headers, principal, receive, send)

    async def _take_later(
        self, coming: Awaitable[bytes], headers: Headers, principal: Principal, receive: Receive, send: Send
    ) -> None:
        try:
            body = await coming
        except (ClientGone, BodyTooLarge, BodyTooSlow) as error:
            await self._not_read(error, send)
        else:
            await self._take_large(body, headers, principal, receive, send)

    async def _not_read(self, error: ClientGone | BodyTooLarge | BodyTooSlow, send: Send) -> None:
        """Whoever has gone is told nothing."""
        if isinstance(error, BodyTooLarge):
            await json_error(send, 413, INVALID_REQUEST, f"a body has at most {self._max_body} bytes")
        elif isinstance(error, BodyTooSlow):
            await json_error(send, 408, INVALID_REQUEST, "the body did not come in time")

    def _take(
        self, body: bytes, headers: Headers, principal: Principal, receive: Receive, send: Send
    ) -> Awaitable[None]:
        """Answer what was posted."""
        try:
            message = strict_json(body)
        except NotStrictJson as error:
            return _unreadable(error, send)
        return self._answer(message, headers, principal, receive, send)

    async def _take_large(
        self, body: bytes, headers: Headers, principal: Principal, receive: Receive, send: Send
    ) -> None:
        """The same for a body that would make others wait."""
        try:
            message = await parsed_strictly(body)
        except NotStrictJson as error:
            await _unreadable(error, send)
        else:
            await self._answer(message, headers, principal, receive, send)

    def _answer(
        self, message: Any, headers: Headers, principal: Principal, receive: Receive, send: Send
    ) -> Awaitable[None]:
        is_legacy = _is_legacy(headers)
        if is_legacy and isinstance(message, list):
            return self._legacy.post(message, headers, principal=principal, send=send)
        try:
            check_envelope(message)
            if is_legacy and not _is_modern(message):
                return self._answer_legacy(message, headers, principal, send)
            if "method" not in message:
                raise ProtocolError(INVALID_REQUEST, "nobody here has asked for a response")
            if "id" not in message:
                self._modern.notification(headers)
                return empty(send, 202)
        except ProtocolError as error:
            return _refuse(error, message, send)
        return self._modern.request(message, headers, principal, receive, send)

    async def _answer_legacy(self, message: Any, headers: Headers, principal: Principal, send: Send) -> None:
        try:
            await self._legacy.post(message, headers, principal=principal, send=send)
        except ProtocolError as error:
            await _refuse(error, message, send)


def _unreadable(error: NotStrictJson, send: Send) -> Awaitable[None]:
    if isinstance(error, TooManyBodyValues):
        return refuse(send, 413, ProtocolError(INVALID_REQUEST, str(error), {"code": "E_TOO_MANY_VALUES"}))
    return json_error(send, 400, PARSE_ERROR, str(error))


def _refuse(error: ProtocolError, message: Any, send: Send) -> Awaitable[None]:
    return refuse(send, HTTP_STATUS.get(error.code, 400), error, id=request_id(message))


def _is_legacy(headers: Headers) -> bool:
    return headers.version is None or headers.version in HANDSHAKE_DATES


def _is_modern(message: Any) -> bool:
    """Whether a body speaks of a version as only requests without sessions do."""
    if message.get("method") == "initialize":
        return False
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and META_VERSION in meta

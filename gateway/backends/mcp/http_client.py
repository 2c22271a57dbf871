"""HTTP client of one upstream server: fixed host, credentials, bounded responses.

It does not inspect messages, except for the error in a refused request.

A legacy server learns once per session who the client is and what it can do. So callers with different capabilities or
with credentials of their own use different sessions: state that a server holds for one caller never reaches another.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from gateway.backends.http.backend import STATUS_ERRORS, check_headers
from gateway.backends.http.url_template import parse_url_template, redirect_target
from gateway.backends.mcp.connection import ServerRequestHandler
from gateway.backends.mcp.credentials import NO_CREDENTIALS, UpstreamCredentials
from gateway.backends.mcp.rpc_responses import ServerInfo, to_remote_error
from gateway.http_client import Http1Response, HttpConnections, Network, decode_body
from gateway.mcp import MAX_MESSAGE, NODE_CHECK_BYTES, SseEvent, SseReader, decode_message, message_too_large
from gateway.model import BackendError, Principal

EVENT_STREAM_TYPE: Final = "text/event-stream"

_ACCEPT: Final = f"application/json, {EVENT_STREAM_TYPE}"
_REDIRECTS: Final = (307, 308)
_MAX_REDIRECTS: Final = 3
_ERROR_BODY: Final = 64 << 10
_ERROR_SECONDS: Final = 2
_ENDLESS: Final = 1 << 50


@dataclass(frozen=True, slots=True)
class UpstreamEndpoint:
    """The address of a server. `networks` are private networks that its name may resolve to."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    networks: tuple[Network, ...] = ()
    max_message: int = MAX_MESSAGE


class UnknownSession(Exception):
    """The server does not know the session any more."""


class UpstreamUnauthorized(BackendError):
    """The server refuses the credentials; this does not reveal its protocol era."""

    code = "E_UPSTREAM_UNAUTHORISED"


class UpstreamHttpClient:
    def __init__(
        self, endpoint: UpstreamEndpoint, pool: HttpConnections, credentials: UpstreamCredentials = NO_CREDENTIALS
    ) -> None:
        check_headers(endpoint.headers)
        url = parse_url_template(endpoint.url)
        self.origin = url.origin
        self.credentials = credentials
        self._endpoint = endpoint
        self._target = url.target({}, query=())
        self._fixed = {name.lower(): value for name, value in endpoint.headers.items()}
        self._fixed |= {"accept": _ACCEPT, "content-type": "application/json", "accept-encoding": "identity"}
        self._fixed.setdefault("user-agent", "agent-gateway")
        self._connections = pool
        self._pool = pool.pool(url.origin, endpoint.networks)
        self._large = asyncio.Lock()
        """Held while a large message is read."""

    async def post(self, body: bytes, headers: Mapping[str, str], principal: Principal | None) -> Http1Response:
        """Return the response to an accepted message. Raise `UnknownSession`, `RemoteError` or another `BackendError`.

        If the credentials are refused, renew them and send the message once more: the server has not processed it.
        """
        answer = await self._send("POST", body, {**self._fixed, **headers}, principal)
        if answer.status == 401 and self.credentials.renew(principal):
            answer.close()
            answer = await self._send("POST", body, {**self._fixed, **headers}, principal)
        if answer.status < 300:
            return answer
        try:
            raise await self._to_error(answer, in_session="mcp-session-id" in headers)
        finally:
            answer.close()

    async def send_notification(
        self, body: bytes, headers: Mapping[str, str], principal: Principal | None = None
    ) -> None:
        """Send a message without a response."""
        answer = await self.post(body, headers, principal)
        answer.close()

    async def open_stream(self, headers: Mapping[str, str], principal: Principal | None) -> Http1Response:
        """Open a stream with GET and return the response, whatever its status."""
        all_headers = {**self._fixed, **headers, "accept": EVENT_STREAM_TYPE}
        del all_headers["content-type"]
        return await self._send("GET", None, all_headers, principal)

    async def end_session(self, headers: Mapping[str, str]) -> None:
        answer = await self._send("DELETE", None, {**self._fixed, **headers}, None)
        answer.close()

    async def read_message(self, answer: Http1Response, *, limit: int | None = None) -> Any:
        """Read the body as JSON. Raise `BackendError` if it is too large or not JSON."""
        limit = self._endpoint.max_message if limit is None else limit
        length = answer.content_length
        if length is not None:
            if length > limit:
                raise message_too_large(limit)
            is_plain = answer.headers.get("content-encoding") in (None, "identity")
            if is_plain and length <= NODE_CHECK_BYTES:  # the parser reads no more than the declared length
                return await decode_message(await answer.read(limit=length))
        parts: list[bytes] = []
        size = 0
        async with AsyncExitStack() as stack:
            chunks = await stack.enter_async_context(aclosing(decode_body(answer, limit=_ENDLESS)))
            async for chunk in chunks:
                if size <= NODE_CHECK_BYTES < size + len(chunk):
                    await stack.enter_async_context(self._large)
                size += len(chunk)
                if size > limit:
                    raise message_too_large(limit)
                parts.append(chunk)
            return await decode_message(b"".join(parts))

    async def read_events(self, answer: Http1Response) -> AsyncGenerator[SseEvent, None]:
        """Yield events as they arrive, possibly forever: the caller sets a deadline."""
        reader = SseReader(self._endpoint.max_message)
        has_lock = False
        try:
            async with aclosing(decode_body(answer, limit=_ENDLESS)) as chunks:
                async for chunk in chunks:
                    if not has_lock and reader.buffered_bytes > NODE_CHECK_BYTES:
                        await self._large.acquire()
                        has_lock = True
                    for event in reader.events(chunk):
                        yield event
                    if has_lock and reader.buffered_bytes <= NODE_CHECK_BYTES:
                        self._large.release()
                        has_lock = False
        finally:
            if has_lock:
                self._large.release()

    async def _send(
        self, method: str, body: bytes | None, headers: Mapping[str, str], principal: Principal | None
    ) -> Http1Response:
        if self.credentials.needed:
            headers = {**headers, **await self.credentials.headers(principal, self._connections)}
        for _ in range(_MAX_REDIRECTS):
            answer = await self._pool.send(method, self._target, headers, body, is_timed=False)
            if answer.status not in _REDIRECTS:
                return answer
            answer.close()
            location = answer.headers.get("location", "")  # frameworks redirect to add a slash
            self._target = redirect_target(self.origin, self._target, location, sender="the upstream server")
        raise BackendError("failed", "the upstream server redirects too often")

    async def _to_error(self, answer: Http1Response, *, in_session: bool) -> Exception:
        status = answer.status
        if status == 404 and in_session:
            return UnknownSession()
        if status in (401, 403):
            return UpstreamUnauthorized(
                "not-permitted", "the upstream server does not accept the gateway's credentials"
            )
        message = None
        with suppress(BackendError, TimeoutError):  # an unreadable error body is ignored
            async with asyncio.timeout(_ERROR_SECONDS):
                message = await self.read_message(answer, limit=_ERROR_BODY)
        if isinstance(message, dict) and isinstance(message.get("error"), dict):
            return to_remote_error(message["error"])
        word = STATUS_ERRORS.get(status, "unavailable" if status >= 500 else "failed")
        return BackendError(word, f"the upstream server answered with the HTTP status {status}")


MAX_SESSIONS: Final = 256


class SessionKey(NamedTuple):
    """The owner of the credentials, and the caller's capabilities as JSON."""

    owner: str
    capabilities: bytes

    @classmethod
    def of(cls, owner: str, capabilities: Mapping[str, Any]) -> "SessionKey":
        return cls(owner, orjson.dumps(dict(capabilities), option=orjson.OPT_SORT_KEYS))

    @property
    def declared(self) -> Any:
        return orjson.loads(self.capabilities)


ANONYMOUS_KEY: Final = SessionKey("", b"{}")
"""The key for requests that the gateway sends on its own behalf."""


@dataclass(slots=True, eq=False)
class UpstreamSession:
    """One handshake. `id` is `None` if the server has no sessions."""

    id: str | None
    introduction: ServerInfo
    level: str | None = None
    callers: list[ServerRequestHandler] = field(default_factory=list)
    """Callers with a running request."""
    listener: "asyncio.Task[None] | None" = None
    has_no_stream: bool = False
    """Whether the server offers no stream outside of responses."""

    @property
    def only_caller(self) -> ServerRequestHandler | None:
        """The caller of a message outside of a call; `None` if several are active, as the message does not name one."""
        return self.callers[0] if len(self.callers) == 1 else None

    @property
    def headers(self) -> dict[str, str]:
        version = {"mcp-protocol-version": self.introduction.version}
        return version if self.id is None else {**version, "mcp-session-id": self.id}


Handshake = Callable[[SessionKey, ServerRequestHandler | None], Awaitable[UpstreamSession]]


class UpstreamSessions:
    def __init__(self, open_session: Handshake, *, end_session: Callable[[UpstreamSession], Awaitable[None]]) -> None:
        """`open_session` performs the handshake, `end_session` ends an unused session at the server."""
        self._open_session = open_session
        self._end_session = end_session
        self._open: OrderedDict[SessionKey, UpstreamSession] = OrderedDict()
        self._opening: dict[SessionKey, asyncio.Lock] = {}

    async def get(self, key: SessionKey, exchange: ServerRequestHandler | None) -> UpstreamSession:
        if (found := self._open.get(key)) is not None:
            self._open.move_to_end(key)
            return found
        lock = self._opening.setdefault(key, asyncio.Lock())
        async with lock:
            if (found := self._open.get(key)) is not None:
                return found
            try:
                session = self._open[key] = await self._open_session(key, exchange)
            finally:
                self._opening.pop(key, None)
        if len(self._open) > MAX_SESSIONS:
            _, oldest = self._open.popitem(last=False)
            await self._end_session(oldest)
        return session

    def forget(self, session: UpstreamSession) -> None:
        for key in [key for key, each in self._open.items() if each is session]:
            del self._open[key]

    def take_all(self) -> list[UpstreamSession]:
        """Remove and return all sessions."""
        sessions = list(self._open.values())
        self._open.clear()
        return sessions

"""HTTP client of one upstream server: fixed host, credentials, bounded responses.

It does not inspect messages, except for the error in a refused request.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.backends.http.backend import STATUS_ERRORS, check_headers
from gateway.backends.http.url_template import parse_url_template, redirect_target
from gateway.backends.mcp.credentials import NO_CREDENTIALS, UpstreamCredentials
from gateway.backends.mcp.responses import to_remote_error
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

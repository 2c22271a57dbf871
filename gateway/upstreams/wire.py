"""HTTP to one upstream server: to the host of the document alone, with its credentials, answers of a bounded size.

What is in a message is not looked at here, except for the error in a refusal.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from yarl import URL

from gateway.backends.addresses import Network
from gateway.backends.connections import Connections
from gateway.backends.decoding import decoded
from gateway.backends.http import WORDS, check_headers
from gateway.backends.http1 import Answer
from gateway.backends.urls import parsed
from gateway.governance.ports import BackendFailed
from gateway.governance.principals import Principal
from gateway.upstreams.auth import NO_CREDENTIALS, Credentials
from gateway.upstreams.messages import MANY_AT_ONCE, MAX_MESSAGE, error_of, read, too_large
from gateway.upstreams.sse import Event, EventReader

STREAM: Final = "text/event-stream"

_ACCEPT: Final = f"application/json, {STREAM}"
_REDIRECTS: Final = (307, 308)
_MOST_REDIRECTS: Final = 3
_ERROR_BODY: Final = 64 << 10
_ERROR_SECONDS: Final = 2
_ENDLESS: Final = 1 << 50


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is. `networks` are private ones that its name may lead to."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    networks: tuple[Network, ...] = ()
    max_message: int = MAX_MESSAGE


class SessionGone(Exception):
    """The server does not know the session any more."""


class Unauthorised(BackendFailed):
    """The server refuses whoever asks. That says nothing about which way it talks."""

    code = "E_UPSTREAM_UNAUTHORISED"


class HttpWire:
    def __init__(self, endpoint: Endpoint, pool: Connections, credentials: Credentials = NO_CREDENTIALS) -> None:
        check_headers(endpoint.headers)
        url = parsed(endpoint.url)
        self.origin = url.origin
        self.credentials = credentials
        self._endpoint = endpoint
        self._url = URL(f"{url.origin}{url.target({}, query=())}", encoded=True)
        self._fixed = {name.lower(): value for name, value in endpoint.headers.items()}
        self._fixed |= {"accept": _ACCEPT, "content-type": "application/json", "accept-encoding": "identity"}
        self._fixed.setdefault("user-agent", "agent-gateway")
        self._pool = pool
        self._large = asyncio.Lock()
        """Held by whoever reads a large message."""

    async def posted(self, body: bytes, headers: Mapping[str, str], principal: Principal | None) -> Answer:
        """An answer to a message that was accepted. Raises `SessionGone`, `RemoteError` or another `BackendFailed`.

        Credentials that are refused are renewed, and the message is sent again, once: it was not looked at before.
        """
        answer = await self._sent("POST", body, {**self._fixed, **headers}, principal)
        if answer.status == 401 and self.credentials.renew(principal):
            answer.close()
            answer = await self._sent("POST", body, {**self._fixed, **headers}, principal)
        if answer.status < 300:
            return answer
        try:
            raise await self._refused(answer, in_session="mcp-session-id" in headers)
        finally:
            answer.close()

    async def told(self, body: bytes, headers: Mapping[str, str], principal: Principal | None = None) -> None:
        """A message that nobody answers."""
        answer = await self.posted(body, headers, principal)
        answer.close()

    async def opened(self, headers: Mapping[str, str], principal: Principal | None) -> Answer:
        """A stream that is asked for without a message, whatever the status."""
        sent = {**self._fixed, **headers, "accept": STREAM}
        del sent["content-type"]
        return await self._sent("GET", None, sent, principal)

    async def ended(self, headers: Mapping[str, str]) -> None:
        answer = await self._sent("DELETE", None, {**self._fixed, **headers}, None)
        answer.close()

    async def message(self, answer: Answer, *, limit: int | None = None) -> Any:
        """Everything at once, as JSON. Raises `BackendFailed` for too much of it, and for what is none."""
        limit = self._endpoint.max_message if limit is None else limit
        length = answer.content_length
        if length is not None:
            if length > limit:
                raise too_large(limit)
            is_plain = answer.headers.get("content-encoding") in (None, "identity")
            if is_plain and length <= MANY_AT_ONCE:  # no more than it says can come
                return await read(await answer.read())
        parts: list[bytes] = []
        size = 0
        async with AsyncExitStack() as stack:
            chunks = await stack.enter_async_context(aclosing(_chunks(answer, limit=limit)))
            async for chunk in chunks:
                if size <= MANY_AT_ONCE < size + len(chunk):
                    await stack.enter_async_context(self._large)
                size += len(chunk)
                if size > limit:
                    raise too_large(limit)
                parts.append(chunk)
            return await read(b"".join(parts))

    async def events(self, answer: Answer) -> AsyncGenerator[Event, None]:
        """A stream as it comes. It may go on for ever: whoever reads has a deadline."""
        reader = EventReader(self._endpoint.max_message)
        is_alone = False
        try:
            async with aclosing(_chunks(answer, limit=_ENDLESS)) as chunks:
                async for chunk in chunks:
                    if not is_alone and reader.held > MANY_AT_ONCE:
                        await self._large.acquire()
                        is_alone = True
                    for event in reader.events(chunk):
                        yield event
                    if is_alone and reader.held <= MANY_AT_ONCE:
                        self._large.release()
                        is_alone = False
        finally:
            if is_alone:
                self._large.release()

    async def _sent(
        self, method: str, body: bytes | None, headers: Mapping[str, str], principal: Principal | None
    ) -> Answer:
        if self.credentials.needed:
            headers = {**headers, **await self.credentials.headers(principal, self._pool)}
        pool = self._pool.pool(self.origin, self._endpoint.networks)
        for _ in range(_MOST_REDIRECTS):
            answer = await pool.send(method, self._url.raw_path_qs, headers, body)
            if answer.status not in _REDIRECTS:
                return answer
            answer.close()
            self._url = self._moved(answer)
        raise BackendFailed("failed", "the upstream server redirects too often")

    def _moved(self, answer: Answer) -> URL:
        """Where a server has moved on its own host: frameworks add a slash that way."""
        try:
            url = self._url.join(URL(answer.headers.get("location", ""))).with_fragment(None)
        except ValueError as error:
            raise BackendFailed("failed", "the upstream server redirects to something that is no URL") from error
        is_same = (url.scheme, url.host, url.port) == (self._url.scheme, self._url.host, self._url.port)
        if not is_same or url.user is not None or url.password is not None:
            raise BackendFailed("failed", "the upstream server redirects to another host, which is not followed")
        return url

    async def _refused(self, answer: Answer, *, in_session: bool) -> Exception:
        status = answer.status
        if status == 404 and in_session:
            return SessionGone()
        if status in (401, 403):
            return Unauthorised("not-permitted", "the upstream server does not accept the gateway's credentials")
        message = None
        with suppress(BackendFailed, TimeoutError):  # that an error cannot be read is no second error
            async with asyncio.timeout(_ERROR_SECONDS):
                message = await self.message(answer, limit=_ERROR_BODY)
        if isinstance(message, dict) and isinstance(message.get("error"), dict):
            return error_of(message["error"])
        word = WORDS.get(status, "unavailable" if status >= 500 else "failed")
        return BackendFailed(word, f"the upstream server answered with the HTTP status {status}")


async def _chunks(answer: Answer, *, limit: int) -> AsyncGenerator[bytes, None]:
    encoding = answer.headers.get("content-encoding", "")
    async with aclosing(answer.chunks()) as received:
        if encoding in ("", "identity"):
            async for chunk in received:
                yield chunk
            return
        async with aclosing(decoded(received, encoding, limit=limit)) as pieces:
            async for piece in pieces:
                yield piece

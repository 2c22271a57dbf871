"""One request on a connection and its response: a faster replacement of uvicorn's class.

It writes no access log, and adds only those headers to a response that HTTP needs.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, Final

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from gateway.model import CompletedAwaitable

UNREAD_SECONDS: Final = 30.0
"""Seconds that a response waits for a client that does not read it."""


class _Written(tuple[None, ...]):
    """An awaitable that is done already."""

    __await__ = tuple.__iter__


_WRITTEN: Final[Awaitable[None]] = _Written()  # type: ignore[assignment]  # an empty iterator is enough


class RequestCycle(RequestResponseCycle):
    """Sets all attributes in `__init__`: looking one up in the class instead takes ten times as long."""

    on_response: Callable[..., None]
    task: "asyncio.Task[None]"
    """The task of the request, once it has started."""

    def __init__(self, protocol: HttpToolsProtocol, keep_alive: bool) -> None:
        self.scope = protocol.scope
        self.transport = protocol.transport
        self.flow = protocol.flow
        self.logger = protocol.logger
        self.on_response = protocol.on_response_complete
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = protocol.expect_100_continue
        self.disconnected = self.response_started = self.response_complete = False
        self.more_body = True
        self.chunked_encoding: bool | None = None
        self.expected_content_length = 0
        self._tasks = protocol.tasks
        self._pieces: list[bytes] = []
        self._size = 0
        self._has_news = False
        self._bell: asyncio.Event | None = None
        self._head = b""
        """Head of a response of known length: it is sent together with the first part of the body."""

    async def run_asgi(self, app: Any) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:
            await self._fail("Exception in ASGI application\n", error)
        else:
            if not self.response_complete and not self.disconnected:
                missing = "completing" if self.response_started else "starting"
                await self._fail(f"ASGI callable returned without {missing} response.")
        finally:
            self._tasks.discard(self.task)
            self.on_response = _do_nothing  # breaks the reference cycle with the protocol

    async def _fail(self, what: str, error: BaseException | None = None) -> None:
        self.logger.error(what, exc_info=error)
        if self.response_started:
            self.transport.write(self._head)
            self.transport.close()
        else:
            await self.send_500_response()

    # --- request ---

    def feed(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        self._has_news = True
        if self._size > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        if self._bell is not None:
            self._bell.set()

    def feed_end(self) -> None:
        self.more_body = False
        self._has_news = True
        if self._bell is not None:
            self._bell.set()

    @property
    def message_event(self) -> "RequestCycle":  # type: ignore[override]  # uvicorn only sets it
        """The event that uvicorn sets when the request continues, is complete, or is abandoned."""
        return self

    def set(self) -> None:
        self._has_news = True
        if self._bell is not None:
            self._bell.set()

    def receive(self) -> Awaitable[Any]:  # type: ignore[override]  # its result is awaited all the same
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.disconnected and not self.response_complete:
            if self.flow.read_paused:
                self.flow.resume_reading()
            if not self._has_news:
                return self._receive_later()
        return CompletedAwaitable(self._take_message())

    async def _receive_later(self) -> Any:
        await self._wait_for_news()
        return self._take_message()

    def _take_message(self) -> dict[str, Any]:
        self._has_news = False
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self._size = b"".join(self._pieces), 0
        self._pieces.clear()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def _wait_for_news(self) -> None:
        if self._bell is None:
            self._bell = asyncio.Event()
        await self._bell.wait()
        self._bell = None

    # --- response ---

    def send(self, message: Any) -> Awaitable[None]:  # type: ignore[override]  # its result is awaited all the same
        if self.disconnected:
            return _WRITTEN
        if self.flow.write_paused:
            return self._send_when_drained(message)
        kind = message["type"]
        if kind == "http.response.body" and self.response_started and not self.response_complete:
            self._send_body(message.get("body", b""), message.get("more_body", False))
        elif kind == "http.response.start" and not self.response_started:
            self._send_head(message["status"], message["headers"])
        else:
            raise RuntimeError(f"unexpected ASGI message {kind!r} in this state of the response")
        return _WRITTEN

    async def _send_when_drained(self, message: Any) -> None:
        try:
            async with asyncio.timeout(UNREAD_SECONDS):
                await self.flow.drain()
        except TimeoutError:  # its client reads nothing: free what it holds
            self.transport.abort()
            return
        await self.send(message)

    def _send_head(self, status: int, headers: Any) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        head = [STATUS_LINE[status]]
        is_last = False
        for name, value in headers:
            line, length, is_last_of_all = _line(name, value)
            head.append(line)
            if length is not None:
                self.expected_content_length = length
                self.chunked_encoding = False
            elif is_last_of_all is not None:
                is_last = is_last_of_all
        if is_last:
            self.keep_alive = False
        elif not self.keep_alive:
            head.append(b"connection: close\r\n")
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in (204, 304):
            self.chunked_encoding = True
            head.append(b"transfer-encoding: chunked\r\n")
        head.append(b"\r\n")
        if self.chunked_encoding is False:
            self._head = b"".join(head)
        else:
            self.transport.write(b"".join(head))

    def _send_body(self, body: bytes, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
            body = b""
        elif self.chunked_encoding:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        elif len(body) > self.expected_content_length:
            raise RuntimeError("Response content longer than Content-Length")
        else:
            self.expected_content_length -= len(body)
        head, self._head = self._head, b""
        self.transport.write(head + body)
        if more:
            return
        if self.expected_content_length:
            raise RuntimeError("Response content shorter than Content-Length")
        self.response_complete = self._has_news = True
        if self._bell is not None:
            self._bell.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


def _do_nothing() -> None:
    """Replaces `on_response` once a request is over."""


@lru_cache(maxsize=1024)
def _line(name: bytes, value: bytes) -> tuple[bytes, int | None, bool | None]:
    """Return a header as bytes, its value if it is Content-Length, and whether it closes the connection if it is
    Connection. Transfer-Encoding is invalid: this class decides about chunking, not the application.
    """
    if HEADER_VALUE_RE.search(value):
        raise RuntimeError("Invalid HTTP header value.")
    name = name.lower()
    if HEADER_RE.search(name) or name == b"transfer-encoding":
        raise RuntimeError("Invalid HTTP header name.")
    length = int(value) if name == b"content-length" else None
    is_last = b"close" in [token.strip().lower() for token in value.split(b",")] if name == b"connection" else None
    return b"%b: %b\r\n" % (name, value), length, is_last

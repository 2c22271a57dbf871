"""One request on a connection, and its answer: what uvicorn makes for each of them, made in fewer steps.

There is no access log here, and nothing is added to the headers of an answer but what HTTP needs.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)


class Cycle(RequestResponseCycle):
    disconnected = response_started = response_complete = False
    more_body = True
    chunked_encoding: bool | None = None
    expected_content_length = 0
    on_response: Callable[..., None]

    def __init__(self, protocol: HttpToolsProtocol, keep_alive: bool) -> None:
        self.scope = protocol.scope
        self.transport = protocol.transport
        self.flow = protocol.flow
        self.logger = protocol.logger
        self.message_event = asyncio.Event()
        self.on_response = protocol.on_response_complete
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = protocol.expect_100_continue
        self.body = bytearray()

    def send(self, message: Any) -> Awaitable[None]:  # type: ignore[override]  # what it gives is awaited all the same
        if self.response_started or message["type"] != "http.response.start":
            return RequestResponseCycle.send(self, message)
        return self._begin(message)

    async def _begin(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        self.response_started = True
        self.waiting_for_100_continue = False
        status = message["status"]
        head = [STATUS_LINE[status]]
        is_last = False
        for name, value in message["headers"]:
            if HEADER_VALUE_RE.search(value):
                raise RuntimeError("Invalid HTTP header value.")
            field = _field(name)
            head += (field, value, b"\r\n")
            if field == b"content-length: ":
                self.expected_content_length = int(value)
                self.chunked_encoding = False
            elif field == b"connection: ":
                is_last = b"close" in [token.strip().lower() for token in value.split(b",")]
        if is_last:
            self.keep_alive = False
        elif not self.keep_alive:
            head.append(b"connection: close\r\n")
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in (204, 304):
            self.chunked_encoding = True
            head.append(b"transfer-encoding: chunked\r\n")
        head.append(b"\r\n")
        self.transport.write(b"".join(head))


@lru_cache(maxsize=128)
def _field(name: bytes) -> bytes:
    """How the line of a header begins. How an answer is cut into pieces is decided here, not by whoever gives it."""
    if HEADER_RE.search(name) or name.lower() == b"transfer-encoding":
        raise RuntimeError("Invalid HTTP header name.")
    return name.lower() + b": "

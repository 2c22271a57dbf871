"""Connections that do not wait for ever: the head of a request is bounded in bytes and in time, and so is what
a client still sends after it was answered.

The parser below keeps whatever comes until a head is complete, before anybody is asked who is calling.
"""

import asyncio
from functools import lru_cache
from typing import Any, ClassVar, Final
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.runtime.cycles import Cycle
from gateway.web.edge import HEAD_SIZE, TASK

CONNECTION: Final = "gateway.connection"
"""Where the state of a scope has its connection."""

_INVALID: Final = "Invalid HTTP request received."


class BoundedHttp(HttpToolsProtocol):
    """One connection."""

    cycle: Cycle
    max_head: ClassVar = 64 << 10
    """Bytes of a request line and headers. What is read as headers has a smaller bound, with an answer of its own."""
    head_seconds: ClassVar = 15.0
    linger_seconds: ClassVar = 5.0
    """How long an answered client may go on sending: a connection that is closed at once takes the answer with it."""

    _head = 0
    _came = _most = 0
    """Bytes that came last, and all since those in which the present request begins: its head has no more."""
    _is_in_head = True
    _has_ended = False
    _patience: asyncio.TimerHandle | None = None
    _rest = 0.0
    _idling: asyncio.TimerHandle | None = None
    _idle_until: float | None = None
    """When a connection on which nothing is asked or answered is closed."""
    _common: Any
    """The scope of its requests, as far as it is the same for all: copied faster than made."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app_state = {CONNECTION: self}
        self._common = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme or "http",
            "method": "",
            "root_path": self.root_path,
            "path": "",
            "raw_path": b"",
            "query_string": b"",
            "headers": [],
            "state": {},
            HEAD_SIZE: 0,
            TASK: None,
        }
        self._be_patient(self.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self.app_state = {}
        self._stop_waiting()
        if self._idling is not None:
            self._idling.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._has_ended = False
        self._idle_until = None
        self._came = len(data)
        self._most += self._came
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.logger.warning(_INVALID)
            self.send_400_response(_INVALID)
        except httptools.HttpParserUpgrade:
            self._unsupported_upgrade_warning()
        if self._has_ended:
            self._head = 0
        elif self._is_in_head:
            self._head += self._came
            if self._patience is None:
                self._be_patient(self.head_seconds)
            if self._head > self.max_head and not self.transport.is_closing():
                self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        self._most = self._came
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._head = 0
        if self._patience is not None:
            self._stop_waiting()
        parser = self.parser
        self.scope = scope = self._common.copy()
        scope["http_version"] = version = parser.get_http_version()
        scope["method"] = parser.get_method().decode("ascii")
        scope["path"], scope["raw_path"], scope["query_string"] = _target(self.url)
        scope["headers"] = self.headers
        scope["state"] = self.app_state.copy()
        scope[HEAD_SIZE] = self._most
        before, self.cycle = self.cycle, Cycle(self, version != "1.0" and parser.should_keep_alive())
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        cycle.task = cycle.scope[TASK] = self.loop.create_task(cycle.run_asgi(app))
        self.tasks.add(cycle.task)

    def on_body(self, body: bytes) -> None:
        if not self.cycle.response_complete:
            self.cycle.take(body)

    def on_message_complete(self) -> None:
        self._is_in_head = self._has_ended = True
        if self._patience is not None:
            self._stop_waiting()
        if not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.set()

    def rest_for(self, seconds: float) -> None:
        """Read nothing for a while once the present answer is sent: its client was asked to wait."""
        self._rest = seconds

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._idle_until = self.loop.time() + self.timeout_keep_alive
            if self._idling is None:
                self._idling = self.loop.call_at(self._idle_until, self._close_if_idle)
        if self._rest and not self.pipeline:
            self.flow.pause_reading()
            self.loop.call_later(self._rest, self._read_on)
        self._rest = 0.0
        if not self._is_in_head and self._patience is None:
            self._be_patient(self.linger_seconds)

    def _close_if_idle(self) -> None:
        """One timer for all answers of a connection: it looks again when the last of them is old enough."""
        self._idling = None
        if self._idle_until is None or self.transport.is_closing():
            return
        if self._idle_until <= self.loop.time():
            self.transport.close()
        else:
            self._idling = self.loop.call_at(self._idle_until, self._close_if_idle)

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _be_patient(self, seconds: float) -> None:
        self._patience = self.loop.call_later(seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


@lru_cache(maxsize=64)
def _target(url: bytes) -> tuple[str, bytes, bytes]:
    """The path as it is meant, as it came, and the query."""
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    return unquote(path) if "%" in path else path, parsed.path, parsed.query or b""

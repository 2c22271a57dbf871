"""HTTP/1.1 connections with bounds: on size and time of a request head, and on what a client sends after its response.

The parser buffers everything until a head is complete, before the caller is authenticated. It is lenient in places,
so this module checks the target and the framing of every request before an application sees it.
"""

import asyncio
import re
import select
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import unquote_to_bytes

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.mcp import ChunkFraming, FramingTooLarge
from gateway.server.http.asgi import HEAD_SIZE, SCOPE_TASK
from gateway.server.http.request_cycle import RequestCycle

MAX_TARGET: Final = 16 << 10
_MAX_CACHED: Final = 256
"""Maximum bytes of a target that is cached. Longer ones are rare, and any client can send them."""

_ORIGIN_FORM: Final = re.compile(
    rb"""
    (/(?!/)(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-Fa-f]{2})*+)
    (?:\?((?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*+))?+
    """,
    re.VERBOSE,
)
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f/\\]")
"""Characters that a decoded segment must not contain."""


class BadTarget(ValueError):
    """The target is invalid."""


class Target(NamedTuple):
    path: str
    """Decoded once."""
    raw_path: bytes
    query: bytes


ASTERISK: Final = Target("*", b"*", b"")
"""The server as a whole, for OPTIONS."""


def read_target(method: bytes, target: bytes) -> Target:
    """Parse the target. Raises `BadTarget`."""
    if target == b"*" and method == b"OPTIONS":
        return ASTERISK
    return _read_cached(target) if len(target) <= _MAX_CACHED else _read(target)


def _read(target: bytes) -> Target:
    if len(target) > MAX_TARGET:
        raise BadTarget("The target of the request is too long.")
    found = _ORIGIN_FORM.fullmatch(target)
    if found is None:
        raise BadTarget("The target of the request must be a path and a query.")
    raw_path, query = found[1], found[2] or b""
    if b"%00" in query:
        raise BadTarget("The query of the request must not contain NUL.")
    return Target(_decode_path(raw_path), raw_path, query)


def _decode_path(raw_path: bytes) -> str:
    if b"%" not in raw_path and b"/." not in raw_path:
        return raw_path.decode("ascii")
    try:
        segments = [unquote_to_bytes(each).decode("utf-8") for each in raw_path.split(b"/")]
    except UnicodeDecodeError:
        raise BadTarget("The path of the request is not UTF-8.") from None
    if any(each in (".", "..") or _FORBIDDEN.search(each) for each in segments):
        raise BadTarget("The path of the request must not contain dot segments, or encoded separators or controls.")
    return "/".join(segments)


_read_cached: Final = lru_cache(maxsize=64)(_read)


SCOPE_CONNECTION: Final = "gateway.connection"
"""Key of the connection in the `state` of a scope."""

MAX_FIELDS: Final = 128
"""Maximum of headers of one request."""

MAX_PIPELINED: Final = 32
"""Maximum of requests of one connection that wait for the response to an earlier one."""

PRESENCE_SECONDS: Final = 1.0
"""Seconds between checks whether the client of a connection that is not read is still connected."""

_DISCONNECTED: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_INVALID: Final = "Invalid HTTP request received."
_VERSIONS: Final = frozenset({"1.0", "1.1"})
_FRAMING: Final = frozenset({b"expect", b"content-length", b"transfer-encoding"})


class _RequestRefused(Exception):
    """The request is invalid and is not read any further. The parser reports it as an error of a callback."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    cycle: RequestCycle
    max_head: ClassVar = 64 << 10
    """Maximum bytes of request line and headers. The edge middleware has a smaller limit, with its own response."""
    max_fields: ClassVar = MAX_FIELDS
    head_seconds: ClassVar = 15.0
    linger_seconds: ClassVar = 5.0
    """Seconds for which a client may go on sending after its response: closing at once could lose the response."""

    _common: Any
    """The part of the scope that all requests of the connection share: copying it is faster than building it."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        """Set all attributes: looking one up in the class instead takes ten times as long."""
        super().__init__(*arguments, **more)
        self._most_fields = self.max_fields
        self._head = 0
        self._came = self._most = 0
        """Bytes of the last read, and bytes since the read in which the current request began, to bound its head."""
        self._is_in_head = True
        self._has_ended = False
        self._timeout: asyncio.TimerHandle | None = None
        self._rest = 0.0
        self._idling: asyncio.TimerHandle | None = None
        self._idle_until: float | None = None
        """When the connection is closed if it stays idle."""
        self._length: bytes | None = None
        self._is_chunked = False
        self._framing: ChunkFraming | None = None
        """Framing of a chunked request whose body is being read."""
        self._fault: _RequestRefused | None = None
        """Why nothing more is read from this connection."""
        self._is_fault_due = False
        """Whether the fault is reported after the responses to earlier requests."""
        self._presence: asyncio.TimerHandle | None = None
        """Timer while requests wait: a connection that is not read does not notice that its client disconnects."""
        self._active: RequestCycle | None = None
        """The request being processed. Others may wait behind it."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app_state = {SCOPE_CONNECTION: self}
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
            SCOPE_TASK: None,
        }
        self._start_timeout(self.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self.app_state = {}
        self._stop_timeout()
        for timer in (self._idling, self._presence):
            if timer is not None:
                timer.cancel()
        self.pipeline.clear()
        if self._active is not None and not self._active.response_complete:
            self._active.disconnected = True
            self._active.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._fault is not None:
            return
        self._has_ended = False
        self._idle_until = None
        self._came = came = len(data)
        self._most += came
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                except httptools.HttpParserUpgrade as upgrade:  # answered like any other; the next request follows
                    data = data[upgrade.args[0] :]
                else:
                    break
            if self._framing is not None:
                self._framing.count_received(came)
        except FramingTooLarge as error:
            self._reject(_RequestRefused(f"Invalid HTTP request received: {error}."))
            return
        except httptools.HttpParserError as error:
            self._reject(_reason(error))
            return
        if self._has_ended:
            self._head = 0
        elif self._is_in_head:
            self._head += came
            if self._timeout is None:
                self._start_timeout(self.head_seconds)
            if self._head > self.max_head and not self.transport.is_closing():
                self._reject(_RequestRefused("The head of the request is too large."))

    def on_message_begin(self) -> None:
        self._most = self._came
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._length = None
        self._is_chunked = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._framing is not None:
            self._framing.trailer(name, value)
            return
        headers = self.headers
        name = name.lower()
        headers.append((name, value))
        if len(headers) > self._most_fields:
            raise _RequestRefused(f"The request has more than {self.max_fields} headers.", status=431)
        if name in _FRAMING:
            self._read_framing_header(name, value)

    def _read_framing_header(self, name: bytes, value: bytes) -> None:
        """Read a header that determines the length of the body; refuse a second one: parsers would disagree."""
        if name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        elif self._is_chunked or self._length is not None:
            raise _RequestRefused("The length of the request is given twice.")
        elif name == b"content-length":
            self._length = value
        elif value.lower() == b"chunked":
            self._is_chunked = True
        else:
            raise _RequestRefused("The only transfer coding is chunked.")

    def on_headers_complete(self) -> None:
        parser = self.parser
        version = parser.get_http_version()
        method = parser.get_method()
        if version != "1.1":
            self._check_old(version)
        if parser.should_upgrade():
            self._check_upgrade(method)
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _RequestRefused(f"More than {MAX_PIPELINED} requests wait for an answer on this connection.")
        url = self.url
        try:
            target = _read_cached(url) if 1 < len(url) <= _MAX_CACHED else read_target(method, url)
        except BadTarget as error:
            raise _RequestRefused(str(error)) from None
        self._is_in_head = False
        self._head = 0
        if self._is_chunked:
            self._framing = ChunkFraming()
        if self._timeout is not None:
            self._stop_timeout()
        self.scope = scope = self._common.copy()
        scope["http_version"] = version
        scope["method"] = method.decode("ascii")
        scope["path"], scope["raw_path"], scope["query_string"] = target
        scope["headers"] = self.headers
        scope["state"] = self.app_state.copy()
        scope[HEAD_SIZE] = self._most
        app = self.app if target is not ASTERISK else _answer_options
        before, self.cycle = self.cycle, RequestCycle(self, version != "1.0" and parser.should_keep_alive())
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, app)
        else:
            self.pipeline.appendleft((self.cycle, app))
            self._stop_reading()

    def _check_old(self, version: str) -> None:
        if version not in _VERSIONS:
            raise _RequestRefused("The version of the request must be HTTP/1.1 or HTTP/1.0.")
        if self._is_chunked:
            raise _RequestRefused("HTTP/1.0 has no transfer codings.")
        self.expect_100_continue = False

    def _check_upgrade(self, method: bytes) -> None:
        """Refuse upgrades with a body: the parser stops after the head, so the body would be read as requests."""
        if method == b"CONNECT":
            raise _RequestRefused("This server is not a proxy.")
        if self._is_chunked or (self._length or b"0").strip(b"0 \t"):
            raise _RequestRefused("Send a request that has a body without an Upgrade header.")

    def _reject(self, fault: _RequestRefused) -> None:
        """Read nothing more, send the fault after the responses to earlier requests, and close."""
        self.logger.debug("%s", fault)  # any client can send such bytes, so they must not fill the log
        self._fault = fault
        self._stop_timeout()
        if self._is_in_head:
            is_next = self.cycle is None or self.cycle.response_complete
        elif self.pipeline:  # its head was valid, and it has not started
            self.pipeline.popleft()
            is_next = False
        elif self.cycle.response_started:
            self.transport.close()
            return
        else:
            is_next = True
        if is_next:
            self._answer_fault(fault)
        else:
            self._is_fault_due = True
            self._stop_reading()

    def _answer_fault(self, fault: _RequestRefused) -> None:
        if self.transport.is_closing():
            return
        text = str(fault).encode("ascii")
        head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[fault.status] + head % len(text) + text)
        self.transport.close()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._active = cycle
        cycle.task = cycle.scope[SCOPE_TASK] = self.loop.create_task(cycle.run_asgi(app))
        self.tasks.add(cycle.task)

    def on_body(self, body: bytes) -> None:
        if self._framing is not None:
            self._framing.body(len(body))
        if not self.cycle.response_complete:
            self.cycle.feed(body)

    def on_chunk_header(self) -> None:
        if self._framing is not None:
            self._framing.chunk()

    def on_message_complete(self) -> None:
        self._is_in_head = self._has_ended = True
        self._framing = None
        if self._timeout is not None:
            self._stop_timeout()
        if not self.cycle.response_complete:
            self.cycle.feed_end()

    def pause_reading(self, seconds: float) -> None:
        """Read nothing for so long after the current response, which asks the client to wait."""
        self._rest = seconds

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._is_fault_due and self._fault is not None:
            self._answer_fault(self._fault)
            return
        else:
            self._idle_until = self.loop.time() + self.timeout_keep_alive
            if self._idling is None:
                self._idling = self.loop.call_at(self._idle_until, self._close_if_idle)
        if self._rest and not self.pipeline:
            self.flow.pause_reading()
            self.loop.call_later(self._rest, self._resume_reading)
        self._rest = 0.0
        if not self._is_in_head and self._timeout is None:
            self._start_timeout(self.linger_seconds)

    def _close_if_idle(self) -> None:
        """Close an idle connection; else restart its only timer, for the time when the last response is old enough."""
        self._idling = None
        if self._idle_until is None or self.transport.is_closing():
            return
        if self._idle_until <= self.loop.time():
            self.transport.close()
        else:
            self._idling = self.loop.call_at(self._idle_until, self._close_if_idle)

    def _stop_reading(self) -> None:
        """Read nothing more until the current request is answered or its client has disconnected."""
        self.flow.pause_reading()
        if self._presence is None:
            self._presence = self.loop.call_later(PRESENCE_SECONDS, self._check_client)

    def _check_client(self) -> None:
        """Abort if the client has disconnected: the event stream that requests wait for may not end otherwise."""
        self._presence = None
        if not (self.pipeline or self._is_fault_due) or self.transport.is_closing():
            return
        if self.flow.read_paused and _has_disconnected(self.transport):
            self.transport.abort()
        else:
            self._presence = self.loop.call_later(PRESENCE_SECONDS, self._check_client)

    def _resume_reading(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _start_timeout(self, seconds: float) -> None:
        self._timeout = self.loop.call_later(seconds, self.transport.close)

    def _stop_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None


def _has_disconnected(transport: Any) -> bool:
    """Whether the client has closed its side, even if there are unread bytes."""
    waiting = select.poll()
    waiting.register(transport.get_extra_info("socket").fileno(), _DISCONNECTED)
    return bool(waiting.poll(0))


def _reason(error: httptools.HttpParserError) -> _RequestRefused:
    """Return the exception that a callback raised, which is the context of the parser's error."""
    found = error.__context__
    if isinstance(found, FramingTooLarge):
        return _RequestRefused(f"Invalid HTTP request received: {found}.")
    return found if isinstance(found, _RequestRefused) else _RequestRefused(_INVALID)


async def _answer_options(_scope: Any, _receive: Any, send: Any) -> None:
    """Answer `OPTIONS *`, which addresses the server as a whole."""
    headers = [(b"allow", b"GET, HEAD, POST, DELETE, OPTIONS")]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})

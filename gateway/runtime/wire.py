"""Connections that do not wait for ever: the head of a request is bounded in bytes and in time, and so is what
a client still sends after it was answered.

The parser below keeps whatever comes until a head is complete, before anybody is asked who is calling. It is lenient
in places, so the target and the framing of every request are checked here before an application sees it.
"""

import asyncio
import select
from typing import Any, ClassVar, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.core.chunk_framing import ChunkFraming, FramingTooLarge
from gateway.runtime.cycles import Cycle
from gateway.runtime.targets import ASTERISK, BadTarget, read_target
from gateway.web.edge import HEAD_SIZE, TASK

CONNECTION: Final = "gateway.connection"
"""Where the state of a scope has its connection."""

MAX_FIELDS: Final = 128
"""Headers of one request."""

MAX_PIPELINED: Final = 32
"""Requests of one connection that wait for the answer to an earlier one."""

PRESENCE_SECONDS: Final = 1.0
"""How often a connection that is not read is asked whether its client is still there."""

_LEFT: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_INVALID: Final = "Invalid HTTP request received."
_VERSIONS: Final = frozenset({"1.0", "1.1"})
_FRAMING: Final = frozenset({b"expect", b"content-length", b"transfer-encoding"})


class _Refused(Exception):
    """The request is not read any further. The parser reports it as a fault of a callback."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class BoundedHttp(HttpToolsProtocol):
    """One connection."""

    cycle: Cycle
    max_head: ClassVar = 64 << 10
    """Bytes of a request line and headers. What is read as headers has a smaller bound, with an answer of its own."""
    max_fields: ClassVar = MAX_FIELDS
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
    _length: bytes | None = None
    _is_chunked = False
    _framing: ChunkFraming | None = None
    """Of a chunked request whose body is being read."""
    _fault: _Refused | None = None
    """Why nothing of this connection is read any more."""
    _is_fault_due = False
    """Whether the fault is reported after the answers to earlier requests."""
    _presence: asyncio.TimerHandle | None = None
    """Runs while requests wait: a connection that is not read does not notice that its client leaves."""
    _active: Cycle | None = None
    """The request that is being answered. Others may wait behind it."""
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
        self._came = len(data)
        self._most += self._came
        try:
            self._feed(data)
            if self._framing is not None:
                self._framing.received(self._came)
        except FramingTooLarge as error:
            self._reject(_Refused(f"Invalid HTTP request received: {error}."))
            return
        except httptools.HttpParserError as error:
            self._reject(_reason(error))
            return
        if self._has_ended:
            self._head = 0
        elif self._is_in_head:
            self._head += self._came
            if self._patience is None:
                self._be_patient(self.head_seconds)
            if self._head > self.max_head and not self.transport.is_closing():
                self._reject(_Refused("The head of the request is too large."))

    def _feed(self, data: bytes) -> None:
        """Parse it. A request to upgrade is answered like any other, and what follows it is the next request."""
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            else:
                return

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
        name = name.lower()
        self.headers.append((name, value))
        if len(self.headers) > self.max_fields:
            raise _Refused(f"The request has more than {self.max_fields} headers.", status=431)
        if name in _FRAMING:
            self._note(name, value)

    def _note(self, name: bytes, value: bytes) -> None:
        """A header that says where the body is. One of them, once, and in one spelling; there is no second reading."""
        if name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        elif self._is_chunked or self._length is not None:
            raise _Refused("The length of the request is given twice.")
        elif name == b"content-length":
            self._length = value
        elif value.lower() == b"chunked":
            self._is_chunked = True
        else:
            raise _Refused("The only transfer coding is chunked.")

    def on_headers_complete(self) -> None:
        parser = self.parser
        version = parser.get_http_version()
        method = parser.get_method()
        if version != "1.1":
            self._check_old(version)
        if parser.should_upgrade():
            self._check_upgrade(method)
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _Refused(f"More than {MAX_PIPELINED} requests wait for an answer on this connection.")
        try:
            target = read_target(method, self.url)
        except BadTarget as error:
            raise _Refused(str(error)) from None
        self._is_in_head = False
        self._head = 0
        if self._is_chunked:
            self._framing = ChunkFraming()
        if self._patience is not None:
            self._stop_waiting()
        self.scope = scope = self._common.copy()
        scope["http_version"] = version
        scope["method"] = method.decode("ascii")
        scope["path"], scope["raw_path"], scope["query_string"] = target
        scope["headers"] = self.headers
        scope["state"] = self.app_state.copy()
        scope[HEAD_SIZE] = self._most
        app = self.app if target is not ASTERISK else _tell_methods
        before, self.cycle = self.cycle, Cycle(self, version != "1.0" and parser.should_keep_alive())
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, app)
        else:
            self.pipeline.appendleft((self.cycle, app))
            self._stop_reading()

    def _check_old(self, version: str) -> None:
        if version not in _VERSIONS:
            raise _Refused("The version of the request must be HTTP/1.1 or HTTP/1.0.")
        if self._is_chunked:
            raise _Refused("HTTP/1.0 has no transfer codings.")
        self.expect_100_continue = False

    def _check_upgrade(self, method: bytes) -> None:
        """The parser takes what follows such a head for another protocol, so a body would be read as requests."""
        if method == b"CONNECT":
            raise _Refused("This server is not a proxy.")
        if self._is_chunked or (self._length or b"0").strip(b"0 \t"):
            raise _Refused("Send a request that has a body without an Upgrade header.")

    def _reject(self, fault: _Refused) -> None:
        """Read nothing more, answer what is wrong once the earlier requests are answered, and close."""
        self.logger.debug("%s", fault)  # anybody can send such bytes, so they fill no log
        self._fault = fault
        self._stop_waiting()
        if self._is_in_head:
            is_next = self.cycle is None or self.cycle.response_complete
        elif self.pipeline:  # its head was fine, and it has not begun
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

    def _answer_fault(self, fault: _Refused) -> None:
        if self.transport.is_closing():
            return
        text = str(fault).encode("ascii")
        head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[fault.status] + head % len(text) + text)
        self.transport.close()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._active = cycle
        cycle.task = cycle.scope[TASK] = self.loop.create_task(cycle.run_asgi(app))
        self.tasks.add(cycle.task)

    def on_body(self, body: bytes) -> None:
        if self._framing is not None:
            self._framing.body(len(body))
        if not self.cycle.response_complete:
            self.cycle.take(body)

    def on_chunk_header(self) -> None:
        if self._framing is not None:
            self._framing.chunk()

    def on_message_complete(self) -> None:
        self._is_in_head = self._has_ended = True
        self._framing = None
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
        elif self._is_fault_due and self._fault is not None:
            self._answer_fault(self._fault)
            return
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

    def _stop_reading(self) -> None:
        """Read nothing more until the present request is answered, or its client has left."""
        self.flow.pause_reading()
        if self._presence is None:
            self._presence = self.loop.call_later(PRESENCE_SECONDS, self._look_for_client)

    def _look_for_client(self) -> None:
        """An event stream may never end by itself, so requests behind it must not hide that its client has gone."""
        self._presence = None
        if not (self.pipeline or self._is_fault_due) or self.transport.is_closing():
            return
        if self.flow.read_paused and _has_left(self.transport):
            self.transport.abort()
        else:
            self._presence = self.loop.call_later(PRESENCE_SECONDS, self._look_for_client)

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _be_patient(self, seconds: float) -> None:
        self._patience = self.loop.call_later(seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def _has_left(transport: Any) -> bool:
    """Whether the client sends nothing more, although there may be bytes of it that nobody has read."""
    waiting = select.poll()
    waiting.register(transport.get_extra_info("socket").fileno(), _LEFT)
    return bool(waiting.poll(0))


def _reason(error: httptools.HttpParserError) -> _Refused:
    """What a callback raised is the context of the parser's error."""
    found = error.__context__
    if isinstance(found, FramingTooLarge):
        return _Refused(f"Invalid HTTP request received: {found}.")
    return found if isinstance(found, _Refused) else _Refused(_INVALID)


async def _tell_methods(_scope: Any, _receive: Any, send: Any) -> None:
    """Answers `OPTIONS *`, which is about the server and no resource of it."""
    headers = [(b"allow", b"GET, HEAD, POST, DELETE, OPTIONS")]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})

"""Send MCP responses: as plain JSON, or as server-sent events that a client can resume.

The response to a POST is JSON unless a message has to be sent before it is complete, or it takes long: then it becomes
a stream. Until then an error can still have its own HTTP status.

A stream outlives its connections and stores its newest events, so that a client that lost its connection can get what
it missed. Each message is on exactly one stream, and one connection at a time reads a stream.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final, Protocol

from gateway.mcp import ProtocolError, RequestId, encode_error
from gateway.server.http.asgi import Receive

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_EVENTS: Final = 256
KEEP_ALIVE: Final = 15.0
RETRY_MS: Final = 1000
"""How long a client waits before it reconnects."""

SSE_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_JSON: Final = (b"content-type", b"application/json")
_COMMENT: Final = b": ping\n\n"


class EventStream:
    """Messages in order. With a `name` every event has an id from which a client can resume."""

    def __init__(self, name: str | None = None, *, primed: bool = False, max_events: int = MAX_EVENTS) -> None:
        self.name = name
        self.is_over = False
        self._events: deque[tuple[int, bytes]] = deque(maxlen=max_events)
        self._count = 0
        self._read = 0
        self._reader: asyncio.Future[None] | None = None
        self._readers = 0
        self._released = 0
        self._id = None if name is None else f"id: {name}.".encode()
        """The line with an event's id, up to its number."""
        if primed:
            self._append(b"retry: %d\ndata:\n\n" % RETRY_MS)

    @property
    def backlog(self) -> int:
        """Number of events that were not read yet."""
        return self._count - self._read

    def put(self, message: bytes, *, final: bool = False) -> None:
        """Append a message, unless the stream has ended; a final message ends it."""
        if not self.is_over:
            self._append(b"event: message\ndata: %b\n\n" % message)
            self.is_over = final
            self._wake()

    def end(self) -> None:
        self.is_over = True
        self._wake()

    def attach(self) -> int:
        """Register a new reader, which replaces the previous one, and return its number."""
        self._readers += 1
        self._wake()
        return self._readers

    def release(self) -> None:
        """End the reading connection once it has sent all stored events; the client may reconnect."""
        self._released = self._readers
        self._wake()

    def detach(self, reader: int) -> None:
        """Release a reader whose connection is lost, unless another one has replaced it already."""
        if reader == self._readers:
            self.release()

    def has_event(self, number: int) -> bool:
        return 0 <= number <= self._count

    async def send_events(
        self, send: Send, reader: int, *, after: int | None = None, keep_alive: float = KEEP_ALIVE
    ) -> None:
        """Send stored and new events until the stream ends, is released or is read by another connection.

        Start after the event `after` if it is given, else with the first unread event.
        """
        self._read = self._read if after is None else after
        while reader == self._readers:
            for number, event in [each for each in self._events if each[0] > self._read]:
                self._read = number
                await send({"type": "http.response.body", "body": event, "more_body": True})
                if reader != self._readers:
                    return
            if self._read >= self._count:
                if self.is_over or self._released >= reader:
                    return
                await self._wait(send, keep_alive)

    async def _wait(self, send: Send, keep_alive: float) -> None:
        waiting = self._reader = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(waiting, keep_alive)
        except TimeoutError:
            await send({"type": "http.response.body", "body": _COMMENT, "more_body": True})
        finally:
            if self._reader is waiting:  # another connection may wait by now
                self._reader = None

    def _append(self, event: bytes) -> None:
        self._count += 1
        if self._id is not None:
            event = b"%b%d\n%b" % (self._id, self._count, event)
        self._events.append((self._count, event))

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def parse_event_id(id: str) -> tuple[str, int] | None:
    """Return the stream and the number in an event id; `None` if it is invalid."""
    stream, dot, number = id.rpartition(".")
    return (stream, int(number)) if dot and number.isascii() and number.isdecimal() and len(number) < 16 else None


async def start_stream(send: Send, *, session: str | None = None) -> None:
    extra = [] if session is None else [(b"mcp-session-id", session.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": [*SSE_HEADERS, *extra]})


async def end_stream(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": False})


IDLE_SECONDS: Final = 10.0
"""Seconds after which a response becomes a stream, so that no proxy considers the connection dead."""
WATCH_AFTER: Final = 0.05
"""Whether the client is still connected is first checked after one to two times as many seconds."""

_MAX_BACKLOG: Final = 64
_NO_HEADERS: Final[Mapping[bytes, bytes]] = {}


class McpResponse:
    _receive: Receive
    _task: asyncio.Task[Any] | None = None
    _has_disconnected = False

    def __init__(
        self, send: Send, open: Callable[[], EventStream] | None = None, headers: Mapping[bytes, bytes] = _NO_HEADERS
    ) -> None:
        """`open` opens the stream, if the client accepts one."""
        self._send = send
        self._open = open
        self._headers = headers
        self._stream: EventStream | None = None
        self._pump: asyncio.Task[None] | None = None
        self._watch: _Watch | None = None
        self.is_error = False
        """Whether the result reports that a tool failed or refused."""

    @property
    def can_stream(self) -> bool:
        return self._open is not None

    @property
    def stream(self) -> EventStream | None:
        return self._stream

    def start_stream(self) -> EventStream | None:
        """Turn the response into a stream, if the client accepts one."""
        if self._stream is None and self._open is not None:
            self._stream = self._open()
            self._pump = asyncio.create_task(self._send_stream(self._stream, self._stream.attach()))
        return self._stream

    def send_message(self, message: bytes, *, can_be_dropped: bool = False) -> bool:
        """Send a message before the response; return whether that was possible."""
        stream = self.start_stream()
        if stream is None or (can_be_dropped and stream.backlog > _MAX_BACKLOG):
            return False
        stream.put(message)
        return True

    async def finish(self, message: bytes, *, status: int = 200) -> None:
        """Send the response itself; no message may follow."""
        if self._stream is None or self._pump is None:
            headers = [_JSON, (b"content-length", f"{len(message)}".encode()), *self._headers.items()]
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": message})
            return
        self._stream.put(message, final=True)
        await self._pump

    def watch(self, receive: Receive, task: "asyncio.Task[Any]") -> None:
        """Cancel the task if the client disconnects; `is_disconnect` then recognizes the error."""
        self._task = task
        self._receive = receive
        _CHECK_TIMER.add(self, task.get_loop())

    def check_client(self) -> None:
        self._watch = _Watch(self._receive, self._handle_disconnect, self.start_stream)

    def unwatch(self) -> None:
        _CHECK_TIMER.waiting.pop(self, None)
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    def is_disconnect(self, error: BaseException) -> bool:
        """Whether the error is only the cancellation because the client has disconnected."""
        is_ours = self._has_disconnected and isinstance(error, asyncio.CancelledError)
        return is_ours and self._task is not None and not self._task.uncancel()

    def _handle_disconnect(self) -> None:
        self._has_disconnected = True
        if self._task is not None:
            self._task.cancel()

    async def wait_sent(self) -> None:
        """Wait until a stream that has ended was sent."""
        if self._pump is not None:
            await self._pump

    async def abandon(self) -> None:
        """Stop and send nothing: the client has disconnected."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})

    async def _send_stream(self, stream: EventStream, reader: int) -> None:
        session = self._headers.get(b"mcp-session-id")
        await start_stream(self._send, session=session.decode() if session else None)
        await stream.send_events(self._send, reader)
        await end_stream(self._send)


class DisconnectMonitor:
    """Calls `gone` when the client of a request disconnects, and `silent` when it got nothing for long.

    It starts after a moment only: most requests are answered by then.
    """

    _watch: "_Watch | None" = None

    def __init__(self, receive: Receive, gone: Callable[[], None], silent: Callable[[], object] | None = None) -> None:
        self._receive = receive
        self._gone = gone
        self._silent = silent
        _CHECK_TIMER.add(self, asyncio.get_running_loop())

    def check_client(self) -> None:
        self._watch = _Watch(self._receive, self._gone, self._silent)

    def stop(self) -> None:
        _CHECK_TIMER.waiting.pop(self, None)
        if self._watch is not None:
            self._watch.stop()


class SlowResponse:
    """Turns a response that takes long into a stream, and releases its connection later if the client can poll."""

    def __init__(self, reply: McpResponse, release_after: float | None) -> None:
        self._reply = reply
        self._release_after = release_after
        self._timers: list[asyncio.TimerHandle] = []
        _CHECK_TIMER.add(self, asyncio.get_running_loop())

    def check_client(self) -> None:
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(IDLE_SECONDS, self._reply.start_stream))
        if self._release_after is not None:
            self._timers.append(loop.call_later(self._release_after, self._release))

    def stop(self) -> None:
        _CHECK_TIMER.waiting.pop(self, None)
        for timer in self._timers:
            timer.cancel()

    def _release(self) -> None:
        """End the connection; the stream continues without it."""
        if (stream := self._reply.start_stream()) is not None:
            stream.release()


class _Watch:
    """Task that waits until the client disconnects."""

    _timer: asyncio.TimerHandle | None = None

    def __init__(self, receive: Receive, gone: Callable[[], None], silent: Callable[[], object] | None) -> None:
        self._task = asyncio.create_task(self._wait(receive, gone))
        if silent is not None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, silent)

    def stop(self) -> None:
        self._task.cancel()
        if self._timer is not None:
            self._timer.cancel()

    async def _wait(self, receive: Receive, gone: Callable[[], None]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone()


class _Waiting(Protocol):
    def check_client(self) -> None: ...


class _CheckTimer:
    """One timer for all requests: it starts the checks of those older than one round. Most have ended by then."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._round = 0
        self.waiting: dict[_Waiting, int] = {}
        """Requests with the round in which they were added. Ended ones remove themselves, while they are cached."""

    def add(self, waiting: _Waiting, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:  # the first of this loop; timers of an ended loop never fire
            self._loop, self.waiting = loop, {}
            loop.call_later(WATCH_AFTER, self._check_late)
        self.waiting[waiting] = self._round

    def _check_late(self) -> None:
        late = [each for each, came in self.waiting.items() if came < self._round]
        self._round += 1
        for each in late:
            del self.waiting[each]
            each.check_client()
        if self.waiting:
            asyncio.get_running_loop().call_later(WATCH_AFTER, self._check_late)
        else:
            self._loop = None


_CHECK_TIMER: Final = _CheckTimer()


async def send_empty(send: Send, status: int, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    length = [] if status == 204 else [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": [*length, *headers]})
    await send({"type": "http.response.body", "body": b""})


async def send_json_error(send: Send, status: int, code: int, message: str, *, id: RequestId | None = None) -> None:
    await send_refusal(send, status, ProtocolError(code, message), id=id)


async def send_refusal(
    send: Send,
    status: int,
    error: ProtocolError,
    *,
    id: RequestId | None = None,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    body = encode_error(id, error)
    all_headers = [_JSON, (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})

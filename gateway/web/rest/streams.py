"""Streams: what happens in a turn as server-sent events, as it happens, to as many readers as the turn has.

Every turn that somebody may follow has one bounded log. A reader has only a place in it: one that is too slow finds
that its place is gone, is told how much it missed, and goes on with the oldest event there is.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from secrets import token_hex
from typing import Final
from weakref import WeakKeyDictionary

from gateway.core.events import Buses, Event, TurnEnd
from gateway.web.edge import Receive, Scope, Send
from gateway.web.problems import Response
from gateway.web.rest.answers import NO_STORE, bare
from gateway.web.rest.connections import while_connected
from gateway.web.rest.event_data import event_data
from gateway.web.rest.event_places import LOGS, decoded, encoded
from gateway.web.rest.refusals import TooManyStreams

KEPT: Final = 512
"""Events of a turn that are kept for readers who come late, or come back; fewer, if they are large."""

KEPT_BYTES: Final = 256 << 10

MAX_READERS: Final = 8
KEEP_ALIVE: Final = 15.0
"""Seconds of silence after which a comment is sent; as often it is asked again whether the reader may read."""

_ALWAYS: Final = {**NO_STORE, b"content-type": b"text/event-stream", b"x-accel-buffering": b"no"}

Entry = tuple[int, str, bytes]
MayRead = Callable[[], Awaitable[bool]]


class EventLog:
    """The last events of one turn, numbered from 1. Numbers of another log of the same turn are told apart."""

    def __init__(self, buses: Buses, *, kept: int = KEPT, kept_bytes: int = KEPT_BYTES) -> None:
        self.name = token_hex(4)
        self.readers = 0
        self.is_closed = False
        self._kept, self._kept_bytes = kept, kept_bytes
        self._bytes = 0
        self._entries: deque[Entry] = deque()
        self._numbers = count(1)
        self._waiting: dict[object, Callable[[], object]] = {}
        for bus in (buses.functional, buses.observability):
            bus.on("*", self._take)

    def since(self, number: int) -> list[Entry]:
        return [entry for entry in tuple(self._entries) if entry[0] > number]

    def place(self, last_event_id: str | None) -> int | None:
        """The number of the event a reader saw last, 0 for none; `None` if the id is not one of this log's."""
        if last_event_id is None:
            return 0
        return (decoded(last_event_id) or {}).get(self.name)

    async def news(self, number: int, seconds: float) -> None:
        """Wait until there is something after that number, or until the time is up."""
        happened = asyncio.Event()
        loop = asyncio.get_running_loop()
        key = object()
        # Events may come from the threads that tools run in.
        self._waiting[key] = lambda: loop.call_soon_threadsafe(happened.set)
        try:
            if not self.since(number) and not self.is_closed:
                async with asyncio.timeout(seconds):  # wait_for loses a cancellation that comes together with news
                    await happened.wait()
        except TimeoutError:
            return
        finally:
            del self._waiting[key]

    def close(self) -> None:
        """Let every reader go, once it was sent what there is."""
        self.is_closed = True
        self._wake()

    def _take(self, event: Event) -> None:
        data = event_data(event)
        self._entries.append((next(self._numbers), event.name, data))
        self._bytes += len(data)
        while len(self._entries) > self._kept or (self._bytes > self._kept_bytes and len(self._entries) > 1):
            self._bytes -= len(self._entries.popleft()[2])
        self.is_closed = self.is_closed or isinstance(event, TurnEnd)
        self._wake()

    def _wake(self) -> None:
        for wake in tuple(self._waiting.values()):
            wake()


class EventLogs:
    """The logs of turns that are in memory; a log lives as long as its turn does."""

    def __init__(self) -> None:
        self._logs: WeakKeyDictionary[Buses, EventLog] = WeakKeyDictionary()
        self._is_hushed = False

    def of(self, buses: Buses) -> EventLog:
        if buses not in self._logs:
            self._logs[buses] = EventLog(buses)
            if self._is_hushed:
                self._logs[buses].close()
        return self._logs[buses]

    def hush(self) -> None:
        """End all streams, and every later one at once: readers are told to come back to whoever serves then."""
        self._is_hushed = True
        for log in tuple(self._logs.values()):
            log.close()


def event_stream(
    log: EventLog, *, last_event_id: str | None, may_read: MayRead, keep_alive: float = KEEP_ALIVE
) -> Response:
    """The answer that ends when the turn does, when the reader goes, or when the reader may not read any more."""
    if log.readers >= MAX_READERS:
        raise TooManyStreams(help="close one of them")
    headers = {**_ALWAYS, LOGS: log.name.encode()}

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await bare(200, headers)(scope, receive, send)
            return
        log.readers += 1
        try:
            if await while_connected(receive, _send_events(log, last_event_id, may_read, keep_alive, send, headers)):
                await send({"type": "http.response.body", "body": b""})
        finally:
            log.readers -= 1

    return respond


async def _send_events(
    log: EventLog,
    last_event_id: str | None,
    may_read: MayRead,
    keep_alive: float,
    send: Send,
    headers: Mapping[bytes, bytes],
) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": list(headers.items())})
    place = log.place(last_event_id)
    if place is None:
        place = 0
        await _send(send, _event("dropped", b'{"missed":null}'))
    clock = asyncio.get_running_loop().time
    asked_at = clock()
    while True:
        is_closed = log.is_closed  # looked at first: what came before it was closed is still to be sent
        for number, name, data in log.since(place):
            if missed := number - place - 1:
                await _send(send, _event("dropped", b'{"missed":%d}' % missed))
            place = number
            await _send(send, _event(name, data, id=encoded({log.name: number})))
        if is_closed:
            return
        await log.news(place, keep_alive)
        is_silent = not log.since(place) and not log.is_closed
        if is_silent or clock() >= asked_at + keep_alive:
            if not await may_read():
                return
            asked_at = clock()
        if is_silent:
            await _send(send, b": keep-alive\n\n")


async def _send(send: Send, content: bytes) -> None:
    await send({"type": "http.response.body", "body": content, "more_body": True})


def _event(name: str, data: bytes, *, id: str | None = None) -> bytes:
    number = f"id: {id}\n" if id else ""
    return b"%sevent: %s\ndata: %s\n\n" % (number.encode(), name.encode(), data)

"""Events of turns as server-sent events.

Every turn that can be followed has one bounded log, and a reader has a position in it. If a reader is too slow, and the
event at its position was dropped, it gets the number of missed events and continues with the oldest event.

Events are JSON with camelCase names, without bytes of results and without texts of foreign exceptions. Texts that a
tool or an upstream server may have written are marked as not trusted. An event id has the position in each log that the
stream consists of.
"""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime
from enum import Enum
from itertools import count
from secrets import token_hex
from typing import Any, Final
from weakref import WeakKeyDictionary

from gateway.errors import GatewayError
from gateway.model import EventBuses, Media, Tokenizable, TurnEnd, TurnEvent, is_artifact
from gateway.server.http.asgi import Receive, Response, Scope, Send, run_while_connected
from gateway.server.rest.responses import NO_STORE, TooManyStreams, empty_response, encode_json

MAX_DATA: Final = 64 << 10
"""Maximum bytes of one event. Larger ones are sent without their data, which the record of the call has."""

_MAX_TEXT: Final = 4_096
_MAX_DEPTH: Final = 32


def encode_event(event: TurnEvent) -> bytes:
    """Return one line of JSON."""
    data = encode_json({to_camel_case(name): to_json_value(value) for name, value in event.to_dict().items()})
    return data if len(data) <= MAX_DATA else encode_json({"omittedBytes": len(data)})


def to_camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def to_json_value(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON; a value that JSON cannot represent becomes the name of its class."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if len(value) <= MAX_DATA else f"{value[:_MAX_TEXT]}…"
    if isinstance(value, datetime):
        return value.isoformat()
    if depth >= _MAX_DEPTH:
        return "…"
    if isinstance(value, dict):
        return {str(key): to_json_value(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json_value(each, depth + 1) for each in value]
    return _describe(value, depth)


def _describe(value: Any, depth: int) -> Any:
    if isinstance(value, Tokenizable):
        text = str(value)
        is_cut = len(text) > _MAX_TEXT
        return {"kind": "text", "text": text[:_MAX_TEXT] if is_cut else text, "isCut": is_cut, "trusted": False}
    if isinstance(value, Media):
        return {"kind": "media", "media": to_json_value(value.to_json(), depth + 1)}
    if is_artifact(value):
        return {"kind": "artifact", "artifact": {"kind": type(value).__name__}}
    if isinstance(value, GatewayError):
        return {"code": value.code, "message": value.message, "trusted": False}
    if isinstance(value, BaseException):
        return {"code": "E_FOREIGN", "message": type(value).__name__}
    if isinstance(value, Enum):
        return to_json_value(value.value, depth + 1)
    if is_dataclass(value) and not isinstance(value, type):
        return {to_camel_case(name): to_json_value(each, depth + 1) for name, each in asdict(value).items()}
    return type(value).__name__


LOGS: Final = b"gateway-event-logs"
"""The header that names the logs of a stream."""

MAX_LOGS: Final = 64
_PLACE: Final = re.compile(r"([0-9a-f]{8})-([0-9]{1,15})")


def encode_event_id(places: Mapping[str, int]) -> str:
    return ".".join(f"{log}-{number}" for log, number in sorted(places.items()))


def decode_event_id(id: str) -> dict[str, int] | None:
    """Return the number of the last event by log; `None` if the id is invalid."""
    found = [_PLACE.fullmatch(part) for part in id.split(".", MAX_LOGS)]
    return {each[1]: int(each[2]) for each in found if each} if all(found) else None


MAX_LOG_EVENTS: Final = 512
"""Maximum of stored events of a turn, for readers that connect late or reconnect; fewer if they are large."""

MAX_LOG_BYTES: Final = 256 << 10

MAX_READERS: Final = 8
KEEP_ALIVE: Final = 15.0
"""Seconds of silence after which a comment is sent, and after which the access of the reader is checked again."""

_ALWAYS: Final = {**NO_STORE, b"content-type": b"text/event-stream", b"x-accel-buffering": b"no"}

Entry = tuple[int, str, bytes]
MayRead = Callable[[], Awaitable[bool]]


class EventLog:
    """The last events of one turn, numbered from 1. Its name distinguishes it from other logs of the same turn."""

    def __init__(self, buses: EventBuses, *, max_events: int = MAX_LOG_EVENTS, max_bytes: int = MAX_LOG_BYTES) -> None:
        self.name = token_hex(4)
        self.readers = 0
        self.is_closed = False
        self._max_events, self._max_bytes = max_events, max_bytes
        self._bytes = 0
        self._entries: deque[Entry] = deque()
        self._numbers = count(1)
        self._waiting: dict[object, Callable[[], object]] = {}
        for bus in (buses.functional, buses.observability):
            bus.on("*", self._take)

    def since(self, number: int) -> list[Entry]:
        return [entry for entry in tuple(self._entries) if entry[0] > number]

    def find_position(self, last_event_id: str | None) -> int | None:
        """Return the number of the last event that a reader saw, 0 for none; `None` if the id is of another log."""
        if last_event_id is None:
            return 0
        return (decode_event_id(last_event_id) or {}).get(self.name)

    async def wait_for_events(self, number: int, seconds: float) -> None:
        """Wait until there is an event after that number, or until the time is up."""
        happened = asyncio.Event()
        loop = asyncio.get_running_loop()
        key = object()
        # events may come from threads of tools
        self._waiting[key] = lambda: loop.call_soon_threadsafe(happened.set)
        try:
            if not self.since(number) and not self.is_closed:
                async with asyncio.timeout(seconds):  # wait_for loses a cancellation that coincides with an event
                    await happened.wait()
        except TimeoutError:
            return
        finally:
            del self._waiting[key]

    def close(self) -> None:
        """End the stream of every reader once it has all events."""
        self.is_closed = True
        self._wake()

    def _take(self, event: TurnEvent) -> None:
        data = encode_event(event)
        self._entries.append((next(self._numbers), event.name, data))
        self._bytes += len(data)
        while len(self._entries) > self._max_events or (self._bytes > self._max_bytes and len(self._entries) > 1):
            self._bytes -= len(self._entries.popleft()[2])
        self.is_closed = self.is_closed or isinstance(event, TurnEnd)
        self._wake()

    def _wake(self) -> None:
        for wake in tuple(self._waiting.values()):
            wake()


class EventLogs:
    """The logs of turns in memory; a log exists as long as its turn."""

    def __init__(self) -> None:
        self._logs: WeakKeyDictionary[EventBuses, EventLog] = WeakKeyDictionary()
        self._is_closed = False

    def get(self, buses: EventBuses) -> EventLog:
        if buses not in self._logs:
            self._logs[buses] = EventLog(buses)
            if self._is_closed:
                self._logs[buses].close()
        return self._logs[buses]

    def close(self) -> None:
        """End all streams, and every later one at once: readers then reconnect to another process."""
        self._is_closed = True
        for log in tuple(self._logs.values()):
            log.close()


def event_stream(
    log: EventLog, *, last_event_id: str | None, may_read: MayRead, keep_alive: float = KEEP_ALIVE
) -> Response:
    """Return a response that ends when the turn ends, the reader disconnects or the reader may no longer read."""
    if log.readers >= MAX_READERS:
        raise TooManyStreams(help="close one of them")
    headers = {**_ALWAYS, LOGS: log.name.encode()}

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await empty_response(200, headers)(scope, receive, send)
            return
        log.readers += 1
        try:
            if await run_while_connected(
                receive, _send_events(log, last_event_id, may_read, keep_alive, send, headers)
            ):
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
    place = log.find_position(last_event_id)
    if place is None:
        place = 0
        await _send(send, _event("dropped", b'{"missed":null}'))
    clock = asyncio.get_running_loop().time
    checked_at = clock()
    while True:
        is_closed = log.is_closed  # read first: events from before the close are still sent
        for number, name, data in log.since(place):
            if missed := number - place - 1:
                await _send(send, _event("dropped", b'{"missed":%d}' % missed))
            place = number
            await _send(send, _event(name, data, id=encode_event_id({log.name: number})))
        if is_closed:
            return
        await log.wait_for_events(place, keep_alive)
        is_silent = not log.since(place) and not log.is_closed
        if is_silent or clock() >= checked_at + keep_alive:
            if not await may_read():
                return
            checked_at = clock()
        if is_silent:
            await _send(send, b": keep-alive\n\n")


async def _send(send: Send, content: bytes) -> None:
    await send({"type": "http.response.body", "body": content, "more_body": True})


def _event(name: str, data: bytes, *, id: str | None = None) -> bytes:
    number = f"id: {id}\n" if id else ""
    return b"%sevent: %s\ndata: %s\n\n" % (number.encode(), name.encode(), data)

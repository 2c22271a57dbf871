"""Merge the events of a turn from all processes into one stream.

Calls of a turn run in the process where they arrive, and each process logs its own events. The process that a client
asks requests the events of the others with the credentials of the client. Each event id holds the position in every
log, so that the client can resume in any process.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from yarl import URL

from gateway.app.cluster.proxy import build_forward_headers, target_at
from gateway.http_client import HttpSession
from gateway.server import LOGS, MAX_LOGS, AsgiApp, Receive, Scope, Send, decode_event_id, encode_event_id

_EVENTS: Final = re.compile(r"/v1/turns/[^/]+/events")
_STREAM: Final = b"text/event-stream"
_LAST: Final = b"last-event-id"
_END: Final = b"event: turnEnd\n"
_LOST: Final = b'event: dropped\ndata: {"missed":null}\n\n'
_WITHIN: Final = 2.0
_LOOK_EVERY: Final = 1.0
"""Seconds between two checks for new or restarted processes."""
_SILENCE: Final = 60.0
"""Seconds of silence after which the other process counts as gone; it sends something four times as often."""
_LAST_WORDS: Final = 0.5
_LARGEST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class EventSource:
    """Another process: its name, and how it is reached."""

    name: str
    carrier: HttpSession
    origin: URL


Others = Callable[[], Awaitable[Sequence[EventSource]]]


def is_event_request(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["method"] == "GET" and _EVENTS.fullmatch(scope["path"]) is not None


async def merge_events(app: AsgiApp, others: Others, scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with the events of `app` and of all others. A response that is no stream is passed through."""
    await _EventMerge(others, scope, send).run(app, receive)


@dataclass
class _EventMerge:
    others: Others
    scope: Scope
    send: Send
    places: dict[str, int] = field(default_factory=dict)
    """The position of the client, by log."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _is_over: asyncio.Event = field(default_factory=asyncio.Event)
    _readers: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    _logs: set[str] = field(default_factory=set)

    async def run(self, app: AsgiApp, receive: Receive) -> None:
        last = next((value for name, value in self.scope["headers"] if name == _LAST), None)
        resumed = {} if last is None else decode_event_id(last.decode("latin-1"))
        self.places = dict(resumed or {})
        local = _LocalResponse()
        app_task = asyncio.ensure_future(app(self.scope, receive, local.send))
        try:
            start = await local.start(app_task)
            if start is None:
                return
            if not _is_stream(start):
                await self._pass(start, local, app_task)
                return
            self._logs |= _logs_in(start["headers"])
            async with self._lock:  # events of the others wait until the response has started
                await self._join()
                await self.send({**start, "headers": self._headers(start["headers"])})
                if last is not None and (resumed is None or resumed.keys() - self._logs):
                    await self._write(_LOST)
                    self.places = {log: number for log, number in self.places.items() if log in self._logs}
            await self._until_over(local, app_task)
        finally:
            tasks = [app_task, *self._readers.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass(self, start: Any, local: "_LocalResponse", app_task: "asyncio.Future[None]") -> None:
        await self.send(start)
        async for message in local.rest(app_task):
            await self.send(message)
        await app_task

    async def _until_over(self, local: "_LocalResponse", app_task: "asyncio.Future[None]") -> None:
        reading = asyncio.ensure_future(self._read_local(local, app_task))
        polling = asyncio.ensure_future(self._poll_others())
        ending = asyncio.ensure_future(self._is_over.wait())
        try:
            await asyncio.wait([reading, ending], return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
            if local.has_ended:  # a turn that ended in another process may still send its last event
                await asyncio.wait([ending], timeout=_LAST_WORDS)
        finally:
            for task in (reading, polling, ending):
                task.cancel()
            await asyncio.gather(reading, polling, ending, return_exceptions=True)
        if local.has_ended or self._is_over.is_set():
            async with self._lock:
                await self.send({"type": "http.response.body", "body": b""})

    async def _read_local(self, local: "_LocalResponse", app_task: "asyncio.Future[None]") -> None:
        async for message in local.rest(app_task):
            if message.get("body"):
                await self._take(message["body"])

    async def _poll_others(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            await self._join()

    async def _join(self) -> None:
        """Follow the turn in every further process, and wait until that has started."""
        for name in [name for name, task in self._readers.items() if task.done()]:
            del self._readers[name]
        joining = []
        for source in await self.others():
            if source.name not in self._readers:
                joined = asyncio.Event()
                self._readers[source.name] = asyncio.ensure_future(self._follow(source, joined))
                joining.append(joined.wait())
        if joining:
            with suppress(TimeoutError):
                async with asyncio.timeout(_WITHIN):
                    await asyncio.gather(*joining)

    async def _follow(self, source: EventSource, joined: asyncio.Event) -> None:
        url = target_at(source.origin, self.scope)
        if url is None:
            joined.set()
            return
        headers = build_forward_headers(self.scope, without=frozenset({_LAST}))
        headers += [("last-event-id", encode_event_id(self.places))] if self.places else []
        try:
            async with await source.carrier.send("GET", url, headers=headers, idle=_SILENCE) as answer:
                if answer.status == 200 and answer.content_type == _STREAM.decode():
                    self._logs |= _logs_in(answer.raw_headers)
                    joined.set()
                    await self._read(answer.content)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return  # tried again in a moment, if the process is still there
        finally:
            joined.set()

    async def _read(self, content: aiohttp.StreamReader) -> None:
        rest = b""
        async for chunk in content.iter_any():
            rest += chunk
            *blocks, rest = rest.split(b"\n\n")
            for block in blocks:
                if not block.startswith(b":"):
                    await self._take(block + b"\n\n")
            if len(rest) > _LARGEST:
                return

    async def _take(self, block: bytes) -> None:
        """Send one event to the client, with all positions in its id. An event that was sent before is skipped."""
        if block == _LOST:
            return  # this process reports a loss once
        if not block.startswith(b"id: "):
            async with self._lock:
                await self._write(block)
            return
        id, _, event = block.removeprefix(b"id: ").partition(b"\n")
        async with self._lock:
            found = decode_event_id(id.decode("latin-1")) or {}
            if found and all(number <= self.places.get(log, 0) for log, number in found.items()):
                return
            for log, number in found.items():
                self.places[log] = max(number, self.places.pop(log, 0))
            while len(self.places) > MAX_LOGS:  # the log that was silent for longest: its process is gone
                del self.places[next(iter(self.places))]
            await self._write(b"id: %s\n%s" % (encode_event_id(self.places).encode(), event))
        if event.startswith(_END):
            self._is_over.set()

    async def _write(self, content: bytes) -> None:
        await self.send({"type": "http.response.body", "body": content, "more_body": True})

    def _headers(self, headers: Any) -> list[tuple[bytes, bytes]]:
        others = [(name, value) for name, value in headers if name.lower() != LOGS]
        return [*others, (LOGS, ",".join(sorted(self._logs)).encode())]


class _LocalResponse:
    """The response messages of this process, one after the other."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Any] = asyncio.Queue(maxsize=1)
        self.has_ended = False

    async def send(self, message: Any) -> None:
        await self._messages.put(message)

    async def start(self, app_task: "asyncio.Future[None]") -> Any:
        """Return the first message, or `None` if there is none because the client is gone."""
        return await self._next(app_task)

    async def rest(self, app_task: "asyncio.Future[None]") -> AsyncIterator[Any]:
        while (message := await self._next(app_task)) is not None:
            yield message
            if not message.get("more_body", False):
                self.has_ended = True
                return

    async def _next(self, app_task: "asyncio.Future[None]") -> Any:
        getting = asyncio.ensure_future(self._messages.get())
        try:
            await asyncio.wait([getting, app_task], return_when=asyncio.FIRST_COMPLETED)
            if not getting.done() and self._messages.empty():
                app_task.result()
                return None
            return await getting
        finally:
            getting.cancel()


def _is_stream(start: Any) -> bool:
    types = [value for name, value in start["headers"] if name.lower() == b"content-type"]
    return start["status"] == 200 and any(each.startswith(_STREAM) for each in types)


def _logs_in(headers: Any) -> set[str]:
    return {each for name, value in headers if name.lower() == LOGS for each in value.decode("latin-1").split(",")}

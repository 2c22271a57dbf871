"""Events of a turn from every process that may work in it, as one stream to whoever follows it in any of them.

Calls of a turn run wherever they arrive, and each process has its own log of what happened there. Whoever asks one
process for the events is sent those of all: this one asks the others, with the reader's own credentials, and tells in
each event's id how far the reader is in every log, so that it can go on in any other process.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from yarl import URL

from gateway.runtime.passing import forwarded_headers, target_at
from gateway.web.edge import App, Receive, Scope, Send
from gateway.web.rest.event_places import LOGS, MOST_LOGS, decoded, encoded

_EVENTS: Final = re.compile(r"/v1/turns/[^/]+/events")
_STREAM: Final = b"text/event-stream"
_LAST: Final = b"last-event-id"
_END: Final = b"event: turnEnd\n"
_LOST: Final = b'event: dropped\ndata: {"missed":null}\n\n'
_WITHIN: Final = 2.0
_LOOK_EVERY: Final = 1.0
"""Seconds after which it is asked again who is there: processes come, and come back."""
_SILENCE: Final = 60.0
"""Seconds without a word, where one is sent every quarter of that, after which the other process is gone."""
_LAST_WORDS: Final = 0.5
_LARGEST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """Another process: what it is known by, and how it is reached."""

    name: str
    carrier: aiohttp.ClientSession
    origin: URL


Others = Callable[[], Awaitable[Sequence[Source]]]


def asks_for_events(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["method"] == "GET" and _EVENTS.fullmatch(scope["path"]) is not None


async def merged(app: App, others: Others, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the events of `app`, and with those of all others. What is no stream is answered as it is."""
    await _Merging(others, scope, send).run(app, receive)


@dataclass
class _Merging:
    others: Others
    scope: Scope
    send: Send
    places: dict[str, int] = field(default_factory=dict)
    """How far the reader is, by log."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _is_over: asyncio.Event = field(default_factory=asyncio.Event)
    _readers: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    _logs: set[str] = field(default_factory=set)

    async def run(self, app: App, receive: Receive) -> None:
        last = next((value for name, value in self.scope["headers"] if name == _LAST), None)
        asked = {} if last is None else decoded(last.decode("latin-1"))
        self.places = dict(asked or {})
        ours = _Ours()
        answering = asyncio.ensure_future(app(self.scope, receive, ours.send))
        try:
            start = await ours.start(answering)
            if start is None:
                return
            if not _is_stream(start):
                await self._pass(start, ours, answering)
                return
            self._logs |= _logs_in(start["headers"])
            async with self._lock:  # what the others have already waits until the answer has begun
                await self._join()
                await self.send({**start, "headers": self._headers(start["headers"])})
                if last is not None and (asked is None or asked.keys() - self._logs):
                    await self._write(_LOST)
                    self.places = {log: number for log, number in self.places.items() if log in self._logs}
            await self._until_over(ours, answering)
        finally:
            tasks = [answering, *self._readers.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass(self, start: Any, ours: "_Ours", answering: "asyncio.Future[None]") -> None:
        await self.send(start)
        async for message in ours.rest(answering):
            await self.send(message)
        await answering

    async def _until_over(self, ours: "_Ours", answering: "asyncio.Future[None]") -> None:
        reading = asyncio.ensure_future(self._read_ours(ours, answering))
        looking = asyncio.ensure_future(self._look_again())
        ending = asyncio.ensure_future(self._is_over.wait())
        try:
            await asyncio.wait([reading, ending], return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
            if ours.has_ended:  # a turn that ended elsewhere is over here before its last event has come
                await asyncio.wait([ending], timeout=_LAST_WORDS)
        finally:
            for task in (reading, looking, ending):
                task.cancel()
            await asyncio.gather(reading, looking, ending, return_exceptions=True)
        if ours.has_ended or self._is_over.is_set():
            async with self._lock:
                await self.send({"type": "http.response.body", "body": b""})

    async def _read_ours(self, ours: "_Ours", answering: "asyncio.Future[None]") -> None:
        async for message in ours.rest(answering):
            if message.get("body"):
                await self._take(message["body"])

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            await self._join()

    async def _join(self) -> None:
        """Follow the turn in every process in which it is not followed yet, and wait until it is."""
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

    async def _follow(self, source: Source, joined: asyncio.Event) -> None:
        url = target_at(source.origin, self.scope)
        if url is None:
            joined.set()
            return
        headers = forwarded_headers(self.scope, without=frozenset({_LAST}))
        headers += [("last-event-id", encoded(self.places))] if self.places else []
        patience = aiohttp.ClientTimeout(total=None, sock_connect=_WITHIN, sock_read=_SILENCE)
        try:
            async with source.carrier.get(url, headers=headers, allow_redirects=False, timeout=patience) as answer:
                if answer.status == 200 and answer.content_type == _STREAM.decode():
                    self._logs |= _logs_in(answer.raw_headers)
                    joined.set()
                    await self._read(answer.content)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return  # asked again in a moment, if it is still there
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
        """Send one event to the reader. How far it is by then is in its id; what was sent already is not sent again."""
        if block == _LOST:
            return  # whether anything was lost is told once, by us
        if not block.startswith(b"id: "):
            async with self._lock:
                await self._write(block)
            return
        id, _, event = block.removeprefix(b"id: ").partition(b"\n")
        async with self._lock:
            found = decoded(id.decode("latin-1")) or {}
            if found and all(number <= self.places.get(log, 0) for log, number in found.items()):
                return
            for log, number in found.items():
                self.places[log] = max(number, self.places.pop(log, 0))
            while len(self.places) > MOST_LOGS:  # the one that nothing came from for longest: its process is gone
                del self.places[next(iter(self.places))]
            await self._write(b"id: %s\n%s" % (encoded(self.places).encode(), event))
        if event.startswith(_END):
            self._is_over.set()

    async def _write(self, content: bytes) -> None:
        await self.send({"type": "http.response.body", "body": content, "more_body": True})

    def _headers(self, headers: Any) -> list[tuple[bytes, bytes]]:
        others = [(name, value) for name, value in headers if name.lower() != LOGS]
        return [*others, (LOGS, ",".join(sorted(self._logs)).encode())]


class _Ours:
    """What this process answers, one message after the other."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Any] = asyncio.Queue(maxsize=1)
        self.has_ended = False

    async def send(self, message: Any) -> None:
        await self._messages.put(message)

    async def start(self, answering: "asyncio.Future[None]") -> Any:
        """`None` if nothing was answered, because the client is gone."""
        return await self._next(answering)

    async def rest(self, answering: "asyncio.Future[None]") -> AsyncIterator[Any]:
        while (message := await self._next(answering)) is not None:
            yield message
            if not message.get("more_body", False):
                self.has_ended = True
                return

    async def _next(self, answering: "asyncio.Future[None]") -> Any:
        getting = asyncio.ensure_future(self._messages.get())
        try:
            await asyncio.wait([getting, answering], return_when=asyncio.FIRST_COMPLETED)
            if not getting.done() and self._messages.empty():
                answering.result()
                return None
            return await getting
        finally:
            getting.cancel()


def _is_stream(start: Any) -> bool:
    types = [value for name, value in start["headers"] if name.lower() == b"content-type"]
    return start["status"] == 200 and any(each.startswith(_STREAM) for each in types)


def _logs_in(headers: Any) -> set[str]:
    return {each for name, value in headers if name.lower() == LOGS for each in value.decode("latin-1").split(",")}

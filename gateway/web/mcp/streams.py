"""Server-sent events: streams of messages that outlive the connections they are read from.

A stream keeps its newest events, so that a client that lost its connection can ask for what it missed. Each message is
on exactly one stream, and a stream is read by one connection at a time.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

KEPT_EVENTS: Final = 256
KEEP_ALIVE: Final = 15.0
RETRY_MS: Final = 1000
"""How long a client waits before it comes back."""

SSE_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_COMMENT: Final = b": ping\n\n"


class Stream:
    """Messages in order. With a `name` every event has an id that a client can come back with."""

    def __init__(self, name: str | None = None, *, primed: bool = False, kept: int = KEPT_EVENTS) -> None:
        self.name = name
        self.is_over = False
        self._events: deque[tuple[int, bytes]] = deque(maxlen=kept)
        self._count = 0
        self._read = 0
        self._reader: asyncio.Future[None] | None = None
        self._readers = 0
        self._released = 0
        if primed:
            self._append(b"retry: %d\ndata:\n\n" % RETRY_MS)

    @property
    def backlog(self) -> int:
        """Events that nobody read yet."""
        return self._count - self._read

    def put(self, message: bytes, *, final: bool = False) -> None:
        """Nothing comes after a final message."""
        if not self.is_over:
            self._append(b"event: message\ndata: %b\n\n" % message)
            self.is_over = final
            self._wake()

    def end(self) -> None:
        self.is_over = True
        self._wake()

    def take(self) -> int:
        """Become the one who reads; whoever did so before stops. Gives the number to read under."""
        self._readers += 1
        self._wake()
        return self._readers

    def release(self) -> None:
        """Let go of the connection that reads, once it has what is there; whoever reads may come back."""
        self._released = self._readers
        self._wake()

    def leave(self, reader: int) -> None:
        """The connection that reads under this number is lost; another one may have taken over already."""
        if reader == self._readers:
            self.release()

    def has_event(self, number: int) -> bool:
        return 0 <= number <= self._count

    async def pump(self, send: Send, reader: int, *, after: int | None = None, keep_alive: float = KEEP_ALIVE) -> None:
        """Send what is there and what comes, until the stream is over, let go of or taken by another connection.

        With `after` everything kept since that event, else whatever was not read yet.
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
        id = b"" if self.name is None else b"id: %b\n" % event_id(self.name, self._count).encode()
        self._events.append((self._count, id + event))

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def event_id(stream: str, number: int) -> str:
    return f"{stream}.{number}"


def event_of(id: str) -> tuple[str, int] | None:
    """The stream and the number that an id names."""
    stream, dot, number = id.rpartition(".")
    return (stream, int(number)) if dot and number.isascii() and number.isdecimal() and len(number) < 16 else None


async def start_stream(send: Send, *, session: str | None = None) -> None:
    extra = [] if session is None else [(b"mcp-session-id", session.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": [*SSE_HEADERS, *extra]})


async def end_stream(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": False})

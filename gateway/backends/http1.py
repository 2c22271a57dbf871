"""One connection of HTTP/1.1 with little between a request and its socket, for hops that calls make by the thousand.

The client library of the field takes ten times as long for a request as the parser, which is the server's own. What is
written by hand is what is left: one request at a time, and bodies that are read as fast as somebody takes them.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, Protocol

import httptools

from gateway.core.chunk_framing import ChunkFraming, FramingTooLarge
from gateway.governance.ports import BackendFailed

MAX_HEAD: Final = 64 << 10
"""Bytes that may come before an answer's headers are complete, answers of the kind 1xx included."""

MAX_FIELDS: Final = 256
"""Headers of an answer, and of the answers of the kind 1xx before it."""

_MOST_BUFFERED: Final = 1 << 18
_LAST_SECONDS: Final = 1.0
_LAST_BYTES: Final = 1 << 16


class Answer:
    """The head of an answer, and its body as it comes. Names of headers are in lower case."""

    __slots__ = ("_buffered", "_error", "_leaving", "_line", "_size", "_waiting", "headers", "is_whole", "status")

    def __init__(self, status: int, headers: Mapping[str, str], line: "Line") -> None:
        self.status = status
        self.headers = headers
        self.is_whole = False
        """Whether all of it has arrived."""
        self._line = line
        self._buffered: list[bytes] = []
        self._size = 0
        self._waiting: asyncio.Future[None] | None = None
        self._error: BackendFailed | None = None
        self._leaving: asyncio.TimerHandle | None = None

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip(" \t").lower()

    @property
    def content_length(self) -> int | None:
        told = self.headers.get("content-length", "")
        return int(told) if told.isascii() and told.isdecimal() else None

    async def read(self) -> bytes:
        """All of it. Whoever calls knows that it is not too much. Raises `BackendFailed`."""
        while not self.is_whole:
            await self._more()
        return self._taken()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Whatever has arrived, again and again. Raises `BackendFailed`."""
        while True:
            if self._buffered:
                yield self._taken()
            elif self.is_whole:
                return
            else:
                await self._more()

    def close(self) -> None:
        """Let go of it. A connection on which more would come cannot be used for anything else."""
        if not self.is_whole and self._leaving is None:
            self._line.close()

    def leave(self) -> None:
        """Let go of it when all that matters was heard. What little comes until its end is thrown away, so that the
        connection can be used again.
        """
        if not self.is_whole and self._error is None:
            self._leaving = asyncio.get_running_loop().call_later(_LAST_SECONDS, self._line.close)
            self._taken()
            self._line.resume()

    # --- told by its connection ---

    def arrived(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._leaving is not None:
            if self._size > _LAST_BYTES:
                self._line.close()
            return
        self._buffered.append(chunk)
        if self._size > _MOST_BUFFERED:
            self._line.pause()
        self._wake()

    def ended(self, error: BackendFailed | None = None) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
        self.is_whole = error is None
        self._error = error
        self._wake()

    def _taken(self) -> bytes:
        chunks, self._buffered, self._size = self._buffered, [], 0
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._line.resume()
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Owner(Protocol):
    """Whoever has a connection for as long as nobody uses it."""

    def given_back(self, line: "Line") -> None: ...

    def lost(self, line: "Line") -> None: ...


class Line(asyncio.Protocol):
    """One connection, and the parser of what comes on it."""

    def __init__(self, owner: Owner) -> None:
        self.idle_since = 0.0
        self._owner = owner
        self._transport: Any = None
        self._parser: Any = None
        self._head: asyncio.Future[Answer] | None = None
        self._answer: Answer | None = None
        self._headers: dict[str, str] = {}
        self._fields = 0
        self._framing: ChunkFraming | None = None
        """Of an answer whose body is being read. Only a chunked one uses it."""
        self._before_head = 0
        self._is_paused = False
        self._is_lost = False

    async def ask(self, request: bytes) -> Answer:
        if self._is_lost:
            raise _closed()
        self._head = head = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._framing = {}, None
        self._fields = self._before_head = 0
        self._transport.write(request)
        try:
            answer: Answer = await head
            return answer
        except asyncio.CancelledError:  # its answer would be taken for the next one's
            self.close()
            raise

    def pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        """At once: whatever is still on its way is of no use."""
        self._is_lost = True
        self._owner.lost(self)
        if self._transport is not None:
            self._transport.abort()

    # --- told by the loop ---

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._head is None and self._answer is None:  # nobody has asked
            self.close()
            return
        try:
            self._parser.feed_data(data)
            if self._framing is not None and self._answer is not None:
                self._framing.received(len(data))
        except FramingTooLarge:
            self._fail(_too_much_framing())
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            is_framing = isinstance(error.__context__, FramingTooLarge)
            self._fail(_too_much_framing() if is_framing else _not_http())
        if self._head is not None:
            self._before_head += len(data)
            if self._before_head > MAX_HEAD:
                self._fail(_not_http())

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._owner.lost(self)
        if self._head is not None:
            self._fail(_closed())
        elif (answer := self._answer) is not None:
            self._answer = None
            if exc is None and _ends_with_connection(answer):
                answer.ended()
            else:
                answer.ended(BackendFailed("unavailable", "the answer ended early"))

    def _fail(self, error: BackendFailed) -> None:
        head, answer, self._head, self._answer = self._head, self._answer, None, None
        if head is not None and not head.done():
            head.set_exception(error)
        if answer is not None:
            answer.ended(error)
        self.close()

    # --- told by the parser ---

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._framing is not None:
            self._framing.trailer(name, value)
            return
        self._fields += 1
        if self._fields > MAX_FIELDS:
            raise _Refused("too many headers")
        key, text = name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape").strip(" \t")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self._headers = {}
            return
        head, self._head = self._head, None
        if head is None:
            raise _Refused("an answer to nothing")
        coding = self._headers.get("transfer-encoding")
        if coding is not None:
            if coding.lower() != "chunked" or "content-length" in self._headers:
                self._head = head
                raise _Refused("the length can be read in two ways")
            self._framing = ChunkFraming()
        self._answer = Answer(status, self._headers, self)
        if not head.done():
            head.set_result(self._answer)

    def on_chunk_header(self) -> None:
        if self._framing is not None:
            self._framing.chunk()

    def on_body(self, chunk: bytes) -> None:
        if self._framing is not None:
            self._framing.body(len(chunk))
        if self._answer is not None:
            self._answer.arrived(chunk)

    def on_message_complete(self) -> None:
        answer = self._answer
        if answer is None:  # one of the kind 1xx: the real one follows
            return
        self._answer = self._framing = None
        self.resume()
        answer.ended()
        if self._parser.should_keep_alive() and not self._transport.get_write_buffer_size():
            self._owner.given_back(self)
        else:
            self.close()


class _Refused(Exception):
    """An answer that is not read. The parser reports it as any other fault."""


def _ends_with_connection(answer: Answer) -> bool:
    """Whether a body has no other end than that of its connection."""
    return "content-length" not in answer.headers and "chunked" not in answer.headers.get("transfer-encoding", "")


def _not_http() -> BackendFailed:
    return BackendFailed("failed", "the service answered something that is not HTTP")


def _too_much_framing() -> BackendFailed:
    return BackendFailed("failed", "the service sent more trailers or chunk extensions than are read")


def _closed() -> BackendFailed:
    return BackendFailed("unavailable", "the service closed the connection")

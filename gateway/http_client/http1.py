"""A minimal HTTP/1.1 client connection, for services that get thousands of calls.

aiohttp takes several times as long for a request as the parser used here (httptools, which the server uses as well).
One request is sent at a time; a body is read only as fast as its consumer takes it. A connection is used again only if
a response ended where its framing says: one that is followed by other bytes, or whose length can be read in two ways,
is the last of its connection. `decode_body` decodes compressed bodies.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from functools import lru_cache
from typing import Any, Final, Protocol

import httptools

from gateway.http_client.http_policy import MAX_FIELD
from gateway.mcp import ChunkFraming, FramingTooLarge
from gateway.model import BackendError

MAX_HEAD: Final = 64 << 10
"""Maximum number of bytes before the headers of a response are complete, 1xx responses included."""

MAX_FIELDS: Final = 256
"""Maximum number of headers of a response, including those of preceding 1xx responses."""

_MAX_BUFFERED: Final = 1 << 18
_DRAIN_SECONDS: Final = 1.0
_DRAIN_BYTES: Final = 1 << 16


class ConnectionLost(BackendError):
    """The service closed the connection before any byte of a response."""

    def __init__(self) -> None:
        super().__init__("unavailable", "the service closed the connection")


class Http1Response:
    """The head of a response, and its body as it arrives. Header names are in lower case.

    `idle` limits each wait for more of the body; `None` is no limit.
    """

    __slots__ = (
        *("_buffered", "_connection", "_error", "_idle", "_size", "_timer", "_waiter"),
        *("headers", "is_complete", "status"),
    )

    def __init__(
        self, status: int, headers: Mapping[str, str], connection: "Http1Connection", idle: float | None
    ) -> None:
        self.status = status
        self.headers = headers
        self.is_complete = False
        """Whether the whole response has arrived."""
        self._connection = connection
        self._idle = idle
        self._buffered: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: BackendError | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip(" \t").lower()

    @property
    def content_length(self) -> int | None:
        text = self.headers.get("content-length", "")
        return int(text) if text.isascii() and text.isdecimal() else None

    async def read(self, *, limit: int) -> bytes:
        """Return the whole body as it was sent. Raise `BackendError`."""
        while self._size <= limit:
            if self.is_complete:
                return self._take_buffered()
            await self._wait_for_data()
        raise response_too_large(limit)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives. Raise `BackendError`."""
        while True:
            if self._buffered:
                yield self._take_buffered()
            elif self.is_complete:
                return
            else:
                await self._wait_for_data()

    def close(self) -> None:
        """Give up the response. This closes the connection unless the whole body has arrived."""
        if not self.is_complete and self._timer is None:
            self._connection.close()

    def discard_rest(self) -> None:
        """Discard the rest of the body, so that the connection can be reused if little of it is left."""
        if not self.is_complete and self._error is None:
            self._timer = asyncio.get_running_loop().call_later(_DRAIN_SECONDS, self._connection.close)
            self._take_buffered()
            self._connection.resume()

    # --- called by the connection ---

    def feed(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._timer is not None:
            if self._size > _DRAIN_BYTES:
                self._connection.close()
            return
        self._buffered.append(chunk)
        if self._size > _MAX_BUFFERED:
            self._connection.pause()
        self._wake()

    def finish(self, error: BackendError | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.is_complete = error is None
        self._error = error
        self._wake()

    def _take_buffered(self) -> bytes:
        chunks, self._buffered, self._size = self._buffered, [], 0
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _wait_for_data(self) -> None:
        if self._error is not None:
            raise self._error
        self._connection.resume()
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if self._idle is None else loop.call_later(self._idle, self._expire)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _expire(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._connection.give_up()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ConnectionOwner(Protocol):
    """The owner of idle connections."""

    def release(self, connection: "Http1Connection") -> None: ...

    def discard(self, connection: "Http1Connection") -> None: ...


class Http1Connection(asyncio.Protocol):
    """One connection and its response parser."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self.idle_since = 0.0
        self._owner = owner
        self._transport: Any = None
        self._parser: Any = None
        self._head: asyncio.Future[Http1Response] | None = None
        self._answer: Http1Response | None = None
        self._headers: dict[str, str] = {}
        self._fields = 0
        self._is_head_only = False
        self._idle: float | None = None
        self._framing: ChunkFraming | None = None
        """Framing of the response whose body is being read, if it is chunked."""
        self._before_head = 0
        self._is_paused = False
        self._is_lost = False

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent, as far as is known."""
        return not self._is_lost and not self._transport.is_closing()

    async def send(
        self, request: bytes, *, head_only: bool = False, answer: float | None = None, idle: float | None = None
    ) -> Http1Response:
        """Send a request. `answer` limits the seconds until the head of its response, `idle` each wait for its body.

        The response to a request for the head only has no body, whatever its headers say.
        """
        if self._is_lost:
            raise ConnectionLost()
        loop = asyncio.get_running_loop()
        self._head = head = loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._framing = {}, None
        self._fields = self._before_head = 0
        self._is_head_only, self._idle = head_only, idle
        timer = None if answer is None else loop.call_later(answer, self._expire, head)
        self._transport.write(request)
        try:
            response: Http1Response = await head
            return response
        except asyncio.CancelledError:  # otherwise its response would be taken for that of the next request
            self.close()
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def give_up(self) -> None:
        """End the response with an error: the service is silent for too long."""
        self._fail(response_too_late())

    def pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        """Abort the connection; data in flight is discarded."""
        self._is_lost = True
        self._owner.discard(self)
        if self._transport is not None:
            self._transport.abort()

    def _expire(self, head: "asyncio.Future[Http1Response]") -> None:
        if not head.done():
            self.give_up()

    # --- called by the event loop ---

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._head is None and self._answer is None:  # no request is pending
            self.close()
            return
        try:
            self._parser.feed_data(data)
            if self._framing is not None and self._answer is not None:
                self._framing.count_received(len(data))
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
        self._owner.discard(self)
        if self._head is not None:
            self._fail(_connection_closed() if self._before_head else ConnectionLost())
        elif (answer := self._answer) is not None:
            self._answer = None
            if exc is None and _ends_with_connection(answer):
                answer.finish()
            else:
                answer.finish(BackendError("unavailable", "the answer ended early"))

    def _fail(self, error: BackendError) -> None:
        head, answer, self._head, self._answer = self._head, self._answer, None, None
        if head is not None and not head.done():
            head.set_exception(error)
        if answer is not None:
            answer.finish(error)
        self.close()

    # --- called by the parser ---

    def on_message_begin(self) -> None:
        if self._head is None:
            raise _ResponseRefused("bytes after the response")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._framing is not None:
            self._framing.trailer(name, value)
            return
        self._fields += 1
        if self._fields > MAX_FIELDS or len(name) + len(value) > MAX_FIELD:
            raise _ResponseRefused("too many headers, or a long one")
        key, text = _decode_name(name), value.decode("utf-8", "surrogateescape").strip(" \t")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self._headers = {}
            return
        head = self._head
        assert head is not None, "every message begins with a request"  # noqa: S101 - see on_message_begin
        coding = self._headers.get("transfer-encoding")
        if coding is not None:
            is_ambiguous = "content-length" in self._headers or self._parser.get_http_version() != "1.1"
            if is_ambiguous or coding.lower() != "chunked":
                raise _ResponseRefused("the length can be read in two ways")
            self._framing = ChunkFraming()
        self._head = None
        answer = self._answer = Http1Response(status, self._headers, self, self._idle)
        if not head.done():
            head.set_result(answer)
        if self._is_head_only:  # the parser expects the body that the headers describe
            self._answer = None
            answer.finish()
            self.close()

    def on_chunk_header(self) -> None:
        if self._framing is not None:
            self._framing.chunk()

    def on_body(self, chunk: bytes) -> None:
        if self._framing is not None:
            self._framing.body(len(chunk))
        if self._answer is not None:
            self._answer.feed(chunk)

    def on_message_complete(self) -> None:
        answer = self._answer
        if answer is None:  # a 1xx response: the final one follows
            return
        self._answer = self._framing = None
        self.resume()
        answer.finish()
        if self._parser.should_keep_alive() and not self._transport.get_write_buffer_size():
            self._owner.release(self)
        else:
            self.close()


@lru_cache(maxsize=256)
def _decode_name(name: bytes) -> str:
    return name.decode("latin-1").lower()


class _ResponseRefused(Exception):
    """A response that is refused. The parser reports it like any other fault."""


def _ends_with_connection(answer: Http1Response) -> bool:
    """Whether only the end of the connection ends the body."""
    return "content-length" not in answer.headers and "chunked" not in answer.headers.get("transfer-encoding", "")


def _not_http() -> BackendError:
    return BackendError("failed", "the service answered something that is not HTTP")


def _too_much_framing() -> BackendError:
    return BackendError("failed", "the service sent too many trailers or chunk extensions")


def response_too_large(limit: int) -> BackendError:
    return BackendError("failed", f"the answer has more than {limit} bytes")


def response_too_late() -> BackendError:
    return BackendError("unavailable", "the service did not answer in time")


def _connection_closed() -> BackendError:
    return BackendError("unavailable", "the service closed the connection")


_PIECE: Final = 1 << 16
_MAX_RATIO: Final = 200
_UNCHECKED_BYTES: Final = 16 << 20
"""Any ratio is accepted up to this many bytes: short content may compress to almost nothing."""

_GZIP: Final = 16 + zlib.MAX_WBITS


async def decode_body(response: Http1Response, *, limit: int) -> AsyncGenerator[bytes, None]:
    """Yield the decoded body. Raise `BackendError` for a decompression bomb, a broken or an unknown encoding."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise BackendError("failed", "the service answered in an encoding that was not requested")
    received = decoded = 0
    inflater = None if encoding in ("", "identity") else _Inflater(encoding)
    async with aclosing(_small_chunks(response)) as chunks:
        async for chunk in chunks:
            received += len(chunk)
            for piece in [chunk] if inflater is None else inflater.pieces(chunk):
                decoded += len(piece)
                if decoded > limit:
                    raise response_too_large(limit)
                if decoded > _UNCHECKED_BYTES and decoded > received * _MAX_RATIO:
                    raise BackendError("failed", "the answer grows out of proportion when it is decompressed")
                yield piece
    if inflater is not None and received and not inflater.is_complete:
        raise BackendError("unavailable", "the answer ended early")


async def _small_chunks(response: Http1Response) -> AsyncGenerator[bytes, None]:
    """Yield the body in pieces, so that what is received does not count long before it is decoded."""
    async with aclosing(response.chunks()) as chunks:
        async for chunk in chunks:
            for start in range(0, len(chunk), _PIECE):
                yield chunk[start : start + _PIECE]


class _Inflater:
    """One gzip or deflate stream; gzip may have several members, deflate may lack its header."""

    def __init__(self, encoding: str) -> None:
        self._is_gzip = encoding != "deflate"
        self._inflate: Any = zlib.decompressobj(_GZIP if self._is_gzip else zlib.MAX_WBITS)
        self._has_started = False

    @property
    def is_complete(self) -> bool:
        return bool(self._inflate.eof)

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        is_full = False  # then more output may be buffered, even if no input is left
        while chunk or is_full:
            piece, chunk = self._step(chunk)
            is_full = len(piece) == _PIECE
            if piece:
                yield piece

    def _step(self, data: bytes) -> tuple[bytes, bytes]:
        """Return up to one piece of output, and the remaining input."""
        if self._inflate.eof:
            if not self._is_gzip or not data.strip(b"\x00"):
                return b"", b""  # padding
            self._inflate = zlib.decompressobj(_GZIP)
        try:
            piece = self._inflate.decompress(data, _PIECE)
        except zlib.error as error:
            if self._is_gzip or self._has_started:
                raise BackendError("failed", "the answer does not match its content encoding") from error
            self._has_started = True
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
            return b"", data
        self._has_started = True
        return piece, self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail

"""Framing of HTTP bodies: limits on chunks, and server-sent events.

The parser calls `chunk`, `body` and `trailer` of the limits while it reads; the connection calls `received` after each
piece. Trailers are counted and dropped; they never become headers. An event that exceeds its limit is refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.mcp.messages import message_too_large

MAX_TRAILERS: Final = 8 << 10
"""Maximum number of bytes of the names and values of all trailers of a message."""

MAX_FRAMING: Final = 16 << 10
"""Bytes of framing that a message may have in addition to `FRAMING_PER_BYTE` per byte of its body."""

FRAMING_PER_BYTE: Final = 8
"""A chunk of one byte takes five bytes of framing."""

_PER_TRAILER: Final = len(b": \r\n")


class FramingTooLarge(ValueError):
    """A message has too much framing or too many trailers."""


class ChunkFraming:
    """The counts of one message, created when its headers are complete."""

    __slots__ = ("_after_chunk", "_body", "_had_chunk", "_is_first", "_received", "_trailers", "_unfinished")

    def __init__(self) -> None:
        self._body = self._received = self._trailers = self._unfinished = 0
        self._is_first = True
        self._after_chunk = False
        """Whether the last event was the size line of a chunk. Bytes after it that are not body are trailers."""
        self._had_chunk = False
        """Whether that event belongs to the current piece."""

    def chunk(self) -> None:
        self._after_chunk = self._had_chunk = True

    def body(self, size: int) -> None:
        self._after_chunk = False
        self._body += size

    def trailer(self, name: bytes, value: bytes) -> None:
        """Count a trailer. Raise `FramingTooLarge`."""
        self._trailers += len(name) + len(value) + _PER_TRAILER
        if self._trailers > MAX_TRAILERS:
            raise FramingTooLarge("the trailers are too large")

    def count_received(self, size: int) -> None:
        """Count a piece after the parser has read it. Raise `FramingTooLarge`.

        The first piece is not counted: it contains the head as well, and perhaps an earlier message.
        """
        if self._after_chunk and not self._had_chunk:
            self._unfinished += size
            if self._unfinished > MAX_TRAILERS:
                raise FramingTooLarge("the trailers are too large")
        self._had_chunk = False
        if self._is_first:
            self._is_first = False
            return
        self._received += size
        if self._received > MAX_FRAMING + self._body * (FRAMING_PER_BYTE + 1):
            raise FramingTooLarge("the chunks have too much framing for so little content")


@dataclass(slots=True)
class SseEvent:
    data: bytes
    id: str | None = None
    retry: int | None = None
    """Milliseconds after which a client may reconnect."""


class SseReader:
    """Bytes in, complete events out. An `id` stays valid for later events: a client resumes after it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line: list[bytes] = []
        self._line_size = 0
        self._has_pending_cr = False
        self._data: list[bytes] = []
        self._size = 0
        self._id: str | None = None
        self._retry: int | None = None

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes of the incomplete event."""
        return self._line_size + self._size

    def events(self, chunk: bytes) -> Iterator[SseEvent]:
        """Yield the completed events. Raise `BackendError` for an event that is too large."""
        if self._has_pending_cr or b"\r" in chunk:
            chunk = self._unify_line_ends(chunk)
        first, *others = chunk.split(b"\n")
        self._line.append(first)  # joined when complete: a long line arrives in many pieces
        self._line_size += len(first)
        if self.buffered_bytes > self._limit:
            raise message_too_large(self._limit)
        for each in others:
            line = b"".join(self._line)
            self._line, self._line_size = [each], len(each)
            if line:
                self._read_field(line)
            elif (event := self._end_event()) is not None:
                yield event

    def _unify_line_ends(self, chunk: bytes) -> bytes:
        """Convert line ends to LF. A trailing CR may be half of a CRLF, so it is held back."""
        text = b"\r" + chunk if self._has_pending_cr else chunk
        self._has_pending_cr = text.endswith(b"\r")
        return (text[:-1] if self._has_pending_cr else text).replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _read_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._size += len(value) + 1
            if self._size > self._limit:
                raise message_too_large(self._limit)
            self._data.append(value)
        elif name == b"id" and b"\0" not in value and len(value) <= 1024:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) < 8:
            self._retry = int(value)

    def _end_event(self) -> SseEvent | None:
        if not self._data and self._retry is None and self._id is None:
            return None
        event = SseEvent(b"\n".join(self._data), self._id, self._retry)
        self._data, self._size, self._retry = [], 0, None
        return event

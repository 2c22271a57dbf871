"""Limits on the framing of chunked HTTP bodies: chunk sizes, extensions and trailers.

The parser calls `chunk`, `body` and `trailer` while it reads; the connection calls `received` after each piece.
Trailers are counted and dropped; they never become headers.
"""

from typing import Final

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

"""Output that nobody reads must not stop a server: what a full pipe does not take in time is dropped."""

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

_PATIENCE: Final = 100
"""Milliseconds that a reader who has kept up so far may take to make room."""

_PIECE: Final = select.PIPE_BUF
"""Bytes that a pipe with room takes without waiting."""


@contextmanager
def output_never_waits() -> Iterator[None]:
    """While this lasts, whatever is printed or logged is written at once or not at all."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_tolerant, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _tolerant(stream: TextIO) -> TextIO:
    try:
        stream.flush()
        descriptor = stream.fileno()
    except (AttributeError, OSError, ValueError):  # none at all, closed, gone, or no file: nothing there can wait
        return stream
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return io.TextIOWrapper(_Tolerant(descriptor), encoding, "backslashreplace", write_through=True)  # type: ignore[type-var]  # it asks for a buffered stream and uses `write` alone


class _Tolerant(io.RawIOBase):
    """Writes to a descriptor that stays somebody else's to close."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)
        self._patience = _PATIENCE

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        left = memoryview(data)
        while left and self._has_room():
            try:
                left = left[os.write(self._descriptor, left[:_PIECE]) :]
            except OSError:  # the reader is gone
                break
        return len(data)

    def _has_room(self) -> bool:
        has_room = bool(self._room.poll(self._patience))
        self._patience = _PATIENCE if has_room else 0
        return has_room

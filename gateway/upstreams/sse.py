"""Server-sent events, read piece by piece. An event that grows past its limit is refused, whatever it is called."""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.upstreams.messages import too_large


@dataclass(slots=True)
class Event:
    data: bytes
    id: str | None = None
    retry: int | None = None
    """Milliseconds after which a lost stream may be asked for again."""


class EventReader:
    """Bytes in, whole events out. An `id` counts from then on, as a lost stream is taken up after it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line: list[bytes] = []
        self._line_size = 0
        self._half = False
        self._data: list[bytes] = []
        self._size = 0
        self._id: str | None = None
        self._retry: int | None = None

    @property
    def held(self) -> int:
        """Bytes of an event that has not ended yet."""
        return self._line_size + self._size

    def events(self, chunk: bytes) -> Iterator[Event]:
        """Raises `BackendFailed` for an event that is too large."""
        if self._half or b"\r" in chunk:
            chunk = self._unified(chunk)
        first, *others = chunk.split(b"\n")
        self._line.append(first)  # joined once it has ended: a long line comes in many pieces
        self._line_size += len(first)
        if self.held > self._limit:
            raise too_large(self._limit)
        for each in others:
            line = b"".join(self._line)
            self._line, self._line_size = [each], len(each)
            if line:
                self._field(line)
            elif (event := self._ended()) is not None:
                yield event

    def _unified(self, chunk: bytes) -> bytes:
        """A carriage return may be the first half of a line's end, so the last one waits."""
        text = b"\r" + chunk if self._half else chunk
        self._half = text.endswith(b"\r")
        return (text[:-1] if self._half else text).replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._size += len(value) + 1
            if self._size > self._limit:
                raise too_large(self._limit)
            self._data.append(value)
        elif name == b"id" and b"\0" not in value and len(value) <= 1024:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) < 8:
            self._retry = int(value)

    def _ended(self) -> Event | None:
        if not self._data and self._retry is None and self._id is None:
            return None
        event = Event(b"\n".join(self._data), self._id, self._retry)
        self._data, self._size, self._retry = [], 0, None
        return event

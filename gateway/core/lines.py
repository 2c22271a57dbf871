"""The line rules of spooled text, over anything that can read a range of bytes.

Lines end at `\\n` only (a CR stays part of its line), empty content has no lines, and a trailing
newline yields a final empty line. Text is decoded as UTF-8 with replacement characters, without a
leading byte-order mark; the bytes themselves are never altered. A sparse index finds any line
of a large content by reading one block.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from gateway.core.patterns import Pattern
from gateway.errors import AnswerTooLarge

BLOCK: Final = 64 * 1024
MAX_GREP_LINE: Final = 16 << 20
"""A longer line is not searched: it would have to be held in memory, and no answer could carry it."""

_SCAN: Final = 4 << 20
_BOM: Final = b"\xef\xbb\xbf"
_LINE_OVERHEAD: Final = 64
"""What a short Python string costs besides its text: many tiny lines count, too."""

_answer_limit: ContextVar[int | None] = ContextVar("answer_limit", default=None)


def encode(text: str) -> bytes:
    """UTF-8; half a surrogate pair becomes U+FFFD, as in JavaScript's TextEncoder."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def decode(data: bytes, *, first: bool) -> str:
    """Text of stored bytes; `first` says that they begin the content."""
    if first and data.startswith(_BOM):
        data = data[len(_BOM) :]
    return data.decode("utf-8", "replace")


@contextmanager
def answer_limit(limit: int | None) -> Iterator[None]:
    """Bound the lines collected inside the block; past `limit` bytes `AnswerTooLarge` is raised."""
    token = _answer_limit.set(limit)
    try:
        yield
    finally:
        _answer_limit.reset(token)


class Allowance:
    """What is left of the answer limit that was in force when this was made."""

    def __init__(self) -> None:
        self._limit = self._left = _answer_limit.get()

    def take(self, size: int) -> None:
        if self._left is None:
            return
        self._left -= size + _LINE_OVERHEAD
        if self._left < 0:
            raise AnswerTooLarge(
                f"the answer is larger than {self._limit} bytes",
                help="ask for fewer lines, or search for something more specific",
            )


class LineIndex:
    """Newlines before each block of the content: 8 bytes per 64 KiB, however short the lines are."""

    __slots__ = ("_before", "_newlines", "size")

    def __init__(self) -> None:
        self._before = array("Q")
        self._newlines = 0
        self.size = 0

    def feed(self, chunk: bytes) -> None:
        """Index the next bytes; a chunk may have any size."""
        start = 0
        while start < len(chunk):
            room = BLOCK - self.size % BLOCK
            if room == BLOCK:
                self._before.append(self._newlines)
            end = min(start + room, len(chunk))
            self._newlines += chunk.count(b"\n", start, end)
            self.size += end - start
            start = end

    @property
    def line_count(self) -> int:
        return self._newlines + 1 if self.size else 0

    def block_of(self, newline: int) -> tuple[int, int]:
        """Where to look for the n-th newline (from 0): a block's offset, and the newlines before it."""
        block = bisect_right(self._before, newline) - 1
        return block * BLOCK, self._before[block]

    def to_bytes(self) -> bytes:
        return array("Q", [BLOCK, self.size, self._newlines]).tobytes() + self._before.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, size: int) -> "LineIndex | None":
        """A stored index, or `None` if it does not belong to a content of that size."""
        numbers = array("Q")
        if len(data) % numbers.itemsize:
            return None
        numbers.frombytes(data)
        if len(numbers) != 3 + -(-size // BLOCK) or numbers[0] != BLOCK or numbers[1] != size:
            return None
        index = cls()
        index.size, index._newlines, index._before = size, numbers[2], numbers[3:]
        return index


class IndexedReader:
    """A spool reader. Subclasses say how to read a range of bytes."""

    def __init__(self, index: LineIndex) -> None:
        self._index = index

    def read_range(self, offset: int, length: int) -> bytes:
        raise NotImplementedError

    def byte_length(self) -> int:
        return self._index.size

    def line_count(self) -> int:
        return self._index.line_count

    def read_all(self) -> str:
        return decode(self.read_range(0, self._index.size), first=True)

    def line(self, index: int) -> str | None:
        if not 0 <= index < self._index.line_count:
            return None
        return next(self.lines(index, index + 1))

    def lines(self, start: int, end: int) -> Iterator[str]:
        """Lines `[start, end)` inside the content, read block by block."""
        allowance = Allowance()
        offset = self._line_start(start)
        unfinished: list[bytes] = []
        while start < end:
            chunk = self.read_range(offset, BLOCK)
            offset += len(chunk)
            *complete, rest = chunk.split(b"\n")
            for text in complete[: end - start]:
                allowance.take(len(text))
                yield decode(b"".join((*unfinished, text)), first=start == 0)
                start += 1
                unfinished = []
            if start < end and offset >= self._index.size:
                allowance.take(len(rest))
                yield decode(b"".join((*unfinished, rest)), first=start == 0)
                return
            allowance.take(len(rest))
            unfinished.append(rest)

    def search(self, pattern: Pattern) -> Iterator[str]:
        """Every line in which the pattern is found, in order."""
        allowance = Allowance()
        for buffer in self._buffers():
            for line in _matching_lines(buffer, pattern):
                allowance.take(len(line))
                yield line.decode()

    def _buffers(self) -> Iterator[bytes]:
        """The content as valid UTF-8, cut between lines (the newline at a cut is left out)."""
        pending = b""
        first = True
        for offset in range(0, self._index.size, _SCAN):
            chunk = pending + self.read_range(offset, _SCAN)
            cut = len(chunk) if offset + _SCAN >= self._index.size else chunk.rfind(b"\n")
            pending = chunk[cut + 1 :]
            if cut < 0:
                _refuse_long_line(pending)
                continue
            yield _valid_utf8(chunk[:cut], first)
            first = False

    def _line_start(self, line: int) -> int:
        if line == 0:
            return 0
        offset, before = self._index.block_of(line - 1)
        block = self.read_range(offset, BLOCK)
        rest = block.split(b"\n", line - before)[-1]
        return offset + len(block) - len(rest)


def _matching_lines(buffer: bytes, pattern: Pattern) -> Iterator[bytes]:
    position = 0
    while position <= len(buffer):
        match = pattern.scanner.search(buffer, position)
        if match is None:
            return
        start = buffer.rfind(b"\n", 0, match.start()) + 1
        end = buffer.find(b"\n", match.start())
        end = len(buffer) if end < 0 else end
        yield buffer[start:end]
        position = end + 1


def _valid_utf8(buffer: bytes, first: bool) -> bytes:
    if first and buffer.startswith(_BOM):
        buffer = buffer[len(_BOM) :]
    if buffer.isascii():
        return buffer
    try:
        buffer.decode()
    except UnicodeDecodeError:
        return buffer.decode("utf-8", "replace").encode()
    return buffer


def _refuse_long_line(pending: bytes) -> None:
    if len(pending) > MAX_GREP_LINE:
        raise AnswerTooLarge(
            f"a line is longer than {MAX_GREP_LINE} bytes and cannot be searched",
            help="query the artifact by its structure, or download it",
        )

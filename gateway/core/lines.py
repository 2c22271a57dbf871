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
from zlib import crc32

from gateway.core.patterns import Pattern
from gateway.errors import AnswerTooLarge, ArtifactGone

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
        """The index for storing: three numbers, one per block, and a checksum over all of them."""
        numbers = array("Q", [BLOCK, self.size, self._newlines]).tobytes() + self._before.tobytes()
        return numbers + array("Q", [crc32(numbers)]).tobytes()

    @staticmethod
    def stored_size(size: int) -> int:
        """How many bytes `to_bytes` gives for a content of that size."""
        return 8 * (4 - (-size // BLOCK))

    @classmethod
    def from_bytes(cls, data: bytes, size: int) -> "LineIndex | None":
        """A stored index, or `None` if it is damaged or does not belong to a content of that size."""
        if len(data) != cls.stored_size(size):
            return None
        numbers = array("Q", data)
        if numbers[0] != BLOCK or numbers[1] != size or numbers.pop() != crc32(data[:-8]):
            return None
        index = cls()
        index.size, index._newlines, index._before = size, numbers[2], numbers[3:]
        return index


class IndexedReader:
    """A spool reader. Subclasses say how to read a range of bytes; what they give is checked against the index."""

    def __init__(self, index: LineIndex) -> None:
        self._index = index

    def read_range(self, offset: int, length: int) -> bytes:
        raise NotImplementedError

    def byte_length(self) -> int:
        return self._index.size

    def line_count(self) -> int:
        return self._index.line_count

    def read_all(self) -> str:
        return decode(self._read(0, self._index.size), first=True)

    def line(self, index: int) -> str | None:
        return next(self.lines(index, index + 1), None) if index >= 0 else None

    def lines(self, start: int, end: int) -> Iterator[str]:
        """Lines `[start, end)` as far as there are any, read block by block."""
        start, end = max(start, 0), min(end, self._index.line_count)
        if start >= end:
            return
        allowance = Allowance()
        offset = self._line_start(start)
        unfinished: list[bytes] = []
        while start < end:
            chunk = self._read(offset, BLOCK)
            offset += len(chunk)
            *complete, rest = chunk.split(b"\n", end - start)
            for text in complete:
                allowance.take(len(text))
                yield decode(b"".join((*unfinished, text)), first=start == 0)
                start += 1
                unfinished = []
            if start < end:
                allowance.take(len(rest))
                unfinished.append(rest)
            if start < end and offset >= self._index.size:
                yield decode(b"".join(unfinished), first=start == 0)
                return

    def search(self, pattern: Pattern) -> Iterator[str]:
        """Every line in which the pattern is found, in order."""
        allowance = Allowance()
        for buffer in self._buffers():
            for line in _matching_lines(buffer, pattern):
                allowance.take(len(line))
                yield line.decode()

    def _buffers(self) -> Iterator[bytes]:
        """The content as valid UTF-8, cut between lines (the newline at a cut is left out)."""
        size = self._index.size
        unfinished: list[bytes] = []
        first = True
        for offset in range(0, size, _SCAN):
            chunk = self._read(offset, _SCAN)
            _refuse_long_line(unfinished, chunk)
            cut = len(chunk) if offset + _SCAN >= size else chunk.rfind(b"\n")
            if cut < 0:
                unfinished.append(chunk)
                continue
            yield _valid_utf8(b"".join((*unfinished, chunk[:cut])), first)
            unfinished = [chunk[cut + 1 :]]
            first = False

    def _line_start(self, line: int) -> int:
        if line == 0:
            return 0
        offset, before = self._index.block_of(line - 1)
        block = self._read(offset, BLOCK)
        rest = block.split(b"\n", line - before)[-1]
        return offset + len(block) - len(rest)

    def _read(self, offset: int, length: int) -> bytes:
        data = self.read_range(offset, length)
        if len(data) < min(length, self._index.size - offset):
            raise ArtifactGone("the artifact's bytes were cut short outside the gateway")
        return data


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


def _refuse_long_line(unfinished: list[bytes], chunk: bytes) -> None:
    """Only the first line of a chunk can be too long: all others begin and end within it."""
    newline = chunk.find(b"\n")
    length = sum(map(len, unfinished)) + (len(chunk) if newline < 0 else newline)
    if length > MAX_GREP_LINE:
        raise AnswerTooLarge(
            f"a line is longer than {MAX_GREP_LINE} bytes and cannot be searched",
            help="query the artifact by its structure, or download it",
        )

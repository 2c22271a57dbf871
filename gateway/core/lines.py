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

from gateway.core.abandoning import step
from gateway.core.patterns import Pattern
from gateway.core.searching import Bounds, Collecting, Page, Source, Stretch, page_of, stretches
from gateway.errors import AnswerTooLarge, ArtifactGone

BLOCK: Final = 64 * 1024

_BOM: Final = b"\xef\xbb\xbf"
EVERYTHING: Final = Bounds()
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
        if not self.size and 0 < len(chunk) < BLOCK:  # which is what most contents are, as a whole
            self._before.append(0)
            self._newlines = chunk.count(b"\n")
            self.size = len(chunk)
            return
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

    def before(self, offset: int) -> int:
        """Newlines before the block in which an offset of the content lies; at its end, all of them."""
        return self._before[offset // BLOCK] if offset < self.size else self._newlines

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

    is_remote = False
    """Whether a read waits for another machine: it is never done where others would wait, too."""

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
        for stretch in self._stretches(pattern, 0):
            for start, end in stretch.matches(pattern):
                allowance.take(end - start)
                yield stretch.text(start, end)

    def page(self, pattern: Pattern, *, start: int = 0, bounds: Bounds = EVERYTHING) -> Page:
        """Lines in which the pattern is found, from line `start` on, as many as `bounds` let in."""
        return page_of(self._stretches(pattern, start), pattern, into=Collecting(bounds, take=Allowance().take))

    def _stretches(self, pattern: Pattern, line: int) -> Iterator[Stretch]:
        if line >= self._index.line_count:
            return iter(())
        source = Source(self._read, self._index.size, self._line_of)
        return stretches(source, pattern, offset=self._line_start(line))

    def _line_of(self, offset: int) -> int:
        """The number of the line that starts at an offset."""
        start = min(offset, self._index.size) // BLOCK * BLOCK
        return self._index.before(start) + self._read(start, offset - start).count(b"\n")

    def _line_start(self, line: int) -> int:
        if line <= 0:
            return 0
        offset, before = self._index.block_of(line - 1)
        block = self._read(offset, BLOCK)
        rest = block.split(b"\n", line - before)[-1]
        return offset + len(block) - len(rest)

    def _read(self, offset: int, length: int) -> bytes:
        step()
        data = self.read_range(offset, length)
        if len(data) < min(length, self._index.size - offset):
            raise ArtifactGone("the artifact's bytes were cut short outside the gateway")
        return data

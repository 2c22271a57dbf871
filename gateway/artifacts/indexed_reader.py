r"""Lines of spooled text, for readers that can read a range of bytes.

Lines end at `\n` only (a CR stays part of its line), empty content has no lines, and a trailing
newline yields a final empty line. Text is decoded as UTF-8 with replacement characters, without a
leading byte-order mark; the stored bytes never change. With a sparse index, any line of a large
content is found by reading one block.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from zlib import crc32

from gateway.artifacts.javascript_regex import Pattern
from gateway.artifacts.search import (
    MatchCollector,
    SearchChunk,
    SearchLimits,
    SearchPage,
    SearchSource,
    iter_search_chunks,
    search_page,
)
from gateway.errors import AnswerTooLarge, ArtifactGone
from gateway.model import check_cancelled

BLOCK: Final = 64 * 1024

_BOM: Final = b"\xef\xbb\xbf"
WHOLE_CONTENT: Final = SearchLimits()
_LINE_OVERHEAD: Final = 64
"""Bytes that a Python string needs besides its text, so that many tiny lines are counted, too."""

_answer_limit: ContextVar[int | None] = ContextVar("answer_limit", default=None)


def encode_utf8(text: str) -> bytes:
    """Encode as UTF-8; a lone surrogate becomes U+FFFD, as in JavaScript's TextEncoder."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def decode_utf8(data: bytes, *, first: bool) -> str:
    """Decode stored bytes; `first` means that they are the start of the content."""
    if first and data.startswith(_BOM):
        data = data[len(_BOM) :]
    return data.decode("utf-8", "replace")


@contextmanager
def limit_answer(limit: int | None) -> Iterator[None]:
    """Limit the lines collected inside the block; raise `AnswerTooLarge` past `limit` bytes."""
    token = _answer_limit.set(limit)
    try:
        yield
    finally:
        _answer_limit.reset(token)


class ByteBudget:
    """The remaining bytes of the answer limit that applied when the budget was created."""

    def __init__(self) -> None:
        self._limit = self._left = _answer_limit.get()

    def spend(self, size: int) -> None:
        if self._left is None:
            return
        self._left -= size + _LINE_OVERHEAD
        if self._left < 0:
            raise AnswerTooLarge(
                f"the answer is larger than {self._limit} bytes",
                help="ask for fewer lines, or search for something more specific",
            )


class LineIndex:
    """The number of newlines before each block of the content: 8 bytes per 64 KiB, for lines of any length."""

    __slots__ = ("_before", "_newlines", "size")

    def __init__(self) -> None:
        self._before = array("Q")
        self._newlines = 0
        self.size = 0

    def feed(self, chunk: bytes) -> None:
        """Index the next bytes; a chunk may have any size."""
        if not self.size and 0 < len(chunk) < BLOCK:  # most contents are one small chunk
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
        """Return the offset of the block that has the n-th newline (from 0), and the newlines before the block."""
        block = bisect_right(self._before, newline) - 1
        return block * BLOCK, self._before[block]

    def block_before(self, offset: int) -> int:
        """Return the newlines before the block that contains an offset; all newlines for the end of the content."""
        return self._before[offset // BLOCK] if offset < self.size else self._newlines

    def to_bytes(self) -> bytes:
        """Serialise the index: three numbers, one number per block, and a checksum of them."""
        numbers = array("Q", [BLOCK, self.size, self._newlines]).tobytes() + self._before.tobytes()
        return numbers + array("Q", [crc32(numbers)]).tobytes()

    @staticmethod
    def stored_size(size: int) -> int:
        """Return how many bytes `to_bytes` returns for a content of that size."""
        return 8 * (4 - (-size // BLOCK))

    @classmethod
    def from_bytes(cls, data: bytes, size: int) -> "LineIndex | None":
        """Return a stored index; `None` if it is damaged or belongs to a content of another size."""
        if len(data) != cls.stored_size(size):
            return None
        numbers = array("Q", data)
        if numbers[0] != BLOCK or numbers[1] != size or numbers.pop() != crc32(data[:-8]):
            return None
        index = cls()
        index.size, index._newlines, index._before = size, numbers[2], numbers[3:]
        return index


class IndexedReader:
    """A spool reader. Subclasses implement `read_range`; the size of its result is checked against the index."""

    is_remote = False
    """Whether reads wait for another machine: then they never run in the event loop."""

    def __init__(self, index: LineIndex) -> None:
        self._index = index

    def read_range(self, offset: int, length: int) -> bytes:
        raise NotImplementedError

    def byte_length(self) -> int:
        return self._index.size

    def line_count(self) -> int:
        return self._index.line_count

    def read_all(self) -> str:
        return decode_utf8(self._read(0, self._index.size), first=True)

    def line(self, index: int) -> str | None:
        return next(self.lines(index, index + 1), None) if index >= 0 else None

    def lines(self, start: int, end: int) -> Iterator[str]:
        """Yield the existing lines of `[start, end)`, read block by block."""
        start, end = max(start, 0), min(end, self._index.line_count)
        if start >= end:
            return
        budget = ByteBudget()
        offset = self._line_start(start)
        unfinished: list[bytes] = []
        while start < end:
            chunk = self._read(offset, BLOCK)
            offset += len(chunk)
            *complete, rest = chunk.split(b"\n", end - start)
            for text in complete:
                budget.spend(len(text))
                yield decode_utf8(b"".join((*unfinished, text)), first=start == 0)
                start += 1
                unfinished = []
            if start < end:
                budget.spend(len(rest))
                unfinished.append(rest)
            if start < end and offset >= self._index.size:
                yield decode_utf8(b"".join(unfinished), first=start == 0)
                return

    def search(self, pattern: Pattern) -> Iterator[str]:
        """Yield every line that the pattern matches, in order."""
        budget = ByteBudget()
        for chunk in self._chunks(pattern, 0):
            for start, end in chunk.matches(pattern):
                budget.spend(end - start)
                yield chunk.text(start, end)

    def page(self, pattern: Pattern, *, start: int = 0, bounds: SearchLimits = WHOLE_CONTENT) -> SearchPage:
        """Return the lines that the pattern matches, from line `start` on, within `bounds`."""
        return search_page(self._chunks(pattern, start), pattern, into=MatchCollector(bounds, take=ByteBudget().spend))

    def _chunks(self, pattern: Pattern, line: int) -> Iterator[SearchChunk]:
        if line >= self._index.line_count:
            return iter(())
        source = SearchSource(self._read, self._index.size, self._line_of)
        return iter_search_chunks(source, pattern, offset=self._line_start(line))

    def _line_of(self, offset: int) -> int:
        """Return the number of the line that starts at an offset."""
        start = min(offset, self._index.size) // BLOCK * BLOCK
        return self._index.block_before(start) + self._read(start, offset - start).count(b"\n")

    def _line_start(self, line: int) -> int:
        if line <= 0:
            return 0
        offset, before = self._index.block_of(line - 1)
        block = self._read(offset, BLOCK)
        rest = block.split(b"\n", line - before)[-1]
        return offset + len(block) - len(rest)

    def _read(self, offset: int, length: int) -> bytes:
        check_cancelled()
        data = self.read_range(offset, length)
        if len(data) < min(length, self._index.size - offset):
            raise ArtifactGone("the artifact's bytes were truncated outside the gateway")
        return data

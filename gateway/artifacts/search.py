"""Search content line by line: all of it, or a page at a time. A search can end after each chunk.

A chunk is short enough that even the slowest pattern takes a moment: RE2 takes linear time, but up to 7 ns per byte and
instruction of the pattern, and cannot be interrupted. This module does not depend on readers or the line index.

A page request is a context variable, not a parameter of the query method, so artifact classes that override the method
are paged, too.
"""

from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final

from gateway.artifacts.javascript_regex import Pattern
from gateway.errors import AnswerTooLarge
from gateway.model import check_cancelled, run_in_thread

WINDOW: Final = 1 << 20
"""Bytes read at a time, unless a line is longer."""

MAX_GREP_LINE: Final = 16 << 20
"""A longer line is not searched: it would have to be held in memory, and would not fit into an answer."""

CHUNK_WORK: Final = 8 << 20
"""Bytes times instructions of one chunk: 50 ms in the worst case, far less for most patterns and texts."""

LINE_WORK: Final = 1 << 30
"""The same for one line, which cannot be split: some seconds in the worst case."""

_BOM: Final = b"\xef\xbb\xbf"
_PIECE: Final = 256 << 10

Buffer = bytes | bytearray


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """The limits of a page: it ends at the first one reached; `None` is unlimited."""

    lines: int | None = None
    text: int | None = None
    """Bytes of matching lines; a single line may be longer."""
    seconds: float | None = None
    """A page with a time limit may also end before a line that is too long to search."""


@dataclass(frozen=True, slots=True)
class SearchPage:
    """Matching lines, and the line to continue from: `None` if the content was searched to its end."""

    lines: list[str]
    next_line: int | None = None
    matches_next: bool = False
    """Whether `next_line` is known to match; otherwise it has not been searched yet."""


@dataclass(frozen=True, slots=True)
class SearchSource:
    """Content of `size` bytes; `line_of` returns the number of the line that starts at an offset."""

    read: Callable[[int, int], bytes]
    size: int
    line_of: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class SearchWindow:
    """Whole lines of valid UTF-8, `buffer[:end]`, made from the source's bytes at `offset`."""

    source: SearchSource
    offset: int
    buffer: Buffer
    end: int

    def line_of(self, position: int) -> int:
        """Return the number of the line at a position. Slow: it counts newlines."""
        return self.source.line_of(self.offset) + self.buffer.count(b"\n", 0, position)


@dataclass(frozen=True, slots=True)
class SearchChunk:
    """Consecutive lines of a window, `buffer[start:end]`."""

    window: SearchWindow
    start: int
    end: int

    def matches(self, pattern: Pattern) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each matching line, in order."""
        buffer, position = self.window.buffer, self.start
        while position <= self.end:
            match = pattern.scanner.search(buffer, position, self.end)
            if match is None:
                return
            start = buffer.rfind(b"\n", position, match.start()) + 1 or position
            end = buffer.find(b"\n", match.start(), self.end)
            end = self.end if end < 0 else end
            yield start, end
            position = end + 1

    def text(self, start: int, end: int) -> str:
        return self.window.buffer[start:end].decode()


def iter_search_chunks(source: SearchSource, pattern: Pattern, *, offset: int = 0) -> Iterator[SearchChunk]:
    """Yield the content from `offset` on, which is the start of a line. Raises `AnswerTooLarge` for a long line."""
    length, longest = CHUNK_WORK // pattern.instructions, _longest(pattern)
    for window in _windows(source, offset):
        start = 0
        while start <= window.end:
            check_cancelled()
            end = _chunk_end(window, start, length)
            if end - start > longest:
                raise _too_long(window.line_of(start), longest)
            yield SearchChunk(window, start, end)
            start = end + 1


class MatchCollector:
    """A page that is being filled. `take` is called with the size of each line before it is added, and may raise."""

    def __init__(
        self, bounds: SearchLimits, *, take: Callable[[int], None], clock: Callable[[], float] = monotonic
    ) -> None:
        self.lines: list[str] = []
        self.ends_anywhere = bounds.seconds is not None
        self._bounds = bounds
        self._take = take
        self._clock = clock
        self._ends = None if bounds.seconds is None else clock() + bounds.seconds
        self._text = -1  # n lines have n - 1 line feeds between them

    def has_room(self, size: int) -> bool:
        """Whether a line of that size still fits. The first line always does."""
        self._text += size + 1
        has_text = self._bounds.text is not None and self._text > self._bounds.text
        return not self.lines or not (has_text or self._is_full())

    def take(self, size: int, *, line: Callable[[], int]) -> None:
        try:
            self._take(size)
        except AnswerTooLarge as error:
            if self.lines:
                raise
            number = line()
            raise AnswerTooLarge(f"line {number} alone is too large for one answer", help=_next_step(number)) from error

    def is_full(self) -> bool:
        """Whether the search can stop: enough lines were found, or the time is up."""
        return self._is_full() or (self._ends is not None and self._clock() >= self._ends)

    def _is_full(self) -> bool:
        return len(self.lines) == self._bounds.lines


def search_page(found: Iterator[SearchChunk], pattern: Pattern, *, into: MatchCollector) -> SearchPage:
    """Search until the page is full or the time is up; at least one chunk is searched."""
    searched: SearchChunk | None = None
    while True:
        try:
            chunk = next(found, None)
        except AnswerTooLarge:
            if searched is None or not into.ends_anywhere:
                raise
            return SearchPage(into.lines, searched.window.line_of(searched.end) + 1)
        if chunk is None:
            return SearchPage(into.lines)
        if searched is not None and into.is_full():
            return SearchPage(into.lines, chunk.window.line_of(chunk.start))
        searched = chunk
        for start, end in chunk.matches(pattern):
            if not into.has_room(end - start):
                return SearchPage(into.lines, chunk.window.line_of(start), matches_next=True)
            into.take(end - start, line=partial(chunk.window.line_of, start))
            into.lines.append(chunk.text(start, end))


async def search_lines(lines: AsyncIterator[tuple[int, str]], pattern: Pattern, *, into: MatchCollector) -> SearchPage:
    """Like `search_page`, for lines with their numbers; long lines are searched in a thread."""
    longest, length = _longest(pattern), min(_PIECE, CHUNK_WORK // pattern.instructions)
    searched = 0
    async for number, line in lines:
        size = len(line)
        if (searched > length and into.is_full()) or (searched and into.ends_anywhere and size > longest):
            return SearchPage(into.lines, number)
        if size > longest:
            raise _too_long(number, longest)
        searched += size + 1
        if size * pattern.instructions <= CHUNK_WORK:
            is_match = pattern.matches(line)
        else:
            is_match = await run_in_thread(partial(pattern.matches, line))
        if is_match and not into.has_room(size):
            return SearchPage(into.lines, number, matches_next=True)
        if is_match:
            into.take(size, line=partial(int, number))
            into.lines.append(line)
    return SearchPage(into.lines)


def _windows(source: SearchSource, offset: int) -> Iterator[SearchWindow]:
    length = WINDOW
    while True:
        chunk = source.read(offset, length)
        is_last = offset + len(chunk) >= source.size
        # An enlarged window is for one long line; the lines after it go into the next window.
        end = chunk.find(b"\n") if length > WINDOW else len(chunk) if is_last else chunk.rfind(b"\n")
        if end < 0 and not is_last:
            if len(chunk) > MAX_GREP_LINE:
                raise _too_long(source.line_of(offset), MAX_GREP_LINE)
            length = min(2 * length, MAX_GREP_LINE + 1)
            continue
        end = len(chunk) if end < 0 else end
        yield _window(source, offset, chunk, end)
        if is_last and end == len(chunk):
            return
        offset += end + 1
        length = WINDOW


def _window(source: SearchSource, offset: int, chunk: bytes, end: int) -> SearchWindow:
    if offset == 0 and chunk.startswith(_BOM):
        chunk, end = chunk[len(_BOM) :], end - len(_BOM)
    if chunk.isascii() or _is_utf8(chunk, end):
        return SearchWindow(source, offset, chunk, end)
    repaired = bytearray()
    for piece in _pieces(chunk, end, "replace"):
        repaired += piece.encode()
        if end > WINDOW and len(repaired) > MAX_GREP_LINE:  # an invalid byte becomes three bytes
            raise _too_long(source.line_of(offset), MAX_GREP_LINE)
    return SearchWindow(source, offset, repaired, len(repaired))


def _is_utf8(chunk: bytes, end: int) -> bool:
    try:
        for _ in _pieces(chunk, end, "strict"):
            pass
    except UnicodeDecodeError:
        return False
    return True


def _pieces(chunk: bytes, end: int, errors: str) -> Iterator[str]:
    """Yield the text of the first `end` bytes in pieces: as a whole it may need four times the memory."""
    decoder = getincrementaldecoder("utf-8")(errors)
    for start in range(0, end, _PIECE):
        stop = min(start + _PIECE, end)
        yield decoder.decode(chunk[start:stop], final=stop == end)


def _chunk_end(window: SearchWindow, start: int, length: int) -> int:
    if window.end - start <= length:
        return window.end
    cut = window.buffer.rfind(b"\n", start, start + length + 1)
    cut = window.buffer.find(b"\n", start + length, window.end) if cut < 0 else cut
    return window.end if cut < 0 else cut


def _longest(pattern: Pattern) -> int:
    return min(MAX_GREP_LINE, LINE_WORK // pattern.instructions)


def _too_long(line: int, longest: int) -> AnswerTooLarge:
    for_pattern = "" if longest == MAX_GREP_LINE else " for a pattern like this"
    return AnswerTooLarge(
        f"line {line} is longer than {longest} bytes and cannot be searched{for_pattern}",
        help=_next_step(line),
    )


def _next_step(line: int) -> str:
    return f"continue with fromLine {line + 1}, query the artifact by its structure, or download it"


PAGE_BYTES: Final = 64 << 10
"""Bytes of text in one page. A smaller artifact needs one page, unless `limit` is lower."""

FIRST_SECONDS: Final = 0.15
NEXT_SECONDS: Final = 1.0
"""Later pages take longer: the caller knows that there is much to search, and prefers fewer requests."""

PAGE_ARGUMENTS: Final[dict[str, Any]] = {
    "limit": {
        "type": "integer",
        "minimum": 1,
        "description": f"At most this many lines in one answer; without it, about {PAGE_BYTES >> 10} KiB of lines.",
    },
    "fromLine": {
        "type": "integer",
        "minimum": 0,
        "description": "Line to start from, counted from 0: the fromLine that the previous answer named.",
    },
}


class PageRequest:
    """One request for a page of a query."""

    def __init__(self, limit: int | None = None, from_line: int = 0) -> None:
        self.limit = limit
        self.from_line = from_line
        self._ends: list[tuple[int, bool]] = []

    def limits(self, limit: int | None) -> SearchLimits:
        """Return the limits of the page; `limit` is the method's own limit of lines."""
        lines = min((each for each in (limit, self.limit) if each is not None), default=None)
        return SearchLimits(lines, PAGE_BYTES, NEXT_SECONDS if self.from_line else FIRST_SECONDS)

    def record_page(self, page: SearchPage) -> None:
        """Record where a page ended."""
        if page.next_line is not None:
            self._ends.append((page.next_line, page.matches_next))

    def append_continuation(self, text: str, *, tool: str, line_count: int) -> str:
        """Append a last line on how to continue, if the answer is incomplete."""
        note = self._note(tool, line_count)
        return f"{text}\n\n({note})" if note else text

    def _note(self, tool: str, line_count: int) -> str | None:
        if self.from_line and self.from_line >= line_count:
            return f"fromLine is past the end: the artifact has {line_count} lines, counted from 0"
        if not self._ends:
            return None
        line, matches = min(self._ends)  # a method that searches several times continues from the earliest
        known = "more lines match" if matches else "the rest was not searched yet"
        return (
            f"{known}: this answer ends before line {line} of {line_count}; call {tool} with fromLine {line} to go on"
        )


_current: ContextVar[PageRequest | None] = ContextVar("paged_query", default=None)


@contextmanager
def use_page_request(query: PageRequest | None) -> Iterator[None]:
    """Make searches inside the block use the page request `query`."""
    token = _current.set(query)
    try:
        yield
    finally:
        _current.reset(token)


def current_page_request() -> PageRequest | None:
    """Return the page request of this call; `None` outside of one."""
    return _current.get()

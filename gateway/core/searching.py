"""Searching content line by line: all of it, or a page at a time, in stretches between which a search can end.

A stretch is so short that even the worst pattern is through with it in a moment: RE2 takes linear time, but up to 7 ns
per byte and instruction of the pattern, and cannot be interrupted. What a reader is, and how lines are found by their
number, is not known here.
"""

from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final

from gateway.core.abandoning import in_thread, step
from gateway.core.patterns import Pattern
from gateway.errors import AnswerTooLarge

WINDOW: Final = 1 << 20
"""Bytes read at a time, unless a line is longer."""

MAX_GREP_LINE: Final = 16 << 20
"""A longer line is not searched: it would have to be held in memory, and no answer could carry it."""

STRETCH_WORK: Final = 8 << 20
"""Bytes times instructions: about 50 ms at worst, and far less for most patterns and texts."""

LINE_WORK: Final = 1 << 30
"""The same for one line, which cannot be cut: some seconds at worst."""

_BOM: Final = b"\xef\xbb\xbf"
_PIECE: Final = 256 << 10

Buffer = bytes | bytearray


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a page ends: whichever comes first. `None` never comes."""

    lines: int | None = None
    text: int | None = None
    """Bytes of matching lines; a single line may be longer."""
    seconds: float | None = None
    """A page that is bounded in time may also end before a line that cannot be searched."""


@dataclass(frozen=True, slots=True)
class Page:
    """Lines that match, and the line to go on from: `None` if the content was searched to its end."""

    lines: list[str]
    next_line: int | None = None
    matches_next: bool = False
    """Whether that line is known to match; otherwise nobody looked yet."""


@dataclass(frozen=True, slots=True)
class Source:
    """Content of `size` bytes; `line_of` tells the number of the line that starts at an offset."""

    read: Callable[[int, int], bytes]
    size: int
    line_of: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Window:
    """Whole lines of valid UTF-8, `buffer[:end]`, in place of the source's bytes from `offset` on."""

    source: Source
    offset: int
    buffer: Buffer
    end: int

    def line_of(self, position: int) -> int:
        """The number of the line at a position. Counting is slow: only for those who have to know."""
        return self.source.line_of(self.offset) + self.buffer.count(b"\n", 0, position)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some of the lines of a window, `buffer[start:end]`."""

    window: Window
    start: int
    end: int

    def matches(self, pattern: Pattern) -> Iterator[tuple[int, int]]:
        """Where each matching line starts and ends, in order."""
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


def stretches(source: Source, pattern: Pattern, *, offset: int = 0) -> Iterator[Stretch]:
    """The content from `offset` on, where a line starts. Raises `AnswerTooLarge` at a line that is too long."""
    length, longest = STRETCH_WORK // pattern.instructions, _longest(pattern)
    for window in _windows(source, offset):
        start = 0
        while start <= window.end:
            step()
            end = _stretch_end(window, start, length)
            if end - start > longest:
                raise _too_long(window.line_of(start), longest)
            yield Stretch(window, start, end)
            start = end + 1


class Collecting:
    """A page that is being filled. `take` is told the size of every line before it goes in, and may raise."""

    def __init__(self, bounds: Bounds, *, take: Callable[[int], None], clock: Callable[[], float] = monotonic) -> None:
        self.lines: list[str] = []
        self.ends_anywhere = bounds.seconds is not None
        self._bounds = bounds
        self._take = take
        self._clock = clock
        self._ends = None if bounds.seconds is None else clock() + bounds.seconds
        self._text = -1  # of n lines there are n - 1 line feeds between

    def admits(self, size: int) -> bool:
        """Whether a line of that size still goes in. The first one always does."""
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
            raise AnswerTooLarge(f"line {number} alone is more than one answer may be", help=_way_on(number)) from error

    def is_over(self) -> bool:
        """Whether there is no use in searching on."""
        return self._is_full() or (self._ends is not None and self._clock() >= self._ends)

    def _is_full(self) -> bool:
        return len(self.lines) == self._bounds.lines


def page_of(found: Iterator[Stretch], pattern: Pattern, *, into: Collecting) -> Page:
    """What matches, until it is enough or time is up; at least one stretch is searched."""
    searched: Stretch | None = None
    while True:
        try:
            stretch = next(found, None)
        except AnswerTooLarge:
            if searched is None or not into.ends_anywhere:
                raise
            return Page(into.lines, searched.window.line_of(searched.end) + 1)
        if stretch is None:
            return Page(into.lines)
        if searched is not None and into.is_over():
            return Page(into.lines, stretch.window.line_of(stretch.start))
        searched = stretch
        for start, end in stretch.matches(pattern):
            if not into.admits(end - start):
                return Page(into.lines, stretch.window.line_of(start), matches_next=True)
            into.take(end - start, line=partial(stretch.window.line_of, start))
            into.lines.append(stretch.text(start, end))


async def page_of_lines(lines: AsyncIterator[tuple[int, str]], pattern: Pattern, *, into: Collecting) -> Page:
    """The same over lines with their numbers; each is searched where it does not hold others up."""
    longest, stretch = _longest(pattern), min(_PIECE, STRETCH_WORK // pattern.instructions)
    searched = 0
    async for number, line in lines:
        size = len(line)
        if (searched > stretch and into.is_over()) or (searched and into.ends_anywhere and size > longest):
            return Page(into.lines, number)
        if size > longest:
            raise _too_long(number, longest)
        searched += size + 1
        if size * pattern.instructions <= STRETCH_WORK:
            is_match = pattern.matches(line)
        else:
            is_match = await in_thread(partial(pattern.matches, line))
        if is_match and not into.admits(size):
            return Page(into.lines, number, matches_next=True)
        if is_match:
            into.take(size, line=partial(int, number))
            into.lines.append(line)
    return Page(into.lines)


def _windows(source: Source, offset: int) -> Iterator[Window]:
    length = WINDOW
    while True:
        chunk = source.read(offset, length)
        is_last = offset + len(chunk) >= source.size
        # A window that was made larger is for one long line; what follows is left to the next.
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


def _window(source: Source, offset: int, chunk: bytes, end: int) -> Window:
    if offset == 0 and chunk.startswith(_BOM):
        chunk, end = chunk[len(_BOM) :], end - len(_BOM)
    if chunk.isascii() or _is_utf8(chunk, end):
        return Window(source, offset, chunk, end)
    repaired = bytearray()
    for piece in _pieces(chunk, end, "replace"):
        repaired += piece.encode()
        if end > WINDOW and len(repaired) > MAX_GREP_LINE:  # three bytes for each that is wrong
            raise _too_long(source.line_of(offset), MAX_GREP_LINE)
    return Window(source, offset, repaired, len(repaired))


def _is_utf8(chunk: bytes, end: int) -> bool:
    try:
        for _ in _pieces(chunk, end, "strict"):
            pass
    except UnicodeDecodeError:
        return False
    return True


def _pieces(chunk: bytes, end: int, errors: str) -> Iterator[str]:
    """The text of the first `end` bytes, bit by bit: the whole may take four times the memory."""
    decoder = getincrementaldecoder("utf-8")(errors)
    for start in range(0, end, _PIECE):
        stop = min(start + _PIECE, end)
        yield decoder.decode(chunk[start:stop], final=stop == end)


def _stretch_end(window: Window, start: int, length: int) -> int:
    if window.end - start <= length:
        return window.end
    cut = window.buffer.rfind(b"\n", start, start + length + 1)
    cut = window.buffer.find(b"\n", start + length, window.end) if cut < 0 else cut
    return window.end if cut < 0 else cut


def _longest(pattern: Pattern) -> int:
    return min(MAX_GREP_LINE, LINE_WORK // pattern.instructions)


def _too_long(line: int, longest: int) -> AnswerTooLarge:
    such = "" if longest == MAX_GREP_LINE else " for a pattern like this"
    return AnswerTooLarge(
        f"line {line} is longer than {longest} bytes and cannot be searched{such}",
        help=_way_on(line),
    )


def _way_on(line: int) -> str:
    return f"search on with fromLine {line + 1}, query the artifact by its structure, or download it"

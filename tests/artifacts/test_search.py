"""Stretches and pages of a search: their contents, their ends, and garbage input."""

import random
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.artifacts.indexed_reader import WHOLE_CONTENT, IndexedReader
from gateway.artifacts.javascript_regex import Pattern
from gateway.artifacts.search import (
    CHUNK_WORK,
    MAX_GREP_LINE,
    WINDOW,
    MatchCollector,
    SearchChunk,
    SearchLimits,
    SearchPage,
    SearchSource,
    iter_search_chunks,
    search_lines,
    search_page,
)
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.errors import AnswerTooLarge

pytestmark = pytest.mark.anyio

HUGE = ".{1000}c"


class Clock:
    """Advances by a second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def collecting(bounds: SearchLimits) -> MatchCollector:
    return MatchCollector(bounds, take=lambda size: None, clock=Clock())


def of(data: bytes, pattern: Pattern, *, offset: int = 0) -> Iterator[SearchChunk]:
    source = SearchSource(
        lambda start, length: data[start : start + length], len(data), lambda start: data.count(b"\n", 0, start)
    )
    return iter_search_chunks(source, pattern, offset=offset)


def texts(found: Iterator[SearchChunk]) -> list[bytes]:
    return [bytes(each.window.buffer[each.start : each.end]) for each in found]


@pytest.mark.parametrize("pattern", ["a", HUGE, r"\p{L}+"])
def test_stretches_are_whole_lines_and_short(pattern: str) -> None:
    data = b"".join(b"%d some words\n" % number for number in range(20_000))
    compiled = Pattern(pattern)

    found = texts(of(data, compiled))

    assert b"\n".join(found) == data
    assert max(map(len, found)) <= max(CHUNK_WORK // compiled.instructions, len(b"19999 some words"))


def test_page_ends_when_time_is_up_and_states_where() -> None:
    data = b"a\n" * (4 * WINDOW)
    pattern = Pattern("b")

    page = search_page(of(data, pattern), pattern, into=collecting(SearchLimits(seconds=3)))

    assert page.lines == []
    assert not page.matches_next
    assert page.next_line == sum(text.count(b"\n") + 1 for text in texts(of(data, pattern))[:3])


def test_page_without_time_still_searches_one_stretch() -> None:
    pattern = Pattern("a")

    page = search_page(of(b"a\n" * 3, pattern), pattern, into=collecting(SearchLimits(seconds=0)))

    assert page == SearchPage(["a", "a", "a"])


def test_full_page_looks_no_further_than_its_stretch() -> None:
    data = b"a\n" + b"b\n" * WINDOW + b"a"
    pattern = Pattern("a")

    page = search_page(of(data, pattern), pattern, into=collecting(SearchLimits(lines=1)))

    assert page.lines == ["a"]
    assert page.next_line is not None
    assert page.next_line < WINDOW
    assert not page.matches_next


async def test_lines_of_others_end_when_time_is_up() -> None:
    async def lines() -> AsyncIterator[tuple[int, str]]:
        for number in range(10):
            yield number, "a" * 100_000

    page = await search_lines(lines(), Pattern("b"), into=collecting(SearchLimits(seconds=1)))

    assert page == SearchPage([], 3)


def test_page_can_start_at_any_line() -> None:
    lines = [f"line {number} é" for number in range(100_000)]
    reader = InMemoryReader("\n".join(lines))

    for start in (0, 1, 4_000, 65_535, 99_999, 100_000, 10**12):
        page = reader.page(Pattern("7 "), start=start, bounds=SearchLimits(lines=1))
        assert page.lines == [line for line in lines[start : start + 20] if "7 " in line][:1]


@pytest.mark.parametrize("end", [b"", b"\n", b"\nlast"], ids=["alone", "newline", "more lines"])
@pytest.mark.parametrize(
    "line",
    [b"x" * (3 * WINDOW), b"\xff" * (3 * WINDOW), "😀".encode() * WINDOW, b"\xf0\x9f" * (2 * WINDOW)],
    ids=["ascii", "invalid", "astral", "cut astral"],
)
def test_long_line_is_searched_as_its_text(line: bytes, end: bytes) -> None:
    data = b"first\n" + line + end
    expected = data.decode("utf-8", "replace").split("\n")

    assert InMemoryReader(data).page(Pattern("")).lines == expected


def test_long_line_of_garbage_is_refused_for_the_text_it_would_be() -> None:
    data = b"\xff" * (MAX_GREP_LINE // 3 + 1)

    with pytest.raises(AnswerTooLarge, match="line 0 is longer"):
        InMemoryReader(data).page(Pattern("x"))
    assert InMemoryReader(b"\xff\n" * 3).page(Pattern("x")) == SearchPage([])


def test_line_without_end_is_refused_after_a_look() -> None:
    class Endless(IndexedReader):
        read = 0

        def read_range(self, offset: int, length: int) -> bytes:
            self.read += length
            return b"x" * min(length, self.byte_length() - offset)

    index = InMemoryReader(b"x" * (64 << 20))._index
    reader = Endless(index)

    with pytest.raises(AnswerTooLarge, match="line 0 is longer than"):
        reader.page(Pattern("y"))

    assert reader.read <= 3 * MAX_GREP_LINE


@pytest.mark.parametrize("source", ["", "x", r"\ufffd", r"[^\0-\x7f]", r"\0$"])
def test_binary_garbage_is_searched_as_its_text(source: str) -> None:
    data = random.Random(7).randbytes(3 * WINDOW)
    lines = data.decode("utf-8", "replace").split("\n")
    pattern = Pattern(source)

    assert InMemoryReader(data).page(pattern).lines == [line for line in lines if pattern.matches(line)]


@settings(deadline=None, max_examples=30)
@given(
    data=st.lists(st.sampled_from([b"a", b"\n", b"\r\n", "é".encode(), b"\xff", b"b" * 3_000]), max_size=60).map(
        b"".join
    ),
    source=st.sampled_from(["a", "^$", "b", r"(?:b|\ufffd){1,900}$", "é"]),
    limit=st.integers(1, 4),
)
def test_pages_one_after_the_other_are_everything(data: bytes, source: str, limit: int) -> None:
    reader, pattern = InMemoryReader(data), Pattern(source)
    found: list[str] = []
    line: int | None = 0

    while line is not None:
        page = reader.page(pattern, start=line, bounds=SearchLimits(lines=limit))
        found += page.lines
        line = page.next_line

    assert found == reader.page(pattern, bounds=WHOLE_CONTENT).lines == list(reader.search(pattern))

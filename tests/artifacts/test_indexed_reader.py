"""The line rules as a table and against a naive reference, over memory and files."""

import asyncio
import re
from array import array
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.artifacts.indexed_reader import (
    BLOCK,
    ByteBudget,
    IndexedReader,
    LineIndex,
    decode_utf8,
    encode_utf8,
    limit_answer,
)
from gateway.artifacts.javascript_regex import Pattern
from gateway.artifacts.search import MAX_GREP_LINE, WINDOW
from gateway.artifacts.spool_stores import FileReader, FileStore, InMemoryReader, InMemoryStore
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.errors import AnswerTooLarge, ArtifactGone

MakeReader = Callable[[bytes], IndexedReader]
BOM = b"\xef\xbb\xbf"


@pytest.fixture(scope="session", params=["memory", "memory store", "file", "file store"])
def make_reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MakeReader:
    """Builds a reader over bytes, each time in a different way."""
    folder: Path = tmp_path_factory.mktemp("lines")

    def of_file(data: bytes) -> IndexedReader:
        path = folder / f"{sha256(data).hexdigest()}.bytes"
        path.write_bytes(data)
        return FileReader(path)

    ways: dict[str, MakeReader] = {
        "memory": InMemoryReader,
        "memory store": lambda data: asyncio.run(InMemoryStore().write("id", data)),
        "file": of_file,
        "file store": lambda data: asyncio.run(FileStore(folder).write("id", data)),
    }
    return ways[request.param]


def reference(data: bytes) -> list[str]:
    """The rules in one line each: decode all of it, split at line feeds."""
    return data.removeprefix(BOM).decode("utf-8", "replace").split("\n") if data else []


TABLE = {
    "empty": (b"", []),
    "no newline": (b"a", ["a"]),
    "two lines": (b"a\nb", ["a", "b"]),
    "trailing newline": (b"a\nb\n", ["a", "b", ""]),
    "one newline": (b"\n", ["", ""]),
    "only newlines": (b"\n\n\n", ["", "", "", ""]),
    "leading newline": (b"\na", ["", "a"]),
    "crlf": (b"a\r\nb", ["a\r", "b"]),
    "trailing crlf": (b"a\r\n", ["a\r", ""]),
    "cr alone": (b"a\rb", ["a\rb"]),
    "other separators": ("a\u2028b\x85c\vd\fe\x1cf".encode(), ["a\u2028b\x85c\vd\fe\x1cf"]),
    "bom": (BOM + b"a\nb", ["a", "b"]),
    "bom alone": (BOM, [""]),
    "bom and newline": (BOM + b"\n", ["", ""]),
    "two boms": (BOM + BOM + b"a", ["\ufeffa"]),
    "bom in line two": (b"a\n" + BOM + b"b", ["a", "\ufeffb"]),
    "half a bom": (BOM[:2] + b"a", ["\ufffda"]),
    "invalid utf-8": (b"a\xffb\nc\xc3\nd", ["a\ufffdb", "c\ufffd", "d"]),
    "cut off character": (b"a\n\xe2\x82", ["a", "\ufffd"]),
    "character cut by a newline": (b"\xe2\x82\n\xac", ["\ufffd", "\ufffd"]),
    "overlong": (b"\xc0\x80", ["\ufffd\ufffd"]),
    "surrogate": (b"\xed\xa0\x80", ["\ufffd\ufffd\ufffd"]),
    "nul": (b"a\0b\n\0", ["a\0b", "\0"]),
    "astral": ("😀\n中".encode(), ["😀", "中"]),
}


@pytest.mark.parametrize(("data", "lines"), TABLE.values(), ids=TABLE)
def test_content_splits_into_lines(make_reader: MakeReader, data: bytes, lines: list[str]) -> None:
    reader = make_reader(data)

    assert reader.byte_length() == len(data)
    assert reader.line_count() == len(lines)
    assert list(reader.lines(0, len(lines))) == lines
    assert [reader.line(index) for index in range(len(lines))] == lines
    assert list(reader.search(Pattern(""))) == lines
    assert reference(data) == lines
    assert reader.read_all() == "\n".join(lines)


@pytest.mark.parametrize("index", [-1, -3, 3, 10**18, -(10**18)])
def test_line_out_of_range_is_none(make_reader: MakeReader, index: int) -> None:
    assert make_reader(b"a\nb\nc").line(index) is None
    assert make_reader(b"").line(index) is None
    assert make_reader(b"").line(0) is None


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        (0, 0, []),
        (1, 2, ["b"]),
        (-5, 1, ["a"]),
        (2, 99, ["c"]),
        (3, 99, []),
        (99, 100, []),
        (2, 1, []),
        (-5, -1, []),
        (0, 10**18, ["a", "b", "c"]),
    ],
)
def test_range_of_lines_is_clamped(make_reader: MakeReader, start: int, end: int, wanted: list[str]) -> None:
    assert list(make_reader(b"a\nb\nc").lines(start, end)) == wanted


async def ask_everything(reader: IndexedReader, start: int, end: int) -> list[list[str]]:
    artifact = SpooledArtifact(reader)
    count = reader.line_count()
    return [
        await artifact.cat(),
        await artifact.cat(start, end),
        await artifact.head(end),
        await artifact.tail(end),
        await artifact.grep("a"),
        await artifact.grep("^$"),
        await artifact.grep(r"\ufffd"),
        await artifact.grep("^.?.?$", "s"),
        [line for line in map(reader.line, (start, end, count - 1)) if line is not None],
    ]


def answer_everything(lines: list[str], start: int, end: int) -> list[list[str]]:
    count = len(lines)
    return [
        lines,
        lines[start:end],
        lines[:end],
        lines[max(count - end, 0) :],
        [line for line in lines if "a" in line],
        [line for line in lines if not line],
        [line for line in lines if "\ufffd" in line],
        [line for line in lines if len(line) <= 2],
        [lines[index] for index in (start, end, count - 1) if 0 <= index < count],
    ]


PIECES = st.sampled_from(
    [b"a", b"\n", b"\r\n", BOM, "é".encode(), "😀".encode(), b"\xff", b"\xe2\x82", b"\xf0\x9f", b"\0"]
)
SHORT = st.binary(max_size=40) | st.lists(PIECES, max_size=20).map(b"".join)


@settings(deadline=None)  # a busy machine is not a failure
@given(data=SHORT, start=st.integers(0, 20), end=st.integers(0, 20))
@example(data=BOM, start=0, end=1)
def test_any_bytes_answer_as_the_reference_does(make_reader: MakeReader, data: bytes, start: int, end: int) -> None:
    reader = make_reader(data)

    assert reader.read_all() == data.removeprefix(BOM).decode("utf-8", "replace")
    assert reader.line_count() == len(reference(data))
    assert asyncio.run(ask_everything(reader, start, end)) == answer_everything(reference(data), start, end)


def filled(filler: bytes, size: int) -> bytes:
    return (filler * (size // len(filler) + 1))[:size]


FILLERS = [b"x", b"x\n", b"xy\r\n", "é".encode(), "😀\n".encode(), b"x" * 1_000 + b"\n", b"\xff"]


@pytest.mark.parametrize("make_reader", ["memory", "file"], indirect=True)
@settings(deadline=None, max_examples=20)
@given(
    filler=st.sampled_from(FILLERS),
    blocks=st.integers(1, 2),
    shift=st.integers(-12, 12),
    middle=SHORT,
    end=SHORT,
    lines=st.tuples(st.integers(0, 70_000), st.integers(0, 70_000)),
)
def test_content_across_blocks_answers_as_the_reference_does(
    make_reader: MakeReader, filler: bytes, blocks: int, shift: int, middle: bytes, end: bytes, lines: tuple[int, int]
) -> None:
    """The tricky bytes in the middle lie on or next to a border of the index."""
    before = filled(filler, blocks * BLOCK + shift)
    after = filled(filler, BLOCK - shift)

    data = before + middle + after + end
    reader = make_reader(data)
    expected = reference(data)

    assert reader.line_count() == len(expected)
    assert list(reader.lines(0, len(expected))) == expected
    assert list(reader.lines(*lines)) == expected[slice(*lines)]
    assert list(reader.lines(len(expected) - 5, len(expected))) == expected[-5:]
    assert list(reader.search(Pattern(r"a|\0"))) == [line for line in expected if "a" in line or "\0" in line]


@pytest.mark.parametrize("make_reader", ["memory", "file"], indirect=True)
@pytest.mark.parametrize("tricky", [b"\n", b"\n\n", b"\r\n", "é".encode(), "😀a\n".encode(), b"\xff\n\xe2\x82\n", BOM])
@pytest.mark.parametrize("filler", [b"x", b"y" * 999 + b"\n"], ids=["one line", "short lines"])
def test_content_across_buffers_answers_as_the_reference_does(
    make_reader: MakeReader, filler: bytes, tricky: bytes
) -> None:
    """The tricky bytes lie around the border of the ranges in which content is searched."""
    for shift in range(-len(tricky), 1):
        before = filled(filler, WINDOW + shift)
        reader = make_reader(before + tricky + b"needle\na")
        lines = reference(before + tricky + b"needle\na")

        assert list(reader.search(Pattern("needle|^$"))) == [line for line in lines if "needle" in line or not line]
        assert list(reader.search(Pattern("\ufffd|[^\0-\x7f]"))) == [line for line in lines if not line.isascii()]
        assert list(reader.lines(len(lines) - 3, len(lines))) == lines[-3:]


def test_line_that_ends_with_the_content_is_searched(make_reader: MakeReader) -> None:
    reader = make_reader(b"x" * (2 * WINDOW - 1) + b"\n")

    assert [len(line) for line in reader.search(Pattern("x$|^$"))] == [2 * WINDOW - 1, 0]


@pytest.mark.parametrize("make_reader", ["memory", "file"], indirect=True)
@pytest.mark.parametrize("end", [b"", b"\n", b"\nx", b"\n" + b"x" * WINDOW])
def test_longest_searchable_line_does_not_depend_on_where_it_lies(make_reader: MakeReader, end: bytes) -> None:
    for start in (b"", b"x\n" * 1_000):
        fits, too_long = b"y" * MAX_GREP_LINE, b"y" * (MAX_GREP_LINE + 1)

        assert len(next(make_reader(start + fits + end).search(Pattern("^y")))) == MAX_GREP_LINE
        with pytest.raises(AnswerTooLarge, match="cannot be searched"):
            list(make_reader(start + too_long + end).search(Pattern("^y")))


def test_answer_within_the_limit_is_given(make_reader: MakeReader) -> None:
    reader = make_reader(b"a\nb\nc")

    with limit_answer(3 * 65):
        assert list(reader.lines(0, 3)) == ["a", "b", "c"]
        assert list(reader.search(Pattern("[abc]"))) == ["a", "b", "c"]


def test_answer_past_the_limit_is_refused(make_reader: MakeReader) -> None:
    reader = make_reader(b"a\nb\nc")

    with limit_answer(3 * 65 - 1):
        with pytest.raises(AnswerTooLarge, match=r"larger than 194 bytes") as caught:
            list(reader.lines(0, 3))
        with pytest.raises(AnswerTooLarge):
            list(reader.search(Pattern("")))
        assert list(reader.lines(0, 2)) == ["a", "b"]

    assert caught.value.help
    assert list(reader.lines(0, 3)) == ["a", "b", "c"]


def test_limit_counts_only_what_is_answered(make_reader: MakeReader) -> None:
    reader = make_reader(b"a\n" + b"x" * 60_000 + b"\nb\n" + b"y" * 60_000)

    with limit_answer(1_000):
        assert list(reader.lines(0, 1)) == ["a"]
        assert list(reader.lines(2, 3)) == ["b"]
        assert list(reader.search(Pattern("^[ab]"))) == ["a", "b"]


def test_long_line_is_refused_before_it_is_read(make_reader: MakeReader) -> None:
    class Counting(IndexedReader):
        def __init__(self, size: int) -> None:
            self.read = 0
            index = LineIndex()
            index.feed(b"x" * size)
            super().__init__(index)

        def read_range(self, offset: int, length: int) -> bytes:
            self.read += length
            return b"x" * min(length, self.byte_length() - offset)

    reader = Counting(50 * BLOCK)

    with limit_answer(2 * BLOCK), pytest.raises(AnswerTooLarge):
        list(reader.lines(0, 1))

    assert reader.read <= 3 * BLOCK


def test_limits_nest_and_end() -> None:
    with limit_answer(10):
        with limit_answer(None):
            ByteBudget().spend(1_000)
        with limit_answer(1_000):
            ByteBudget().spend(500)
        with pytest.raises(AnswerTooLarge):
            ByteBudget().spend(10)
    ByteBudget().spend(10**9)


def test_allowance_keeps_the_limit_it_was_made_under() -> None:
    with limit_answer(100):
        allowance = ByteBudget()

    allowance.spend(30)
    with pytest.raises(AnswerTooLarge):
        allowance.spend(30)


def test_reader_without_a_source_reports_it() -> None:
    index = LineIndex()
    index.feed(b"a")

    with pytest.raises(NotImplementedError):
        IndexedReader(index).read_all()


@pytest.mark.parametrize("left", [0, 1, BLOCK])
def test_content_cut_short_is_not_answered_from(left: int) -> None:
    class Cut(IndexedReader):
        def read_range(self, offset: int, length: int) -> bytes:
            return b"x\n"[:left] if left < 2 else (b"x\n" * BLOCK)[offset : min(offset + length, left)]

    index = LineIndex()
    index.feed(b"x\n" * BLOCK)
    reader = Cut(index)

    for query in (
        reader.read_all,
        lambda: list(reader.lines(BLOCK - 1, BLOCK)),
        lambda: list(reader.lines(0, BLOCK)),
        lambda: list(reader.search(Pattern("x"))),
    ):
        with pytest.raises(ArtifactGone, match="truncated"):
            query()


@settings(deadline=None)
@given(st.lists(st.binary(max_size=50) | st.integers(0, 3).map(lambda blocks: b"\n" * (blocks * BLOCK)), max_size=6))
def test_index_does_not_depend_on_how_content_arrives(chunks: list[bytes]) -> None:
    piecewise, at_once = LineIndex(), LineIndex()

    for chunk in chunks:
        piecewise.feed(chunk)
    at_once.feed(b"".join(chunks))

    assert piecewise.to_bytes() == at_once.to_bytes()
    assert len(at_once.to_bytes()) == LineIndex.stored_size(at_once.size)


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_stored_index_is_the_same_index(size: int) -> None:
    index = LineIndex()
    index.feed((b"a\n" * BLOCK * 2)[:size])

    again = LineIndex.from_bytes(index.to_bytes(), size)

    assert again is not None
    assert again.to_bytes() == index.to_bytes()
    assert again.line_count == index.line_count


def test_stored_index_of_other_content_is_refused() -> None:
    index = LineIndex()
    index.feed(b"a\n" * BLOCK)
    stored = index.to_bytes()

    assert LineIndex.from_bytes(stored, index.size + 1) is None
    assert LineIndex.from_bytes(stored, index.size + BLOCK) is None
    assert LineIndex.from_bytes(stored, 0) is None


@pytest.mark.parametrize(
    "spoil", [lambda data: b"", lambda data: data[:-1], lambda data: data + b"\0", lambda data: data * 2]
)
def test_stored_index_of_a_wrong_length_is_refused(spoil: Callable[[bytes], bytes]) -> None:
    index = LineIndex()
    index.feed(b"a\nb")

    assert LineIndex.from_bytes(spoil(index.to_bytes()), index.size) is None


def test_stored_index_with_any_flipped_bit_is_refused() -> None:
    index = LineIndex()
    index.feed(b"a\n" * BLOCK)
    stored = index.to_bytes()

    for position in range(len(stored)):
        spoilt = bytearray(stored)
        spoilt[position] ^= 0x10
        assert LineIndex.from_bytes(bytes(spoilt), index.size) is None


def test_stored_index_of_another_machine_is_refused() -> None:
    index = LineIndex()
    index.feed(b"a\nb")
    numbers = array("Q", index.to_bytes())
    numbers.byteswap()

    assert LineIndex.from_bytes(numbers.tobytes(), index.size) is None


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("a", b"a"),
        ("é😀", "é😀".encode()),
        ("\ud800", b"\xef\xbf\xbd"),
        ("a\udfffb", b"a\xef\xbf\xbdb"),
        ("\ud83d\ude00", "😀".encode()),
    ],
    ids=["ascii", "unicode", "high half", "low half", "both halves"],
)
def test_text_is_encoded_as_a_text_encoder_would(text: str, data: bytes) -> None:
    assert encode_utf8(text) == data


def test_only_the_first_mark_of_the_first_bytes_is_dropped() -> None:
    assert decode_utf8(BOM + b"a", first=True) == "a"
    assert decode_utf8(BOM + b"a", first=False) == "\ufeffa"
    assert decode_utf8(BOM + BOM, first=True) == "\ufeff"


@settings(deadline=None)
@given(st.lists(st.text("ab\r\t é", max_size=6), max_size=30), st.sampled_from(["a+b", "b$", r"^\s", "é|ba", "(ab)*$"]))
def test_search_finds_what_a_search_of_each_line_finds(lines: list[str], source: str) -> None:
    content = "\n".join(["first", *lines])

    found = list(InMemoryReader(content).search(Pattern(source)))

    assert found == [line for line in content.split("\n") if re.search(source.replace("$", r"\Z"), line)]

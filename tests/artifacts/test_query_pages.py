"""Pages of `artifact_grep`: what each contains, what its text states, and that all pages together are complete."""

import asyncio
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.artifacts.query_tools import MAX_QUERY_ANSWER, ToolMethod
from gateway.artifacts.search import MAX_GREP_LINE, NEXT_SECONDS, PAGE_BYTES, PageRequest, SearchLimits, SearchPage
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.errors import AnswerTooLarge, InvalidToolArgs, PatternNotSupported, ToolDownstreamError

pytestmark = pytest.mark.anyio

GOES_ON = re.compile(
    r"\n\n\((.+): this answer ends before line (\d+) of (\d+); call artifact_grep with fromLine \2 to go on\)$"
)


class ForeignReader:
    """A third-party reader."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n") if text else []

    async def line(self, index: int) -> str | None:
        return self._lines[index] if 0 <= index < len(self._lines) else None

    def byte_length(self) -> int:
        return len("\n".join(self._lines).encode())

    def line_count(self) -> int:
        return len(self._lines)

    def read_all(self) -> str:
        return "\n".join(self._lines)


READERS: list[Callable[[str], Any]] = [InMemoryReader, ForeignReader]
every_reader = pytest.mark.parametrize("reader", READERS)


async def query(artifact: SpooledArtifact, name: str = "artifact_grep", **args: Any) -> str:
    call = SimpleNamespace(id="c", results=artifact, from_artifact_tool=False)
    turn = SimpleNamespace(turn_id="t", dispatch_id=None, turn_tool_calls=[call], emit=lambda event: None)
    tool = next(each for each in type(artifact).forge_tools(turn).all() if each.name == name)
    return str(await tool.executor(turn)({"callId": "c", **args}))


async def every_page(artifact: SpooledArtifact, **args: Any) -> list[list[str]]:
    """The lines of all pages, read for as long as the text names a next page."""
    pages = []
    while True:
        text = await query(artifact, **args)
        goes_on = GOES_ON.search(text)
        shown = text if goes_on is None else text[: goes_on.start()]
        pages.append([] if shown == "(empty list)" else shown.split("\n"))
        if goes_on is None:
            return pages
        assert int(goes_on[2]) > args.get("fromLine", 0)
        args["fromLine"] = int(goes_on[2])


# --- contents of a page ---


@every_reader
async def test_result_of_one_page_is_answered_in_one_piece(reader: Any) -> None:
    text = ("x\n" * PAGE_BYTES)[:PAGE_BYTES]

    assert await query(SpooledArtifact(reader(text)), pattern="^") == text


@every_reader
async def test_page_ends_before_its_text_is_too_much(reader: Any) -> None:
    text = await query(SpooledArtifact(reader(("a" * 1_023 + "\n") * 100)), pattern="a")

    assert text == "\n".join(["a" * 1_023] * 64) + (
        "\n\n(more lines match: this answer ends before line 64 of 101; call artifact_grep with fromLine 64 to go on)"
    )


@every_reader
async def test_limit_counts_lines(reader: Any) -> None:
    artifact = SpooledArtifact(reader("a1\nb\na2\na3\nb\n"))

    assert await every_page(artifact, pattern="a", limit=2) == [["a1", "a2"], ["a3"]]
    assert await every_page(artifact, pattern="a", limit=1) == [["a1"], ["a2"], ["a3"]]
    assert await every_page(artifact, pattern="a", limit=10**30) == [["a1", "a2", "a3"]]
    assert await every_page(artifact, pattern="a", limit=9, fromLine=1) == [["a2", "a3"]]


async def test_page_that_holds_the_last_match_does_not_promise_more() -> None:
    assert await query(SpooledArtifact(InMemoryReader("a\nb\nb\n")), pattern="a", limit=1) == "a"


@every_reader
@pytest.mark.parametrize("start", [4, 5, 10**30])
async def test_page_past_the_end_is_marked_as_such(reader: Any, start: int) -> None:
    text = await query(SpooledArtifact(reader("a\na\na\na")), pattern="a", fromLine=start)

    assert text == "(empty list)\n\n(fromLine is past the end: the artifact has 4 lines, counted from 0)"


@every_reader
async def test_last_line_may_be_where_a_page_starts(reader: Any) -> None:
    assert await query(SpooledArtifact(reader("a\n")), pattern="^$", fromLine=1) == ""
    assert await query(SpooledArtifact(reader("")), pattern="^", fromLine=0) == "(empty list)"


@pytest.mark.parametrize(
    "args",
    [
        {"limit": 0},
        {"limit": -1},
        {"limit": "5"},
        {"limit": 1.5},
        {"limit": None},
        {"limit": []},
        {"fromLine": -1},
        {"fromLine": "0"},
        {"fromLine": 0.5},
        {"from_line": 1},
    ],
    ids=str,
)
async def test_wrong_page_is_refused(args: dict[str, Any]) -> None:
    with pytest.raises(InvalidToolArgs):
        await query(SpooledArtifact(InMemoryReader("a")), pattern="a", **args)


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?=a)", "(", "a{1001}"])
async def test_pattern_that_cannot_be_run_is_refused_on_every_page(pattern: str) -> None:
    for start in (0, 10**6):
        with pytest.raises(ToolDownstreamError) as caught:
            await query(SpooledArtifact(InMemoryReader("a")), pattern=pattern, fromLine=start)
        assert isinstance(caught.value.cause, PatternNotSupported)


@settings(deadline=None)
@given(
    text=st.text("ab\n\r\ufffd😀", max_size=60),
    pattern=st.sampled_from(["a", "^$", "[^a]", "b$", "nothing"]),
    limit=st.integers(1, 5),
    reader=st.sampled_from(READERS),
)
def test_all_pages_together_are_everything(text: str, pattern: str, limit: int, reader: Any) -> None:
    async def compared() -> None:
        artifact = SpooledArtifact(reader(text))
        pages = await every_page(artifact, pattern=pattern, limit=limit)
        found = await artifact.grep(pattern)

        assert max(map(len, pages)) <= limit
        assert "\n".join(line for page in pages for line in page) == "\n".join(found)

    asyncio.run(compared())


async def test_pages_of_a_large_result_are_everything() -> None:
    lines = [f"{number} {'é' if number % 7 else 'a'} 😀" for number in range(200_000)]
    artifact = SpooledArtifact(InMemoryReader("\n".join(lines)))

    pages = await every_page(artifact, pattern="a")

    assert len(pages) > 3
    assert [line for page in pages for line in page] == lines[::7]


# --- lines that are too long ---


async def test_page_ends_before_a_line_that_cannot_be_searched() -> None:
    long = b"a" * (MAX_GREP_LINE + 1)
    artifact = SpooledArtifact(InMemoryReader(b"a1\nb\n" * 300_000 + long + b"\na2"))

    pages = await first_pages(artifact, fromLine=599_990)
    with pytest.raises(ToolDownstreamError) as caught:
        await query(artifact, pattern="a", fromLine=600_000)

    assert pages == "a1\na1\na1\na1\na1"
    assert isinstance(caught.value.cause, AnswerTooLarge)
    assert caught.value.cause.message == f"line 600000 is longer than {MAX_GREP_LINE} bytes and cannot be searched"
    assert str(caught.value.cause.help).startswith("continue with fromLine 600001,")
    assert await query(artifact, pattern="a", fromLine=600_001) == "a2"
    with pytest.raises(AnswerTooLarge):
        await artifact.grep("nowhere", from_line=599_990)


async def first_pages(artifact: SpooledArtifact, **args: Any) -> str:
    text = await query(artifact, pattern="a", **args)
    goes_on = GOES_ON.search(text)
    assert goes_on is not None
    assert goes_on.groups() == ("the rest was not searched yet", "600000", "600002")
    return text[: goes_on.start()]


@every_reader
async def test_large_pattern_is_not_run_on_a_long_line(reader: Any) -> None:
    artifact = SpooledArtifact(reader("a" * 200_000 + "\nb\n" + "a" * 200_000 + "\nb" * 3))

    with pytest.raises(ToolDownstreamError) as caught:
        await query(artifact, pattern=".{1000}c")
    assert isinstance(caught.value.cause, AnswerTooLarge)
    assert "line 0 is longer than" in caught.value.cause.message
    assert "for a pattern like this" in caught.value.cause.message
    text = await query(artifact, pattern=".{1000}c|b", fromLine=1)
    assert GOES_ON.sub(" before \\2", text) == "b before 2"
    assert await query(artifact, pattern=".{1000}c|b", fromLine=3) == "b\nb\nb"


@every_reader
async def test_long_line_is_searched_for_a_small_pattern(reader: Any) -> None:
    long = "a" * 3_000_000

    assert await query(SpooledArtifact(reader(f"x\n{long}b\nb")), pattern="b$") == f"{long}b\n\n" + (
        "(more lines match: this answer ends before line 2 of 3; call artifact_grep with fromLine 2 to go on)"
    )


@every_reader
async def test_line_that_no_answer_can_hold_is_named(reader: Any) -> None:
    artifact = SpooledArtifact(reader("b\n" + "a" * MAX_QUERY_ANSWER + "\na"))

    with pytest.raises(ToolDownstreamError) as caught:
        await query(artifact, pattern="a")

    assert isinstance(caught.value.cause, AnswerTooLarge)
    assert caught.value.cause.message == "line 1 alone is too large for one answer"
    assert str(caught.value.cause.help).startswith("continue with fromLine 2,")
    assert await query(artifact, pattern="a", fromLine=2) == "a"


# --- custom artifact classes ---


class Masked(SpooledArtifact):
    """Overrides `grep` with its signature from before pages existed."""

    tool_methods: ClassVar[tuple[ToolMethod, ...]] = (
        ToolMethod("artifact_everything", "everything", "Queries by callId."),
        ToolMethod("artifact_some", "some", "Queries by callId."),
    )

    async def grep(self, pattern: Any, flags: str = "") -> list[str]:  # type: ignore[override]  # on purpose
        return [line.replace("secret", "***") for line in await super().grep(pattern, flags)]

    async def everything(self) -> int:
        return len(await super().grep("secret"))

    async def some(self) -> int:
        return len(await super().grep("secret", limit=20_000))


async def test_class_that_overrides_grep_has_pages_too() -> None:
    artifact = Masked(InMemoryReader("secret 1\nsecret 2\nsecret 3"))

    assert await every_page(artifact, pattern="secret", limit=2) == [["*** 1", "*** 2"], ["*** 3"]]


async def test_other_queries_have_no_pages() -> None:
    artifact = Masked(InMemoryReader("secret\n" * 50_000))

    assert await query(artifact, "artifact_everything") == "50000"
    assert await query(artifact, "artifact_some") == "20000"


class Twice(SpooledArtifact):
    """Runs two queries for one and decides itself how many lines to take of each."""

    async def grep(self, pattern: Any, flags: str = "", **_: Any) -> list[str]:
        few = await super().grep("b", limit=1)
        none = await super().grep("b", limit=0)
        return [*few, *none, *await super().grep("a", limit=2), *await super().grep("c")]


async def test_method_that_asks_several_times_goes_on_from_the_earliest() -> None:
    artifact = Twice(InMemoryReader("a\na\na\nb\nb\nc"))

    text = await query(artifact, pattern="whatever")

    assert GOES_ON.sub(" before \\2", text) == "b\na\na\nc before 2"


# --- from Python ---


@every_reader
async def test_python_calls_take_a_limit_and_a_start(reader: Any) -> None:
    artifact = SpooledArtifact(reader("a1\nb\na2\na3"))

    assert await artifact.grep("a", limit=2) == ["a1", "a2"]
    assert await artifact.grep("a", from_line=1) == ["a2", "a3"]
    assert await artifact.grep("a", limit=1, from_line=-5) == ["a1"]
    assert await artifact.grep("a", limit=0) == await artifact.grep("a", limit=-1) == []
    assert await artifact.grep("a", from_line=4) == []
    assert await artifact.grep_page("a", limit=3) == SearchPage(["a1", "a2", "a3"])
    assert await artifact.grep_page("a", limit=1) == SearchPage(["a1"], 2, matches_next=True)
    assert await artifact.grep_page("a", limit=0, from_line=2) == SearchPage([], 2)


async def test_python_calls_are_not_cut_by_size() -> None:
    lines = ["a" * 1_000] * 1_000

    assert await SpooledArtifact(InMemoryReader("\n".join(lines))).grep("a", limit=900) == lines[:900]


async def test_limit_of_the_wrong_type_is_refused() -> None:
    wrong: Any = "5"

    with pytest.raises(TypeError):
        await SpooledArtifact(InMemoryReader("b")).grep("a", limit=wrong)


def test_further_pages_may_take_longer() -> None:
    first, further = PageRequest().limits(None), PageRequest(7, 1).limits(9)

    assert first.seconds is not None
    assert first.seconds < 0.3
    assert further == SearchLimits(7, PAGE_BYTES, NEXT_SECONDS)

"""SpooledArtifact: the seven base queries over every kind of reader, their descriptors, and the forged tools."""

import asyncio
from collections.abc import Callable
from threading import get_ident
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.artifacts.indexed_reader import limit_answer
from gateway.artifacts.javascript_regex import Pattern
from gateway.artifacts.query_tools import (
    MAX_QUERY_ANSWER,
    ToolMethod,
    build_query_tool,
    collect_artifacts,
    find_artifact,
    to_text,
)
from gateway.artifacts.search import PAGE_ARGUMENTS
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.errors import (
    AnswerTooLarge,
    ArtifactIdCollision,
    InvalidInitialToolValue,
    InvalidToolArgs,
    NotASpoolReader,
    PatternNotSupported,
    TokenEstimateUnavailable,
    ToolDownstreamError,
)
from gateway.model.media import InMemoryMediaReader, Media
from gateway.model.primitives.canonical_json import UNDEFINED
from gateway.model.tokenizer import BUILTIN_ENCODINGS, Tokenizable
from gateway.model.tools.artifact import is_artifact, is_artifact_class
from gateway.model.tools.tool import ArtifactTool, Tool
from gateway.model.tools.tool_call import ToolCall
from gateway.model.turns.conversation_records import Retrievable
from gateway.model.turns.events import now

pytestmark = pytest.mark.anyio


class PlainReader:
    """A third-party reader with synchronous methods."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = text.split("\n") if text else []

    def line(self, index: int) -> str | None:
        return self._lines[index] if 0 <= index < len(self._lines) else None

    def byte_length(self) -> int:
        return len(self._text.encode())

    def line_count(self) -> int:
        return len(self._lines)

    def read_all(self) -> str:
        return self._text


class AsyncReader:
    """The same, with coroutine methods."""

    def __init__(self, text: str) -> None:
        self._plain = PlainReader(text)

    async def line(self, index: int) -> str | None:
        return self._plain.line(index)

    async def byte_length(self) -> int:
        return self._plain.byte_length()

    async def line_count(self) -> int:
        return self._plain.line_count()

    async def read_all(self) -> str:
        return self._plain.read_all()


READERS: list[Callable[[str], Any]] = [InMemoryReader, PlainReader, AsyncReader]
every_reader = pytest.mark.parametrize("reader", READERS)


def an_artifact(text: str | bytes = "a\nb\nc") -> SpooledArtifact:
    return SpooledArtifact(InMemoryReader(text))


# --- the seven base queries ---


@every_reader
@pytest.mark.parametrize(
    ("text", "n", "head", "tail"),
    [
        ("", 10, [], []),
        ("a\nb\nc", 2, ["a", "b"], ["b", "c"]),
        ("a\nb\nc", 10, ["a", "b", "c"], ["a", "b", "c"]),
        ("a\nb\nc", 0, [], []),
        ("a\nb\nc", -1, [], []),
        ("a\nb\n", 2, ["a", "b"], ["b", ""]),
        ("\n", 10, ["", ""], ["", ""]),
        ("a\r\nb", 1, ["a\r"], ["b"]),
    ],
)
async def test_head_and_tail(reader: Any, text: str, n: int, head: list[str], tail: list[str]) -> None:
    artifact = SpooledArtifact(reader(text))

    assert await artifact.head(n) == head
    assert await artifact.tail(n) == tail


@every_reader
async def test_head_and_tail_show_ten_lines_by_default(reader: Any) -> None:
    artifact = SpooledArtifact(reader("\n".join(map(str, range(30)))))

    assert await artifact.head() == [str(n) for n in range(10)]
    assert await artifact.tail() == [str(n) for n in range(20, 30)]


@every_reader
@pytest.mark.parametrize(
    ("given", "lines"),
    [
        ((), ["0", "1", "2", "3", ""]),
        ((1,), ["1", "2", "3", ""]),
        ((1, 3), ["1", "2"]),
        ((3, 100), ["3", ""]),
        ((-5, 2), ["0", "1"]),
        ((0, -1), []),
        ((2, 2), []),
        ((3, 1), []),
        ((100,), []),
        ((0, 0), []),
        ((4,), [""]),
    ],
)
async def test_cat_clamps_to_the_content(reader: Any, given: tuple[int, ...], lines: list[str]) -> None:
    assert await SpooledArtifact(reader("0\n1\n2\n3\n")).cat(*given) == lines


@every_reader
@pytest.mark.parametrize(
    ("pattern", "flags", "lines"),
    [
        ("o", "", ["one", "two", "four"]),
        ("^o", "", ["one"]),
        ("E", "", []),
        ("E", "i", ["one", "three"]),
        ("^$", "", [""]),
        ("x", "", []),
        ("[aeiou]{2}", "u", ["three", "four"]),
    ],
)
async def test_grep_finds_lines_in_order(reader: Any, pattern: str, flags: str, lines: list[str]) -> None:
    artifact = SpooledArtifact(reader("one\ntwo\nthree\nfour\n"))

    assert await artifact.grep(pattern, flags) == lines
    assert await artifact.grep(Pattern(pattern, flags)) == lines


@every_reader
async def test_grep_over_empty_content_is_empty(reader: Any) -> None:
    assert await SpooledArtifact(reader("")).grep(".*") == []


@every_reader
@pytest.mark.parametrize(("pattern", "flags"), [("(", ""), ("a", "ii"), ("a", "g"), (r"(a)\1", "")])
async def test_bad_pattern_is_refused(reader: Any, pattern: str, flags: str) -> None:
    with pytest.raises(PatternNotSupported):
        await SpooledArtifact(reader("a")).grep(pattern, flags)


@every_reader
@pytest.mark.parametrize(
    ("text", "size", "lines"), [("", 0, 0), ("a", 1, 1), ("a\n", 2, 2), ("é😀\n\n", 8, 3)], ids=ascii
)
async def test_sizes(reader: Any, text: str, size: int, lines: int) -> None:
    artifact = SpooledArtifact(reader(text))

    assert (await artifact.byte_length(), await artifact.line_count()) == (size, lines)
    assert await artifact.as_string() == text


@every_reader
async def test_tokens_are_those_of_the_whole_text(reader: Any) -> None:
    assert await SpooledArtifact(reader("abc\r\nd\n")).estimate_tokens("claude") == 2


async def test_tokens_raise_outside_a_run() -> None:
    for encoding in ("gemini", "o200k_base"):
        with pytest.raises(TokenEstimateUnavailable):
            await an_artifact().estimate_tokens(encoding)


async def test_large_content_is_read_off_the_loop() -> None:
    lines = [f"line {n}" for n in range(300_000)]
    artifact = an_artifact("\n".join(lines))

    assert await artifact.cat(100, 200_000) == lines[100:200_000]
    assert await artifact.grep("line 29999[0-9]") == lines[-10:]
    assert await artifact.as_string() == "\n".join(lines)
    assert await artifact.estimate_tokens("claude") == -(-len("\n".join(lines)) * 2 // 7)


@given(text=st.text("ab\n\r", max_size=30), start=st.integers(-3, 12), end=st.integers(-3, 12) | st.none())
def test_every_reader_gives_the_same_lines(text: str, start: int, end: int | None) -> None:
    async def lines(reader: Any) -> list[str]:
        return await SpooledArtifact(reader(text)).cat(start, end)

    indexed, plain, waiting = (asyncio.run(lines(reader)) for reader in READERS)

    assert indexed == plain == waiting


# --- readers, hints and guards ---


@pytest.mark.parametrize("missing", ["line", "byte_length", "line_count", "read_all"])
def test_reader_without_a_method_is_refused(missing: str) -> None:
    methods = {name: lambda *_: None for name in ("line", "byte_length", "line_count", "read_all") if name != missing}

    with pytest.raises(NotASpoolReader) as caught:
        SpooledArtifact(SimpleNamespace(**methods))

    assert (caught.value.code, caught.value.fatal) == ("E_NOT_A_SPOOL_READER", True)


@pytest.mark.parametrize(
    "reader", [None, "text", b"bytes", InMemoryMediaReader(b"x")], ids=lambda each: type(each).__name__
)
def test_what_is_no_reader_is_refused(reader: Any) -> None:
    with pytest.raises(NotASpoolReader):
        SpooledArtifact(reader)


async def test_size_hints_win_over_the_reader() -> None:
    artifact = SpooledArtifact(InMemoryReader("a\nb\nc"))

    artifact._set_size_hints(byte_length=100, line_count=2)

    assert (await artifact.byte_length(), await artifact.line_count()) == (100, 2)
    assert await artifact.cat() == ["a", "b"]
    assert await artifact.tail(1) == ["b"]


@every_reader
@pytest.mark.parametrize("text", ["", "a\nb"])
async def test_hint_cannot_promise_lines_that_are_not_there(reader: Any, text: str) -> None:
    artifact = SpooledArtifact(reader(text))

    artifact._set_size_hints(line_count=50)

    assert await artifact.cat() == [line for line in text.split("\n") if line]
    assert await artifact.tail(3) == []
    assert await artifact.byte_length() == len(text)


class Report(SpooledArtifact):
    """A third-party artifact class with one query of its own."""

    tool_methods: ClassVar[tuple[ToolMethod, ...]] = (
        ToolMethod("artifact_report_title", "title", "Queries a report of this turn, selected by callId: its title."),
    )

    async def title(self) -> str:
        return (await self.head(1))[0]


class YearlyReport(Report):
    tool_methods: ClassVar[tuple[ToolMethod, ...]] = (
        ToolMethod("artifact_report_year", "year", "Queries a yearly report of this turn by callId: its year."),
    )

    def year(self) -> int:
        return 2026


def test_artifacts_are_distinguished_from_other_values() -> None:
    media = Media.tool_generated("image", mime_type="image/png", filename="a.png", reader=InMemoryMediaReader(b""))

    assert SpooledArtifact.is_spooled_artifact(Report(InMemoryReader("")))
    assert not SpooledArtifact.is_spooled_artifact(media)
    assert is_artifact(an_artifact())
    assert not is_artifact(media)
    assert not is_artifact(SpooledArtifact)
    assert SpooledArtifact.is_spooled_artifact_constructor(Report)
    assert not SpooledArtifact.is_spooled_artifact_constructor(an_artifact())
    assert not is_artifact_class(Media)


# --- descriptors ---

CALL_ID = {"type": "string", "enum": ["c1"], "description": "The id of the call whose result is queried."}


def test_base_descriptors_are_exactly_seven() -> None:
    lines = {"type": "integer", "minimum": 1, "default": 10, "description": "How many lines."}
    expected: dict[str, tuple[str, dict[str, Any], list[str]]] = {
        "artifact_head": ("head", {"n": lines}, []),
        "artifact_tail": ("tail", {"n": lines}, []),
        "artifact_grep": (
            "grep",
            {
                "pattern": {
                    "type": "string",
                    "minLength": 1,
                    "description": "A JavaScript regular expression, matched line by line.",
                },
                "flags": {"type": "string", "pattern": "^[imsu]*$", "description": "Any of the flags i, m, s and u."},
                **PAGE_ARGUMENTS,
            },
            ["pattern"],
        ),
        "artifact_cat": (
            "cat",
            {
                "start": {"type": "integer", "minimum": 0, "description": "First line, counted from 0."},
                "end": {"type": "integer", "minimum": 0, "description": "Line to stop before."},
            },
            [],
        ),
        "artifact_byte_length": ("byte_length", {}, []),
        "artifact_line_count": ("line_count", {}, []),
        "artifact_estimate_tokens": (
            "estimate_tokens",
            {
                "encoding": {
                    "type": "string",
                    "enum": list(BUILTIN_ENCODINGS),
                    "description": "The tokenizer's encoding.",
                }
            },
            ["encoding"],
        ),
    }

    forged = SpooledArtifact.forge_tools(a_turn(("c1", an_artifact())))

    assert {each.name: each.method for each in SpooledArtifact.tool_methods} == {
        name: method for name, (method, _, _) in expected.items()
    }
    assert {tool.name: tool.describe()["input_schema"] for tool in forged.all()} == {
        name: {
            "type": "object",
            "properties": {"callId": CALL_ID, **properties},
            "required": ["callId", *required],
            "additionalProperties": False,
        }
        for name, (_, properties, required) in expected.items()
    }


def test_descriptions_state_what_the_call_id_is_for() -> None:
    for descriptor in SpooledArtifact.tool_methods:
        assert "of this turn, selected by callId" in descriptor.description


def test_every_class_lists_its_own_descriptors_only() -> None:
    assert [each.name for each in Report.tool_methods] == ["artifact_report_title"]
    assert [each.name for each in YearlyReport.effective_methods()] == [
        "artifact_report_year",
        "artifact_report_title",
        *(each.name for each in SpooledArtifact.tool_methods),
    ]


def test_effective_methods_name_each_tool_once() -> None:
    class Repeating(SpooledArtifact):
        tool_methods: ClassVar[tuple[ToolMethod, ...]] = (
            ToolMethod("artifact_head", "head", "Queries an artifact of this turn by callId, in its own words."),
        )

    first, *rest = Repeating.effective_methods()

    assert first is Repeating.tool_methods[0]
    assert [each.name for each in rest] == [each.name for each in SpooledArtifact.tool_methods[1:]]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        pytest.param({"name": ""}, "'name' must be a non-empty string", id="name"),
        pytest.param({"method": ""}, "'method' must be a non-empty string", id="method"),
        pytest.param({"description": None}, "'description' must be a non-empty string", id="description"),
        pytest.param({"args_schema": {"type": "string"}}, "must describe an object", id="no object"),
        pytest.param({"args_schema": {"properties": {"callId": {}}}}, "without callId", id="callId of its own"),
        pytest.param({"args_schema": {"properties": {"a": {"type": "x"}}}}, "properties.a.type", id="no schema"),
        pytest.param({"args_schema": {"properties": [["a", 1]]}}, "invalid", id="list of properties"),
        pytest.param({"args_schema": ["a"]}, "invalid", id="list"),
    ],
)
def test_descriptor_without_a_tool_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInitialToolValue) as caught:
        ToolMethod(**{"name": "artifact_x", "method": "x", "description": "Queries.", **fields})

    assert text in caught.value.message


def test_descriptor_with_bare_arguments_is_an_object() -> None:
    described = ToolMethod("artifact_x", "x", "Queries.", {"properties": {"a": {}}}).schema(["c1"]).describe()

    assert described["type"] == "object"
    assert described["required"] == ["callId"]


# --- texts of answers ---


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (UNDEFINED, "(undefined)"),
        (None, "null"),
        ("", ""),
        ("text", "text"),
        ([], "(empty list)"),
        ((), "(empty list)"),
        ([""], ""),
        (["a", "b"], "a\nb"),
        (("a", "b"), "a\nb"),
        ([1, "a"], '[\n  1,\n  "a"\n]'),
        ([[]], "[\n  []\n]"),
        (0, "0"),
        (-0.0, "0"),
        (5.0, "5"),
        (1e21, "1e+21"),
        (2**53 + 1, "9007199254740992"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (10**400, "Infinity"),
        (True, "true"),
        (False, "false"),
        ({}, "{}"),
        ({"ü": "é", "n": None}, '{\n  "ü": "é",\n  "n": null\n}'),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_default_text_of_an_answer(answer: Any, text: str) -> None:
    assert to_text(answer) == text


@pytest.mark.parametrize("answer", [b"x", {1, 2}, object()], ids=["bytes", "set", "object"])
def test_answer_without_a_text_is_refused(answer: Any) -> None:
    with pytest.raises(TypeError):
        to_text(answer)


# --- forging ---


def a_call(id: str, results: Any, **fields: Any) -> ToolCall:
    moment = now()
    times = {"created_at": moment, "updated_at": moment, "completed_at": moment}
    return ToolCall(
        **{"id": id, "tool": "t", "args": {}, "is_complete": True, "is_error": False, **times, **fields},
        results=results,
    )


class Turn:
    """A context with records and the events emitted in it."""

    turn_id = "turn-1"
    dispatch_id = "dispatch-1"

    def __init__(self, calls: list[ToolCall], retrieved: list[Retrievable]) -> None:
        self.turn_tool_calls = calls
        self.turn_retrievables = retrieved
        self.seen: list[Any] = []

    def emit(self, event: Any) -> None:
        self.seen.append(event)


def a_turn(*results: tuple[str, Any], retrieved: tuple[Retrievable, ...] = ()) -> Turn:
    return Turn([a_call(id, result) for id, result in results], list(retrieved))


def list_call_ids(tools: Any) -> dict[str, list[str]]:
    """The ids that each tool of a registry accepts."""
    return {tool.name: tool.describe()["input_schema"]["properties"]["callId"]["enum"] for tool in tools.all()}


async def answer(turn: Turn, name: str, cls: type[SpooledArtifact] = SpooledArtifact, **args: Any) -> Any:
    tool = cls.forge_tools(turn).get(name)
    assert tool is not None
    return await tool.executor(turn)(args)


def base_seven(*ids: str) -> dict[str, list[str]]:
    return {each.name: list(ids) for each in SpooledArtifact.tool_methods}


def test_nothing_is_forged_without_artifacts() -> None:
    media = Media.tool_generated("image", mime_type="image/png", filename="a.png", reader=InMemoryMediaReader(b""))
    turn = a_turn(("text", Tokenizable("x")), ("media", media), ("list", [media, media]))

    assert SpooledArtifact.forge_tools(turn).all() == []
    assert Report.forge_tools(turn).all() == []
    assert SpooledArtifact.forge_tools(Turn([], [])).all() == []


async def test_pieces_of_a_list_have_ids_of_their_own() -> None:
    pair = [an_artifact("one"), Report(InMemoryReader("two"))]
    turn = a_turn(("single", [an_artifact("alone")]), ("pair", pair), ("pair#x", an_artifact("other")))

    assert list(collect_artifacts(turn, SpooledArtifact)) == ["single", "pair#0", "pair#1", "pair#x"]
    assert list(collect_artifacts(turn, Report)) == ["pair#1"]
    assert await answer(turn, "artifact_head", callId="pair#1") == "two"
    assert find_artifact(turn, "pair#0", Report) is None
    assert [find_artifact(turn, id, SpooledArtifact) for id in ("pair", "pair#2", "pair#01", "#1", "single#0")] == [
        None
    ] * 5


def test_call_of_just_that_id_comes_before_a_piece() -> None:
    exact = an_artifact("exact")
    turn = a_turn(("pair", [an_artifact(), an_artifact()]), ("pair#1", exact))

    assert find_artifact(turn, "pair#1", SpooledArtifact) is collect_artifacts(turn, SpooledArtifact)["pair#1"] is exact


def test_ids_are_those_of_artifacts_in_order() -> None:
    turn = a_turn(("z", an_artifact()), ("a", Report(InMemoryReader(""))), ("t", Tokenizable("x")))

    assert list(collect_artifacts(turn, SpooledArtifact)) == ["z", "a"]
    assert list(collect_artifacts(turn, Report)) == ["a"]
    assert list_call_ids(SpooledArtifact.forge_tools(turn)) == base_seven("z", "a")


def test_answers_of_query_tools_are_never_offered() -> None:
    turn = Turn([a_call("q", an_artifact(), from_artifact_tool=True), a_call("c", an_artifact())], [])

    assert list(collect_artifacts(turn, SpooledArtifact)) == ["c"]
    assert find_artifact(turn, "q", SpooledArtifact) is None


def test_retrieved_records_are_offered_unless_shown_inline() -> None:
    artifact = an_artifact()
    turn = a_turn(
        ("c", an_artifact()),
        retrieved=(
            Retrievable("r", artifact, "third-party-public", inline=False),
            Retrievable("shown", an_artifact(), "third-party-public"),
            Retrievable("text", "x", "third-party-public", inline=False),
        ),
    )

    assert list(collect_artifacts(turn, SpooledArtifact)) == ["c", "r"]
    assert find_artifact(turn, "r", SpooledArtifact) is artifact
    assert find_artifact(turn, "shown", SpooledArtifact) is None
    assert find_artifact(turn, "r", Report) is None


def test_context_without_retrieved_records_is_enough() -> None:
    turn = SimpleNamespace(turn_tool_calls=[a_call("c", an_artifact())])

    assert list(collect_artifacts(turn, SpooledArtifact)) == ["c"]
    assert find_artifact(turn, "none", SpooledArtifact) is None


def test_id_of_two_origins_is_a_collision() -> None:
    turn = a_turn(("x", an_artifact()), retrieved=(Retrievable("x", an_artifact(), "first-party", inline=False),))

    with pytest.raises(ArtifactIdCollision, match="share the id 'x'"):
        SpooledArtifact.forge_tools(turn)


def test_repeated_id_is_offered_once() -> None:
    turn = Turn([a_call("c", an_artifact("first")), a_call("c", an_artifact("second"))], [])

    assert list(collect_artifacts(turn, SpooledArtifact)) == ["c"]
    assert find_artifact(turn, "c", SpooledArtifact) is turn.turn_tool_calls[0].results


def test_forged_tools_belong_to_one_dispatch_and_are_never_trusted() -> None:
    for tool in SpooledArtifact.forge_tools(a_turn(("c", an_artifact()))).all():
        assert ArtifactTool.is_artifact_tool(tool)
        assert (tool.ephemeral, tool.on_collision, tool.trusted) == (True, "replace", False)
        assert tool.artifact_constructor is None


@pytest.mark.parametrize(
    ("name", "args", "text"),
    [
        ("artifact_head", {}, "a\nb\n"),
        ("artifact_head", {"n": 1}, "a"),
        ("artifact_head", {"n": 1.0}, "a"),
        ("artifact_tail", {"n": 2}, "b\n"),
        ("artifact_grep", {"pattern": "A", "flags": "i"}, "a"),
        ("artifact_grep", {"pattern": "a", "flags": ""}, "a"),
        ("artifact_grep", {"pattern": "a"}, "a"),
        ("artifact_grep", {"pattern": "zzz"}, "(empty list)"),
        ("artifact_cat", {}, "a\nb\n"),
        ("artifact_cat", {"start": 1}, "b\n"),
        ("artifact_cat", {"end": 1}, "a"),
        ("artifact_cat", {"start": 1, "end": 2}, "b"),
        ("artifact_byte_length", {}, "4"),
        ("artifact_line_count", {}, "3"),
        ("artifact_estimate_tokens", {"encoding": "claude"}, "2"),
    ],
    ids=str,
)
async def test_query_answers_with_text(name: str, args: dict[str, Any], text: str) -> None:
    assert await answer(a_turn(("c", an_artifact("a\nb\n"))), name, callId="c", **args) == text


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("artifact_head", {"callId": "c", "n": 0}),
        ("artifact_head", {"callId": "c", "n": "5"}),
        ("artifact_head", {"callId": "other"}),
        ("artifact_head", {"callId": "c", "lines": 5}),
        ("artifact_head", {}),
        ("artifact_grep", {"callId": "c"}),
        ("artifact_grep", {"callId": "c", "pattern": ""}),
        ("artifact_grep", {"callId": "c", "pattern": "a", "flags": "g"}),
        ("artifact_grep", {"callId": "c", "pattern": "a", "flags": "y"}),
        ("artifact_grep", {"callId": "c", "pattern": "a", "flags": "i\n"}),
        ("artifact_cat", {"callId": "c", "start": -1}),
        ("artifact_cat", {"callId": "c", "end": 1.5}),
        ("artifact_byte_length", {"callId": "c", "n": 1}),
        ("artifact_estimate_tokens", {"callId": "c"}),
        ("artifact_estimate_tokens", {"callId": "c", "encoding": "mine"}),
    ],
    ids=str,
)
async def test_wrong_arguments_of_a_query_are_refused(name: str, args: dict[str, Any]) -> None:
    turn = a_turn(("c", an_artifact()))

    with pytest.raises(InvalidToolArgs):
        await answer(turn, name, **args)

    assert turn.seen == []


async def test_ids_are_a_snapshot() -> None:
    turn = a_turn(("c", an_artifact()))
    head = SpooledArtifact.forge_tools(turn).all()[0]
    turn.turn_tool_calls.append(a_call("later", an_artifact()))

    with pytest.raises(InvalidToolArgs):
        await head.executor(turn)({"callId": "later"})
    assert await answer(turn, "artifact_head", callId="later") == "a\nb\nc"


async def test_artifact_that_is_gone_is_an_answer() -> None:
    turn = a_turn(("c", an_artifact()))
    head = SpooledArtifact.forge_tools(turn).all()[0]
    turn.turn_tool_calls[0] = a_call("c", Tokenizable("no longer an artifact"))

    answer = await head.executor(turn)({"callId": "c"})

    assert answer == "Error: no artifact with this id is available in this turn."
    assert [event.name for event in turn.seen] == ["toolExecutionStart", "toolExecutionEnd"]
    assert not turn.seen[1].is_error


async def test_id_of_another_turn_is_never_resolved() -> None:
    mine, theirs = (
        a_turn(("c", an_artifact("mine"))),
        a_turn(("c", an_artifact("theirs")), ("d", an_artifact("secret"))),
    )
    head = SpooledArtifact.forge_tools(theirs).all()[0]

    assert await head.executor(mine)({"callId": "c"}) == "mine"
    assert (await head.executor(mine)({"callId": "d"})).startswith("Error: no artifact with this id")


@pytest.mark.parametrize("method", ["none", "reader"], ids=["missing", "no method"])
async def test_missing_method_is_an_answer(method: str) -> None:
    turn = a_turn(("c", an_artifact()))
    tool = build_query_tool(ToolMethod("artifact_x", method, "Queries."), ["c"], SpooledArtifact)

    assert await tool.executor(turn)({"callId": "c"}) == f"Error: the artifact has no method {method!r}."


@pytest.mark.parametrize("args", [{"pattern": "("}, {"pattern": "a", "flags": "ii"}], ids=["syntax", "repeated flag"])
async def test_bad_pattern_of_a_query_is_its_failure(args: dict[str, Any]) -> None:
    turn = a_turn(("c", an_artifact()))

    with pytest.raises(ToolDownstreamError) as caught:
        await answer(turn, "artifact_grep", callId="c", **args)

    assert isinstance(caught.value.cause, PatternNotSupported)
    assert turn.seen[-1].is_error


@pytest.mark.parametrize("encoding", ["gemini", "o200k_base"])
async def test_tokens_of_a_query_are_guessed_where_they_cannot_be_counted(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    turn = a_turn(("c", an_artifact("abcd")))

    assert await answer(turn, "artifact_estimate_tokens", callId="c", encoding=encoding) == "2"
    assert [event.name for event in turn.seen] == ["toolExecutionStart", "warning", "toolExecutionEnd"]


# --- limits of one answer ---


class Everything(SpooledArtifact):
    """Collects the whole answer for a query of its own, without pages."""

    tool_methods: ClassVar[tuple[ToolMethod, ...]] = (ToolMethod("artifact_errors", "errors", "Queries by callId."),)

    async def errors(self) -> list[str]:
        return await self.grep("a")


@every_reader
@pytest.mark.parametrize("name", ["artifact_cat", "artifact_errors"])
async def test_query_that_collects_too_much_is_refused(reader: Any, name: str) -> None:
    turn = a_turn(("c", Everything(reader(("a" * 4_095 + "\n") * 4_200))))

    with pytest.raises(ToolDownstreamError) as caught:
        await answer(turn, name, Everything, callId="c")

    assert isinstance(caught.value.cause, AnswerTooLarge)


async def test_tokens_of_too_large_a_text_are_refused_in_a_query() -> None:
    artifact = an_artifact("a" * (MAX_QUERY_ANSWER + 1))

    assert await artifact.estimate_tokens("claude") == -(-(MAX_QUERY_ANSWER + 1) * 2 // 7)
    with pytest.raises(ToolDownstreamError) as caught:
        await answer(a_turn(("c", artifact)), "artifact_estimate_tokens", callId="c", encoding="claude")

    assert isinstance(caught.value.cause, AnswerTooLarge)
    assert "too many to count" in caught.value.cause.message


@pytest.mark.parametrize(("character", "times", "fits"), [("a", 1, True), ("é", 1, False), ("a", 2, False)])
async def test_text_of_an_answer_is_bounded(character: str, times: int, fits: bool) -> None:
    descriptor = ToolMethod(
        "artifact_x", "line_count", "Queries.", serialise=lambda count: character * MAX_QUERY_ANSWER * times
    )
    turn = a_turn(("c", an_artifact()))
    tool = build_query_tool(descriptor, ["c"], SpooledArtifact)

    if fits:
        assert len(await tool.executor(turn)({"callId": "c"})) == MAX_QUERY_ANSWER
    else:
        with pytest.raises(ToolDownstreamError):
            await tool.executor(turn)({"callId": "c"})


async def test_limit_ends_with_the_query() -> None:
    artifact = an_artifact("a\n" * 300_000)

    with limit_answer(10), pytest.raises(AnswerTooLarge):
        await artifact.cat()

    assert len(await artifact.cat()) == 300_001


# --- subclasses ---


def test_subclass_tools_are_narrowed_to_its_instances() -> None:
    turn = a_turn(
        ("plain", an_artifact()), ("report", Report(InMemoryReader("T"))), ("yearly", YearlyReport(InMemoryReader("Y")))
    )

    everything = ["plain", "report", "yearly"]
    assert list_call_ids(YearlyReport.forge_tools(turn)) == {
        **base_seven(*everything),
        "artifact_report_title": ["report", "yearly"],
        "artifact_report_year": ["yearly"],
    }
    assert list_call_ids(Report.forge_tools(turn)).keys() == {*base_seven(), "artifact_report_title"}
    assert list_call_ids(SpooledArtifact.forge_tools(turn)) == base_seven(*everything)


def test_subclass_without_instances_gets_the_base_tools_alone() -> None:
    assert list_call_ids(Report.forge_tools(a_turn(("plain", an_artifact())))) == base_seven("plain")


async def test_new_subclass_gets_the_base_seven() -> None:
    class Bare(SpooledArtifact):
        pass

    turn = a_turn(("c", Bare(InMemoryReader("first\nsecond"))))

    assert list_call_ids(Bare.forge_tools(turn)) == base_seven("c")
    assert await answer(turn, "artifact_head", Bare, callId="c", n=1) == "first"


async def test_subclass_queries_run_sync_or_async() -> None:
    turn = a_turn(("c", YearlyReport(InMemoryReader("Title\nbody"))))

    assert await answer(turn, "artifact_report_title", YearlyReport, callId="c") == "Title"
    assert await answer(turn, "artifact_report_year", YearlyReport, callId="c") == "2026"


async def test_repeated_base_descriptor_is_one_tool_for_every_artifact() -> None:
    class Repeating(SpooledArtifact):
        tool_methods: ClassVar[tuple[ToolMethod, ...]] = (
            *SpooledArtifact.tool_methods[:1],
            ToolMethod("artifact_own", "head", "Queries."),
            ToolMethod("artifact_own", "tail", "Queries, listed twice."),
        )

        async def head(self, n: int = 10) -> list[str]:
            return ["its own head"]

    turn = a_turn(("plain", an_artifact()), ("mine", Repeating(InMemoryReader("x"))))
    forged = Repeating.forge_tools(turn)

    assert list_call_ids(forged) == {**base_seven("plain", "mine"), "artifact_own": ["mine"]}
    assert forged.all()[-1].description == "Queries, listed twice."
    assert await answer(turn, "artifact_head", Repeating, callId="plain") == "a\nb\nc"
    assert await answer(turn, "artifact_head", Repeating, callId="mine") == "its own head"


async def test_own_serialise_replaces_the_default() -> None:
    descriptor = ToolMethod("artifact_x", "line_count", "Queries.", serialise=lambda count: f"{count} lines")
    tool = build_query_tool(descriptor, ["c"], SpooledArtifact)

    assert await tool.executor(a_turn(("c", an_artifact())))({"callId": "c"}) == "3 lines"


class Ranged(SpooledArtifact):
    async def between(self, low: int = 1, *, note: str = "") -> str:
        return f"{low}{note}"

    async def span(self, low: Any, mid: Any = 5, high: Any = 9) -> list[Any]:
        return [low, mid, high]

    async def anything(self, *given: Any) -> list[Any]:
        return list(given)


@pytest.mark.parametrize(
    ("method", "args", "text"),
    [
        ("span", {"high": 3}, [None, 5, 3]),
        ("span", {"low": 1, "high": 3}, [1, 5, 3]),
        ("span", {"low": None, "high": 3}, [None, 5, 3]),
        ("span", {"low": 1}, [1, 5, 9]),
        ("anything", {"high": 3}, [None, None, 3]),
        ("anything", {"low": 0}, [0]),
    ],
    ids=str,
)
async def test_argument_that_is_not_given_is_the_default_of_the_method(
    method: str, args: dict[str, Any], text: list[Any]
) -> None:
    properties: dict[str, Any] = {"low": {}, "mid": {}, "high": {}}
    descriptor = ToolMethod("artifact_x", method, "Queries.", {"properties": properties}, serialise=repr)
    tool: Tool = build_query_tool(descriptor, ["c"], Ranged)

    assert await tool.executor(a_turn(("c", Ranged(InMemoryReader("")))))({"callId": "c", **args}) == repr(text)


class Guarded(SpooledArtifact):
    """Allows counting and refuses everything else."""

    queries: ClassVar[frozenset[str] | None] = frozenset({"line_count"})


async def test_class_that_narrows_its_queries_is_offered_for_these_only() -> None:
    turn = a_turn(("plain", an_artifact()), ("guarded", Guarded(InMemoryReader("secret\n"))))
    forged = SpooledArtifact.forge_tools(turn)

    assert list_call_ids(forged)["artifact_line_count"] == ["plain", "guarded"]
    assert list_call_ids(forged)["artifact_cat"] == ["plain"]
    assert set(list_call_ids(Guarded.forge_tools(a_turn(("guarded", Guarded(InMemoryReader("x"))))))) == {
        "artifact_line_count"
    }


async def test_query_that_is_not_offered_answers_as_if_there_were_no_artifact() -> None:
    turn = a_turn(("guarded", Guarded(InMemoryReader("secret\n"))))
    head = build_query_tool(SpooledArtifact.tool_methods[0], None, SpooledArtifact)

    answered = await head.executor(turn)({"callId": "guarded"})

    assert answered == "Error: no artifact with this id is available in this turn."


async def test_query_tools_without_ids_take_any_text() -> None:
    tools = {tool.name: tool for tool in SpooledArtifact.query_tools()}

    assert list(tools) == [method.name for method in SpooledArtifact.tool_methods]
    assert "enum" not in tools["artifact_head"].describe()["input_schema"]["properties"]["callId"]
    assert await tools["artifact_head"].executor(a_turn(("c", an_artifact())))({"callId": "c", "n": 1}) == "a"
    assert [tool.name for tool in Guarded.query_tools()] == ["artifact_line_count"]


# Content on another machine


class RemoteReader(InMemoryReader):
    """Records the threads in which it is read."""

    is_remote = True

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.threads: set[int] = set()

    def read_range(self, offset: int, length: int) -> bytes:
        self.threads.add(get_ident())
        return super().read_range(offset, length)


async def test_remote_content_is_never_read_where_others_would_wait() -> None:
    reader = RemoteReader("one\ntwo\nthree")
    artifact = SpooledArtifact(reader)

    assert await artifact.cat(1, 2) == ["two"]
    assert await artifact.grep("^t") == ["two", "three"]
    assert await artifact.tail(1) == ["three"]

    assert reader.threads
    assert get_ident() not in reader.threads

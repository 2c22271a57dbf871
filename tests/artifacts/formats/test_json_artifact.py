"""SpooledJsonArtifact: format detection, answers of its queries, and the text of the forged tools."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.artifacts.formats.document_artifact import MAX_DEPTH, to_bounded_text
from gateway.artifacts.formats.json_artifact import (
    MAX_JSON5_LENGTH,
    SpooledJsonArtifact,
    parse_json,
    parse_json5,
    parse_json_lines,
)
from gateway.artifacts.query_tools import MAX_QUERY_ANSWER
from gateway.artifacts.spool_stores import FileStore, InMemoryReader
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.errors import AnswerTooLarge, InvalidToolArgs, JsonParseError, JsonPathInvalid, ToolDownstreamError
from gateway.model.primitives.canonical_json import UNDEFINED
from tests.artifacts.formats.document_turns import ask, run, turn_with

pytestmark = pytest.mark.anyio

PEOPLE = '{"name": "Ada", "age": 36}\n\n{"name": "Bob", "age": 17, "city": "Oslo"}\r\n"a text"\n{"name": "Cy"}\n'
TREE = '{"b": {"c": [1, 2, {"d": null}]}, "a": "x"}'


def jsondoc(text: str | bytes, format: Any = None) -> SpooledJsonArtifact:
    return SpooledJsonArtifact(InMemoryReader(text), format)


@pytest.mark.parametrize(
    ("text", "format", "value"),
    [
        pytest.param('{"a": 1}', "json", {"a": 1}, id="one line"),
        pytest.param('{\n  "a": [\n    1\n  ]\n}\n', "json", {"a": [1]}, id="pretty-printed"),
        pytest.param("[1,\n2]", "json", [1, 2], id="lines that are not values"),
        pytest.param("  7\n", "json", 7, id="a number"),
        pytest.param("\ufeff\u00a0null\u2028", "json", None, id="what JavaScript trims"),
        pytest.param('{"a": 1}\n{"a": 2}', "jsonl", [{"a": 1}, {"a": 2}], id="two lines"),
        pytest.param('\n{"a": 1}\n\n \t\r\n[2]\n', "jsonl", [{"a": 1}, [2]], id="blank lines between"),
        pytest.param("1\n2\n3", "jsonl", [1, 2, 3], id="numbers"),
        pytest.param("{a: 1,}", "json5", {"a": 1}, id="bare key and trailing comma"),
        pytest.param("// c\n[0x1F, .5, +2, 'x']", "json5", [31, 0.5, 2, "x"], id="comment, hex, quotes"),
        pytest.param('{"a": 1}\n// c', "json5", {"a": 1}, id="a comment at the end"),
    ],
)
async def test_format_is_the_first_that_fits(text: str, format: str, value: Any) -> None:
    document = jsondoc(text)

    assert await document.json_type() == format
    assert await document.value() == value


@pytest.mark.parametrize(
    ("hint", "text", "format", "records"),
    [
        pytest.param("json", "[1]", "json", [[1]], id="json"),
        pytest.param("json5", "[1]", "json5", [[1]], id="JSON is JSON5, too"),
        pytest.param("json5", "[1,]", "json5", [[1]], id="json5"),
        pytest.param("jsonl", "[1]", "jsonl", [[1]], id="one line of jsonl"),
        pytest.param("ndjson", "1\n2", "jsonl", [1, 2], id="ndjson"),
        pytest.param("jsonl", "", "jsonl", [], id="no lines at all"),
    ],
)
async def test_hint_skips_the_inference(hint: str, text: str, format: str, records: list[Any]) -> None:
    document = jsondoc(text, hint)

    assert await document.json_type() == format
    assert await document.json_slice() == records


@pytest.mark.parametrize(
    ("hint", "text", "message"),
    [
        pytest.param("json", "{a: 1}", "line 1:2", id="json5 as json"),
        pytest.param("json", "1\n2", "line 2:1", id="jsonl as json"),
        pytest.param("jsonl", "1\n\n{", "line 3: ", id="bad line"),
        pytest.param("json5", "{a: }", r"as JSON5: unexpected \"}\" \(line 1:5\)", id="bad json5"),
        pytest.param(None, "", "neither JSON nor JSON Lines", id="empty"),
        pytest.param(None, " \n ", "neither JSON nor JSON Lines", id="blank"),
        pytest.param(None, "<html>", "neither JSON nor JSON Lines: expecting value", id="something else"),
        pytest.param(None, '{"a": 1}\n{"a": ', "neither JSON nor JSON Lines", id="cut off"),
    ],
)
async def test_text_of_another_format_is_refused(hint: Any, text: str, message: str) -> None:
    with pytest.raises(JsonParseError, match=message) as refused:
        await jsondoc(text, hint).json_type()

    assert (refused.value.code, refused.value.status) == ("E_JSON_PARSE_ERROR", 422)
    assert "\n" not in refused.value.message


def test_unknown_hint_is_refused() -> None:
    with pytest.raises(ValueError, match="'yaml' is not one of json, json5, jsonl, ndjson"):
        jsondoc("1", "yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("12345678901234567890123", 12345678901234567890123, id="past 64 bits"),
        pytest.param("-9223372036854775809", -9223372036854775809, id="below 64 bits"),
        pytest.param('{"a": 1, "b": 2, "a": 3}', {"a": 3, "b": 2}, id="the last of doubled keys"),
        pytest.param(r'"\ud800"', "\ud800", id="half a surrogate pair"),
        pytest.param(r'"\ud83d\ude00"', "😀", id="a surrogate pair"),
        pytest.param("1e400", math.inf, id="past the largest double"),
        pytest.param("-0.0", -0.0, id="minus zero"),
        pytest.param('"\x7f"', "\x7f", id="delete"),
    ],
)
def test_strict_json_is_javascripts(text: str, value: Any) -> None:
    assert parse_json(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *("NaN", "[Infinity]", "-Infinity", "[1,]", "01", "+1", ".5", "1.", "'a'", "{a:1}", "[1 2]", "tru", "1 2"),
        pytest.param('"\x01"', id="control character"),
        pytest.param("9" * 5_000, id="thousands of digits"),
    ],
)
def test_what_javascript_refuses_is_refused(text: str) -> None:
    with pytest.raises(JsonParseError):
        parse_json(text)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)


@settings(deadline=None)  # a busy machine is not a failure
@given(JSON_VALUES)
def test_every_json_value_is_read_back(value: Any) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False, indent=1)) == value


@settings(deadline=None)  # a busy machine is not a failure
@given(st.lists(JSON_VALUES, min_size=2, max_size=5))
def test_every_list_of_values_is_read_back_from_lines(values: list[Any]) -> None:
    assert parse_json_lines("\n".join(map(json.dumps, values))) == values


async def test_keys_come_in_source_order() -> None:
    assert await jsondoc(TREE).json_keys() == ["b", "a"]
    assert await jsondoc("{}").json_keys() == []


async def test_keys_of_lines_are_the_union_in_order() -> None:
    assert await jsondoc(PEOPLE).json_keys() == ["name", "age", "city"]


@pytest.mark.parametrize("text", ["[1]", '"x"', "null", "1\n[2]"])
async def test_keys_are_missing_without_an_object(text: str) -> None:
    assert await jsondoc(text).json_keys() is UNDEFINED


@pytest.mark.parametrize(("text", "length"), [("[1, 2, 3]", 1), ("{}", 1), ("{a: 1}", 1), (PEOPLE, 4)])
async def test_length_counts_records(text: str, length: int) -> None:
    assert await jsondoc(text).json_length() == length


async def test_get_and_pluck_find_values() -> None:
    document = jsondoc(TREE)

    assert await document.json_get("$.b.c[2].d") == [None]
    assert await document.json_pluck("$.b.c[0:2]") == [1, 2]
    assert await document.json_get("$.nothing") == []
    assert await jsondoc("0").json_get("$") == []


async def test_get_joins_the_matches_of_all_lines() -> None:
    assert await jsondoc(PEOPLE).json_get("$.name") == ["Ada", "Bob", "Cy"]


async def test_filter_returns_whole_records() -> None:
    assert await jsondoc(PEOPLE).json_filter("$[?(@ > 30)]") == [{"name": "Ada", "age": 36}]
    assert await jsondoc(PEOPLE).json_filter("$.city") == [{"name": "Bob", "age": 17, "city": "Oslo"}]
    assert await jsondoc(TREE).json_filter("$.a") == [json.loads(TREE)]
    assert await jsondoc(TREE).json_filter("$.z") == []


async def test_slice_takes_lines_but_never_cuts_one_document() -> None:
    assert await jsondoc("1\n2\n3").json_slice(1) == [2, 3]
    assert await jsondoc("1\n2\n3").json_slice(0, 2) == [1, 2]
    assert await jsondoc("1\n2\n3").json_slice(5, 9) == []
    assert await jsondoc("[1, 2, 3]").json_slice(1, 2) == [[1, 2, 3]]


async def test_text_is_parsed_once() -> None:
    class CountingReader(InMemoryReader):
        reads = 0

        def read_all(self) -> str:
            self.reads += 1
            return super().read_all()

    reader = CountingReader(TREE)
    document = SpooledJsonArtifact(reader)

    assert [await document.json_type(), await document.json_length()] == ["json", 1]
    assert reader.reads == 1


async def test_large_file_of_lines_is_queried(tmp_path: Any) -> None:
    lines = "".join(f'{{"id": {number}, "even": {json.dumps(number % 2 == 0)}}}\n' for number in range(40_000))
    document = SpooledJsonArtifact(await FileStore(tmp_path).write("big", lines))

    assert await document.json_length() == 40_000
    assert len(await document.json_filter("$[?(@ === true)]")) == 20_000
    assert await document.json_get("$[?(@ === 39999)]") == [39_999]


async def test_content_past_the_limit_is_not_even_read() -> None:
    class SmallDocument(SpooledJsonArtifact):
        parse_limit = 10

    document = SmallDocument(InMemoryReader("[1, 2, 3, 4, 5]"))

    with pytest.raises(JsonParseError, match="15 bytes; at most 10 are parsed"):
        await document.json_type()
    assert await document.head() == ["[1, 2, 3, 4, 5]"]


async def test_long_json5_is_refused() -> None:
    with pytest.raises(JsonParseError, match="as JSON5: 131074 characters are too many"):
        await jsondoc("[" + " " * MAX_JSON5_LENGTH + "x").json_type()


def test_json5_numbers_without_end_are_refused() -> None:
    with pytest.raises(JsonParseError, match="as JSON5: exceeds the limit"):
        parse_json5("1" * 5_000)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1_000])
async def test_document_past_the_depth_is_refused(depth: int) -> None:
    assert await jsondoc("[" * MAX_DEPTH + "]" * MAX_DEPTH).json_length() == 1
    with pytest.raises(JsonParseError, match="nested deeper than 256 levels"):
        await jsondoc("[" * depth + "]" * depth).json_length()
    with pytest.raises(JsonParseError, match="line 2: the document is nested deeper than 256 levels"):
        await jsondoc("1\n" + "[" * depth + "]" * depth).json_length()


async def test_deepest_document_can_be_printed() -> None:
    text = '{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH

    assert json.loads(await ask(jsondoc(text), "artifact_json_get", path="$")) == [json.loads(text)]


@pytest.mark.parametrize(
    ("tool", "args", "text", "answer"),
    [
        pytest.param("type", {}, PEOPLE, "jsonl", id="type"),
        pytest.param("keys", {}, TREE, "b\na", id="keys"),
        pytest.param("keys", {}, "[1]", "(undefined)", id="missing keys"),
        pytest.param("keys", {}, "{}", "(empty list)", id="no keys"),
        pytest.param("length", {}, PEOPLE, "4", id="length"),
        pytest.param("get", {"path": "$.a"}, TREE, "x", id="get texts"),
        pytest.param("get", {"path": "$.b.c[2]"}, TREE, '[\n  {\n    "d": null\n  }\n]', id="get values"),
        pytest.param("get", {"path": "$.z"}, TREE, "(empty list)", id="get nothing"),
        pytest.param("pluck", {"path": "$.name"}, PEOPLE, "Ada\nBob\nCy", id="pluck"),
        pytest.param("filter", {"path": "$.x"}, '{"x": "é"}', '[\n  {\n    "x": "é"\n  }\n]', id="filter"),
        pytest.param("slice", {"start": 1}, "1\n2\n3", "[\n  2,\n  3\n]", id="slice from"),
        pytest.param("slice", {"end": 1}, "1\n2\n3", "[\n  1\n]", id="slice to"),
        pytest.param("slice", {}, "1\n2", "[\n  1,\n  2\n]", id="slice all"),
        pytest.param("get", {"path": "$[*]"}, "[1.0, 1e21]", "[\n  1,\n  1e+21\n]", id="numbers of JavaScript"),
    ],
)
async def test_forged_tool_answers_in_text(tool: str, args: dict[str, Any], text: str, answer: str) -> None:
    assert await ask(jsondoc(text), f"artifact_json_{tool}", **args) == answer


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        pytest.param("get", {}, id="no path"),
        pytest.param("get", {"path": ""}, id="empty path"),
        pytest.param("get", {"path": 5}, id="path of another type"),
        pytest.param("get", {"path": "$" + "x" * 3_000}, id="long path"),
        pytest.param("slice", {"start": -1}, id="negative start"),
        pytest.param("slice", {"end": 1.5}, id="half an end"),
        pytest.param("type", {"path": "$"}, id="unknown argument"),
    ],
)
async def test_bad_arguments_are_refused_before_the_query(tool: str, args: dict[str, Any]) -> None:
    with pytest.raises(InvalidToolArgs):
        await ask(jsondoc(TREE), f"artifact_json_{tool}", **args)


async def test_bad_path_fails_the_call_with_its_reason() -> None:
    with pytest.raises(ToolDownstreamError) as failed:
        await ask(jsondoc(TREE), "artifact_json_get", path="$[?(")

    assert isinstance(failed.value.cause, JsonPathInvalid)


async def test_tools_are_forged_for_json_results_only() -> None:
    turn = turn_with(text=SpooledArtifact(InMemoryReader("plain")), doc=jsondoc(TREE))

    forged = SpooledJsonArtifact.forge_tools(turn)
    get, head = forged.get("artifact_json_get"), forged.get("artifact_head")

    assert get is not None
    assert head is not None
    assert get.describe()["input_schema"]["properties"]["callId"]["enum"] == ["doc"]
    assert head.describe()["input_schema"]["properties"]["callId"]["enum"] == ["text", "doc"]
    assert await run(get, turn, callId="doc", path="$.a") == "x"


def test_class_lists_only_its_own_tools() -> None:
    own = [method.name for method in SpooledJsonArtifact.tool_methods]
    names = ["type", "keys", "length", "get", "filter", "slice", "pluck"]

    assert own == [f"artifact_json_{name}" for name in names]
    assert [method.method for method in SpooledJsonArtifact.tool_methods] == [f"json_{name}" for name in names]
    assert all("callId" in method.description for method in SpooledJsonArtifact.tool_methods)


async def test_answer_that_would_be_too_large_is_refused() -> None:
    text = json.dumps([{"id": number, "text": "x" * 100} for number in range(100_000)])

    with pytest.raises(ToolDownstreamError) as failed:
        await ask(jsondoc(text), "artifact_json_get", path="$")

    assert isinstance(failed.value.cause, AnswerTooLarge)
    assert await ask(jsondoc(text), "artifact_json_get", path="$[99999].id") == "[\n  99999\n]"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(["x" * MAX_QUERY_ANSWER], id="one long text"),
        pytest.param([{"k" * MAX_QUERY_ANSWER: 1}], id="one long key"),
        pytest.param([[0] * 300_000], id="many small values"),
    ],
)
def test_size_counts_texts_keys_and_values(answer: Any) -> None:
    with pytest.raises(AnswerTooLarge):
        to_bounded_text(answer)


def test_shared_parts_count_as_often_as_they_are_printed() -> None:
    part: list[Any] = ["x" * 1_000]
    for _ in range(15):
        part = [part, part]

    with pytest.raises(AnswerTooLarge):
        to_bounded_text(part)

"""SpooledToonArtifact: queries over the decoded value, decoder options, and refused documents."""

from typing import Any

import pytest

from gateway.artifacts.formats.toon_artifact import SpooledToonArtifact
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.errors import ToonDecodeFailed
from gateway.model.primitives.canonical_json import UNDEFINED
from tests.artifacts.formats.document_turns import ask

pytestmark = pytest.mark.anyio

USERS = """\
team: core
users[2]{id,name}:
  1,Ada
  2,Bob
"""
LIST = "[3]: 10,20,30"


def toon(text: str, **options: Any) -> SpooledToonArtifact:
    return SpooledToonArtifact(InMemoryReader(text), **options)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param(
            USERS, {"team": "core", "users": [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}]}, id="object"
        ),
        pytest.param(LIST, [10, 20, 30], id="list"),
        pytest.param("hello", "hello", id="text"),
        pytest.param("null", None, id="null"),
        pytest.param("", {}, id="empty"),
        pytest.param("a: 12345678901234567890", {"a": 12345678901234567890}, id="large integer"),
    ],
)
async def test_text_is_decoded(text: str, value: Any) -> None:
    assert await toon(text).value() == value


async def test_type_names_the_format() -> None:
    assert await toon(USERS).toon_type() == {"format": "toon"}


async def test_keys_are_those_of_the_root() -> None:
    assert await toon(USERS).toon_keys() == ["team", "users"]
    assert await toon(LIST).toon_keys() is UNDEFINED
    assert await toon("[1]{a}:\n  1").toon_keys() is UNDEFINED


async def test_length_counts_items_of_a_list() -> None:
    assert [await toon(text).toon_length() for text in (LIST, USERS, "[]", "hello")] == [3, 1, 0, 1]


async def test_paths_search_the_root() -> None:
    assert await toon(USERS).toon_get("$.users[*].name") == ["Ada", "Bob"]
    assert await toon(USERS).toon_pluck("$.users[?(@.id > 1)].name") == ["Bob"]
    assert await toon("null").toon_get("$") == []


async def test_filter_returns_the_root_or_nothing() -> None:
    assert await toon(LIST).toon_filter("$[?(@ > 20)]") == [[10, 20, 30]]
    assert await toon(LIST).toon_filter("$[?(@ > 30)]") == []


async def test_slice_cuts_a_list_only() -> None:
    assert await toon(LIST).toon_slice(1) == [20, 30]
    assert await toon(LIST).toon_slice(0, 1) == [10]
    assert await toon("a: 1").toon_slice(5, 6) == [{"a": 1}]


async def test_indent_size_is_an_option() -> None:
    assert await toon("a:\n    b: 1", indent_size=4).value() == {"a": {"b": 1}}
    with pytest.raises(ValueError, match="'indent_size' must be at least 1"):
        toon("a: 1", indent_size=0)


async def test_lenient_decoding_is_an_option() -> None:
    assert await toon("[5]: 1,2", strict=False).value() == [1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("[3]: 1,2", "declared length 3 but found 2 (line 1: '[3]: 1,2')", id="wrong length"),
        pytest.param("a: 1\n   b: 2", "(line 2: '   b: 2')", id="odd indentation"),
        pytest.param("a: 1\na: 2", "duplicate key 'a' (line 2: 'a: 2')", id="doubled key"),
        pytest.param("a: 1\nb", "expected 'key: value' (line 2: 'b')", id="no value"),
        pytest.param(
            "[2]:\n  - 1\n\n  - 2", "blank line inside an array or keyed object (line 3: '')", id="blank line"
        ),
        pytest.param("a: " + "9" * 5_000, "thousands of digits (line 1: 'a: " + "9" * 77 + "…')", id="long integer"),
        pytest.param('a: "' + "x" * 200, "unterminated string (line 1: '" + 'a: "' + "x" * 76 + "…')", id="long line"),
    ],
)
async def test_bad_toon_is_refused_with_line_and_source(text: str, message: str) -> None:
    with pytest.raises(ToonDecodeFailed) as refused:
        await toon(text).toon_length()

    assert refused.value.message.endswith(message)
    assert (refused.value.code, refused.value.status) == ("E_TOON_DECODE_FAILED", 422)


async def test_forged_tools_answer_in_text() -> None:
    assert await ask(toon(USERS), "artifact_toon_type") == '{\n  "format": "toon"\n}'
    assert await ask(toon(USERS), "artifact_toon_keys") == "team\nusers"
    assert await ask(toon(LIST), "artifact_toon_keys") == "(undefined)"
    assert await ask(toon(LIST), "artifact_toon_length") == "3"
    assert await ask(toon(USERS), "artifact_toon_get", path="$..name") == "Ada\nBob"
    assert await ask(toon(USERS), "artifact_toon_pluck", path="$..none") == "(empty list)"
    assert await ask(toon(LIST), "artifact_toon_filter", path="$[0]") == "[\n  [\n    10,\n    20,\n    30\n  ]\n]"
    assert await ask(toon(LIST), "artifact_toon_slice", start=2) == "[\n  30\n]"


def test_class_lists_only_its_own_tools() -> None:
    names = ["type", "keys", "length", "get", "pluck", "filter", "slice"]

    assert [method.name for method in SpooledToonArtifact.tool_methods] == [f"artifact_toon_{name}" for name in names]
    assert [method.method for method in SpooledToonArtifact.tool_methods] == [f"toon_{name}" for name in names]

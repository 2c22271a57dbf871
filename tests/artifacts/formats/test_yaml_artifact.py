"""SpooledYamlArtifact: documents of a stream, scalars as JSON, anchors and merges, and refused documents."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.artifacts.formats.document_artifact import MAX_DEPTH
from gateway.artifacts.formats.yaml_artifact import SpooledYamlArtifact
from gateway.artifacts.formats.yaml_parser import MAX_ALIASED, parse_yaml, write_yaml
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.errors import YamlParseError
from gateway.model.primitives.canonical_json import UNDEFINED
from tests.artifacts.formats.document_turns import ask

pytestmark = pytest.mark.anyio

STREAM = """\
kind: Service
metadata: {name: web, labels: {app: shop}}
---
kind: Deployment
spec:
  replicas: 3
---
- just
- a list
"""


def yamldoc(text: str, **options: Any) -> SpooledYamlArtifact:
    return SpooledYamlArtifact(InMemoryReader(text), **options)


def parse(text: str) -> Any:
    (document,) = parse_yaml(text)
    return document


@pytest.mark.parametrize(
    ("text", "multi_document", "type"),
    [
        pytest.param("a: 1", None, "single-document", id="one"),
        pytest.param("---\na: 1\n...\n", None, "single-document", id="one with markers"),
        pytest.param("a: 1\n---\nb: 2", None, "multi-document", id="two"),
        pytest.param("a: 1", True, "multi-document", id="one, called a stream"),
        pytest.param("a: 1", False, "single-document", id="one, insisted on"),
        pytest.param("", None, "single-document", id="empty"),
    ],
)
async def test_type_decides_how_many_documents_to_expect(text: str, multi_document: bool | None, type: str) -> None:
    assert await yamldoc(text, multi_document=multi_document).yaml_type() == type


async def test_second_document_is_refused_where_one_is_insisted_on() -> None:
    with pytest.raises(YamlParseError, match=r"a second document starts .* \(line 2:1\)$"):
        await yamldoc("a: 1\n---\nb: 2", multi_document=False).yaml_type()


@pytest.mark.parametrize(
    ("text", "length"), [("", 0), ("# only a comment\n", 0), ("a", 1), ("---\n---\n", 2), (STREAM, 3)]
)
async def test_length_counts_documents(text: str, length: int) -> None:
    assert await yamldoc(text).yaml_length() == length


async def test_keys_are_the_union_over_objects() -> None:
    assert await yamldoc(STREAM).yaml_keys() == ["kind", "metadata", "spec"]
    assert await yamldoc("- a\n- b").yaml_keys() is UNDEFINED
    assert await yamldoc("").yaml_keys() is UNDEFINED


async def test_paths_search_all_documents() -> None:
    stream = yamldoc(STREAM)

    assert await stream.yaml_get("$.kind") == ["Service", "Deployment"]
    assert await stream.yaml_pluck("$..replicas") == [3]
    assert await stream.yaml_filter("$.spec") == [{"kind": "Deployment", "spec": {"replicas": 3}}]
    assert await stream.yaml_slice(2) == [["just", "a list"]]
    assert await stream.yaml_slice(0, 1) == await stream.yaml_filter("$.metadata")


@pytest.mark.parametrize(
    ("text", "value"), [("a: 1", {"a": 1}), ("1\n---\n2", [1, 2]), ("", None), ("null", None)], ids=repr
)
async def test_value_is_the_document_or_the_list_of_them(text: str, value: Any) -> None:
    assert await yamldoc(text).value() == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("1", 1, id="integer"),
        pytest.param("0x1F", 31, id="hexadecimal"),
        pytest.param("1.5", 1.5, id="float"),
        pytest.param(".nan", ".nan", id="not a number"),
        pytest.param(".inf", ".inf", id="infinity"),
        pytest.param("-.Inf", "-.inf", id="minus infinity"),
        pytest.param("yes", True, id="a boolean of YAML 1.1"),
        pytest.param("~", None, id="null"),
        pytest.param("2024-01-02", "2024-01-02", id="date"),
        pytest.param("2001-12-14t21:59:43.10-05:00", "2001-12-14T21:59:43.100000-05:00", id="moment"),
        pytest.param("2024-13-45", "2024-13-45", id="a date that does not exist"),
        pytest.param("'1'", "1", id="quoted"),
        pytest.param("!!str 1", "1", id="tagged as text"),
        pytest.param("!!int '7'", 7, id="tagged as integer"),
        pytest.param("!!float 7", 7.0, id="tagged as float"),
        pytest.param("!!binary aGVs\n  bG8=", "aGVsbG8=", id="binary stays base64"),
        pytest.param("!!set {a, b}", {"a": None, "b": None}, id="set"),
        pytest.param("!!omap [a: 1, b: 2]", [{"a": 1}, {"b": 2}], id="ordered map"),
        pytest.param("[<<, =]", ["<<", "="], id="merge and value out of place"),
        pytest.param("a: <<", {"a": "<<"}, id="merge as a value"),
        pytest.param("a: 1\na: 2", {"a": 2}, id="the last of doubled keys"),
        pytest.param("{1: a, 2.5: b, yes: c, ~: d}", {"1": "a", "2.5": "b", "true": "c", "null": "d"}, id="keys"),
        pytest.param("2024-01-02: a\n.nan: b", {"2024-01-02": "a", ".nan": "b"}, id="keys of other kinds"),
        pytest.param("|\n  two\n  lines\n", "two\nlines\n", id="literal text"),
        pytest.param('"é\\u00e9😀"', "éé😀", id="beyond ASCII"),
        pytest.param("\ufeffa: 1", {"a": 1}, id="byte-order mark"),
    ],
)
def test_scalar_becomes_json(text: str, value: Any) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("a: &x [1]\nb: *x", {"a": [1], "b": [1]}, id="a list"),
        pytest.param("a: &x 1\nb: *x", {"a": 1, "b": 1}, id="a scalar"),
        pytest.param("a: &x k\n*x : 1", {"a": "k", "k": 1}, id="a key"),
        pytest.param("[&x 1, &x 2, *x]", [1, 2, 2], id="the nearest anchor"),
        pytest.param(
            "b: &b {x: 1, y: 2}\nd: {<<: *b, y: 3}", {"b": {"x": 1, "y": 2}, "d": {"x": 1, "y": 3}}, id="merge"
        ),
        pytest.param("d: {y: 3, <<: {x: 1, y: 2}}", {"d": {"x": 1, "y": 3}}, id="a key of its own wins"),
        pytest.param("d: {<<: [{x: 1}, {x: 2, y: 2}]}", {"d": {"x": 1, "y": 2}}, id="the first of a list wins"),
        pytest.param("d: {<<: {x: 1}, <<: {x: 2}}", {"d": {"x": 2}}, id="the second merge wins"),
    ],
)
def test_anchor_stands_for_its_value(text: str, value: Any) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a: [1", "(line 2:1)", id="not closed"),
        pytest.param("a: b: c", "(line 1:5)", id="two values"),
        pytest.param("a: 1\n\tb: 2", "(line 2:1)", id="tab"),
        pytest.param("a: 1\nb: *x", "the alias 'x' has no anchor (line 2:4)", id="unknown alias"),
        pytest.param("---\n&x a\n---\n*x", "the alias 'x' has no anchor (line 4:1)", id="anchor of another document"),
        pytest.param("a: &x [1, *x]", "the anchor 'x' contains itself (line 1:11)", id="an anchor in itself"),
        pytest.param("a: !custom 1", "the tag '!custom' is not supported (line 1:4)", id="custom tag"),
        pytest.param("!custom {a: 1}", "the tag '!custom' is not supported (line 1:1)", id="custom tag of an object"),
        pytest.param(
            "!!int [1]", "the tag 'tag:yaml.org,2002:int' is not supported (line 1:1)", id="tag of another kind"
        ),
        pytest.param("!!int x", "a scalar cannot be read as 'int' (line 1:1)", id="tag that does not fit"),
        pytest.param("!!bool x", "a scalar cannot be read as 'bool' (line 1:1)", id="boolean that is none"),
        pytest.param("!!timestamp x", "a scalar cannot be read as 'timestamp' (line 1:1)", id="moment that is none"),
        pytest.param("[a, b]: 1", "a key must be a scalar (line 1:6)", id="a list as a key"),
        pytest.param("d: {<<: 5}", "only objects can be merged (line 1:9)", id="merging a number"),
        pytest.param("d: {<<: [{}, 5]}", "only objects can be merged (line 1:15)", id="merging a list of others"),
        pytest.param("a: \x01", "control characters are not allowed", id="control character"),
        pytest.param("9" * 5_000, "a scalar cannot be read as 'int' (line 1:1)", id="thousands of digits"),
    ],
)
async def test_bad_yaml_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(YamlParseError) as refused:
        await yamldoc(text).yaml_length()

    assert refused.value.message.endswith(message)
    assert "\n" not in refused.value.message
    assert (refused.value.code, refused.value.status) == ("E_YAML_PARSE_ERROR", 422)


def test_aliases_may_stand_for_much_but_not_for_everything() -> None:
    text = f"a: &x {'y' * 1000}\n"
    allowed = MAX_ALIASED // 1016

    assert len(parse(f"{text}b: [{', '.join(['*x'] * allowed)}]")["b"]) == allowed
    with pytest.raises(YamlParseError, match="aliases expand to more than"):
        parse(f"{text}b: [{', '.join(['*x'] * (allowed + 1))}]")


def test_depth_counts_what_aliases_stand_for() -> None:
    half = MAX_DEPTH // 2
    text = f"a: &x {'[' * half}{']' * half}\nb: {'[' * half}*x{']' * half}"

    with pytest.raises(YamlParseError, match="nested deeper than 256 levels"):
        parse(text)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["yes", ".nan", "2024-01-02", "<<", "a\nb", " x", "1_000", "0x1F", "- a", "a: b", "\u2028"]),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)


@settings(deadline=None)  # a busy machine is not a failure
@given(JSON_VALUES)
def test_whatever_is_written_is_read_back(value: Any) -> None:
    assert parse(write_yaml(value)) == value


def test_writing_keeps_order_lines_and_characters() -> None:
    shared = ["é"]

    text = write_yaml({"b": shared, "a": shared, "t": "x\ny\n", "long": "word " * 50 + "."})

    assert text == f"b:\n- é\na:\n- é\nt: |\n  x\n  y\nlong: {'word ' * 50}.\n"


async def test_forged_tools_answer_in_text() -> None:
    stream = yamldoc(STREAM)

    assert await ask(stream, "artifact_yaml_type") == "multi-document"
    assert await ask(stream, "artifact_yaml_keys") == "kind\nmetadata\nspec"
    assert await ask(yamldoc("[1]"), "artifact_yaml_keys") == "(undefined)"
    assert await ask(stream, "artifact_yaml_length") == "3"
    assert await ask(stream, "artifact_yaml_get", path="$.kind") == "Service\nDeployment"
    assert await ask(stream, "artifact_yaml_pluck", path="$.nothing") == "(empty list)"
    assert (
        await ask(stream, "artifact_yaml_filter", path="$[?(@ == 'just')]")
        == '[\n  [\n    "just",\n    "a list"\n  ]\n]'
    )
    assert await ask(stream, "artifact_yaml_slice", start=5) == "(empty list)"


def test_class_lists_only_its_own_tools() -> None:
    names = ["type", "keys", "length", "get", "pluck", "filter", "slice"]

    assert [method.name for method in SpooledYamlArtifact.tool_methods] == [f"artifact_yaml_{name}" for name in names]
    assert [method.method for method in SpooledYamlArtifact.tool_methods] == [f"yaml_{name}" for name in names]


def test_parser_without_its_c_library_reads_and_writes_the_same() -> None:
    script = (
        "import sys; sys.modules['yaml._yaml'] = None\n"
        "from gateway.artifacts.formats.yaml_parser import parse_yaml, write_yaml\n"
        "import yaml; assert not yaml.__with_libyaml__\n"
        "value = {'a': [1, 'x\\ny'], 'b': {'c': None}}\n"
        "assert parse_yaml(write_yaml(value)) == [value]\n"
        "try: parse_yaml('a: [')\n"
        "except Exception as error: print(error)\n"
    )

    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert finished.returncode == 0, finished.stderr
    assert "E_YAML_PARSE_ERROR" in finished.stdout

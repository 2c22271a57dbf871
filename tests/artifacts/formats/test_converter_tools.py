"""The six converters: arguments, artifacts of the turn as sources, and what survives a round trip."""

import json
from typing import Any

import pytest

from gateway.artifacts.formats.converter_tools import MAX_CONVERTED_SIZE, converter_tools
from gateway.artifacts.formats.document_artifact import MAX_DEPTH
from gateway.artifacts.formats.json_artifact import SpooledJsonArtifact
from gateway.artifacts.formats.toon_artifact import SpooledToonArtifact
from gateway.artifacts.formats.xml_artifact import SpooledXmlArtifact
from gateway.artifacts.formats.yaml_artifact import SpooledYamlArtifact
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.errors import AnswerTooLarge, InvalidToolArgs, ToolDownstreamError, XmlParseFailed, YamlParseError
from gateway.model.tools.tool import Tool
from tests.artifacts.formats.document_turns import Turn, run, turn_with

pytestmark = pytest.mark.anyio

NAMES = ["yaml_to_json", "json_to_yaml", "xml_to_json", "json_to_xml", "toon_to_json", "json_to_toon"]
TEXTS = {"yaml": "a: 1", "json": '{"a": 1}', "xml": "<a>1</a>", "toon": "a: 1"}


def converter(name: str) -> Tool:
    (tool,) = (tool for tool in converter_tools() if tool.name == name)
    return tool


async def convert(name: str, text: str) -> str:
    return await run(converter(name), Turn(), text=text)


def test_tools_are_ordinary_and_name_their_results_class() -> None:
    classes = {tool.name: tool.artifact_constructor() for tool in converter_tools() if tool.artifact_constructor}

    assert list(classes) == NAMES
    assert classes == {
        "yaml_to_json": SpooledJsonArtifact,
        "json_to_yaml": SpooledYamlArtifact,
        "xml_to_json": SpooledJsonArtifact,
        "json_to_xml": SpooledXmlArtifact,
        "toon_to_json": SpooledJsonArtifact,
        "json_to_toon": SpooledToonArtifact,
    }
    assert not any(tool.ephemeral or tool.trusted for tool in converter_tools())


@pytest.mark.parametrize("name", NAMES)
async def test_text_is_converted(name: str) -> None:
    source, target = name.split("_to_")

    text = await convert(name, TEXTS[source])

    assert (
        text.strip().removeprefix('<?xml version="1.0" encoding="UTF-8"?>\n')
        == {
            "yaml": "a: 1",
            "json": '{\n  "a": 1\n}',
            "xml": "<a>1</a>",
            "toon": "a: 1",
        }[target]
    )


@pytest.mark.parametrize(
    "args",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"text": "", "call_id": ""}, id="both empty"),
        pytest.param({"text": " \n", "call_id": "\t"}, id="both blank"),
        pytest.param({"text": "a: 1", "call_id": "c1"}, id="both given"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
async def test_exactly_one_source_is_needed(name: str, args: dict[str, Any]) -> None:
    answer = await run(converter(name), Turn(), **args)

    assert answer == "Error: give either text or call_id, and not both."


async def test_blank_source_beside_the_other_is_as_if_omitted() -> None:
    turn = turn_with(c1=SpooledYamlArtifact(InMemoryReader("b: 2")))

    assert await run(converter("yaml_to_json"), turn, text="a: 1", call_id=" ") == '{\n  "a": 1\n}'
    assert await run(converter("yaml_to_json"), turn, text="", call_id="c1") == '{\n  "b": 2\n}'


@pytest.mark.parametrize("name", NAMES)
async def test_id_must_name_an_artifact_of_the_source_format(name: str) -> None:
    turn = turn_with(plain=SpooledArtifact(InMemoryReader("a: 1")))

    for id in ("plain", "unknown"):
        answer = await run(converter(name), turn, call_id=id)

        assert answer == f"Error: no {name.partition('_')[0].upper()} artifact with this id is available in this turn."


async def test_unknown_arguments_are_refused() -> None:
    with pytest.raises(InvalidToolArgs):
        await run(converter("yaml_to_json"), Turn(), txt="a: 1")
    with pytest.raises(InvalidToolArgs):
        await run(converter("yaml_to_json"), Turn(), text=5)


async def test_artifact_keeps_its_options() -> None:
    turn = turn_with(
        bare=SpooledXmlArtifact(InMemoryReader('<a b="1">x</a>'), ignore_attributes=True),
        marked=SpooledXmlArtifact(InMemoryReader('<a b="1"/>'), attribute_name_prefix="-"),
        wide=SpooledToonArtifact(InMemoryReader("a:\n    b: 1"), indent_size=4),
    )

    assert json.loads(await run(converter("xml_to_json"), turn, call_id="bare")) == {"a": "x"}
    assert json.loads(await run(converter("xml_to_json"), turn, call_id="marked")) == {"a": {"-b": "1"}}
    assert json.loads(await run(converter("toon_to_json"), turn, call_id="wide")) == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("a: 1\n---\nb: 2", [{"a": 1}, {"b": 2}], id="several documents"),
        pytest.param("- 1", [1], id="one document"),
        pytest.param("# nothing", None, id="no document"),
        pytest.param("[.nan, .inf, -.inf]", [".nan", ".inf", "-.inf"], id="numbers JSON lacks"),
        pytest.param("{d: 2024-01-02, 1: x}", {"d": "2024-01-02", "1": "x"}, id="dates and keys"),
    ],
)
async def test_yaml_becomes_json(text: str, value: Any) -> None:
    assert json.loads(await convert("yaml_to_json", text)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param('{"a": 1}\n{"b": 2}', [{"a": 1}, {"b": 2}], id="JSON Lines become a list"),
        pytest.param("{a: [1,]}", {"a": [1]}, id="JSON5"),
        pytest.param('["yes", "1", null, "a\\nb", ".nan"]', ["yes", "1", None, "a\nb", ".nan"], id="look-alikes"),
    ],
)
async def test_json_survives_yaml_and_toon(text: str, value: Any) -> None:
    assert json.loads(await convert("yaml_to_json", await convert("json_to_yaml", text))) == value
    assert json.loads(await convert("toon_to_json", await convert("json_to_toon", text))) == value


async def test_xml_survives_json() -> None:
    text = '<r xmlns:n="u" n:k="v"><a>1</a><a>two &amp; more</a><n:b c="">t<d/></n:b></r>'

    projected = await convert("xml_to_json", text)
    back = await convert("json_to_xml", projected)

    assert await convert("xml_to_json", back) == projected


@pytest.mark.parametrize("name", ["json_to_yaml", "json_to_toon", "json_to_xml"])
async def test_half_a_surrogate_pair_is_replaced(name: str) -> None:
    assert "x\ufffd" in await convert(name, r'{"a": "x\ud800"}')


@pytest.mark.parametrize("name", ["json_to_yaml", "json_to_toon", "json_to_xml"])
async def test_deepest_document_is_converted(name: str) -> None:
    assert await convert(name, "[" * MAX_DEPTH + "]" * MAX_DEPTH)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        pytest.param("yaml_to_json", "a: [", YamlParseError, id="yaml"),
        pytest.param("xml_to_json", "<a>", XmlParseFailed, id="xml"),
        pytest.param("json_to_yaml", " " * MAX_CONVERTED_SIZE + "1", AnswerTooLarge, id="too large"),
    ],
)
async def test_source_that_cannot_be_read_fails_the_call(name: str, text: str, error: type[Exception]) -> None:
    with pytest.raises(ToolDownstreamError) as failed:
        await convert(name, text)

    assert isinstance(failed.value.cause, error)

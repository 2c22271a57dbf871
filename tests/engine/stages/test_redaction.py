"""Masking: no view of an artifact shows a masked value, and the stored bytes stay."""

import asyncio
import json
from pathlib import Path as FilePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.artifacts.formats.document_artifact import JsonPath
from gateway.artifacts.formats.json_artifact import SpooledJsonArtifact
from gateway.artifacts.formats.xml_artifact import SpooledXmlArtifact
from gateway.artifacts.formats.yaml_artifact import SpooledYamlArtifact
from gateway.artifacts.spool_stores import FileReader, InMemoryReader, from_handle, to_handle
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.engine.stages.result_stages import MASK, NOT_SHOWN, RedactionStage, redact_artifact
from gateway.engine.turn_pipeline.dispatch_loop import build_query_tools
from gateway.errors import NoReaderResolver
from gateway.model.media import InMemoryMediaReader, Media
from gateway.model.tokenizer import Tokenizable
from gateway.registries.diagnostics import Position
from gateway.registries.snapshot import ArtifactClass
from tests.engine.stages.sample_calls import a_dispatch, a_record, run_stage

pytestmark = pytest.mark.anyio

HERE = Position("artifacts.yaml", 1, 1)
CUSTOMER = {"name": "Ann", "email": "ann@example.com", "address": {"street": "Elm 1", "city": {"name": "Ulm"}}}


def of_json(text: str, **options: Any) -> SpooledJsonArtifact:
    return SpooledJsonArtifact(InMemoryReader(text), **options)


async def shown(text: str, *paths: str, **options: Any) -> str:
    view = await redact_artifact(of_json(text, **options), paths, options=options)
    assert isinstance(view, SpooledJsonArtifact)
    return await view.as_string()


# Output


async def test_values_at_paths_are_masked_and_the_rest_stays() -> None:
    text = await shown(json.dumps(CUSTOMER), "$.email", "$.address.*", "$.phone")

    assert text == (
        '{\n  "name": "Ann",\n  "email": "[redacted]",\n'
        '  "address": {\n    "street": "[redacted]",\n    "city": "[redacted]"\n  }\n}'
    )


async def test_stored_bytes_stay() -> None:
    artifact = of_json(json.dumps(CUSTOMER))
    before = await artifact.as_string()
    await artifact.json_get("$.email")

    await redact_artifact(artifact, ["$.email"])

    assert await artifact.as_string() == before
    assert await artifact.json_get("$.email") == ["ann@example.com"]


async def test_json_lines_stay_one_record_per_line() -> None:
    text = '{"a":1, "b":"x"}\n\n{"b": "y", "a": 2}\n'

    assert await shown(text, "$.b") == '{"a":1,"b":"[redacted]"}\n{"b":"[redacted]","a":2}\n'
    assert await shown('{"a":1,"b":"x"}', "$.b", format="jsonl") == '{"a":1,"b":"[redacted]"}\n'


async def test_json5_is_printed_as_json() -> None:
    assert await shown("{a: 'x', /* b */ c: 2}", "$.a") == '{\n  "a": "[redacted]",\n  "c": 2\n}'


async def test_yaml_documents_stay_apart() -> None:
    artifact = SpooledYamlArtifact(InMemoryReader("a: x\nb: one\n---\n- b: y\n"))

    view = await redact_artifact(artifact, ["$..b"])

    assert await view.as_string() == "a: x\nb: '[redacted]'\n---\n- b: '[redacted]'\n"
    assert await view.yaml_get("$..b") == [MASK, MASK]


async def test_text_that_is_json_is_masked_as_json() -> None:
    view = await redact_artifact(SpooledArtifact(InMemoryReader('{"email": "x"}')), ["$.email"])

    assert type(view) is SpooledArtifact
    assert await view.cat() == ["{", '  "email": "[redacted]"', "}"]


async def test_text_that_is_json_lines_is_masked_as_such() -> None:
    view = await redact_artifact(SpooledArtifact(InMemoryReader('{"a": 1}\n{"a": 2}\n')), ["$.a"])

    assert await view.as_string() == '{"a":"[redacted]"}\n' * 2


async def test_numbers_and_letters_keep_their_value() -> None:
    assert json.loads(await shown('{"id": 9007199254740993, "n": "Zoë", "x": 1}', "$.x")) == {
        "id": 9007199254740993,
        "n": "Zoë",
        "x": MASK,
    }


async def test_earlier_value_of_a_repeated_key_is_not_shown() -> None:
    assert await shown('{"email": "a@x", "email": "b@x"}', "$.email") == '{\n  "email": "[redacted]"\n}'


async def test_sizes_are_those_of_the_view() -> None:
    artifact = of_json(json.dumps({"secret": "x" * 500}))

    view = await redact_artifact(artifact, ["$.secret"])

    assert (await view.byte_length(), await view.line_count()) == (len('{\n  "secret": "[redacted]"\n}'), 3)


async def test_long_text_is_masked_as_well() -> None:
    records = [{"id": number, "secret": f"s{number}"} for number in range(40_000)]
    artifact = of_json(json.dumps(records))
    assert await artifact.byte_length() > 1 << 20

    view = await redact_artifact(artifact, ["$[*].secret"])

    assert await view.grep('"s[0-9]') == []
    assert await view.json_get("$[39999]") == [{"id": 39_999, "secret": MASK}]


async def test_without_paths_the_artifact_is_its_own_view() -> None:
    artifact = of_json("{}")

    assert await redact_artifact(artifact, []) is artifact


# Paths


@pytest.mark.parametrize(
    ("document", "paths", "masked"),
    [
        ({"a": {"b": 1}}, ["$.a"], {"a": MASK}),
        ({"a": {"b": 1}}, ["$.a", "$.a.b"], {"a": MASK}),
        ({"a": {"b": 1}}, ["$.a.b", "$.a"], {"a": MASK}),
        ({"a": 1}, ["$.a", "$['a']"], {"a": MASK}),
        ([{"k": 1}, {"k": 2}], ["$[-1].k"], [{"k": 1}, {"k": MASK}]),
        ([1, 2, 3, 4], ["$[1:3]"], [1, MASK, MASK, 4]),
        ({"a": {"k": 1}, "k": 2}, ["$..k"], {"a": {"k": MASK}, "k": MASK}),
        ([{"k": 1, "v": 2}, {"k": 3, "v": 4}], ["$[?(@.k == 1)].v"], [{"k": 1, "v": MASK}, {"k": 3, "v": 4}]),
        ([{"k": "s", "v": 2}], ["$[*].k", "$[?(@.k == 's')].v"], [{"k": MASK, "v": MASK}]),
        ({"a": {"k": 1}}, ["$.a.k^"], {"a": MASK}),
        ({"a": 1}, ["$"], MASK),
        (0, ["$"], MASK),
        ("", ["$.a"], MASK),
        ({}, ["$.a"], {}),
        ([], ["$[*]"], []),
        ({"a": None, "b": 0}, ["$.*"], {"a": MASK, "b": MASK}),
    ],
    ids=[
        *("whole object", "outer first", "inner first", "twice", "from the end", "slice", "at any depth", "filter"),
        *("filter on a masked value", "parent", "root", "zero", "empty text", "empty object", "empty list", "falsy"),
    ],
)  # fmt: skip
async def test_paths_mask_what_they_find(document: Any, paths: list[str], masked: Any) -> None:
    assert json.loads(await shown(json.dumps(document), *paths)) == masked


@pytest.mark.parametrize("path", ["$.a~", "$.list.length", "$.list[0]~"])
async def test_path_to_something_that_is_no_value_shows_nothing(path: str) -> None:
    assert json.loads(await shown('{"a": {"b": 1}, "list": ["x"]}', path)) == NOT_SHOWN


# Hidden values


@pytest.mark.parametrize(
    "artifact",
    [
        of_json("{broken: secret"),
        of_json('{"b": 1e999}'),
        of_json("[" * 300 + "]" * 300),
        SpooledYamlArtifact(InMemoryReader("a: !secret b")),
        SpooledArtifact(InMemoryReader("a secret text")),
        SpooledXmlArtifact(InMemoryReader("<secret/>")),
        SpooledJsonArtifact(InMemoryReader(b"\xff\xfe")),
    ],
    ids=["broken", "infinite", "deep", "tag", "text", "xml", "bytes"],
)
async def test_what_cannot_be_masked_is_not_shown(artifact: SpooledArtifact) -> None:
    view = await redact_artifact(artifact, ["$.a"])

    assert await view.cat() == [json.dumps(NOT_SHOWN)]


async def test_what_is_too_large_is_not_shown() -> None:
    class Huge(InMemoryReader):
        def byte_length(self) -> int:
            return 65 << 20

    view = await redact_artifact(SpooledJsonArtifact(Huge("{}")), ["$.a"])

    assert await view.json_get("$") == [NOT_SHOWN]


async def test_path_that_visits_too_much_shows_nothing() -> None:
    assert json.loads(await shown("[" * 250 + "]" * 250, "$..*..*..z")) == NOT_SHOWN


async def test_artifact_without_a_reader_is_not_shown() -> None:
    class Odd:
        """May have the seven methods, but nothing that can be masked."""

    view = await redact_artifact(Odd(), ["$.a"])

    assert await view.as_string() == NOT_SHOWN


# The property

KEYS = st.sampled_from(["a", "b", "c", "email", "x y", "0"])
STEPS = st.sampled_from([".a", ".b", ".email", "['x y']", "[0]", "[-1]", ".*", "..a", "..email", "[1:]", "..*"])
PATHS = st.lists(
    st.lists(STEPS, min_size=1, max_size=3).map(lambda steps: "$" + "".join(steps)), min_size=1, max_size=3
)
DOCUMENTS = st.recursive(
    st.none(), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4)
)


def with_leaves(shape: Any, numbers: Any) -> Any:
    """The shape with a unique text in place of every leaf."""
    if isinstance(shape, dict):
        return {key: with_leaves(value, numbers) for key, value in shape.items()}
    if isinstance(shape, list):
        return [with_leaves(value, numbers) for value in shape]
    return f"leaf-{next(numbers)}-"


def leaves(value: Any) -> set[str]:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return set().union(*map(leaves, inner))
    return {value}


async def everything_shown(artifact: Any) -> str:
    """The answers of all query tools, concatenated."""
    ctx = a_dispatch()
    await ctx.store_tool_call(a_record(artifact, inline=False))
    tools = build_query_tools(ctx).all()
    assert len(tools) == 14
    arguments: dict[str, list[dict[str, str]]] = {
        "artifact_grep": [{"pattern": "."}],
        "artifact_json_get": [{"path": "$"}, {"path": "$..*"}],
        "artifact_json_filter": [{"path": "$..*"}],
        "artifact_json_pluck": [{"path": "$..*"}],
        "artifact_estimate_tokens": [{"encoding": "claude"}],
    }
    answers = [
        await tool.executor(ctx)({"callId": "c", **given}) for tool in tools for given in arguments.get(tool.name, [{}])
    ]
    return "\n".join([await artifact.as_string(), *answers])


@given(shape=DOCUMENTS, paths=PATHS, lines=st.booleans())
def test_no_masked_value_is_in_any_answer(shape: Any, paths: list[str], lines: bool) -> None:
    document = with_leaves(shape, iter(range(10_000)))
    text = json.dumps(document) + "\n" + (json.dumps(document) if lines else "")
    secrets = set().union(*(leaves(value) for path in paths for value in JsonPath(path).values([document])))

    async def check() -> None:
        answers = await everything_shown(await redact_artifact(of_json(text), paths))

        assert {leaf for leaf in leaves(document) if leaf in answers} == leaves(document) - secrets

    asyncio.run(check())


# As a stage


def a_class(*redact: str, **options: Any) -> ArtifactClass:
    return ArtifactClass("customer", SpooledJsonArtifact, HERE, redact=redact, options=options)


async def test_results_of_a_dispatch_are_masked_once() -> None:
    ctx = a_dispatch()
    stage = RedactionStage({"look": a_class("$.email", format="json")}.get)
    await ctx.store_tool_call(a_record(of_json('{"email": "x"}', format="json")))

    await stage(ctx, run_stage)
    [masked] = ctx.turn_tool_calls
    await stage(ctx, run_stage)

    assert isinstance(masked.results, SpooledJsonArtifact)
    assert await masked.results.json_get("$.email") == [MASK]
    assert ctx.turn_tool_calls == [masked]


async def test_several_artifacts_of_a_call_are_all_masked() -> None:
    ctx = a_dispatch()
    await ctx.store_tool_call(a_record([of_json('{"email": "x"}'), of_json('{"email": "y"}')]))

    await RedactionStage({"look": a_class("$.email")}.get)(ctx, run_stage)

    results: Any = ctx.turn_tool_calls[0].results
    assert [await each.json_get("$.email") for each in results] == [[MASK], [MASK]]


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (a_record(of_json('{"email": "x"}')), None),
        (a_record(of_json('{"email": "x"}')), a_class()),
        (a_record(Tokenizable("it failed"), is_error=True), a_class("$.email")),
        (
            a_record(
                Media.tool_generated(
                    "image", mime_type="image/png", filename="a.png", reader=InMemoryMediaReader(b"png")
                )
            ),
            a_class("$.email"),
        ),
        (a_record(Tokenizable("answer"), from_artifact_tool=True), a_class("$.email")),
    ],
    ids=["no class", "nothing to mask", "failure", "media", "query"],
)
async def test_other_results_stay_as_they_are(record: Any, kind: ArtifactClass | None) -> None:
    ctx = a_dispatch()
    await ctx.store_tool_call(record)

    await RedactionStage(lambda tool: kind)(ctx, run_stage)

    assert ctx.turn_tool_calls == [record]


async def test_mixed_results_keep_what_has_no_paths() -> None:
    text = Tokenizable("it failed")

    assert await RedactionStage(lambda tool: None).redact_results(text, a_class("$.email")) is text


async def test_description_of_a_view_does_not_lead_to_the_bytes(tmp_path: FilePath) -> None:
    file = tmp_path / "bytes"
    file.write_text('{"email": "x"}')
    view = await redact_artifact(SpooledJsonArtifact(FileReader(file)), ["$.email"])

    handle = to_handle(view.reader)

    assert handle == {"tag": "redacted", "locator": {"tag": "file", "locator": str(file)}}
    with pytest.raises(NoReaderResolver):
        from_handle(handle, {"file": FileReader})

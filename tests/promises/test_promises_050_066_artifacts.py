"""Promises 50 to 66: artifact classes and their query tools, and what artifacts leave to others."""

import json
from dataclasses import fields
from typing import Any, ClassVar

import pytest

from gateway import (
    ArtifactTool,
    DispatchContext,
    InMemoryReader,
    Reporter,
    Schema,
    SpooledArtifact,
    SpooledEcmascriptArtifact,
    SpooledJsonArtifact,
    SpooledMarkdownArtifact,
    SpooledToonArtifact,
    SpooledXmlArtifact,
    SpooledYamlArtifact,
    Tokenizable,
    Tool,
    ToolMethod,
    ToolRegistry,
    TurnContext,
)
from gateway.errors import InvalidInitialToolValue
from gateway.model.turns.events import TurnGateOpen
from gateway.model.turns.middleware_pipeline import Next
from tests.promises.scripted_model import BASE_SEVEN, JSON_TOOLS, MARKDOWN_TOOLS, call, play, returning, tool

pytestmark = pytest.mark.anyio


class LogArtifact(SpooledArtifact):
    """A plug-in class: one query of its own, and a repeated base descriptor."""

    tool_methods: ClassVar[tuple[ToolMethod, ...]] = (
        ToolMethod("artifact_log_errors", "errors", "Returns the lines that report an error."),
        ToolMethod("artifact_head", "head", "Returns the first lines of a log."),
    )

    async def errors(self) -> list[str]:
        return await self.grep("ERROR")


class BareArtifact(SpooledArtifact):
    """A plug-in class that adds nothing."""


def text_tool(name: str = "write", content: str | bytes = "some text", artifact_class: type | None = None) -> Tool:
    resolver = (lambda: artifact_class) if artifact_class else None
    return tool(name, returning(content), artifact_constructor=resolver)


def query_tool(handler: Any, **fields: Any) -> ArtifactTool:
    schema = Schema({"type": "object"})
    return ArtifactTool(name="query", description="Queries.", input_schema=schema, handler=handler, **fields)


@pytest.mark.parametrize(
    ("artifact_class", "expected"),
    [
        pytest.param(SpooledArtifact, BASE_SEVEN, id="base"),
        pytest.param(SpooledJsonArtifact, JSON_TOOLS, id="json"),
        pytest.param(SpooledMarkdownArtifact, MARKDOWN_TOOLS, id="markdown"),
        pytest.param(
            SpooledYamlArtifact,
            {f"artifact_yaml_{name}" for name in ("type", "keys", "length", "get", "filter", "slice", "pluck")},
            id="yaml",
        ),
        pytest.param(
            SpooledXmlArtifact,
            {f"artifact_xml_{name}" for name in ("root", "keys", "tags", "length", "get", "pluck", "filter")},
            id="xml",
        ),
        pytest.param(
            SpooledToonArtifact,
            {f"artifact_toon_{name}" for name in ("type", "keys", "length", "get", "pluck", "filter", "slice")},
            id="toon",
        ),
        pytest.param(
            SpooledEcmascriptArtifact,
            {
                f"artifact_es_{name}"
                for name in ("symbols", "imports", "exports", "outline", "signature", "jsdoc", "references")
            },
            id="ecmascript",
        ),
    ],
)
def test_promise_050_each_class_lists_only_its_own_descriptors(
    artifact_class: type[SpooledArtifact], expected: set[str]
) -> None:
    own = [descriptor.name for descriptor in vars(artifact_class)["tool_methods"]]

    assert len(own) == len(set(own))
    assert set(own) == expected


async def test_promise_051_subclass_forging_starts_from_the_base() -> None:
    fetch = text_tool("fetch", '{"a":1}', SpooledJsonArtifact)

    seen = await play([fetch], [call("c", "fetch")])

    assert set(seen.offered()) == {"fetch", *BASE_SEVEN, *JSON_TOOLS}


async def test_promise_052_narrowing_is_by_class() -> None:
    tools = [text_tool("write"), text_tool("fetch", '{"a":1}', SpooledJsonArtifact)]

    seen = await play(
        tools,
        [call("text", "write"), call("json", "fetch")],
        [call("wrong", "artifact_json_keys", callId="text"), call("right", "artifact_json_keys", callId="json")],
    )

    assert {name: seen.selectable(name) for name in BASE_SEVEN} == {name: ["text", "json"] for name in BASE_SEVEN}
    assert {name: seen.selectable(name) for name in JSON_TOOLS} == {name: ["json"] for name in JSON_TOOLS}
    assert seen.record("wrong").is_error
    assert seen.record("right").results == Tokenizable("a")


async def test_promise_053_overlap_on_base_names_is_silent() -> None:
    tools = [text_tool("fetch", '{"a":1}', SpooledJsonArtifact), text_tool("read", "# Title", SpooledMarkdownArtifact)]

    seen = await play(tools, [call("json", "fetch"), call("md", "read")])

    names = [definition["function"]["name"] for definition in seen.requests[-1].tools]
    assert sorted(names) == sorted({"fetch", "read", *BASE_SEVEN, *JSON_TOOLS, *MARKDOWN_TOOLS})
    assert seen.selectable("artifact_head") == ["json", "md"]
    assert seen.named("error", "warning") == []


def test_promise_054_descriptors_carry_no_subclass_field() -> None:
    assert [field.name for field in fields(ToolMethod)] == ["name", "method", "description", "args_schema", "serialise"]


async def test_promise_055_duplicate_descriptors_collapse_silently() -> None:
    class Twice(LogArtifact):
        tool_methods = LogArtifact.tool_methods + LogArtifact.tool_methods

    tools = [text_tool("write", "text"), text_tool("log", "first\nERROR", Twice)]

    seen = await play(
        tools,
        [call("text", "write"), call("log", "log")],
        [call("q1", "artifact_head", callId="log", n=1), call("q2", "artifact_head", callId="text", n=1)],
        [call("q3", "artifact_log_errors", callId="log")],
    )

    assert set(seen.offered()) == {"write", "log", "artifact_log_errors", *BASE_SEVEN}
    assert seen.selectable("artifact_head") == ["text", "log"]
    assert [str(seen.record(id).results) for id in ("q1", "q2", "q3")] == ["first", "text", "ERROR"]
    assert seen.named("error", "warning") == []


@pytest.mark.parametrize("artifact_class", [BareArtifact, LogArtifact])
async def test_promise_056_a_new_subclass_gets_the_base_seven(artifact_class: type) -> None:
    answers = {
        "artifact_head": "one",
        "artifact_tail": "two",
        "artifact_grep": "two",
        "artifact_cat": "one\ntwo",
        "artifact_byte_length": "7",
        "artifact_line_count": "2",
        "artifact_estimate_tokens": "2",
    }
    arguments: dict[str, dict[str, Any]] = {
        "artifact_head": {"n": 1},
        "artifact_tail": {"n": 1},
        "artifact_grep": {"pattern": "^t"},
        "artifact_estimate_tokens": {"encoding": "claude"},
    }
    queries = [call(name, name, callId="c", **arguments.get(name, {})) for name in answers]

    seen = await play([text_tool("log", "one\ntwo", artifact_class)], [call("c", "log")], queries)

    assert type(seen.record("c").results) is artifact_class
    assert {name: str(seen.record(name).results) for name in answers} == answers


@pytest.mark.parametrize(
    "answer",
    [b"bytes", {"a": 1}, ["line"], None, SpooledArtifact(InMemoryReader("text"))],
    ids=lambda it: type(it).__name__,
)
async def test_promise_057_query_handlers_return_text_only(answer: Any) -> None:
    class Careless(SpooledArtifact):
        tool_methods = (
            ToolMethod("artifact_careless", "head", "Answers what it likes.", serialise=lambda lines: answer),
        )

    tools = [text_tool("write", "text", Careless), query_tool(returning(answer))]

    seen = await play(
        tools, [call("c", "write")], [call("by hand", "query"), call("forged", "artifact_careless", callId="c")]
    )

    for id in ("by hand", "forged"):
        assert seen.record(id).is_error
        assert isinstance(seen.record(id).results, Tokenizable)
        assert type(answer).__name__ in str(seen.record(id).results)


def test_promise_058_an_artifact_tool_with_a_constructor_is_refused() -> None:
    with pytest.raises(InvalidInitialToolValue) as caught:
        query_tool(returning("text"), artifact_constructor=lambda: SpooledJsonArtifact)

    assert caught.value.code == "E_INVALID_INITIAL_TOOL_VALUE"
    assert query_tool(returning("text")).artifact_constructor is None


async def test_promise_059_bare_text_of_a_query_is_wrapped() -> None:
    made = Tokenizable("made by the handler")

    plain = await play([query_tool(returning("bare"))], [call("c", "query")])
    ready = await play([query_tool(returning(made))], [call("c", "query")])

    assert plain.record("c").results == Tokenizable("bare")
    assert ready.record("c").results is made


async def test_promise_060_query_records_persist_and_are_observable() -> None:
    by_middleware: list[list[str]] = []

    async def look(ctx: DispatchContext, next: Next) -> None:
        by_middleware.append([record.id for record in ctx.turn_tool_calls])
        await next()

    seen = await play(
        [text_tool()],
        [call("c", "write")],
        [call("q", "artifact_head", callId="c")],
        dispatch_input_pipeline=[look],
    )

    assert [record.id for record in seen.records] == ["c", "q"]
    assert by_middleware == [[], ["c"], ["c", "q"]]
    assert [event.tool_name for event in seen.named("toolExecutionEnd")] == ["write", "artifact_head"]
    assert [event.id for event in seen.named("toolCall")] == ["c", "c", "q", "q"]
    assert "\nsome text\n" in seen.shown("q")


async def test_promise_061_artifacts_do_not_authorise() -> None:
    async def gated(args: dict[str, Any], ctx: DispatchContext, meta: object) -> str:
        await ctx.wait_for({"id": "gate", "reason": "a reader must be approved", "payload": {}})
        return "secret"

    def refuse(event: TurnGateOpen) -> None:
        event.gate.reject(PermissionError("not today"))

    open_reading = await play([text_tool()], [call("c", "write")], [call("q", "artifact_cat", callId="c")])
    gated_reading = await play([query_tool(gated)], [call("q", "query")], observers={"turnGateOpen": refuse})

    assert open_reading.named("turnGateOpen") == []
    assert open_reading.record("q").results == Tokenizable("some text")
    assert [event.result for event in gated_reading.named("turnGateClosed")] == ["rejected"]
    assert "not today" in str(gated_reading.record("q").results)
    assert "secret" not in str(gated_reading.record("q").results)


async def test_promise_062_artifacts_do_not_deduplicate() -> None:
    seen = await play(
        [text_tool()],
        [call("one", "write"), call("two", "write")],
        [call("q1", "artifact_head", callId="one"), call("q2", "artifact_head", callId="two")],
    )

    assert seen.record("one").results is not seen.record("two").results
    assert seen.selectable("artifact_head") == ["one", "two"]
    assert [seen.record(id).results for id in ("q1", "q2")] == [Tokenizable("some text")] * 2


async def test_promise_063_artifacts_impose_no_size_policy() -> None:
    large = b"a line of the log\n" * 1_000_000 + b"the end"

    seen = await play(
        [text_tool("log", large)],
        [call("c", "log")],
        [call("q1", "artifact_byte_length", callId="c"), call("q2", "artifact_tail", callId="c", n=1)],
        inline=False,
    )

    assert [str(seen.record(id).results) for id in ("q1", "q2")] == ["18000007", "the end"]


async def test_promise_064_bodies_are_never_inlined_implicitly() -> None:
    seen = await play([text_tool("write", "a hush-hush body")], [call("c", "write")], [], [], inline=False)

    assert len(seen.requests) == 4
    for request in seen.requests:
        assert "hush-hush" not in json.dumps([request.messages, request.tools])
    assert seen.selectable("artifact_cat") == ["c"]


async def test_promise_065_visibility_and_redaction_are_the_middlewares_business() -> None:
    async def redact(ctx: DispatchContext, next: Next) -> None:
        for record in ctx.turn_tool_calls:
            text = (await record.results.as_string()).replace("4711", "[redacted]")  # type: ignore[union-attr]  # text
            await ctx.mutate_tool_call(record.replace(results=SpooledArtifact(InMemoryReader(text))))
        ctx.tools.hide("artifact_cat")
        await next()

    seen = await play([text_tool("write", "pin 4711")], [call("c", "write")], dispatch_input_pipeline=[redact])

    stored = await seen.spool.read("c")
    assert stored is not None
    assert stored.read_all() == "pin 4711"
    assert "\npin [redacted]\n" in seen.shown("c")
    assert "4711" not in json.dumps(seen.requests[-1].messages)
    assert set(seen.offered()) == {"write", *BASE_SEVEN} - {"artifact_cat"}


async def test_promise_066_binding_to_the_context_prunes_forged_tools() -> None:
    listed: dict[str, list[str]] = {}

    def names(tools: ToolRegistry) -> list[str]:
        return [tool.name for tool in tools.all()]

    async def step(ctx: DispatchContext, reporter: Reporter) -> None:
        bound, forgotten = SpooledArtifact.forge_tools(ctx), SpooledArtifact.forge_tools(ctx)
        bound.bind_context(ctx)
        listed["before ack"] = names(ctx.tools)
        ctx.ack()
        listed.update({"after ack": names(ctx.tools), "bound": names(bound), "forgotten": names(forgotten)})

    async def look(ctx: TurnContext, next: Next) -> None:
        listed["turn"] = names(ctx.tools)
        await next()

    await play([text_tool()], [call("c", "write")], step, turn_output_pipeline=[look])

    assert set(listed["before ack"]) == {"write", *BASE_SEVEN}
    assert listed["after ack"] == listed["turn"] == ["write"]
    assert listed["bound"] == []
    assert set(listed["forgotten"]) == BASE_SEVEN

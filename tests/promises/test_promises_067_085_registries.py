"""Promises 67 to 85: from the advertised schema to the stored result, tool registries, trust and gates."""

import asyncio
from datetime import date
from enum import Enum
from itertools import product
from typing import Any, Literal

import anyio
import jsonschema_rs
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from gateway import (
    DispatchContext,
    GatewayError,
    InMemoryReader,
    Media,
    Renderer,
    Reporter,
    Schema,
    SpooledArtifact,
    Tool,
    ToolRegistry,
    TurnContext,
    TurnRunner,
    definition,
    definitions,
    dispatch,
    in_memory_callbacks,
)
from gateway.errors import InvalidTurnRunnerConfig, ToolAlreadyRegistered, ToolDownstreamError
from gateway.model.provider_formats import ProviderName
from gateway.model.tools.tool import OnCollision
from gateway.model.turns.events import TurnGateOpen
from gateway.model.turns.middleware_pipeline import Next
from tests.promises.scripted_model import BASE_SEVEN, Seen, call, media, play, remembering, returning, tool

pytestmark = pytest.mark.anyio


class Colour(Enum):
    RED = "red"


class Order(BaseModel):
    """A model class as an input schema."""

    name: str = Field(min_length=1)
    size: Literal["s", "m"] = "m"
    n: int = Field(default=1, ge=0, le=9)
    tags: list[str] = []
    colour: Colour | None = None
    day: date | None = None
    total: int = 0


SCALARS = Schema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "pattern": "^[a-z]*$"},
            "n": {"type": "integer", "minimum": 0, "maximum": 9, "default": 3},
            "flag": {"type": "boolean"},
            "size": {"enum": ["s", "m", None]},
        },
        "required": ["name"],
    }
)
NESTED = Schema(
    {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2, "uniqueItems": True},
            "inner": {"type": "object", "properties": {"n": {"type": "number", "exclusiveMinimum": 0}}},
        },
    }
)
COMPOSED = Schema(
    {
        "type": "object",
        "properties": {"name": {"$ref": "#/$defs/name"}},
        "allOf": [{"properties": {"n": {"type": ["integer", "null"]}}}],
        "anyOf": [{"required": ["name"]}, {"required": ["n"]}],
        "$defs": {"name": {"type": "string", "maxLength": 3}},
    }
)

# Values near the limits of those schemas: about half of them are valid.
VALUES: dict[str, list[Any]] = {
    "name": ["abc", "a", "", "ABCD", 5, None],
    "n": [0, 1, 5, 10, -1, 1.0, 5.0, 0.5, 2**70, True, "1", None],
    "flag": [True, False, "true", 0, None],
    "size": ["s", "m", None, "xl", 1],
    "tags": [[], ["a"], ["a", "b"], ["a", "a"], ["a", "b", "c"], [1], "a", {}],
    "inner": [{}, {"n": 1}, {"n": 0}, {"n": "1"}, {"other": 1}, []],
    "colour": ["red", "blue", None, 1],
    "day": ["2026-01-31", None, 1],
    "total": [1, -1.0, 10**15, 2**70, 0.5, "1"],
    "other": [1],
}


def argument_objects(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    known = {name: st.sampled_from(VALUES[name]) for name in names}
    unknown = st.sampled_from([{}, {}, {}, {"other": 1}])
    return st.builds(lambda args, more: args | more, st.fixed_dictionaries({}, optional=known), unknown)


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        pytest.param(SCALARS, ("name", "n", "flag", "size"), id="scalars"),
        pytest.param(NESTED, ("tags", "inner"), id="nested"),
        pytest.param(COMPOSED, ("name", "n"), id="composed"),
        pytest.param(Schema({"type": "object", "additionalProperties": {"const": 1}}), ("n",), id="open"),
        pytest.param(Schema({"type": "object"}), ("n",), id="empty"),
        pytest.param(Order, ("name", "n", "size", "tags", "colour", "day", "total"), id="model"),
    ],
)
def test_promise_067_advertised_and_enforced_schema_are_one(schema: Any, names: tuple[str, ...]) -> None:
    handled: list[Any] = []
    order = Tool(name="order", description="Orders.", input_schema=schema, handler=remembering(handled))
    advertised = jsonschema_rs.validator_for(definition(order, "openai")["function"]["parameters"])
    outcomes: set[bool] = set()

    # The batch shows which objects were misjudged, so shrinking is unnecessary.
    @settings(max_examples=15, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(batch=st.lists(argument_objects(*names), min_size=20, max_size=40))
    def check(batch: list[dict[str, Any]]) -> None:
        handled.clear()

        seen = asyncio.run(play([order], [call(f"c{index}", "order", **args) for index, args in enumerate(batch)]))

        valid = [advertised.is_valid(args) for args in batch]
        ran = [not record.is_error for record in seen.records]
        outcomes.update(valid)
        assert [args for args, judged, did in zip(batch, valid, ran, strict=True) if judged != did] == []
        assert len(handled) == sum(valid)
        assert len(seen.named("toolExecutionStart")) == len(seen.named("toolExecutionEnd")) == sum(valid)

    check()

    assert outcomes == {True, False}


async def test_promise_068_handlers_return_text_bytes_media_or_a_list_of_media() -> None:
    picture = media()
    built = SpooledArtifact(InMemoryReader("built"))
    values = {"text": "é", "bytes": b"\xff\x00", "media": picture, "list": [picture, picture], "artifact": built}
    wrong = {"number": 5, "nothing": None, "dict": {"a": 1}, "mixed": [picture, built], "empty": [], "strings": ["a"]}
    tools = [tool(name, returning(value)) for name, value in (values | wrong).items()]

    seen = await play(tools, [call(made.name, made.name) for made in tools])

    kept = {name: seen.record(name).results for name in values}
    assert isinstance(kept["text"], SpooledArtifact)
    assert isinstance(kept["bytes"], SpooledArtifact)
    assert await kept["text"].as_string() == "é"
    assert await kept["bytes"].byte_length() == 2
    assert {name: kept[name] for name in ("media", "list", "artifact")} == {
        "media": picture,
        "list": [picture, picture],
        "artifact": built,
    }
    assert {record.id for record in seen.records if record.is_error} == set(wrong)


async def test_promise_069_handler_runs_in_the_iteration_that_proposed_it() -> None:
    seen = await play([tool("t", returning("done"))], [call("c", "t")])

    watched = ("iterationStart", "toolExecutionStart", "toolExecutionEnd", "iterationEnd")
    assert [event.name for event in seen.named(*watched)] == [*watched, "iterationStart", "iterationEnd"]
    assert [event.iteration for event in seen.named("iterationStart", "iterationEnd")] == [0, 0, 1, 1]


async def test_promise_070_result_is_stored_before_the_iteration_ends_and_visible_in_the_next() -> None:
    seen = Seen()
    stored_at_end: list[list[str]] = []

    await play(
        [tool("t", returning("the output"))],
        [call("c", "t")],
        seen=seen,
        observers={"iterationEnd": lambda event: stored_at_end.append([record.id for record in seen.records])},
    )

    assert stored_at_end == [["c"], ["c"]]
    assert [message["role"] for message in seen.requests[0].messages] == ["system"]
    assert "\nthe output\n" in seen.shown("c", at=1)


async def test_promise_071_middleware_never_reruns_handlers() -> None:
    handled: list[Any] = []
    looked: list[str] = []

    async def look(ctx: DispatchContext | TurnContext, next: Next) -> None:
        looked.extend(record.id for record in ctx.turn_tool_calls)
        await next()

    await play(
        [tool("count", remembering(handled))],
        [call("c", "count")],
        [],
        dispatch_input_pipeline=[look],
        dispatch_output_pipeline=[look],
        turn_output_pipeline=[look],
    )

    assert len(handled) == 1
    assert looked == ["c"] * 5


async def test_promise_072_registry_is_keyed_by_name() -> None:
    one, other = tool("same", returning("one")), tool("same", returning("other"))

    with pytest.raises(InvalidTurnRunnerConfig) as caught:
        await play([one, other])
    assert "tools" in caught.value.message
    assert ToolRegistry([one]).get("same") is one
    assert ToolRegistry([one]).get("Same") is None


async def test_promise_073_edits_of_one_turn_do_not_leak() -> None:
    seen: list[list[str]] = []

    async def edit(ctx: TurnContext, next: Next) -> None:
        seen.append([tool.name for tool in ctx.tools.visible()])
        ctx.tools.unregister("first")
        ctx.tools.register(tool("added", returning("")))
        ctx.tools.hide("second")
        await next()

    tools = [tool("first", returning("")), tool("second", returning(""))]
    config = {**in_memory_callbacks(), "tools": tools, "turn_input_pipeline": [edit]}
    runner = TurnRunner({**config, "executor": lambda ctx, reporter: ctx.ack()})

    await runner.run({"system_prompt": "one"})
    await runner.run({"system_prompt": "two"})

    assert seen == [["first", "second"], ["first", "second"]]


async def test_promise_074_concurrent_turns_are_isolated() -> None:
    arrived: list[str] = []
    both_are_here = anyio.Event()
    listed: dict[str, list[str]] = {}

    async def edit(ctx: TurnContext, next: Next) -> None:
        own = ctx.stash.get("name")
        ctx.tools.register(tool(f"only_{own}", returning("")))
        ctx.stash.set("secret", own)
        arrived.append(own)
        if len(arrived) == 2:
            both_are_here.set()
        await both_are_here.wait()
        await next()

    def executor(ctx: DispatchContext, reporter: Reporter) -> None:
        listed[ctx.stash.get("secret")] = [tool.name for tool in ctx.tools.visible()]
        ctx.ack()

    config = {**in_memory_callbacks(), "tools": [tool("shared", returning(""))], "turn_input_pipeline": [edit]}
    runner = TurnRunner({**config, "executor": executor})

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for name in ("ann", "bob"):
                group.start_soon(runner.run, {"system_prompt": "hello", "stash": {"name": name}})

    assert listed == {"ann": ["shared", "only_ann"], "bob": ["shared", "only_bob"]}


@pytest.mark.parametrize("policy", ["throw", "replace", "keep"])
def test_promise_075_register_fails_loudly_on_a_clash(policy: OnCollision) -> None:
    first, second = tool("same", returning("1")), tool("same", returning("2"), on_collision=policy)
    registry = ToolRegistry([first])

    with pytest.raises(ToolAlreadyRegistered) as caught:
        registry.register(second)

    assert (caught.value.code, caught.value.status, caught.value.fatal) == ("E_TOOL_ALREADY_REGISTERED", 409, True)
    assert registry.get("same") is first
    with pytest.raises(ToolAlreadyRegistered):
        ToolRegistry([first, second])
    registry.register(second, overwrite=True)
    assert registry.get("same") is second


# The incoming tool's policy and the option of the merge decide; the existing tool's policy never does.
MERGES: dict[tuple[OnCollision, OnCollision], str] = {
    ("throw", "throw"): "error",
    ("throw", "replace"): "incoming",
    ("throw", "keep"): "existing",
    ("replace", "throw"): "incoming",
    ("replace", "replace"): "incoming",
    ("replace", "keep"): "incoming",
    ("keep", "throw"): "existing",
    ("keep", "replace"): "existing",
    ("keep", "keep"): "existing",
}


@pytest.mark.parametrize(
    ("existing", "incoming", "option", "outcome"),
    [
        (existing, *asked, outcome)
        for existing, (asked, outcome) in product(["throw", "replace", "keep"], MERGES.items())
    ],
)
def test_promise_076_merge_asks_the_incoming_tool(
    existing: OnCollision, incoming: OnCollision, option: OnCollision, outcome: str
) -> None:
    old = tool("same", returning("old"), on_collision=existing)
    new = tool("same", returning("new"), on_collision=incoming)
    before, after = ToolRegistry([old, tool("own", returning(""))]), ToolRegistry([new])

    if outcome == "error":
        with pytest.raises(ToolAlreadyRegistered):
            ToolRegistry.merge([before, after], on_collision=option)
    else:
        merged = ToolRegistry.merge([before, after], on_collision=option)
        assert merged.get("same") is (new if outcome == "incoming" else old)
        assert [tool.name for tool in merged.all()] == ["same", "own"]
    assert before.get("same") is old
    assert after.get("same") is new


async def test_promise_077_baseline_is_never_mutated() -> None:
    dumps: list[list[dict[str, Any]]] = []

    async def edit(ctx: TurnContext, next: Next) -> None:
        dumps.append(definitions(ctx.tools, "mcp"))
        ctx.tools.unregister("first")
        ctx.tools.register(tool("second", returning("")), overwrite=True)
        ctx.tools.register(tool("third", returning("")))
        ctx.tools.set_hidden("second")
        ctx.tools = ToolRegistry.merge([ctx.tools, ToolRegistry([tool("fourth", returning(""))])])
        for listed in dumps[-1]:
            listed["inputSchema"]["properties"] = "edited"
        await next()

    baseline = [tool("first", returning("")), tool("second", returning(""), {"type": "object", "properties": {}})]
    before = [definition(made, "mcp") for made in baseline]
    config = {**in_memory_callbacks(), "tools": baseline, "turn_input_pipeline": [edit]}
    runner = TurnRunner({**config, "executor": lambda ctx, reporter: ctx.ack()})

    for _ in range(20):
        await runner.run({"system_prompt": "again"})

    assert len(dumps) == 20
    assert [definition(made, "mcp") for made in baseline] == before
    first_seen: list[list[str]] = [[listed["name"] for listed in dump] for dump in dumps]
    assert first_seen == [["first", "second"]] * 20


async def test_promise_078_ephemeral_tools_go_on_ack() -> None:
    listed: list[set[str]] = []

    async def add(ctx: DispatchContext, next: Next) -> None:
        ctx.tools.register(tool("brief", returning(""), ephemeral=True), overwrite=True)
        await next()

    async def step(ctx: DispatchContext, reporter: Reporter) -> None:
        listed.append({tool.name for tool in ctx.tools.all()})
        ctx.ack()
        listed.append({tool.name for tool in ctx.tools.all()})

    await play([tool("t", returning("text"))], [call("c", "t")], step, dispatch_input_pipeline=[add])

    assert listed == [{"t", "brief", *BASE_SEVEN}, {"t"}]


@pytest.mark.parametrize("ending", ["nack", "abort", "failure"])
async def test_promise_079_only_successful_completion_prunes(ending: str) -> None:
    kept: list[DispatchContext] = []
    seen = Seen()

    async def executor(ctx: DispatchContext, reporter: Reporter) -> None:
        kept[:] = [ctx]
        if ctx.iteration == 0:
            await ctx.store_tool_call(seen.record("c"))
        elif ending == "nack":
            ctx.nack(GatewayError("the model failed"))
        elif ending == "abort":
            ctx.abort()
        else:
            raise GatewayError("the executor failed")

    await play([tool("t", returning("text"))], [call("c", "t")], seen=seen)
    raw = {"system_prompt": "hello", "tools": [tool("t", returning("text"))]}
    if ending == "abort":
        assert await dispatch(raw=raw, executor=executor) == "aborted"
    else:
        with pytest.raises(GatewayError):
            await dispatch(raw=raw, executor=executor)

    assert {tool.name for tool in kept[0].tools.all()} == {"t", *BASE_SEVEN}


def test_promise_080_describe_gives_name_description_and_schema() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "additionalProperties": False}
    made = tool("find", returning(""), schema, trusted=True, meta={"scope": "x"}, on_collision="keep")
    expected: dict[ProviderName, dict[str, Any]] = {
        "openai": {
            "type": "function",
            "function": {"name": "find", "description": "The tool find.", "parameters": schema},
        },
        "anthropic": {"name": "find", "description": "The tool find.", "input_schema": schema},
        "gemini": {"name": "find", "description": "The tool find.", "parametersJsonSchema": schema},
        "mcp": {"name": "find", "description": "The tool find.", "inputSchema": schema},
    }

    assert made.describe() == {"name": "find", "description": "The tool find.", "input_schema": schema}
    assert {provider: definition(made, provider) for provider in expected} == expected


@pytest.mark.parametrize(
    "value", ["text", b"bytes", SpooledArtifact(InMemoryReader("built"))], ids=["text", "bytes", "artifact"]
)
async def test_promise_081_trusted_flips_the_envelope(value: Any) -> None:
    off = await play([tool("t", returning(value), trusted=False)], [call("c", "t")])
    on = await play([tool("t", returning(value), trusted=True)], [call("c", "t")])

    assert off.shown("c").startswith("<untrusted_content_")
    assert ' kind="tool-result"' in off.shown("c")
    assert on.shown("c").startswith("<trusted_content_")
    assert ' kind="trusted-tool-result"' in on.shown("c")
    assert off.shown("c").splitlines()[1] == on.shown("c").splitlines()[1]


async def test_promise_082_untrusted_is_the_default() -> None:
    made = tool("t", returning("text"))

    seen = await play([made], [call("c", "t")])

    assert made.trusted is False
    assert seen.shown("c").startswith("<untrusted_content_")


async def test_promise_083_trusted_does_not_reach_media() -> None:
    caption = {"text:caption": {"value": "a caption", "trust_tier": "first-party"}}
    clip: dict[str, Any] = {"kind": "video", "mime_type": "video/mp4", "stash": caption}
    tools = [
        tool("trusted", returning(media(**clip)), trusted=True),
        tool("unflagged", returning(Media.tool_generated(**clip, filename="a.mp4", reader=media().reader))),
    ]

    seen = await play(
        tools,
        [call("c1", "trusted"), call("c2", "unflagged")],
        renderer=Renderer(unsupported_media="fallback-stash"),
    )

    foreign, own = (seen.blocks(id)[1]["text"] for id in ("c1", "c2"))
    assert foreign.startswith("<untrusted_content_")
    assert own.startswith("<trusted_content_")


async def test_promise_084_gates_live_in_the_handler() -> None:
    effects: list[str] = []
    seen = Seen()
    at_opening: dict[str, Any] = {}

    async def pay(args: dict[str, Any], ctx: DispatchContext, meta: object) -> str:
        if await ctx.wait_for({"id": args["to"], "reason": "a payment", "payload": args}):
            effects.append(args["to"])
        return "paid"

    def decide(event: TurnGateOpen) -> None:
        at_opening[event.gate.id] = ([*effects], seen.events[-1].name)
        if event.gate.id == "ann":
            event.gate.resolve(True)
        else:
            event.gate.reject(PermissionError("not to them"))

    await play(
        [tool("pay", pay)],
        [call("c1", "pay", to="ann"), call("c2", "pay", to="eve")],
        seen=seen,
        observers={"turnGateOpen": decide},
    )

    assert at_opening == {"ann": ([], "toolExecutionStart"), "eve": (["ann"], "toolExecutionStart")}
    assert effects == ["ann"]
    assert [record.is_error for record in seen.records] == [False, True]
    assert str(seen.record("c2").results) == f"{ToolDownstreamError.default_message}: not to them"
    assert [event.is_error for event in seen.named("toolExecutionEnd")] == [False, True]


async def test_promise_085_the_framework_itself_enforces_no_safety() -> None:
    handled: list[Any] = []
    meta = {"destructive": True, "approval": "required"}

    seen = await play([tool("delete_everything", remembering(handled), meta=meta)], [call("c", "delete_everything")])

    assert handled == [{}]
    assert not seen.record("c").is_error
    assert seen.named("turnGateOpen") == []

"""Tool and ArtifactTool: valid definitions, what they expose, and the exact order of a run."""

import asyncio
import copy
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from anyio import create_task_group, fail_after
from pydantic import BaseModel

from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.errors import InvalidInitialToolValue, InvalidToolArgs, ToolDownstreamError, ValidationException, problem
from gateway.model.media import Media
from gateway.model.primitives.canonical_json import call_id
from gateway.model.schema.schema import Schema
from gateway.model.tools.artifact import is_artifact_class
from gateway.model.tools.tool import ArtifactTool, Tool
from gateway.model.turns.events import EventBuses, TurnEvent

pytestmark = pytest.mark.anyio

NUMBER = {"type": "object", "properties": {"n": {"type": "integer", "default": 10}}}
ANYTHING = {"type": "object", "additionalProperties": True}


class Run:
    """A context that records what is emitted."""

    def __init__(self) -> None:
        self.turn_id = "turn-1"
        self.dispatch_id = "dispatch-1"
        self.buses = EventBuses()
        self.seen: list[Any] = []
        self.buses.observability.on("*", self.seen.append)

    def emit(self, event: TurnEvent) -> None:
        self.buses.emit(event)

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.seen]


def echo(args: dict[str, Any], ctx: object, meta: object) -> Any:
    return args


def a_tool(**fields: Any) -> Tool:
    return Tool(**{"name": "t", "description": "Tests.", "input_schema": Schema(NUMBER), "handler": echo, **fields})


def problems_of(make: Callable[..., object], **fields: Any) -> list[dict[str, Any]]:
    with pytest.raises(InvalidInitialToolValue) as caught:
        make(**fields)
    assert isinstance(caught.value.cause, ValidationException)
    assert (caught.value.status, caught.value.fatal) == (500, True)
    assert caught.value.cause.message in caught.value.message
    return caught.value.cause.details


# --- definitions ---


def test_only_what_is_needed_has_to_be_given() -> None:
    tool = a_tool()

    assert (tool.name, tool.description) == ("t", "Tests.")
    assert (tool.ephemeral, tool.trusted, tool.on_collision) == (False, False, "throw")
    assert tool.artifact_constructor is None
    assert tool.meta.all() == {}


def test_mixed_case_name_is_accepted() -> None:
    assert a_tool(name="Not-snake case!").name == "Not-snake case!"


@pytest.mark.parametrize(
    ("field", "value", "type"),
    [
        ("name", "", "type"),
        ("name", None, "type"),
        ("name", b"t", "type"),
        ("description", "", "type"),
        ("description", 5, "type"),
        ("input_schema", {"type": "object"}, "type"),
        ("input_schema", None, "type"),
        ("input_schema", dict, "type"),
        ("input_schema", Schema({"type": "string"}), "type"),
        ("input_schema", Schema({}), "type"),
        ("handler", None, "type"),
        ("handler", "print", "type"),
        ("meta", [], "type"),
        ("meta", "x", "type"),
        ("meta", {1: 2}, "type"),
        ("ephemeral", "yes", "type"),
        ("ephemeral", 1, "type"),
        ("trusted", "yes", "type"),
        ("trusted", None, "type"),
        ("on_collision", "overwrite", "enum"),
        ("on_collision", None, "enum"),
        ("on_collision", [], "enum"),
        ("colour", "red", "unknown"),
    ],
)
def test_wrong_field_is_refused(field: str, value: Any, type: str) -> None:
    (found,) = problems_of(a_tool, **{field: value})

    assert (found["path"], found["type"]) == ([field], type)


def test_meta_that_is_too_deep_is_refused() -> None:
    meta: dict[str, Any] = {}
    for _ in range(600):
        meta = {"a": meta}

    (found,) = problems_of(a_tool, meta=meta)

    assert "nested deeper" in found["message"]


def test_every_problem_is_reported_at_once() -> None:
    found = problems_of(
        Tool, ephemeral=1, trusted="yes", on_collision="x", meta=5, colour="red", artifact_constructor=7
    )

    assert [entry["path"] for entry in found] == [
        ["name"],
        ["description"],
        ["input_schema"],
        ["handler"],
        ["artifact_constructor"],
        ["meta"],
        ["ephemeral"],
        ["trusted"],
        ["on_collision"],
        ["colour"],
    ]
    assert [entry["type"] for entry in found[:4]] == ["required"] * 4


def test_definition_is_read_only() -> None:
    tool = a_tool(meta={"rbac": {"scopes": ["a"]}})

    for field in ("name", "description", "input_schema", "meta", "trusted", "ephemeral", "on_collision", "new"):
        with pytest.raises(AttributeError, match=f"immutable; '{field}' cannot be set"):
            setattr(tool, field, "x")
        with pytest.raises(AttributeError, match=f"immutable; '{field}' cannot be deleted"):
            delattr(tool, field)
    with pytest.raises(TypeError, match="read-only"):
        tool.meta.set("rbac.scopes", [])
    tool.meta.get("rbac.scopes").append("b")

    assert tool.meta.get("rbac.scopes") == ["a"]


def test_meta_is_copied() -> None:
    meta = {"scopes": ["a"]}
    tool = a_tool(meta=meta)

    meta["scopes"].append("b")

    assert tool.meta.all() == {"scopes": ["a"]}


def test_tools_are_distinguished_from_look_alikes() -> None:
    fields: dict[str, Any] = {"name": "t", "description": "Tests.", "input_schema": Schema(NUMBER), "handler": echo}

    class Special(Tool):
        pass

    assert Tool.is_tool(Tool(**fields))
    assert Tool.is_tool(Special(**fields))
    assert Tool.is_tool(ArtifactTool(**fields))
    assert ArtifactTool.is_artifact_tool(ArtifactTool(**fields))
    assert not ArtifactTool.is_artifact_tool(Tool(**fields))
    assert not Tool.is_tool(fields)
    assert not Tool.is_tool(Tool)


# --- model classes as schemas ---


class Point(BaseModel):
    """Where to look."""

    x: int
    y: int = 0


async def test_model_class_is_a_schema() -> None:
    tool = a_tool(input_schema=Point)

    assert tool.describe()["input_schema"]["properties"]["y"]["default"] == 0
    assert await tool.executor(Run())({"x": 1}) == {"x": 1, "y": 0}


class Tree(BaseModel):
    children: list["Tree"] = []


async def test_recursive_model_class_is_a_schema() -> None:
    assert await a_tool(input_schema=Tree).executor(Run())({"children": [{}]}) == {"children": [{"children": []}]}


class NoJson(BaseModel):
    model_config: ClassVar[Any] = {"arbitrary_types_allowed": True}
    connection: asyncio.Event


class BadDefault(BaseModel):
    n: int = "x"  # type: ignore[assignment]  # the mistake under test


@pytest.mark.parametrize("model", [NoJson, BadDefault])
def test_model_class_without_a_usable_schema_is_refused(model: type[BaseModel]) -> None:
    (found,) = problems_of(a_tool, input_schema=model)

    assert (found["path"], found["type"]) == (["input_schema"], "schema")


# --- the handler stays inside ---


def test_handler_leaves_a_tool_in_no_form() -> None:
    def secret_handler(args: Any, ctx: Any, meta: Any) -> None: ...

    tool = a_tool(handler=secret_handler, meta={"a": 1}, trusted=True, artifact_constructor=lambda: SpooledArtifact)
    public = [name for name in dir(tool) if not name.startswith("_")]

    assert secret_handler not in [getattr(tool, name) for name in public]
    assert repr(tool) == "Tool('t')"
    assert set(tool.describe()) == {"name", "description", "input_schema"}
    assert not hasattr(tool, "handler")
    assert not hasattr(tool, "__dict__")
    with pytest.raises(TypeError, match="cannot be serialised"):
        pickle.dumps(tool)


def test_copy_of_a_tool_is_the_tool() -> None:
    tool = a_tool()

    assert copy.copy(tool) is tool
    assert copy.deepcopy({"tools": [tool]})["tools"][0] is tool


def test_description_is_plain_data_of_its_own() -> None:
    tool = a_tool(
        input_schema=Schema({**NUMBER, "description": "How many.", "examples": [{"n": 1}], "required": ["n"]})
    )

    described = tool.describe()
    described["input_schema"]["properties"].clear()

    assert tool.describe() == {
        "name": "t",
        "description": "Tests.",
        "input_schema": {
            **NUMBER,
            "description": "How many.",
            "examples": [{"n": 1}],
            "required": ["n"],
            "additionalProperties": False,
        },
    }


# --- the artifact constructor is a resolver ---


class Report(SpooledArtifact):
    pass


class Shaped:
    """An artifact class by its methods alone."""

    async def head(self) -> None: ...
    async def tail(self) -> None: ...
    async def grep(self) -> None: ...
    async def cat(self) -> None: ...
    async def byte_length(self) -> None: ...
    async def line_count(self) -> None: ...
    async def estimate_tokens(self) -> None: ...


class AlmostShaped(Shaped):
    grep = None  # type: ignore[assignment]  # the missing method


@pytest.mark.parametrize("found", [SpooledArtifact, Report, Shaped])
def test_resolver_of_an_artifact_class_is_asked_once(found: type) -> None:
    asked: list[int] = []

    def resolver() -> type:
        asked.append(1)
        return found

    tool = a_tool(artifact_constructor=resolver)

    assert asked == [1]
    assert tool.artifact_constructor is resolver
    assert is_artifact_class(found)


def raising() -> type:
    raise ImportError("no such module")


async def waiting() -> type:
    return SpooledArtifact


@pytest.mark.parametrize(
    ("resolver", "text"),
    [
        pytest.param(SpooledArtifact, "must be a function", id="the class itself"),
        pytest.param("text", "must be a function", id="a name"),
        pytest.param(False, "must be a function", id="false"),
        pytest.param(raising, "raised ImportError: no such module", id="raises"),
        pytest.param(waiting, "must not be async", id="async"),
        pytest.param(lambda: object, "not an artifact class", id="object"),
        pytest.param(lambda: Media, "not an artifact class", id="Media"),
        pytest.param(lambda: AlmostShaped, "not an artifact class", id="a method is missing"),
        pytest.param(lambda: None, "returned None", id="nothing"),
        pytest.param(lambda: Shaped(), "not an artifact class", id="an instance"),
        pytest.param(lambda needed: SpooledArtifact, "raised TypeError", id="takes an argument"),
    ],
)
def test_bad_resolver_is_refused_when_the_tool_is_built(resolver: Any, text: str) -> None:
    (found,) = problems_of(a_tool, artifact_constructor=resolver)

    assert found["path"] == ["artifact_constructor"]
    assert text in found["message"]


def test_artifact_tool_takes_no_constructor() -> None:
    fields: dict[str, Any] = {"name": "t", "description": "Tests.", "input_schema": Schema(NUMBER), "handler": echo}

    (found,) = problems_of(ArtifactTool, **fields, artifact_constructor=lambda: SpooledArtifact)

    assert found == problem(
        "'artifact_constructor' is forbidden on an artifact tool", ["artifact_constructor"], "forbidden"
    )
    assert repr(ArtifactTool(**fields)) == "ArtifactTool('t')"


# --- validation ---


async def test_validation_fills_defaults() -> None:
    assert await a_tool().validate({}) == {"n": 10}


async def test_refused_arguments_carry_the_field_errors() -> None:
    with pytest.raises(InvalidToolArgs) as caught:
        await a_tool().validate({"n": "1", "m": 2})

    assert (caught.value.code, caught.value.status, caught.value.fatal) == ("E_INVALID_TOOL_ARGS", 422, False)
    assert isinstance(caught.value.cause, ValidationException)
    assert caught.value.cause.message == ("'n': value is not of type \"integer\" and a member is not known; it takes n")


async def test_error_of_a_custom_validator_passes_through() -> None:
    async def look_up(value: Any) -> None:
        raise LookupError("no such customer")

    with pytest.raises(LookupError, match="no such customer"):
        await a_tool(input_schema=Schema(NUMBER, checks=[look_up])).validate({})


# --- the order of a run ---


async def test_successful_run_in_order() -> None:
    run = Run()
    handled: list[Any] = []

    def handler(args: dict[str, Any], ctx: object, meta: object) -> str:
        handled.append((args, ctx, meta, run.names))
        return "done"

    tool = a_tool(handler=handler, meta={"a": 1})
    result = await tool.executor(run)({})

    start, end = run.seen
    assert result == "done"
    assert handled == [({"n": 10}, run, tool.meta, ["toolExecutionStart"])]
    assert start.to_dict() == {
        "tool_name": "t",
        "turn_id": "turn-1",
        "dispatch_id": "dispatch-1",
        "call_id": call_id("t", {}),
        "args": {"n": 10},
        "started_at": start.started_at,
    }
    assert end.to_dict() == {
        "tool_name": "t",
        "turn_id": "turn-1",
        "dispatch_id": "dispatch-1",
        "call_id": call_id("t", {}),
        "started_at": start.started_at,
        "ended_at": end.ended_at,
        "duration_ms": end.duration_ms,
        "is_error": False,
    }
    assert end.duration_ms == pytest.approx((end.ended_at - end.started_at).total_seconds() * 1000)


async def test_failing_run_in_order() -> None:
    run = Run()
    original = ValueError("the disk is full of secrets")

    async def handler(args: Any, ctx: Any, meta: Any) -> None:
        raise original

    with pytest.raises(ToolDownstreamError) as caught:
        await a_tool(handler=handler).executor(run)({"n": 1})

    assert caught.value.cause is original
    assert (caught.value.message, caught.value.status, caught.value.fatal) == (
        "the tool failed while running",
        500,
        False,
    )
    assert run.names == ["toolExecutionStart", "toolExecutionEnd"]
    assert run.seen[1].is_error
    assert run.seen[0].call_id == run.seen[1].call_id
    assert "secrets" not in str([event.to_dict() for event in run.seen])


async def test_refused_arguments_leave_no_trace() -> None:
    run = Run()
    handled: list[Any] = []

    with pytest.raises(InvalidToolArgs):
        await a_tool(handler=lambda *given: handled.append(given)).executor(run)({"n": "1"})

    assert run.seen == []
    assert handled == []


def endless() -> dict[str, Any]:
    args: dict[str, Any] = {}
    args["a"] = args
    return args


@pytest.mark.parametrize(
    ("args", "error"),
    [
        pytest.param({"a": b"x"}, TypeError, id="bytes"),
        pytest.param({"a": (1,)}, TypeError, id="tuple"),
        pytest.param({1: 2}, TypeError, id="key that is a number"),
        pytest.param(endless(), TypeError, id="cycle"),
    ],
)
async def test_arguments_that_cannot_be_encoded_fail_before_anything_else(args: Any, error: type[Exception]) -> None:
    run = Run()
    checked: list[Any] = []
    tool = a_tool(input_schema=Schema(ANYTHING, checks=[checked.append]), handler=checked.append)

    with pytest.raises(error):
        await tool.executor(run)(args)

    assert (run.seen, checked) == ([], [])


@pytest.mark.parametrize("given", [(), (None,), ({},)], ids=["nothing", "none", "empty"])
async def test_missing_arguments_are_empty_ones(given: tuple[Any, ...]) -> None:
    run = Run()

    assert await a_tool().executor(run)(*given) == {"n": 10}
    assert run.seen[0].call_id == call_id("t", {})


async def test_arguments_that_are_no_object_are_refused() -> None:
    with pytest.raises(InvalidToolArgs):
        await a_tool().executor(Run())([1])


@pytest.mark.parametrize("value", [None, 0, "", b"", [], {"a": 1}, object], ids=repr)
async def test_value_of_a_handler_is_returned_unchanged(value: Any) -> None:
    async def later(args: Any, ctx: Any, meta: Any) -> Any:
        return value

    assert await a_tool(handler=lambda args, ctx, meta: value).executor(Run())() is value
    assert await a_tool(handler=later).executor(Run())() is value


async def test_id_is_of_the_raw_arguments() -> None:
    run = Run()
    execute = a_tool().executor(run)

    await execute({})
    await execute({"n": 10})
    defaulted, spelled_out = run.seen[0], run.seen[2]

    assert defaulted.args == spelled_out.args == {"n": 10}
    assert defaulted.call_id != spelled_out.call_id
    assert defaulted.call_id != call_id("t", defaulted.args)


async def test_equal_numbers_have_one_id_and_texts_another() -> None:
    run = Run()
    execute = a_tool(input_schema=Schema(ANYTHING)).executor(run)

    for n in (5, 5.0, "5"):
        await execute({"n": n})
    ids = [event.call_id for event in run.seen if event.name == "toolExecutionStart"]

    assert ids[0] == ids[1] != ids[2]


async def test_only_the_name_of_a_tool_enters_the_id() -> None:
    run = Run()
    variants = [
        a_tool(),
        a_tool(description="Other.", meta={"a": 1}, trusted=True, ephemeral=True, on_collision="keep"),
        a_tool(input_schema=Schema(ANYTHING)),
        a_tool(name="other"),
    ]

    for tool in variants:
        await tool.executor(run)({"n": 1})
    first, second, third, renamed = [event.call_id for event in run.seen if event.name == "toolExecutionEnd"]

    assert first == second == third != renamed


async def test_concurrent_runs_share_nothing() -> None:
    run = Run()
    barrier = asyncio.Barrier(2)
    results: dict[int, Any] = {}

    async def handler(args: dict[str, Any], ctx: Any, meta: Any) -> dict[str, Any]:
        await barrier.wait()
        args["mine"] = args["n"]
        return args

    execute = a_tool(handler=handler).executor(run)

    async def settle(n: int) -> None:
        results[n] = await execute({"n": n})

    with fail_after(5):
        async with create_task_group() as group:
            group.start_soon(settle, 1)
            group.start_soon(settle, 2)

    assert results == {1: {"n": 1, "mine": 1}, 2: {"n": 2, "mine": 2}}
    assert run.names == ["toolExecutionStart"] * 2 + ["toolExecutionEnd"] * 2
    assert len({event.call_id for event in run.seen}) == 2


async def test_handler_may_change_its_arguments() -> None:
    run = Run()
    given = {"list": [1]}

    def handler(args: dict[str, Any], ctx: Any, meta: Any) -> None:
        args["list"].append(2)

    await a_tool(handler=handler, input_schema=Schema(ANYTHING)).executor(run)(given)

    assert given == {"list": [1]}
    assert run.seen[0].args == {"list": [1]}
    assert run.seen[1].call_id == call_id("t", given)


async def test_cancelled_run_ends_once_and_stays_cancelled() -> None:
    run = Run()
    started = asyncio.Event()

    async def handler(args: Any, ctx: Any, meta: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(a_tool(handler=handler).executor(run)())
    with fail_after(5):
        await started.wait()
        task.cancel()
        await asyncio.wait([task])

    assert task.cancelled()
    assert run.names == ["toolExecutionStart", "toolExecutionEnd"]
    assert run.seen[1].is_error


async def test_interpreter_exit_passes_through() -> None:
    run = Run()

    def handler(args: Any, ctx: Any, meta: Any) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await a_tool(handler=handler).executor(run)()

    assert run.names == ["toolExecutionStart", "toolExecutionEnd"]


# --- observers ---


async def failing_later(event: TurnEvent) -> None:
    raise RuntimeError("observer")


def failing(event: TurnEvent) -> None:
    raise RuntimeError("observer")


@pytest.mark.parametrize("listener", [failing, failing_later])
@pytest.mark.parametrize("name", ["toolExecutionStart", "toolExecutionEnd"])
async def test_failing_observer_changes_nothing(listener: Callable[[TurnEvent], object], name: str) -> None:
    run = Run()
    run.buses.observability.on(name, listener)

    assert await a_tool().executor(run)() == {"n": 10}
    await asyncio.sleep(0)

    assert run.names == ["toolExecutionStart", "toolExecutionEnd"]
    assert not run.seen[1].is_error


async def test_observer_cannot_change_the_arguments() -> None:
    run = Run()
    run.buses.observability.on("toolExecutionStart", lambda event: event.args["list"].append("observer"))

    assert await a_tool(input_schema=Schema(ANYTHING)).executor(run)({"list": [1]}) == {"list": [1]}


async def test_run_without_observers_is_the_same() -> None:
    run = Run()
    run.buses = EventBuses()

    assert await a_tool().executor(run)({"n": 2}) == {"n": 2}
    assert run.seen == []

"""Proposed calls: every way one can end, its events, its stored records, and their order."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from anyio import create_task_group, fail_after

from gateway.artifacts.query_tools import ToolMethod, build_query_tool
from gateway.artifacts.spool_stores import InMemoryReader, InMemoryStore
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.engine.turn_pipeline.dispatch_loop import in_memory_callbacks
from gateway.engine.turn_pipeline.tool_execution import ProposedCall, settle_call, settle_calls
from gateway.errors import NotPermitted
from gateway.model.media import InMemoryMediaReader, Media
from gateway.model.primitives.canonical_json import call_id
from gateway.model.schema.schema import Schema
from gateway.model.tokenizer import Tokenizable
from gateway.model.tools.tool import ArtifactTool, Tool
from gateway.model.tools.tool_call import UNNAMED_TOOL, ToolCall
from gateway.model.tools.tool_registry import ToolRegistry
from gateway.model.turns.context import DispatchContext, TurnContext
from gateway.model.turns.events import EventBuses
from gateway.model.turns.progress_reporter import Reporter

pytestmark = pytest.mark.anyio

ANYTHING: dict[str, Any] = {"type": "object", "additionalProperties": True}
NUMBER: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}}


class Report(SpooledArtifact):
    pass


def a_tool(handler: Callable[..., Any], *, name: str = "t", kind: type[Tool] = Tool, **fields: Any) -> Tool:
    schema = fields.pop("input_schema", Schema(ANYTHING))
    return kind(name=name, description="Tests.", input_schema=schema, handler=handler, **fields)


def returning(value: Any) -> Callable[..., Any]:
    return lambda args, ctx, meta: value


def raising(error: BaseException) -> Callable[..., Any]:
    def handler(args: Any, ctx: Any, meta: Any) -> Any:
        raise error

    return handler


class Desk:
    """A dispatch that can execute calls, and everything that it published, in order."""

    def __init__(self, *tools: Tool, spool: Any = None, **callbacks: Any) -> None:
        buses = EventBuses()
        self.seen: list[Any] = []
        buses.functional.on("*", self.seen.append)
        buses.observability.on("*", self.seen.append)
        kept = {**in_memory_callbacks(), "store_tool_call": lambda ctx, record: self.seen.append(record), **callbacks}
        raw = {"system_prompt": "Test."}
        turn = TurnContext(raw, tools=ToolRegistry(tools), callbacks=kept, buses=buses)
        self.ctx = DispatchContext(turn, buses=buses)
        self.reporter = Reporter(self.ctx)
        self.spool = spool or InMemoryStore()

    async def settle(self, tool: str = "t", args: Any = None, id: str = "c", **options: Any) -> ToolCall:
        return await settle_call(self.ctx, self.reporter, ProposedCall(id, tool, args), spool=self.spool, **options)

    @property
    def steps(self) -> list[str]:
        return [type(seen).__name__ for seen in self.seen]


RAN = ["ToolCallEvent", "ToolExecutionStart", "ToolExecutionEnd", "ToolCallEvent", "ToolCall"]
NOT_RUN = ["ToolCallEvent", "ToolCallEvent", "ToolCall"]


def text_of(record: ToolCall) -> str:
    assert isinstance(record.results, Tokenizable)
    return str(record.results)


# --- outcomes of a call ---


@pytest.mark.parametrize(
    ("args", "defect", "quoted"),
    [
        ("{not json", "the argument text is not JSON", "'{not json'"),
        ("[1, 2]", "the arguments must be a JSON object, not list", "'[1, 2]'"),
        ("null", "the arguments must be a JSON object, not NoneType", "'null'"),
        ('"text"', "the arguments must be a JSON object, not str", "'\"text\"'"),
        ("NaN", "NaN is not a JSON value", "'NaN'"),
        ("[" * 100_000, "nested too deeply", "'" + "[" * 200 + "'…"),
        ('{"a":' * 600 + "1" + "}" * 600, "nested deeper than 512 levels", "…"),
        ([1], "the arguments must be a JSON object, not list", "'list'"),
        ({"a": b"x"}, "bytes is outside the JSON grammar", "'dict'"),
        ({1: 2}, "an object key must be a string", "'dict'"),
    ],
    ids=["broken", "list", "null", "text", "constant", "deep text", "deep object", "python list", "bytes", "key"],
)
async def test_defective_arguments_become_an_error_record(args: Any, defect: str, quoted: str) -> None:
    desk = Desk(a_tool(returning("x")))

    record = await desk.settle(args=args)

    assert (record.args, record.is_error, record.is_complete) == ({}, True, True)
    assert defect in text_of(record)
    assert text_of(record).endswith(f"; received: {quoted}") or quoted == "…"
    assert desk.steps == NOT_RUN


@pytest.mark.parametrize("args", [None, "", "  \n", {}, "{}"], ids=repr)
async def test_missing_arguments_are_empty_ones(args: Any) -> None:
    record = await Desk(a_tool(returning("x"))).settle(args=args)

    assert (record.args, record.is_error) == ({}, False)
    assert record.checksum == call_id("t", {})


async def test_arguments_may_be_text() -> None:
    desk = Desk(a_tool(lambda args, ctx, meta: str(args)))

    record = await desk.settle(args='{"b": [1], "a": null}')

    assert record.args == {"b": [1], "a": None}
    assert isinstance(record.results, SpooledArtifact)
    assert await record.results.as_string() == "{'b': [1], 'a': None}"


async def test_call_of_an_unknown_tool_gets_the_visible_names() -> None:
    desk = Desk(*(a_tool(returning(""), name=name) for name in ("zebra", "ant", "hidden")))
    desk.ctx.tools.hide("hidden")

    record = await desk.settle("missing", {"a": 1})

    assert text_of(record) == "there is no tool named 'missing'; available tools: ant, zebra"
    assert (record.tool, record.args, record.is_error, record.trusted) == ("missing", {"a": 1}, True, False)
    assert desk.steps == NOT_RUN


async def test_unknown_tool_among_none() -> None:
    assert text_of(await Desk().settle("missing")) == "there is no tool named 'missing'; no tools are available"


async def test_hidden_tool_can_be_called() -> None:
    desk = Desk(a_tool(returning("x")))
    desk.ctx.tools.hide("t")

    assert not (await desk.settle()).is_error


async def test_empty_name_stands_for_no_tool() -> None:
    desk = Desk(a_tool(returning("never"), name=UNNAMED_TOOL))

    record = await desk.settle("")

    assert (record.tool, record.is_error) == (UNNAMED_TOOL, True)
    assert desk.steps == NOT_RUN


async def test_endless_name_is_quoted_in_part() -> None:
    record = await Desk().settle("n" * 10**6)

    assert len(text_of(record)) < 300


async def test_arguments_that_fail_the_schema_become_an_error_record() -> None:
    desk = Desk(a_tool(returning("x"), input_schema=Schema(NUMBER)))

    record = await desk.settle(args={"n": "secret", "m": 1})

    assert text_of(record) == (
        "the arguments do not satisfy the tool's input schema: 'n': value is not of type \"integer\" "
        "and a member is not known; it takes n"
    )
    assert (record.args, record.is_error) == ({"n": "secret", "m": 1}, True)
    assert desk.steps == NOT_RUN


async def test_validator_that_fails_becomes_an_error_record() -> None:
    def look_up(value: Any) -> None:
        raise LookupError("the directory is down")

    desk = Desk(a_tool(returning("x"), input_schema=Schema(ANYTHING, checks=[look_up])))

    record = await desk.settle()

    assert text_of(record) == "the arguments could not be checked: the directory is down"
    assert desk.steps == ["ToolCallEvent", "WarningEvent", "ToolCallEvent", "ToolCall"]
    assert isinstance(desk.seen[1].error, LookupError)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class Falsy(Exception):
    def __bool__(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("the disk is full"), "the disk is full"),
        (ValueError(), "ValueError"),
        (Falsy("nothing here"), "nothing here"),
        (Unprintable(), "Unprintable"),
    ],
    ids=["message", "no message", "falsy", "unprintable"],
)
async def test_failing_handler_becomes_an_error_record(error: Exception, expected: str) -> None:
    desk = Desk(a_tool(raising(error), trusted=True))

    record = await desk.settle(args={"a": 1})

    assert text_of(record) == f"the tool failed while running: {expected}"
    assert (record.args, record.is_error, record.trusted) == ({"a": 1}, True, True)
    assert desk.steps == RAN
    assert desk.seen[2].is_error


async def test_long_error_text_is_cut() -> None:
    record = await Desk(a_tool(raising(ValueError("x" * 10**6)))).settle()

    assert len(text_of(record)) < 20_000
    assert text_of(record).endswith("x…")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb", "a\nb"),
        ("", ""),
        (b"\xff\x00bytes", "\ufffd\x00bytes"),
        (bytearray(b"array"), "array"),
        (memoryview(b"view"), "view"),
    ],
    ids=["text", "empty", "bytes", "bytearray", "memoryview"],
)
async def test_text_and_bytes_are_spooled_under_the_id(value: Any, text: str) -> None:
    desk = Desk(a_tool(returning(value)))

    record = await desk.settle(id="call_7")

    assert type(record.results) is SpooledArtifact
    assert await record.results.as_string() == text
    assert record.results.reader is await desk.spool.read("call_7")
    assert not record.is_error
    assert desk.steps == RAN


async def test_declared_class_wraps_text() -> None:
    desk = Desk(a_tool(returning("text"), artifact_constructor=lambda: Report))

    assert type((await desk.settle()).results) is Report


def a_media() -> Media:
    return Media.tool_generated("image", mime_type="image/png", filename="a.png", reader=InMemoryMediaReader(b"x"))


@pytest.mark.parametrize(
    "value",
    [
        SpooledArtifact(InMemoryReader("x")),
        [SpooledArtifact(InMemoryReader("x")), Report(InMemoryReader("y"))],
        a_media(),
        [a_media()],
        [a_media(), a_media()],
    ],
    ids=["artifact", "artifacts", "media", "list of one", "list of media"],
)
async def test_finished_results_are_untouched(value: Any) -> None:
    desk = Desk(a_tool(returning(value), artifact_constructor=lambda: Report))

    record = await desk.settle()

    if isinstance(value, list):
        assert [id(member) for member in record.results] == [id(member) for member in value]  # type: ignore[union-attr]  # it is the list
    else:
        assert record.results is value
    assert not record.is_error
    assert await desk.spool.read("c") is None
    assert desk.steps == RAN


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        True,
        {"a": 1},
        [],
        ["text"],
        [a_media(), SpooledArtifact(InMemoryReader(""))],
        Tokenizable("x"),
        Media,
        (1,),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_any_other_value_is_an_error(value: Any) -> None:
    desk = Desk(a_tool(returning(value)))

    record = await desk.settle()

    assert text_of(record) == (
        f"the tool returned {type(value).__name__}; it must return text, bytes, media or an artifact"
    )
    assert record.is_error
    assert desk.steps == RAN


@pytest.mark.parametrize("value", ["text", Tokenizable("text")], ids=["text", "tokenizable"])
async def test_answer_of_a_query_tool_is_text(value: Any) -> None:
    desk = Desk(a_tool(returning(value), kind=ArtifactTool))

    record = await desk.settle()

    assert text_of(record) == "text"
    assert (record.from_artifact_tool, record.is_error) == (True, False)
    assert await desk.spool.read("c") is None


@pytest.mark.parametrize(
    "value",
    [b"bytes", SpooledArtifact(InMemoryReader("")), a_media(), None],
    ids=["bytes", "artifact", "media", "nothing"],
)
async def test_any_other_answer_of_a_query_tool_is_an_error(value: Any) -> None:
    record = await Desk(a_tool(returning(value), kind=ArtifactTool)).settle()

    assert text_of(record) == f"the query tool returned {type(value).__name__}; it must return text"
    assert (record.from_artifact_tool, record.is_error) == (True, True)


async def test_forged_tool_queries_an_earlier_result() -> None:
    desk = Desk(a_tool(returning("first\nsecond")))
    await desk.settle(id="one")
    desk.ctx.tools.register(build_query_tool(ToolMethod("artifact_x", "head", "Queries."), ["one"], SpooledArtifact))

    record = await desk.settle("artifact_x", {"callId": "one"}, id="two")

    assert text_of(record) == "first\nsecond"
    assert record.from_artifact_tool


class FullStore(InMemoryStore):
    async def write(self, id: str, content: Any) -> InMemoryReader:
        raise OSError("no space left on device")


def refusing(reader: Any) -> Any:
    raise ValueError("not for this class")


@pytest.mark.parametrize(
    ("spool", "fields", "expected"),
    [
        (FullStore(), {}, "no space left on device"),
        (
            None,
            {
                "artifact_constructor": lambda: type(
                    "Refusing", (Report,), {"__init__": lambda self, reader: refusing(reader)}
                )
            },
            "not for this class",
        ),
    ],
    ids=["disk full", "class refuses"],
)
async def test_result_that_cannot_be_kept_is_an_error_record(spool: Any, fields: dict[str, Any], expected: str) -> None:
    desk = Desk(a_tool(returning("text"), **fields), spool=spool)

    record = await desk.settle()

    assert text_of(record) == f"the tool ran, but its result could not be kept: {expected}"
    assert record.is_error
    assert desk.steps == [*RAN[:3], "WarningEvent", *RAN[3:]]
    assert expected in str(desk.seen[3].error)


# --- events and records ---


async def test_request_is_announced_then_completion_then_the_record_is_stored() -> None:
    desk = Desk(a_tool(returning("x"), input_schema=Schema(NUMBER)))

    record = await desk.settle(args={})

    request, start, end, completion, stored = desk.seen
    assert (request.id, request.tool, request.args, request.is_complete) == ("c", "t", {}, False)
    assert (completion.id, completion.is_complete, completion.is_error) == ("c", True, False)
    assert completion.results is record.results
    assert stored is record
    assert request.checksum == completion.checksum == start.call_id == end.call_id == record.checksum
    assert start.args == {"n": 1}
    assert record.args == {}
    assert desk.ctx.turn_tool_calls == [record]
    assert record.created_at <= record.updated_at == record.completed_at


async def test_flags_of_the_tool_and_the_caller_are_kept() -> None:
    desk = Desk(a_tool(returning("x"), trusted=True), a_tool(returning("x"), name="plain"))

    shown, hidden = await desk.settle(id="1"), await desk.settle(id="2", tool="plain", inline=False)

    assert (shown.inline, shown.trusted, shown.from_artifact_tool) == (True, True, False)
    assert (hidden.inline, hidden.trusted) == (False, False)


async def test_handler_cannot_change_what_the_record_hashes() -> None:
    def handler(args: dict[str, Any], ctx: Any, meta: Any) -> str:
        args["list"].append(2)
        return "x"

    record = await Desk(a_tool(handler)).settle(args={"list": [1]})

    assert record.args == {"list": [1]}
    assert record.checksum == call_id("t", {"list": [1]})


async def test_proposed_arguments_are_left_alone() -> None:
    args = {"list": [1]}
    desk = Desk(a_tool(lambda args, ctx, meta: args["list"].clear() or "x"))
    desk.ctx._buses.functional.on("toolCall", lambda event: event.args["list"].clear())

    await desk.settle(args=args)

    assert args == {"list": [1]}


async def test_record_that_cannot_be_stored_is_no_success() -> None:
    def store(ctx: Any, record: Any) -> None:
        raise OSError("the database is gone")

    desk = Desk(a_tool(returning("x")), store_tool_call=store)

    with pytest.raises(OSError, match="the database is gone"):
        await desk.settle()

    assert desk.ctx.turn_tool_calls == []


async def test_cancelled_call_leaves_no_record() -> None:
    started = asyncio.Event()

    async def handler(args: Any, ctx: Any, meta: Any) -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    desk = Desk(a_tool(handler))
    task = asyncio.ensure_future(desk.settle())
    with fail_after(5):
        await started.wait()
        task.cancel()
        await asyncio.wait([task])

    assert task.cancelled()
    assert desk.steps == ["ToolCallEvent", "ToolExecutionStart", "ToolExecutionEnd"]
    assert desk.ctx.turn_tool_calls == []


# --- ids ---


async def test_repeated_id_is_given_a_suffix() -> None:
    desk = Desk(a_tool(lambda args, ctx, meta: f"output {args['n']}"))

    first, second = await desk.settle(args={"n": 1}), await desk.settle(args={"n": 2})

    assert first.id == "c"
    assert second.id.startswith("c-")
    assert UUID(second.id.removeprefix("c-")).version == 4
    assert isinstance(first.results, SpooledArtifact)
    assert await first.results.as_string() == "output 1"
    assert first.results.reader is await desk.spool.read("c")


async def test_empty_id_is_minted() -> None:
    desk = Desk(a_tool(returning("x")))

    ids = [(await desk.settle(id="")).id for _ in range(3)]

    assert len(set(ids)) == 3
    assert all(UUID(id.removeprefix("call-")).version == 4 for id in ids)


async def test_id_of_a_call_in_flight_is_not_taken() -> None:
    barrier = asyncio.Barrier(2)

    async def handler(args: dict[str, Any], ctx: Any, meta: Any) -> str:
        await barrier.wait()
        return f"output {args['n']}"

    desk = Desk(a_tool(handler))
    with fail_after(5):
        async with create_task_group() as group:
            group.start_soon(desk.settle, "t", {"n": 1})
            group.start_soon(desk.settle, "t", {"n": 2})

    records = desk.ctx.turn_tool_calls
    assert len({record.id for record in records}) == 2
    for record in records:
        assert isinstance(record.results, SpooledArtifact)
        assert await record.results.as_string() == f"output {record.args['n']}"


async def test_id_of_a_deleted_record_is_not_taken_again() -> None:
    desk = Desk(a_tool(returning("x")))
    await desk.settle()
    await desk.ctx.delete_tool_call("c")

    assert (await desk.settle()).id.startswith("c-")


# --- several calls ---


async def test_calls_run_one_after_the_other_in_order() -> None:
    running: list[str] = []

    async def handler(args: dict[str, Any], ctx: Any, meta: Any) -> str:
        running.append(f"start {args['n']}")
        await asyncio.sleep(0)
        running.append(f"end {args['n']}")
        return "x"

    desk = Desk(a_tool(handler))
    calls = [ProposedCall(f"c{n}", "t", {"n": n}) for n in range(3)]

    records = await settle_calls(desk.ctx, desk.reporter, calls, spool=desk.spool, inline=False)

    assert running == ["start 0", "end 0", "start 1", "end 1", "start 2", "end 2"]
    assert [record.id for record in records] == ["c0", "c1", "c2"]
    assert desk.ctx.turn_tool_calls == records
    assert not any(record.inline for record in records)


async def test_failed_call_does_not_stop_the_next() -> None:
    desk = Desk(a_tool(raising(ValueError("no"))), a_tool(returning("x"), name="ok"))
    calls = [ProposedCall("1", "t"), ProposedCall("2", "none"), ProposedCall("3", "ok")]

    records = await settle_calls(desk.ctx, desk.reporter, calls, spool=desk.spool)

    assert [record.is_error for record in records] == [True, True, False]


async def test_abort_leaves_the_rest_alone() -> None:
    desk = Desk(a_tool(lambda args, ctx, meta: ctx.abort("enough") or "x"))
    calls = [ProposedCall("1", "t"), ProposedCall("2", "t")]

    records = await settle_calls(desk.ctx, desk.reporter, calls, spool=desk.spool)

    assert [record.id for record in records] == ["1"]
    assert desk.steps == RAN


async def test_aborted_dispatch_settles_nothing() -> None:
    desk = Desk(a_tool(returning("x")))
    desk.ctx.abort()

    assert await settle_calls(desk.ctx, desk.reporter, [ProposedCall("1", "t")], spool=desk.spool) == []
    assert desk.seen == []


async def test_equal_calls_are_counted_by_checksum() -> None:
    desk = Desk(a_tool(returning("x")))

    for id in ("1", "2"):
        await desk.settle(id=id, args={"a": 1})
    await desk.settle(id="3", args={"a": 2})

    assert desk.ctx.tool_call_count(call_id("t", {"a": 1})) == 2


async def test_inlining_can_be_decided_by_looking_at_the_result() -> None:
    desk = Desk(a_tool(lambda args, ctx, meta: "x" * args["n"]))

    async def is_small(results: Any) -> bool:
        size: int = await results.byte_length()
        return size < 10

    records = [await desk.settle(id=str(n), args={"n": n}, inline=is_small) for n in (9, 10)]

    assert [record.inline for record in records] == [True, False]


async def test_refusal_of_a_handler_keeps_its_own_words() -> None:
    desk = Desk(a_tool(raising(NotPermitted())))

    record = await desk.settle()

    assert record.is_error
    assert text_of(record) == "the policy does not permit this call"

"""What a turn and its dispatch share, and what they do not: records, stash, tools, abort, and the ack signal."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import anyio
import pytest
from anyio.lowlevel import checkpoint

from gateway.artifacts.spool_stores import InMemoryReader
from gateway.engine.turn_pipeline.dispatch_loop import in_memory_callbacks
from gateway.errors import (
    GatewayError,
    InvalidInitialToolCallValue,
    InvalidLlmExecutionContext,
    InvalidTurnContext,
    LlmExecutionAlreadySignalled,
    NotAMediaReader,
    NotASpoolReader,
    ValidationException,
)
from gateway.model.media import InMemoryMediaReader
from gateway.model.primitives.concurrency import AbortController
from gateway.model.schema.schema import Schema
from gateway.model.tokenizer import Tokenizable
from gateway.model.tools.tool import Tool
from gateway.model.tools.tool_call import ToolCall
from gateway.model.tools.tool_registry import ToolRegistry
from gateway.model.turns.context import CallContext, DispatchContext, TurnContext
from gateway.model.turns.conversation_records import (
    RECORD_KINDS,
    Callback,
    Memory,
    Message,
    RecordKind,
    Retrievable,
    Thought,
    record_kind_plural,
)
from gateway.model.turns.events import EventBuses, TurnEvent, WarningEvent, now

pytestmark = pytest.mark.anyio


def tool(name: str) -> Tool:
    schema = Schema({"type": "object"})
    return Tool(name=name, description="d", input_schema=schema, handler=lambda args, ctx, meta: "")


def turn_context(
    *, callbacks: Mapping[str, Callback] | None = None, tools: list[Tool] | None = None, **raw: Any
) -> TurnContext:
    return TurnContext(
        {"system_prompt": "p", **raw},
        tools=ToolRegistry(tools or []),
        callbacks={**in_memory_callbacks(), **(callbacks or {})},
        buses=EventBuses(),
    )


def dispatch_context(turn: CallContext | None = None, **fields: Any) -> DispatchContext:
    return DispatchContext(turn_context(**fields) if turn is None else turn, buses=EventBuses())


def settled(id: str, n: int = 0) -> ToolCall:
    moment = now()
    return ToolCall(
        id=id,
        tool="echo",
        args={"n": n},
        is_complete=True,
        is_error=False,
        results=Tokenizable("said"),
        created_at=moment,
        updated_at=moment,
        completed_at=moment,
    )


def record(kind: RecordKind, id: str, n: int = 0) -> Any:
    match kind:
        case "message":
            return Message(id, "user", n)
        case "memory":
            return Memory(id, n)
        case "retrievable":
            return Retrievable(id, n, "first-party")
        case "thought":
            return Thought(id, n)
        case "tool_call":
            return settled(id, n)


def kept(ctx: CallContext, kind: RecordKind) -> list[Any]:
    records: list[Any] = getattr(ctx, f"turn_{record_kind_plural(kind)}")
    return records


def change(ctx: CallContext, verb: str, kind: RecordKind) -> Callable[[Any], Any]:
    method: Callable[[Any], Any] = getattr(ctx, f"{verb}_{kind}")
    return method


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"inner": value}
    return value


# Arguments of run().


async def test_turn_starts_with_an_id_of_its_own_and_empty_sets() -> None:
    one, other = turn_context(), turn_context()

    assert UUID(one.id).version == 4
    assert one.id == one.turn_id != other.id
    assert one.dispatch_id == ""
    assert one.iteration is None
    assert [kept(one, kind) for kind in RECORD_KINDS] == [[], [], [], [], []]
    assert len(one.turn_secret) == 32
    assert one.turn_secret != other.turn_secret


@pytest.mark.parametrize(
    "optional", ["turn_abort_controller", "stash", "standing_instructions"], ids=lambda name: f"{name}-none"
)
async def test_optional_field_that_is_none_is_absent(optional: str) -> None:
    ctx = turn_context(**{optional: None})

    assert ctx.stash.all() == {}
    assert ctx.standing_instructions == []
    assert not ctx.aborted


async def test_texts_may_be_tokenizable_and_dynamic() -> None:
    prompt, rule = Tokenizable("be kind"), Tokenizable(lambda ctx: "today")
    ctx = turn_context(system_prompt=prompt, standing_instructions=(rule, "plain"))

    assert ctx.system_prompt is prompt
    assert ctx.standing_instructions == [rule, "plain"]


class Odd(Mapping[str, Any]):
    """A mapping that is not a dict."""

    def __getitem__(self, key: str) -> Any:
        return {"system_prompt": "p"}[key]

    def __iter__(self) -> Any:
        return iter(["system_prompt"])

    def __len__(self) -> int:
        return 1


async def test_any_mapping_will_do() -> None:
    ctx = TurnContext(Odd(), tools=ToolRegistry(), callbacks={}, buses=EventBuses())

    assert ctx.system_prompt == "p"


BAD_RAW: list[tuple[str, Any, list[str]]] = [
    ("nothing", None, []),
    ("list", [], []),
    ("text", "hello", []),
    ("empty", {}, ["system_prompt"]),
    ("empty-prompt", {"system_prompt": ""}, ["system_prompt"]),
    ("numeric-prompt", {"system_prompt": 5}, ["system_prompt"]),
    ("empty-tokenizable", {"system_prompt": Tokenizable("")}, ["system_prompt"]),
    ("instructions-text", {"system_prompt": "p", "standing_instructions": "be kind"}, ["standing_instructions"]),
    ("instructions-empty-text", {"system_prompt": "p", "standing_instructions": [""]}, ["standing_instructions"]),
    ("instructions-false", {"system_prompt": "p", "standing_instructions": False}, ["standing_instructions"]),
    ("stash-list", {"system_prompt": "p", "stash": []}, ["stash"]),
    ("stash-zero", {"system_prompt": "p", "stash": 0}, ["stash"]),
    ("stash-odd-keys", {"system_prompt": "p", "stash": {1: 2}}, ["stash"]),
    ("stash-too-deep", {"system_prompt": "p", "stash": nested(10_000)}, ["stash"]),
    ("controller-zero", {"system_prompt": "p", "turn_abort_controller": 0}, ["turn_abort_controller"]),
    ("controller-list", {"system_prompt": "p", "turn_abort_controller": []}, ["turn_abort_controller"]),
    (
        "controller-signal",
        {"system_prompt": "p", "turn_abort_controller": AbortController().signal},
        ["turn_abort_controller"],
    ),
    ("unknown", {"system_prompt": "p", "systemPrompt": "q"}, ["systemPrompt"]),
    ("several", {"tools": [], "stash": 5}, ["tools", "system_prompt", "stash"]),
]


@pytest.mark.parametrize(("raw", "paths"), [row[1:] for row in BAD_RAW], ids=[row[0] for row in BAD_RAW])
async def test_bad_input_of_a_turn_is_refused_by_field(raw: Any, paths: list[str]) -> None:
    with pytest.raises(InvalidTurnContext) as raised:
        TurnContext(raw, tools=ToolRegistry(), callbacks={}, buses=EventBuses())

    error = raised.value
    assert (error.code, error.status, error.fatal) == ("E_INVALID_TURN_CONTEXT", 529, True)
    if paths:
        assert isinstance(error.cause, ValidationException)
        assert [detail["path"] for detail in error.cause.details] == [[path] for path in paths]
        assert all(repr(path) in error.message for path in paths)


async def test_dispatch_starts_from_a_context_and_nothing_else() -> None:
    raw: Any = {"system_prompt": "p"}

    with pytest.raises(InvalidLlmExecutionContext, match="not dict") as raised:
        DispatchContext(raw, buses=EventBuses())

    assert (raised.value.code, raised.value.status, raised.value.fatal) == (
        "E_INVALID_LLM_EXECUTION_CONTEXT",
        529,
        True,
    )


# Stash, instructions, tools.


async def test_stash_is_dotted_and_not_shared_between_turns() -> None:
    given = {"user": {"name": "ada"}}
    first, second = turn_context(stash=given), turn_context()

    first.stash.set("user.visits", 1)

    assert first.stash.get("user") == {"name": "ada", "visits": 1}
    assert given == {"user": {"name": "ada"}}
    assert second.stash.get("user") is None


async def test_stash_is_copied_into_the_dispatch_one_way() -> None:
    connection = object()
    turn = turn_context(stash={"a": {"b": 1}, "connection": connection})
    ctx = dispatch_context(turn)

    ctx.stash.set("a.b", 2)
    turn.stash.set("a.c", 3)

    assert turn.stash.get("a") == {"b": 1, "c": 3}
    assert ctx.stash.get("a") == {"b": 2}
    assert ctx.stash.get("connection") is connection


async def test_dispatch_shares_identity_and_texts_with_its_turn() -> None:
    turn = turn_context(standing_instructions=["be kind"])
    ctx = dispatch_context(turn)

    ctx.standing_instructions.append("be brief")

    assert (ctx.id, ctx.turn_id, ctx.turn_secret) == (turn.id, turn.turn_id, turn.turn_secret)
    assert UUID(ctx.dispatch_id).version == 4
    assert ctx.dispatch_id != turn.turn_id
    assert ctx.iteration == 0
    assert ctx.system_prompt == "p"
    assert turn.standing_instructions == ["be kind"]


async def test_dispatch_gets_its_own_registry_and_the_hidden_names() -> None:
    turn = turn_context(tools=[tool("shown"), tool("secret")])
    turn.tools.hide("secret", "later")
    ctx = dispatch_context(turn)

    ctx.tools.register(tool("later"))
    ctx.tools.unregister("shown")
    ctx.tools.unhide("secret")

    assert [each.name for each in ctx.tools.hidden()] == ["later"]
    assert [each.name for each in turn.tools.visible()] == ["shown"]
    assert [each.name for each in turn.tools.hidden()] == ["secret"]


# Abort.


async def test_abort_of_the_turn_reaches_its_dispatch_but_not_the_reverse() -> None:
    turn = turn_context()
    first, second = dispatch_context(turn), dispatch_context(turn)

    first.abort("mine")
    assert (first.aborted, second.aborted, turn.aborted) == (True, False, False)

    turn.abort("all")
    assert second.aborted
    assert second.abort_signal.reason == "all"
    assert first.abort_signal.reason == "mine"


async def test_turn_is_aborted_by_the_controller_it_was_given() -> None:
    controller = AbortController()
    ctx = dispatch_context(turn_context(turn_abort_controller=controller))

    controller.abort("client gone")

    assert ctx.aborted
    assert ctx.abort_signal.reason == "client gone"


async def test_dispatch_of_an_aborted_turn_is_aborted() -> None:
    turn = turn_context()
    turn.abort("early")

    assert dispatch_context(turn).aborted


async def test_released_dispatch_leaves_no_listener_on_a_long_lived_controller() -> None:
    controller = AbortController()
    ctx = dispatch_context(turn_context(turn_abort_controller=controller))
    assert not ctx.abort_signal.aborted  # reading it subscribes to the controller
    assert len(controller.signal._listeners) == 1

    ctx.release()

    assert len(controller.signal._listeners) == 0


# Records.


@pytest.mark.parametrize("kind", RECORD_KINDS)
async def test_records_are_stored_changed_and_deleted_in_place(kind: RecordKind) -> None:
    ctx = turn_context()
    for id in ("a", "b", "c"):
        await change(ctx, "store", kind)(record(kind, id))
    changed = record(kind, "b", 7)

    await change(ctx, "mutate", kind)(changed)
    assert [each.id for each in kept(ctx, kind)] == ["a", "b", "c"]
    assert kept(ctx, kind)[1] is changed

    await change(ctx, "delete", kind)("a")
    assert [each.id for each in kept(ctx, kind)] == ["b", "c"]

    await change(ctx, "delete", kind)("unseen")
    await change(ctx, "mutate", kind)(record(kind, "d"))
    assert [each.id for each in kept(ctx, kind)] == ["b", "c", "d"]


@pytest.mark.parametrize("kind", RECORD_KINDS)
@pytest.mark.parametrize("waits", [False, True], ids=["sync", "async"])
async def test_every_change_reaches_its_callback_at_once_with_the_context(kind: RecordKind, waits: bool) -> None:
    received: list[tuple[str, Any, Any]] = []

    def callback(name: str) -> Callback:
        def receive(ctx: Any, value: Any) -> None:
            received.append((name, ctx, value))

        async def receive_later(ctx: Any, value: Any) -> None:
            await checkpoint()
            receive(ctx, value)

        return receive_later if waits else receive

    names = [f"{verb}_{kind}" for verb in ("store", "mutate", "delete")]
    ctx = dispatch_context(callbacks={name: callback(name) for name in names})
    stored, changed = record(kind, "a"), record(kind, "a", 1)

    await change(ctx, "store", kind)(stored)
    await change(ctx, "mutate", kind)(changed)
    await change(ctx, "delete", kind)("a")

    assert received == list(zip(names, [ctx] * 3, [stored, changed, "a"], strict=True))


@pytest.mark.parametrize("kind", RECORD_KINDS)
@pytest.mark.parametrize("verb", ["store", "mutate", "delete"])
async def test_nothing_changes_when_persisting_fails(kind: RecordKind, verb: str) -> None:
    def fail(ctx: Any, value: Any) -> None:
        raise OSError("disk full")

    turn = turn_context(callbacks={f"{verb}_{kind}": fail})
    if verb != "store":
        await change(turn, "store", kind)(record(kind, "a"))
    ctx = dispatch_context(turn)
    before, counted = kept(ctx, kind), ctx.tool_call_count(settled("any").checksum)

    with pytest.raises(OSError, match="disk full"):
        await change(ctx, verb, kind)("a" if verb == "delete" else record(kind, "a", 1))

    assert kept(ctx, kind) == before
    assert ctx.tool_call_count(settled("any").checksum) == counted
    ctx.flush()
    assert kept(turn, kind) == before


NO_ID = [None, "text", object(), Message("", "user", "hello"), Message(["a"], "user", "hello")]  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", NO_ID, ids=["none", "text", "object", "empty-id", "unhashable-id"])
@pytest.mark.parametrize("verb", ["store", "mutate"])
async def test_record_without_an_id_is_refused_before_it_is_persisted(verb: str, bad: Any) -> None:
    received: list[Any] = []
    ctx = turn_context(callbacks={f"{verb}_message": lambda ctx, value: received.append(value)})

    with pytest.raises(TypeError, match="a message has an id"):
        await change(ctx, verb, "message")(bad)

    assert received == []


@pytest.mark.parametrize("id", [None, "", ["a"], 5], ids=repr)
async def test_deleting_by_something_that_is_no_id_is_refused(id: Any) -> None:
    received: list[Any] = []
    ctx = turn_context(callbacks={"delete_tool_call": lambda ctx, value: received.append(value)})

    with pytest.raises(TypeError, match="deleted by an id"):
        await ctx.delete_tool_call(id)

    assert received == []


@pytest.mark.parametrize("verb", ["store", "mutate"])
async def test_only_a_settled_record_is_a_tool_call(verb: str) -> None:
    ctx = turn_context()

    with pytest.raises(InvalidInitialToolCallValue) as raised:
        await change(ctx, verb, "tool_call")(Message("a", "user", "hello"))

    assert "not Message" in str(raised.value.cause)


async def test_used_id_of_a_tool_call_is_refused_and_the_first_record_stays() -> None:
    received: list[ToolCall] = []
    ctx = dispatch_context(callbacks={"store_tool_call": lambda ctx, value: received.append(value)})
    first = settled("a", 1)
    await ctx.store_tool_call(first)

    with pytest.raises(InvalidInitialToolCallValue) as raised:
        await ctx.store_tool_call(settled("a", 2))

    assert "already used in this turn" in str(raised.value.cause)
    assert ctx.turn_tool_calls == received == [first]


async def test_id_used_before_the_dispatch_is_refused_as_well() -> None:
    turn = turn_context()
    await turn.store_tool_call(settled("a"))

    with pytest.raises(InvalidInitialToolCallValue):
        await dispatch_context(turn).store_tool_call(settled("a"))


async def test_two_simultaneous_calls_cannot_take_the_same_id() -> None:
    allowed = anyio.Event()

    async def slow(ctx: Any, value: Any) -> None:
        await allowed.wait()

    ctx = dispatch_context(callbacks={"store_tool_call": slow})
    first = asyncio.ensure_future(ctx.store_tool_call(settled("a", 1)))
    await checkpoint()

    with pytest.raises(InvalidInitialToolCallValue), anyio.fail_after(5):
        await ctx.store_tool_call(settled("a", 2))

    allowed.set()
    await first
    assert len(ctx.turn_tool_calls) == 1


async def test_id_is_free_again_after_a_failed_store() -> None:
    failures = [OSError("disk full")]

    def flaky(ctx: Any, value: Any) -> None:
        if failures:
            raise failures.pop()

    ctx = dispatch_context(callbacks={"store_tool_call": flaky})
    with pytest.raises(OSError, match="disk full"):
        await ctx.store_tool_call(settled("a"))

    await ctx.store_tool_call(settled("a"))

    assert len(ctx.turn_tool_calls) == 1


async def test_lists_of_records_are_fresh() -> None:
    ctx = turn_context()
    await ctx.store_message(Message("m", "user", "hello"))

    ctx.turn_messages.clear()

    assert len(ctx.turn_messages) == 1


async def test_calls_are_counted_by_checksum_from_before_the_dispatch() -> None:
    turn = turn_context()
    await turn.store_tool_call(settled("a", 1))
    ctx = dispatch_context(turn)
    one, two = settled("any", 1).checksum, settled("any", 2).checksum

    await ctx.store_tool_call(settled("b", 1))
    assert (ctx.tool_call_count(one), ctx.tool_call_count(two)) == (2, 0)

    await ctx.mutate_tool_call(settled("b", 2))
    assert (ctx.tool_call_count(one), ctx.tool_call_count(two)) == (1, 1)

    await ctx.mutate_tool_call(settled("b", 2))
    assert (ctx.tool_call_count(one), ctx.tool_call_count(two)) == (1, 1)

    await ctx.delete_tool_call("a")
    await ctx.delete_tool_call("a")
    assert (ctx.tool_call_count(one), ctx.tool_call_count(two)) == (0, 1)
    assert ctx.tool_call_count("unseen") == 0


async def test_simultaneous_changes_of_one_call_are_counted_once() -> None:
    allowed = anyio.Event()

    async def slow(ctx: Any, value: Any) -> None:
        await allowed.wait()

    ctx = dispatch_context(callbacks={"mutate_tool_call": slow})
    await ctx.store_tool_call(settled("a", 1))
    changes = [asyncio.ensure_future(ctx.mutate_tool_call(settled("a", n))) for n in (2, 3)]
    await checkpoint()
    allowed.set()
    await asyncio.gather(*changes)

    assert [ctx.tool_call_count(settled("any", n).checksum) for n in (1, 2, 3)] == [0, 0, 1]


# What flows back to the turn, and when.


@pytest.mark.parametrize("kind", RECORD_KINDS)
async def test_changes_reach_the_turn_only_when_flushed(kind: RecordKind) -> None:
    turn = turn_context()
    await change(turn, "store", kind)(record(kind, "old"))
    await change(turn, "store", kind)(record(kind, "gone"))
    ctx = dispatch_context(turn)

    await change(ctx, "store", kind)(record(kind, "new"))
    await change(ctx, "mutate", kind)(record(kind, "old", 1))
    await change(ctx, "delete", kind)("gone")
    assert [each.id for each in kept(turn, kind)] == ["old", "gone"]

    ctx.flush()
    assert kept(turn, kind) == kept(ctx, kind)
    assert [each.id for each in kept(turn, kind)] == ["old", "new"]


async def test_flushing_twice_changes_nothing_more() -> None:
    turn = turn_context()
    ctx = dispatch_context(turn)
    await ctx.store_message(Message("m", "user", "hello"))

    ctx.flush()
    ctx.flush()

    assert len(turn.turn_messages) == 1


async def test_ack_flushes_at_once_and_nack_never() -> None:
    turn = turn_context()
    acked, nacked = dispatch_context(turn), dispatch_context(turn)
    await acked.store_message(Message("a", "user", "hello"))
    await nacked.store_message(Message("b", "user", "hello"))

    nacked.nack()
    assert turn.turn_messages == []

    acked.ack()
    assert [message.id for message in turn.turn_messages] == ["a"]


async def test_dispatch_inside_a_dispatch_flows_back_step_by_step() -> None:
    turn = turn_context()
    outer = dispatch_context(turn)
    inner = dispatch_context(outer)
    await inner.store_tool_call(settled("a", 1))

    inner.ack()
    assert outer.turn_tool_calls == inner.turn_tool_calls
    assert outer.tool_call_count(settled("any", 1).checksum) == 1
    assert turn.turn_tool_calls == []

    outer.ack()
    assert turn.turn_tool_calls == inner.turn_tool_calls


# Fetching and byte conduits.


@pytest.mark.parametrize("name", [f"fetch_{record_kind_plural(kind)}" for kind in RECORD_KINDS] + ["fetch_tools"])
async def test_fetching_asks_the_callback_and_adds_nothing(name: str) -> None:
    asked: list[Any] = []

    async def fetch(ctx: Any) -> tuple[str, ...]:
        asked.append(ctx)
        return ("one", "two")

    ctx = dispatch_context(callbacks={name: fetch})
    assert asked == []

    assert await getattr(ctx, name)() == ["one", "two"]

    assert asked == [ctx]
    assert [kept(ctx, kind) for kind in RECORD_KINDS] == [[], [], [], [], []]
    assert ctx.tools.all() == []


async def test_byte_conduits_persist_and_answer_a_reader_without_adding_anything() -> None:
    received: list[tuple[Any, ...]] = []

    async def store_media(*args: Any) -> InMemoryMediaReader:
        received.append(args)
        return InMemoryMediaReader(args[2])

    def store_text(*args: Any) -> InMemoryReader:
        received.append(args)
        return InMemoryReader(args[2])

    ctx = dispatch_context(callbacks={"store_media_bytes": store_media, "store_retrievable_bytes": store_text})

    picture = await ctx.store_media_bytes("a", b"\x00\x01")
    text = await ctx.store_retrievable_bytes("b", bytearray(b"one\ntwo"))

    assert (picture.byte_length(), text.line_count()) == (2, 2)
    assert received == [(ctx, "a", b"\x00\x01"), (ctx, "b", b"one\ntwo")]
    assert type(received[1][2]) is bytes
    assert [kept(ctx, kind) for kind in RECORD_KINDS] == [[], [], [], [], []]


@pytest.mark.parametrize(
    ("name", "error"), [("store_media_bytes", NotAMediaReader), ("store_retrievable_bytes", NotASpoolReader)]
)
async def test_byte_conduit_that_answers_no_reader_is_found_out(name: str, error: type[GatewayError]) -> None:
    ctx = dispatch_context(callbacks={name: lambda ctx, key, content: content})

    with pytest.raises(error):
        await getattr(ctx, name)("a", b"bytes")


@pytest.mark.parametrize("name", ["store_media_bytes", "store_retrievable_bytes"])
@pytest.mark.parametrize(("id", "content"), [("a", "text"), ("a", 5), ("a", None), ("", b""), (None, b"")])
async def test_byte_conduit_refuses_what_is_no_id_or_no_bytes(name: str, id: Any, content: Any) -> None:
    received: list[Any] = []
    ctx = dispatch_context(callbacks={name: lambda *args: received.append(args)})

    with pytest.raises(TypeError):
        await getattr(ctx, name)(id, content)

    assert received == []


# The signal.


async def test_dispatch_is_unsignalled_until_it_is_signalled() -> None:
    ctx = dispatch_context()

    assert (ctx.is_signalled, ctx.is_acked, ctx.nack_error) == (False, False, None)


async def test_ack_and_nack_are_seen_at_once() -> None:
    acked, nacked, error = dispatch_context(), dispatch_context(), ValueError("no")

    acked.ack()
    nacked.nack(error)

    assert (acked.is_signalled, acked.is_acked, acked.nack_error) == (True, True, None)
    assert (nacked.is_signalled, nacked.is_acked, nacked.nack_error) == (True, False, error)


class Falsy(Exception):
    def __bool__(self) -> bool:
        return False


async def test_nack_with_a_falsy_error_is_a_nack_with_that_error() -> None:
    ctx, error = dispatch_context(), Falsy("no")

    ctx.nack(error)

    assert ctx.nack_error is error
    assert ctx.is_signalled


async def test_nack_without_an_error_uses_a_generic_one() -> None:
    ctx = dispatch_context()

    ctx.nack()

    assert isinstance(ctx.nack_error, GatewayError)


@pytest.mark.parametrize("error", ["no", 0, False, ValueError, asyncio.CancelledError()], ids=repr)
async def test_nack_with_something_that_is_no_exception_is_refused(error: Any) -> None:
    ctx = dispatch_context()

    with pytest.raises(TypeError, match="nacked with an exception"):
        ctx.nack(error)

    assert not ctx.is_signalled


@pytest.mark.parametrize("first", ["ack", "nack"])
@pytest.mark.parametrize("second", ["ack", "nack"])
async def test_second_signal_is_refused_and_changes_nothing(first: str, second: str) -> None:
    ctx = dispatch_context()
    getattr(ctx, first)()
    before = (ctx.is_acked, ctx.nack_error)

    with pytest.raises(LlmExecutionAlreadySignalled) as raised:
        getattr(ctx, second)()

    error = raised.value
    assert (error.code, error.status, error.fatal) == ("E_LLM_EXECUTION_ALREADY_SIGNALLED", 500, True)
    assert (ctx.is_acked, ctx.nack_error) == before


async def test_ack_handlers_run_in_order_and_before_ack_returns() -> None:
    ctx, seen = dispatch_context(), list[str]()
    ctx.on_ack(lambda: seen.append("first"))
    ctx.on_ack(lambda: seen.append("second"))

    ctx.ack()

    assert seen == ["first", "second"]


async def test_ack_handlers_never_run_on_nack_or_abort() -> None:
    nacked, aborted, seen = dispatch_context(), dispatch_context(), list[str]()
    for ctx in (nacked, aborted):
        ctx.on_ack(lambda: seen.append("ran"))

    nacked.nack()
    aborted.abort()

    assert seen == []


async def test_ack_handler_that_raises_becomes_a_warning_and_stops_no_other() -> None:
    ctx, seen, error = dispatch_context(), list[str](), ValueError("broken")
    warnings: list[WarningEvent] = []
    ctx._buses.observability.on("warning", warnings.append)

    def fail() -> None:
        raise error

    ctx.on_ack(fail)
    ctx.on_ack(ctx.ack)
    ctx.on_ack(lambda: seen.append("ran"))
    ctx.ack()

    assert seen == ["ran"]
    assert [warning.kind for warning in warnings] == ["ack-handler-failed"] * 2
    assert warnings[0].error is error
    assert isinstance(warnings[1].error, LlmExecutionAlreadySignalled)


async def test_unsubscribed_ack_handler_does_not_run() -> None:
    ctx, seen = dispatch_context(), list[str]()

    def handler() -> None:
        seen.append("ran")

    leave = ctx.on_ack(handler)
    ctx.on_ack(handler)
    leave()
    leave()
    ctx.ack()

    assert seen == ["ran"]


async def later() -> None:
    raise AssertionError("never run")


@pytest.mark.parametrize("handler", [later, None, "handler"], ids=["async", "none", "text"])
async def test_ack_handler_that_cannot_run_at_once_is_refused(handler: Any) -> None:
    with pytest.raises(TypeError, match="synchronous function"):
        dispatch_context().on_ack(handler)


async def test_bound_registry_loses_its_ephemeral_tools_on_ack_only() -> None:
    schema = Schema({"type": "object"})
    query = Tool(name="q", description="d", input_schema=schema, handler=lambda args, ctx, meta: "", ephemeral=True)
    acked, nacked, unbound = dispatch_context(), dispatch_context(), dispatch_context()
    for ctx in (acked, nacked, unbound):
        ctx.tools.register(query)
    acked.tools.bind_context(acked)
    nacked.tools.bind_context(nacked)

    acked.ack()
    nacked.nack()
    unbound.ack()

    assert (acked.tools.has("q"), nacked.tools.has("q"), unbound.tools.has("q")) == (False, True, True)


# Warnings.


async def test_warning_states_where_it_comes_from() -> None:
    turn = turn_context()
    ctx = dispatch_context(turn)
    ctx.iteration = 3
    seen: list[TurnEvent] = []
    for each in (turn, ctx):
        each._buses.observability.on("*", seen.append)

    turn.emit_warning("odd", "something is odd")
    ctx.emit_warning("odd", "something is odd", ValueError("broken"))

    first, second = (event.to_dict() for event in seen)
    assert {"source": "context", "kind": "odd", "message": "something is odd"}.items() <= first.items()
    assert first.keys().isdisjoint({"dispatch_id", "iteration", "error"})
    assert (second["dispatch_id"], second["iteration"]) == (ctx.dispatch_id, 3)
    assert str(second["error"]) == "broken"


async def test_adopted_call_is_known_to_the_turn_and_not_persisted() -> None:
    stored: list[Any] = []
    call = settled("c1")
    turn = turn_context(callbacks={"store_tool_call": lambda ctx, kept: stored.append(kept)})

    turn.add_stored_call(call)

    assert turn.turn_tool_calls == [call]
    assert stored == []


def test_dispatch_stands_for_itself() -> None:
    dispatch = DispatchContext(turn_context(), buses=EventBuses())

    assert dispatch.dispatch is dispatch

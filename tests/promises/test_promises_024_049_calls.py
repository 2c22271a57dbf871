"""Promises 24 to 49: the record of a call, what the model sees of it, and its three identifiers."""

import re
from itertools import count, pairwise
from typing import Any
from uuid import UUID

import pytest
from anyio import create_task_group
from anyio.lowlevel import checkpoint

from gateway import (
    DispatchContext,
    InMemoryReader,
    ProposedCall,
    Reporter,
    SpooledArtifact,
    Tokenizable,
    ToolCall,
    call_id,
    settle_call,
)
from gateway.errors import InvalidInitialToolCallValue, InvalidToolArgs, ValidationException
from gateway.model.turns.events import now
from gateway.model.turns.middleware_pipeline import Next
from tests.promises.scripted_model import BASE_SEVEN, Seen, call, media, play, remembering, returning, tool

pytestmark = pytest.mark.anyio


def settled(**fields: Any) -> ToolCall:
    given: dict[str, Any] = dict.fromkeys(("created_at", "updated_at", "completed_at"), now())
    given |= {"id": "c", "tool": "t", "args": {}, "is_complete": True, "is_error": False, "results": Tokenizable("x")}
    return ToolCall(**(given | fields))


def refused_fields(error: InvalidInitialToolCallValue) -> list[Any]:
    assert isinstance(error.cause, ValidationException)
    return [found["path"] for found in error.cause.details]


async def test_promise_024_record_exists_only_once_the_call_is_settled() -> None:
    seen = Seen()
    during: dict[str, Any] = {}

    def handler(args: dict[str, Any], ctx: DispatchContext, meta: object) -> str:
        during["records"] = [*ctx.turn_tool_calls, *seen.records]
        during["events"] = [(event.name, getattr(event, "is_complete", None)) for event in seen.events[-2:]]
        return "done"

    await play([tool("slow", handler)], [call("c", "slow")], seen=seen)

    assert during == {"records": [], "events": [("toolCall", False), ("toolExecutionStart", None)]}
    assert seen.record("c").is_complete
    assert [event.is_complete for event in seen.named("toolCall")] == [False, True]


async def test_promise_025_args_are_normalised_from_json_text() -> None:
    handled: list[Any] = []
    calls = [ProposedCall("text", "t", '{"b": [1.0], "a": "é"}'), ProposedCall("dict", "t", {"a": "é", "b": [1.0]})]

    seen = await play([tool("t", remembering(handled))], calls)

    text, plain = seen.record("text"), seen.record("dict")
    assert text.args == plain.args == {"a": "é", "b": [1.0]}
    assert text.checksum == plain.checksum
    assert seen.shown("text").splitlines()[1:-1] == seen.shown("dict").splitlines()[1:-1] == ["done"]
    assert handled == [text.args, plain.args]
    assert settled(args='{"a":1}').args == {"a": 1}


@pytest.mark.parametrize("text", ["[1,2]", "1", '"text"', "null", "{not json"])
async def test_promise_026_args_are_always_an_object(text: str) -> None:
    handled: list[Any] = []

    seen = await play([tool("t", remembering(handled))], [ProposedCall("c", "t", text)])

    record = seen.record("c")
    assert (record.is_error, record.args, handled) == (True, {}, [])
    assert repr(text) in str(record.results)
    assert seen.named("toolExecutionStart", "toolExecutionEnd") == []
    with pytest.raises(InvalidInitialToolCallValue) as caught:
        settled(args=text)
    assert refused_fields(caught.value) == [["args"]]


async def test_promise_027_checksum_cannot_be_set_by_the_caller() -> None:
    own = call_id("t", {"q": 1})

    assert settled(args={"q": 1}).checksum == own
    assert settled(args={"q": 1}, checksum=own).checksum == own
    assert settled(args={"q": 1}).replace(args={"q": 2}).checksum == call_id("t", {"q": 2})
    with pytest.raises(InvalidInitialToolCallValue) as caught:
        settled(args={"q": 1}, checksum="abc123")
    assert refused_fields(caught.value) == [["checksum"]]
    with pytest.raises(AttributeError):
        settled().checksum = own


async def test_promise_028_identical_later_call_has_an_identical_checksum() -> None:
    clock = count()
    tick = tool("tick", lambda args, ctx, meta: f"tick {next(clock)}")

    seen = await play([tick], [call("first", "tick", n=1)], [call("later", "tick", n=1)])
    next_turn = await play([tick], [call("first", "tick", n=1)])

    first, later = seen.record("first"), seen.record("later")
    assert first.checksum == later.checksum == next_turn.record("first").checksum
    assert seen.shown("first") != seen.shown("later")


async def test_promise_029_repetition_is_counted_by_checksum() -> None:
    async def stop_at_the_third(ctx: DispatchContext, next: Next) -> None:
        await next()
        if any(ctx.tool_call_count(record.checksum) >= 3 for record in ctx.turn_tool_calls):
            ctx.abort("the model repeats itself")

    same = [[call(f"c{index}", "t", q="same")] for index in range(9)]
    different = [[call(f"c{index}", "t", q=index)] for index in range(9)]
    tools = [tool("t", returning("done"))]

    repeated = await play(tools, *same, dispatch_output_pipeline=[stop_at_the_third])
    varied = await play(tools, *different, dispatch_output_pipeline=[stop_at_the_third])

    assert len(repeated.records) == 3
    assert [event.status for event in repeated.named("dispatchEnd")] == ["aborted"]
    assert len(varied.records) == 9
    assert [event.status for event in varied.named("dispatchEnd")] == ["ack"]


def nonce_of(shown: str) -> str:
    found = re.fullmatch(r'<untrusted_content_(\w+) nonce="(\w+)" .*>\n.*\n</untrusted_content_(\w+)>', shown)
    assert found is not None
    assert len(set(found.groups())) == 1
    return found[1]


async def test_promise_030_output_is_bound_to_its_call_by_the_nonce() -> None:
    tools = [tool("t", returning("same output"))]
    calls = [call("a", "t", q=1), call("b", "t", q=2), call("a again", "t", q=1)]

    seen = await play(tools, calls, [])
    other_turn = await play(tools, calls)

    nonces = [nonce_of(seen.shown(id)) for id in ("a", "b", "a again")]
    assert len(set(nonces)) == 3
    assert nonces == [nonce_of(seen.shown(id, at=1)) for id in ("a", "b", "a again")]
    assert nonce_of(other_turn.shown("a")) not in nonces
    for id in ("a", "b", "a again"):
        assert f' call="{seen.record(id).checksum}"' in seen.shown(id)


async def test_promise_031_normal_result_is_an_artifact() -> None:
    seen = await play([tool("t", returning("text"))], [call("c", "t")])

    results = seen.record("c").results
    assert isinstance(results, SpooledArtifact)
    assert await results.as_string() == "text"


async def test_promise_032_one_call_may_have_several_artifacts() -> None:
    several = [SpooledArtifact(InMemoryReader("first body")), SpooledArtifact(InMemoryReader("second body"))]

    seen = await play([tool("t", returning(several))], [call("c", "t")])

    assert seen.record("c").results == several
    assert "\nfirst body\n\nsecond body\n" in seen.shown("c")


async def test_promise_033_result_of_a_query_tool_is_plain_text() -> None:
    seen = await play(
        [tool("t", returning("an apple\na pear"))],
        [call("c", "t")],
        [call("q", "artifact_grep", callId="c", pattern="pear")],
    )

    assert seen.record("q").results == Tokenizable("a pear")
    assert "\na pear\n" in seen.shown("q")
    assert "artifact-handle" not in seen.shown("q")
    assert await seen.spool.read("q") is None


async def test_promise_034_media_results_are_one_or_several() -> None:
    one, several = media(), [media(), media()]
    tools = [tool("draw", returning(one)), tool("album", returning(several))]

    seen = await play(tools, [call("one", "draw"), call("several", "album")])

    assert seen.record("one").results is one
    assert seen.record("several").results == several
    assert len([block for block in seen.blocks("several") if block["type"] == "image_url"]) == 2


async def test_promise_035_inline_defaults_to_true() -> None:
    seen = Seen()

    async def step(ctx: DispatchContext, reporter: Reporter) -> None:
        await settle_call(ctx, reporter, call("c", "t"), spool=seen.spool)

    await play([tool("t", returning("the whole body"))], step, seen=seen)

    assert settled().inline is True
    assert seen.record("c").inline is True
    assert "\nthe whole body\n" in seen.shown("c")


async def test_promise_036_inline_false_shows_a_handle() -> None:
    seen = await play([tool("t", returning("the whole body"))], [call("call_7", "t")], inline=False)

    shown = seen.shown("call_7")
    assert "the whole body" not in shown
    assert "callId: call_7\n" in shown
    assert 'kind="artifact-handle"' in shown
    assert all(name in shown for name in BASE_SEVEN)


async def test_promise_037_no_size_threshold_decides_by_itself() -> None:
    large = "x" * (5 << 20)

    inlined = await play([tool("t", returning(large))], [call("c", "t")], inline=True)
    handled = await play([tool("t", returning("small"))], [call("c", "t")], inline=False)

    assert f"\n{large}\n" in inlined.shown("c")
    assert "small" not in handled.shown("c")
    assert "byteLength: 5\n" in handled.shown("c")


async def test_promise_038_the_settling_code_or_a_middleware_decides_inline() -> None:
    seen = Seen()

    async def step(ctx: DispatchContext, reporter: Reporter) -> None:
        await settle_call(ctx, reporter, call("a", "t"), spool=seen.spool, inline=True)
        await settle_call(ctx, reporter, call("b", "t"), spool=seen.spool, inline=False)
        await settle_call(ctx, reporter, call("c", "t"), spool=seen.spool, inline=True)

    async def flip_one(ctx: DispatchContext, next: Next) -> None:
        await next()
        for record in ctx.turn_tool_calls:
            if record.id == "a":
                await ctx.mutate_tool_call(record.replace(inline=False))

    await play([tool("t", returning("the whole body"))], step, seen=seen, dispatch_output_pipeline=[flip_one])

    assert [record.inline for record in seen.records] == [False, False, True]
    assert ["the whole body" in seen.shown(id) for id in ("a", "b", "c")] == [False, False, True]
    assert [record.id for record in seen.records] == ["a", "b", "c"]


async def test_promise_039_query_calls_are_flagged() -> None:
    seen = await play([tool("t", returning("text"))], [call("c", "t")], [call("q", "artifact_head", callId="c")])

    assert seen.record("c").from_artifact_tool is False
    assert seen.record("q").from_artifact_tool is True
    assert settled().from_artifact_tool is False


async def test_promise_040_flagged_calls_are_not_offered_as_targets() -> None:
    seen = await play(
        [tool("t", returning("text"))], [call("c", "t")], [call("q", "artifact_grep", callId="c", pattern=".")], []
    )

    assert [seen.selectable(name) for name in sorted(BASE_SEVEN)] == [["c"]] * 7

    flagged = settled(results=SpooledArtifact(InMemoryReader("an artifact, and yet")), from_artifact_tool=True)

    async def store_flagged(ctx: DispatchContext, reporter: Reporter) -> None:
        await ctx.store_tool_call(flagged)

    assert (await play([], store_flagged)).offered() == {}


async def test_promise_041_a_grep_result_cannot_be_grepped() -> None:
    seen = await play(
        [tool("t", returning("text"))],
        [call("c", "t")],
        [call("q", "artifact_grep", callId="c", pattern=".")],
        [call("qq", "artifact_grep", callId="q", pattern=".")],
    )

    assert not seen.record("q").is_error
    assert seen.record("qq").is_error
    assert InvalidToolArgs.default_message in str(seen.record("qq").results)
    assert [event.tool_name for event in seen.named("toolExecutionStart")] == ["t", "artifact_grep"]


@pytest.mark.parametrize("id", ["call_xyz", "CALL/../42 é😀\n", "0"])
async def test_promise_042_id_is_kept_verbatim(id: str) -> None:
    seen = await play([tool("t", returning("text"))], [call(id, "t")])

    assert [record.id for record in seen.records] == [id]
    assert [event.id for event in seen.named("toolCall")] == [id, id]
    asked, answered = seen.requests[-1].messages[-2:]
    assert (asked["tool_calls"][0]["id"], answered["tool_call_id"]) == (id, id)


async def test_promise_043_enum_holds_the_ids_of_eligible_records() -> None:
    def fail(args: object, ctx: object, meta: object) -> str:
        raise RuntimeError("broken")

    tools = [
        tool("t", returning("text")),
        tool("draw", returning(media())),
        tool("several", returning([SpooledArtifact(InMemoryReader("a"))])),
        tool("fail", fail),
    ]
    first = [call("z", "t", n=1), call("m", "draw"), call("l", "several"), call("e", "fail"), call("u", "unknown")]

    seen = await play(tools, first, [call("q", "artifact_head", callId="z"), call("a", "t", n=2)])

    assert [seen.selectable(name, at=1) for name in sorted(BASE_SEVEN)] == [["z", "l"]] * 7
    assert [seen.selectable(name, at=2) for name in sorted(BASE_SEVEN)] == [["z", "l", "a"]] * 7
    assert len(seen.records) == 7


async def test_promise_044_passing_a_checksum_as_call_id_fails() -> None:
    checksum = call_id("t", {})

    seen = await play(
        [tool("t", returning("text"))],
        [call("c", "t")],
        [call("q", "artifact_head", callId=checksum), call("ok", "artifact_head", callId="c")],
    )

    assert seen.record("c").checksum == checksum
    assert seen.record("q").is_error
    assert seen.record("ok").results == Tokenizable("text")


async def test_promise_045_the_argument_is_called_call_id() -> None:
    seen = await play([tool("t", returning("text"))], [call("c", "t")])

    forged = {name: schema for name, schema in seen.offered().items() if name != "t"}
    assert set(forged) == BASE_SEVEN
    for schema in forged.values():
        assert schema["properties"]["callId"]["type"] == "string"
        assert "callId" in schema["required"]


@pytest.mark.parametrize("at_once", [False, True], ids=["one-after-the-other", "at-once"])
async def test_promise_046_ids_are_unique_within_a_turn(at_once: bool) -> None:
    seen = Seen()

    async def handler(args: dict[str, Any], ctx: DispatchContext, meta: object) -> str:
        await checkpoint()  # lets the other call start while this one runs
        return f"output {args['n']}"

    async def step(ctx: DispatchContext, reporter: Reporter) -> None:
        async def settle(n: int) -> None:
            await settle_call(ctx, reporter, call("call_0", "t", n=n), spool=seen.spool)

        async with create_task_group() as group:
            for n in (1, 2, 3):
                if at_once:
                    group.start_soon(settle, n)
                else:
                    await settle(n)
        with pytest.raises(InvalidInitialToolCallValue):
            await ctx.store_tool_call(settled(id="call_0"))

    await play([tool("t", handler)], step, seen=seen)

    ids = [record.id for record in seen.records]
    assert "call_0" in ids
    assert len(set(ids)) == 3
    assert seen.selectable("artifact_cat") == ids
    texts = {record.args["n"]: await record.results.as_string() for record in seen.records}  # type: ignore[union-attr]  # all artifacts
    assert texts == {1: "output 1", 2: "output 2", 3: "output 3"}


async def test_promise_047_minted_ids_are_unguessable() -> None:
    again = [call("call_0", "t") for _ in range(501)]
    unnamed = [ProposedCall("", "t") for _ in range(500)]
    turns = [await play([tool("t", returning(""))], again if index == 0 else []) for index in range(50)]
    nameless = await play([tool("t", returning(""))], unnamed)

    minted = [media().id for _ in range(9_000)]
    minted += [record.id[-36:] for record in turns[0].records[1:]] + [record.id[-36:] for record in nameless.records]
    minted += [event.turn_id for seen in turns for event in seen.named("turnStart")]
    minted += [event.dispatch_id for seen in turns for event in seen.named("dispatchStart")]

    assert len(set(minted)) == len(minted) >= 10_000
    assert {UUID(id).version for id in minted} == {4}
    digits = [{id[position] for id in minted} for position in range(36)]
    assert {position for position in range(36) if len(digits[position]) < 16} == {8, 13, 14, 18, 19, 23}
    steps = {UUID(later).int - UUID(earlier).int for earlier, later in pairwise(minted)}
    assert len(steps) == len(minted) - 1


async def test_promise_048_checksum_gives_tamper_evidence() -> None:
    seen = await play([tool("pay", returning("paid"))], [call("c", "pay", amount=10, to="ann")])
    stored = {name: getattr(seen.record("c"), name) for name in ToolCall.FIELDS}

    assert ToolCall(**stored).checksum == seen.record("c").checksum
    for edited in ({"args": {"amount": 10_000, "to": "ann"}}, {"tool": "refund"}):
        with pytest.raises(InvalidInitialToolCallValue) as caught:
            ToolCall(**(stored | edited))
        assert refused_fields(caught.value) == [["checksum"]]


async def test_promise_049_event_pair_is_correlatable_before_a_record_exists() -> None:
    seen = Seen()
    before_the_record: list[Any] = []

    def store(ctx: DispatchContext, record: ToolCall) -> None:
        before_the_record.extend(seen.named("toolExecutionStart", "toolExecutionEnd"))

    await play([tool("t", returning("done"))], [call("c", "t", q=1)], seen=seen, store_tool_call=store)

    started, ended = before_the_record
    assert (started.name, ended.name) == ("toolExecutionStart", "toolExecutionEnd")
    assert started.call_id == ended.call_id == call_id("t", {"q": 1})

"""The calls of a long turn: old records leave memory, and nothing that a caller can see depends on that."""

from pathlib import Path
from typing import Any

import pytest

from gateway.engine.execute import ServedDispatch
from gateway.engine.stages.turn_stages import LoopGuard, TurnSummary, TurnSummaryStage
from gateway.engine.turns.turn_calls import KNOWN_CALLS, NEWEST_RECORDS, RecentDict, TurnCalls
from gateway.errors import UnknownCall
from gateway.model.primitives.canonical_json import call_id
from gateway.model.tools.backend import Invocation
from gateway.model.turns.events import TurnEvent
from tests.engine.service_gateway import ANA, Gateway, Plan, running
from tests.engine.turns.call_records import make_record

pytestmark = pytest.mark.anyio

MANY = NEWEST_RECORDS + 6


async def call_often(gateway: Gateway, turn: Any, times: int = MANY) -> list[str]:
    return [(await gateway.service.call_in_turn(turn, "keep", {"number": number})).record.id for number in range(times)]


def test_recent_keys_stay_and_old_ones_go() -> None:
    found: RecentDict[int] = RecentDict(3)
    for number in range(8):
        found[str(number)] = number

    assert [key for key, _ in found.items()] == ["3", "4", "5", "6", "7"]
    assert ("7" in found, "2" in found, found.get("4"), found.get("2")) == (True, False, 4, None)
    found.discard("4")
    assert len(found) == 4


def test_old_records_leave_memory_and_stay_known() -> None:
    calls = TurnCalls()
    for number in range(MANY):
        calls.add(make_record(f"call-{number}", number=number % 2))
    counted = call_id("keep", {"number": 0})

    assert [each.id for each in calls] == [f"call-{number}" for number in range(6, MANY)]
    assert calls.has("call-0")
    assert calls.find_source("call-0") is None
    assert calls.find_tool("call-0#1") == "keep"
    assert calls.count(counted) == calls.count_exactly(counted) == MANY // 2
    assert len(list(calls.iter_artifacts())) == MANY
    assert calls.older is not None
    assert (calls.older.calls, calls.older.byte_length) == ({"keep": 6}, 6 * 9)


def test_copy_knows_what_the_turn_knows_and_keeps_its_own_calls() -> None:
    calls = TurnCalls(make_record(f"call-{number}") for number in range(MANY))
    calls.add(make_record("last"))
    copy = calls.copy()
    copy.add(make_record("own"))
    same = call_id("keep", {"number": 0})

    assert copy.has("call-0")
    assert copy.has("own")
    assert not calls.has("own")
    assert (copy.count(same), calls.count(same)) == (2, 1)
    assert copy.remove("own")[0].id == "own"
    assert not copy.has("own")


def test_memory_of_a_long_turn_is_bounded() -> None:
    calls = TurnCalls()
    for number in range(3 * KNOWN_CALLS):
        calls.add(make_record(f"call-{number}", number=number))

    assert len(calls) == NEWEST_RECORDS
    assert len(list(calls.iter_artifacts())) <= 2 * KNOWN_CALLS
    assert calls.has_forgotten
    assert calls.has(f"call-{3 * KNOWN_CALLS - 1}")
    assert not calls.has("call-0")


async def test_query_reads_an_artifact_that_left_memory(tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("keep", lambda call: answer(call))) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk")
        ids = await call_often(gateway, turn)
        listing = gateway.service.list_tools(ANA, "desk", turn=turn)
        listed = next(each for each in await listing.all() if "head" in each.name)
        found = await gateway.service.call_in_turn(turn, "artifact_head", {"callId": ids[0]})
        wrong = await gateway.service.call_in_turn(turn, "artifact_head", {"callId": "nothing"})

    assert str(found.record.results) == "number 0"
    assert listed.tool.input_schema.describe()["properties"]["callId"]["enum"] == ids
    assert wrong.record.is_error
    assert ids[0] in str(wrong.record.results)


async def test_ids_of_old_calls_are_not_used_again(tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("keep", lambda call: answer(call))) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk")
        first = await gateway.service.call_in_turn(turn, "keep", {}, id="mine")
        await call_often(gateway, turn)
        again = await gateway.service.call_in_turn(turn, "keep", {}, id="mine")

    assert first.record.id == "mine"
    assert again.record.id.startswith("mine-")


async def test_loop_guard_counts_calls_that_left_memory(tmp_path: Path) -> None:
    plan = Plan(stages={"loop_guard": LoopGuard(2)}).tool("keep", lambda call: answer(call))
    async with running(tmp_path, plan) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk")
        await gateway.service.call_in_turn(turn, "keep", {"number": -1})
        await call_often(gateway, turn)
        second = await gateway.service.call_in_turn(turn, "keep", {"number": -1})
        third = await gateway.service.call_in_turn(turn, "keep", {"number": -1})

    assert (second.record.is_error, third.record.is_error) == (False, True)
    assert "already made 2 times" in str(third.record.results)


async def test_summary_counts_calls_that_left_memory(tmp_path: Path) -> None:
    plan = Plan(stages={"turn_output": [TurnSummaryStage()]}).tool("keep", lambda call: answer(call))
    async with running(tmp_path, plan) as gateway:
        summaries: list[TurnEvent] = []
        gateway.service.buses.observability.on(TurnSummary.name, summaries.append)
        turn = await gateway.service.turns.open(ANA, "desk")
        await call_often(gateway, turn)
        await gateway.service.turns.end(turn)

    [summary] = summaries
    assert isinstance(summary, TurnSummary)
    assert summary.calls == {"keep": MANY}
    assert summary.byte_length == sum(len(f"number {n}") for n in range(MANY))


async def test_whole_turn_is_read_from_the_store(tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("keep", lambda call: answer(call))) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk")
        short = await gateway.service.turns.load_records(turn)
        ids = await call_often(gateway, turn)
        whole = await gateway.service.turns.load_records(turn)

    assert short is turn
    assert [each.id for each in whole.calls] == ids
    assert len(turn.calls) == NEWEST_RECORDS


async def test_tool_that_lost_its_rights_closes_a_turn_whose_record_left_memory(tmp_path: Path) -> None:
    plan = Plan().tool("keep", lambda call: answer(call)).tool("secret", "s")
    async with running(tmp_path, plan) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk")
        await gateway.service.call_in_turn(turn, "secret", {})
        await call_often(gateway, turn)
        gateway.grants.rows["secret", "invoke"] = False

        assert not gateway.service.may_read_turn(turn)
        with pytest.raises(UnknownCall):
            await gateway.service.read_turn(turn)


async def test_reopened_turn_counts_the_calls_of_the_store(tmp_path: Path) -> None:
    plan = Plan(stages={"loop_guard": LoopGuard(1)}).tool("keep", lambda call: answer(call))
    async with running(tmp_path, plan) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk")
        ids = await call_often(gateway, turn)
        gateway.service.turns._in_memory.drop(turn.id)
        reopened = await gateway.service.turns.find(ANA, turn.id)
        again = await gateway.service.call_in_turn(reopened, "keep", {"number": 0})

    assert reopened is not turn
    assert reopened.calls.has(ids[0])
    assert len(list(reopened.calls)) == NEWEST_RECORDS
    assert again.record.is_error


async def test_dispatch_context_is_made_only_for_a_handler_that_uses_it(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def look(call: Invocation) -> str:
        ctx: Any = call.ctx  # it has the attributes of a dispatch context without being one
        assert isinstance(ctx, ServedDispatch)
        seen.append((ctx._context is None, len(ctx.turn_tool_calls), ctx.stash.all()))
        return "seen"

    async with running(tmp_path, Plan().tool("keep", lambda call: answer(call)).tool("look", look)) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk", stash={"a": 1})
        await gateway.service.call_in_turn(turn, "keep", {})
        await gateway.service.call_in_turn(turn, "look", {})

    assert seen == [(True, 1, {"a": 1})]
    assert [each.tool for each in turn.calls] == ["keep", "look"]


async def answer(call: Invocation) -> str:
    return f"number {call.args.get('number')}"

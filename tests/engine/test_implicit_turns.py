"""Implicit turns: found in memory and in the store, shared by processes, bounded, and closed when idle."""

from pathlib import Path
from typing import Any

import pytest

from gateway.engine.turns.implicit_turns import ImplicitTurns
from gateway.engine.turns.turn_store import SharedTurnState
from gateway.errors import StoreUnavailable
from gateway.model.caller import Principal
from gateway.model.primitives import deadline as moments
from gateway.policy.rules.turn_state import Taint
from tests.engine.service_gateway import ANA, Plan, running

pytestmark = pytest.mark.anyio

IDLE = 60_000_000
READ = Taint("read", ("untrusted-output",), "internal")
REVISION = "r1" * 32


async def test_two_processes_have_one_and_learn_from_each_other(tmp_path: Path) -> None:
    async with running(tmp_path, Plan()) as gateway:
        shared = SharedTurnState(gateway.store)
        one, other = (ImplicitTurns(gateway.store, are_shared=True) for _ in range(2))
        here, there = [await each.of(ANA, "desk", REVISION, IDLE) for each in (one, other)]
        here.state.record_read(READ)
        await shared.keep(here)
        before = set(there.state.flags)
        again = await other.of(ANA, "desk", REVISION, IDLE)

    assert here.id == there.id
    assert here is not there
    assert again is there
    assert (before, there.state.flags) == (set(), {"untrusted-output"})


async def test_one_that_is_over_begins_anew_and_one_in_use_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, Plan()) as gateway:
        turns = ImplicitTurns(gateway.store, are_shared=False)
        first = await turns.of(ANA, "desk", REVISION, 50_000)
        first.state.record_read(READ)
        await SharedTurnState(gateway.store).keep(first)
        elsewhere = await ImplicitTurns(gateway.store, are_shared=False).of(ANA, "desk", REVISION, IDLE)
        prolonged = await turns.of(ANA, "desk", REVISION, IDLE)  # the store extends it
        short = await turns.of(Principal("user:bo"), "desk", REVISION, 1)
        short.state.record_read(READ)
        until = moments.now_microseconds() + 1_000
        while moments.now_microseconds() < until:
            pass
        anew = await turns.of(Principal("user:bo"), "desk", REVISION, IDLE)

    assert prolonged is first
    assert elsewhere.state.flags == prolonged.state.flags == {"untrusted-output"}
    assert anew.state.flags == set()


async def test_process_that_prolongs_a_shared_one_learns_what_others_saw(tmp_path: Path) -> None:
    async with running(tmp_path, Plan()) as gateway:
        one, other = (ImplicitTurns(gateway.store, are_shared=True) for _ in range(2))
        here = await one.of(ANA, "desk", REVISION, 50_000)
        there = await other.of(ANA, "desk", REVISION, IDLE)
        there.state.record_read(READ)
        await SharedTurnState(gateway.store).keep(there)
        again = await one.of(ANA, "desk", REVISION, IDLE)  # the store extends it

    assert again is here
    assert here.state.flags == {"untrusted-output"}


async def test_only_so_many_are_kept_in_memory(tmp_path: Path) -> None:
    async with running(tmp_path, Plan()) as gateway:
        turns = ImplicitTurns(gateway.store, are_shared=False, most=2)
        callers = [Principal(f"user:{number}") for number in range(3)]
        made = [await turns.of(each, "desk", REVISION, IDLE) for each in callers]
        newest, oldest = [await turns.of(each, "desk", REVISION, IDLE) for each in (callers[2], callers[0])]

    assert newest is made[2]
    assert oldest is not made[0]


async def test_memory_that_cannot_be_read_lets_nothing_through(tmp_path: Path) -> None:
    async with running(tmp_path, Plan()) as gateway:
        turn = await ImplicitTurns(gateway.store, are_shared=False).of(ANA, "desk", REVISION, IDLE)
        await gateway.store.note((), turn_id=turn.id, memory=b"{}", knowing=None)
        with pytest.raises(StoreUnavailable):
            await ImplicitTurns(gateway.store, are_shared=False).of(ANA, "desk", REVISION, IDLE)


async def test_one_that_the_store_lost_goes_on_with_what_this_process_knows(tmp_path: Path) -> None:
    async with running(tmp_path, Plan()) as gateway:
        turns = ImplicitTurns(gateway.store, are_shared=False)
        turn = await turns.of(ANA, "desk", REVISION, IDLE)
        turn.state.record_read(READ)
        await gateway.store.writer.run(lambda connection: connection.execute("DELETE FROM turns"))
        again = await turns.of(ANA, "desk", REVISION, 2 * IDLE)

    assert again is turn
    assert again.state.flags == {"untrusted-output"}


async def test_stages_of_a_turn_run_for_each_call_without_a_handle(tmp_path: Path) -> None:
    ran: list[str] = []

    def stage(name: str) -> Any:
        async def run(ctx: Any, next: Any) -> None:
            ran.append(name)
            await next()

        return run

    stages = {"turn_input": [stage("input")], "turn_output": [stage("output")], "implicit": 10**9}
    plan = Plan(stages=stages).tool("read", "text")
    async with running(tmp_path, plan) as gateway:
        first = await gateway.service.call_tool(ANA, "desk", "read", {})
        await gateway.service.call_tool(ANA, "desk", "read", {})
        turn = await gateway.service.turns.find(ANA, first.turn.id)
        await gateway.service.call_tool(ANA, "desk", "read", {}, handle=turn.id)
        await gateway.service.turns.end(turn)

    assert ran == ["input", "output"] * 2

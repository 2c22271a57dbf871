"""Turns in memory: idle, expired and superfluous ones leave it, and are read from the store again."""

from pathlib import Path
from typing import Any

import pytest

from gateway.engine.turns.turn import Turn
from gateway.engine.turns.turn_cache import IDLE_SECONDS, SHARE, TurnCache
from tests.engine.service_gateway import ANA, BOB, Gateway, Plan, running

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.at = 1_000.0

    def __call__(self) -> float:
        return self.at


async def open_turn(gateway: Gateway, principal: Any = ANA, *, is_kept: bool = True) -> Turn:
    return await gateway.service.turns.open(principal, "desk", is_kept=is_kept)


async def test_idle_turns_leave_memory_when_another_one_comes(tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("echo", "x")) as gateway:
        clock = Clock()
        cache = TurnCache(100, clock=clock)
        idle, used, new = [await open_turn(gateway) for _ in range(3)]
        cache.put(idle)
        cache.put(used)
        clock.at += IDLE_SECONDS / 2
        assert cache.get(used.id) is used
        clock.at += IDLE_SECONDS / 2 + 1
        cache.put(new)

        assert (cache.get(idle.id), cache.get(used.id), cache.get(new.id)) == (None, used, new)


async def test_turn_that_the_store_does_not_have_stays_until_it_expires(tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("echo", "x")) as gateway:
        clock = Clock()
        cache = TurnCache(100, clock=clock)
        unstored, running_one, with_context = [await open_turn(gateway, is_kept=False) for _ in range(3)]
        running_one.is_stored = with_context.is_stored = True
        running_one.running.add("call")
        with_context.ctx.stash.set("a", 1)
        for turn in (unstored, running_one, with_context):
            cache.put(turn)
        clock.at += IDLE_SECONDS + 1
        cache.put(await open_turn(gateway))
        assert len(cache) == 4

        unstored.extend_lifetime(0, 0)
        unstored.stored.expires = 1
        clock.at += IDLE_SECONDS + 1
        cache.put(await open_turn(gateway))
        assert cache.get(unstored.id) is None
        assert cache.get(running_one.id) is running_one


async def test_one_caller_has_a_share_of_the_memory(tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("echo", "x")) as gateway:
        cache = TurnCache(10 * SHARE)
        of_bob = await open_turn(gateway, BOB)
        cache.put(of_bob)
        turns = [await open_turn(gateway) for _ in range(30)]
        for turn in turns:
            cache.put(turn)

        assert len(cache) == 11
        assert cache.get(of_bob.id) is of_bob
        assert [cache.get(turn.id) for turn in turns[-10:]] == turns[-10:]
        for turn in turns:
            cache.drop(turn.id)
        assert len(cache) == 1


async def test_turn_that_left_memory_goes_on_with_its_calls(tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("echo", "x"), open_turns=1) as gateway:
        first = await open_turn(gateway)
        called = await gateway.service.call_in_turn(first, "echo", {})
        await open_turn(gateway)
        again = await gateway.service.turns.find(ANA, first.id)

        assert again is not first
        assert again.calls.find_source(called.record.id) is not None

"""Deadlines that stand still while a call waits for its caller."""

import asyncio

import pytest

from gateway.core.deadlines import LONGEST_PAUSES, Deadline

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_pause_moves_the_deadline_by_as_long_as_it_lasted() -> None:
    clock = Clock()
    deadline = Deadline(110.0, clock)

    clock.now += 4
    with deadline.paused():
        clock.now += 60
        waiting = deadline.left
    clock.now += 1

    assert waiting == LONGEST_PAUSES
    assert (deadline.at, deadline.left) == (170.0, 5.0)


def test_pauses_in_one_another_count_once() -> None:
    clock = Clock()
    deadline = Deadline(110.0, clock)

    with deadline.paused():
        clock.now += 5
        with deadline.paused():
            clock.now += 5
        clock.now += 5

    assert deadline.at == 125.0


def test_pause_also_moves_deadlines_further_out() -> None:
    clock = Clock()
    outer = Deadline(120.0, clock)
    inner = Deadline(110.0, clock, outer)

    with inner.paused():
        clock.now += 60

    assert (inner.at, outer.at) == (170.0, 180.0)


def test_all_pauses_together_are_bounded() -> None:
    clock = Clock()
    deadline = Deadline(110.0, clock)

    for _ in range(4):
        with deadline.paused():
            clock.now += LONGEST_PAUSES / 2

    assert deadline.at == 110.0 + LONGEST_PAUSES
    assert deadline.left == 0.0


async def test_scope_that_has_ended_the_call_is_left_alone() -> None:
    deadline = Deadline(100.0, Clock())

    async def waits() -> None:
        async with asyncio.timeout(0) as deadline.scope:
            with deadline.paused():
                await asyncio.sleep(0)
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await waits()
    with deadline.paused():
        assert deadline.scope is not None
        assert deadline.scope.expired()


async def test_scope_goes_with_the_deadline() -> None:
    clock = Clock()
    deadline = Deadline(100.0, clock)

    async with asyncio.timeout(3600) as scope:
        deadline.scope = scope
        before = scope.when()
        with deadline.paused():
            pausing = scope.when()

        assert before is not None
        assert pausing is not None
        assert asyncio.get_running_loop().time() < pausing < before
        deadline.scope = None

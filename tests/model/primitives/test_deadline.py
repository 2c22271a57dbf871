"""Deadlines pause while a call waits for its caller."""

import asyncio

import pytest

from gateway.model.primitives.deadline import MAX_PAUSE_SECONDS, Deadline

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
    with deadline.pause():
        clock.now += 60
        waiting = deadline.remaining_seconds
    clock.now += 1

    assert waiting == MAX_PAUSE_SECONDS
    assert (deadline.at, deadline.remaining_seconds) == (170.0, 5.0)


def test_pauses_in_one_another_count_once() -> None:
    clock = Clock()
    deadline = Deadline(110.0, clock)

    with deadline.pause():
        clock.now += 5
        with deadline.pause():
            clock.now += 5
        clock.now += 5

    assert deadline.at == 125.0


def test_pause_also_moves_deadlines_further_out() -> None:
    clock = Clock()
    outer = Deadline(120.0, clock)
    inner = Deadline(110.0, clock, outer)

    with inner.pause():
        clock.now += 60

    assert (inner.at, outer.at) == (170.0, 180.0)


def test_all_pauses_together_are_bounded() -> None:
    clock = Clock()
    deadline = Deadline(110.0, clock)

    for _ in range(4):
        with deadline.pause():
            clock.now += MAX_PAUSE_SECONDS / 2

    assert deadline.at == 110.0 + MAX_PAUSE_SECONDS
    assert deadline.remaining_seconds == 0.0


async def test_scope_that_has_ended_the_call_is_left_alone() -> None:
    deadline = Deadline(100.0, Clock())

    async def waits() -> None:
        async with asyncio.timeout(0) as deadline.scope:
            with deadline.pause():
                await asyncio.sleep(0)
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await waits()
    with deadline.pause():
        assert deadline.scope is not None
        assert deadline.scope.expired()


async def test_scope_goes_with_the_deadline() -> None:
    clock = Clock()
    deadline = Deadline(100.0, clock)

    async with asyncio.timeout(3600) as scope:
        deadline.scope = scope
        before = scope.when()
        with deadline.pause():
            pausing = scope.when()

        assert before is not None
        assert pausing is not None
        assert asyncio.get_running_loop().time() < pausing < before
        deadline.scope = None

"""One server's share of calls: a bounded number at once, a bounded line, and no slot lost."""

import asyncio

import pytest

from gateway.governance.ports import BackendFailed
from gateway.upstreams.slots import Slots

pytestmark = pytest.mark.anyio


async def test_line_is_served_in_order_and_bounded() -> None:
    slots, order = Slots(1, 2), []

    async def worked(number: int) -> None:
        await slots.take()
        order.append(number)
        await asyncio.sleep(0)
        slots.give()

    await slots.take()
    waiting = [asyncio.create_task(worked(number)) for number in (1, 2)]
    await asyncio.sleep(0)
    with pytest.raises(BackendFailed, match="too many calls wait"):
        await slots.take()
    slots.give()
    await asyncio.gather(*waiting)

    assert order == [1, 2]


async def test_whoever_goes_away_leaves_no_slot_taken() -> None:
    slots = Slots(1, 4)
    await slots.take()
    gone, next_one = (asyncio.create_task(slots.take()) for _ in range(2))
    await asyncio.sleep(0)
    slots.give()  # the first in line is given it, and leaves before it notices
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)

    async with asyncio.timeout(1):
        await next_one
    slots.give()
    async with asyncio.timeout(1):
        await slots.take()


async def test_slot_is_free_for_others_while_somebody_is_asked() -> None:
    slots = Slots(1, 1)
    await slots.take()
    slots.give()
    await slots.take()
    slots.take_back()
    slots.give()
    waiting = asyncio.create_task(slots.take())
    await asyncio.sleep(0)

    assert not waiting.done(), "one too many is working, so the next one waits"
    slots.give()
    await waiting

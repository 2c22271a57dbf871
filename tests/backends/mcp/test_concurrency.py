"""Concurrent calls to one server: a bounded number at once, a bounded queue, and no slot lost."""

import asyncio

import pytest

from gateway.backends.mcp.connection import ConcurrencyLimit
from gateway.model.tools.backend import BackendError

pytestmark = pytest.mark.anyio


async def test_line_is_served_in_order_and_bounded() -> None:
    slots, order = ConcurrencyLimit(1, 2), []

    async def worked(number: int) -> None:
        await slots.acquire()
        order.append(number)
        await asyncio.sleep(0)
        slots.release()

    await slots.acquire()
    waiting = [asyncio.create_task(worked(number)) for number in (1, 2)]
    await asyncio.sleep(0)
    with pytest.raises(BackendError, match="too many calls wait"):
        await slots.acquire()
    slots.release()
    await asyncio.gather(*waiting)

    assert order == [1, 2]


async def test_cancelled_call_leaves_no_slot_taken() -> None:
    slots = ConcurrencyLimit(1, 4)
    await slots.acquire()
    gone, next_one = (asyncio.create_task(slots.acquire()) for _ in range(2))
    await asyncio.sleep(0)
    slots.release()  # the first in the queue gets the slot, and leaves before it notices
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)

    async with asyncio.timeout(1):
        await next_one
    slots.release()
    async with asyncio.timeout(1):
        await slots.acquire()


async def test_slot_is_free_for_others_while_the_caller_is_asked() -> None:
    slots = ConcurrencyLimit(1, 1)
    await slots.acquire()
    slots.release()
    await slots.acquire()
    slots.reacquire()
    slots.release()
    waiting = asyncio.create_task(slots.acquire())
    await asyncio.sleep(0)

    assert not waiting.done(), "one too many is working, so the next one waits"
    slots.release()
    await waiting

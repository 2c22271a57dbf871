"""A coroutine that is started at once: finished if it did not wait, and awaited like any other if it did."""

import asyncio
from typing import Any

import pytest

from gateway.model.primitives.concurrency import CompletedAwaitable, EagerCoroutine

pytestmark = pytest.mark.anyio


async def at_once(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value


async def test_what_is_there_already_is_waited_for_as_well() -> None:
    assert await CompletedAwaitable("there") == "there"


async def test_coroutine_that_does_not_wait_is_over() -> None:
    begun = EagerCoroutine(at_once("there"))

    assert begun.is_over
    assert begun.value == "there"


async def test_what_it_raises_before_it_waits_is_raised_at_once() -> None:
    with pytest.raises(LookupError, match="gone"):
        EagerCoroutine(at_once(LookupError("gone")))


async def test_coroutine_that_waits_goes_on_where_it_was() -> None:
    steps: list[str] = []
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def waits() -> str:
        steps.append("begun")
        await asyncio.sleep(0)
        steps.append("woken")
        return await future

    begun = EagerCoroutine(waits())
    assert (begun.is_over, steps) == (False, ["begun"])
    asyncio.get_running_loop().call_soon(future.set_result, "answered")

    assert await begun == "answered"
    assert steps == ["begun", "woken"]


async def test_what_is_raised_after_waiting_reaches_the_awaiting_task() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise LookupError("gone")

    begun = EagerCoroutine(fails())
    with pytest.raises(LookupError, match="gone"):
        await begun


async def test_failure_of_what_it_waits_for_is_its_own_to_handle() -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def handles() -> str:
        try:
            return await future
        except LookupError:
            await asyncio.sleep(0)
            return "handled"

    begun = EagerCoroutine(handles())
    future.set_exception(LookupError("gone"))

    assert await begun == "handled"


async def test_deadline_around_it_cancels_it() -> None:
    cleaned: list[str] = []

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("up")

    begun = EagerCoroutine(never())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await begun

    assert cleaned == ["up"]


async def test_awaiting_that_is_given_up_closes_it() -> None:
    cleaned: list[str] = []

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("up")

    waiting = EagerCoroutine(never()).__await__()
    next(waiting)
    waiting.close()

    assert cleaned == ["up"]

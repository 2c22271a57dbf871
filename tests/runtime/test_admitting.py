"""Admission: places, a bounded line in which callers take turns, and fewer places while the loop is late."""

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.governance.principals import Principal
from gateway.runtime.admitting import LATE, LEAST, Admission, Pulse
from gateway.web.edge import PRINCIPAL

pytestmark = pytest.mark.anyio


def scope(caller: str | None, *, tenant: str | None = None) -> dict[str, Any]:
    headers = [] if caller is None else [(b"authorization", caller.encode())]
    found: dict[str, Any] = {"headers": headers, "client": ("10.0.0.1", 1)}
    if tenant is not None:
        found[PRINCIPAL] = Principal("user:a", tenant=tenant)
    return found


async def waiting(admission: Admission, callers: Iterable[str | None]) -> list["asyncio.Task[bool]"]:
    """One request of each, in this order; all have come to where they wait."""
    tasks = []
    for each in callers:
        tasks.append(asyncio.create_task(admission.enter(scope(each))))
        await settled()
    return tasks


async def settled() -> None:
    """Whoever can go on has gone on."""
    for _ in range(3):
        await asyncio.sleep(0)


async def order_of_entry(admission: Admission, tasks: dict[str, list["asyncio.Task[bool]"]]) -> list[str]:
    entered: list[str] = []

    async def enter(caller: str, task: "asyncio.Task[bool]") -> None:
        if await task:
            entered.append(caller)
            admission.leave()

    every = [enter(caller, task) for caller, found in tasks.items() for task in found]
    admission.leave()
    await asyncio.gather(*every)
    return entered


async def test_beyond_places_and_line_everybody_is_refused_at_once() -> None:
    admission = Admission(2, queue=1, wait=60)
    inside = [await admission.enter(scope("a")) for _ in range(2)]
    [waits] = await waiting(admission, ["a"])
    refused = await admission.enter(scope("a"))
    told = admission.status()
    admission.leave()

    assert inside == [True, True]
    assert refused is False
    assert await waits is True
    assert told == {"active": 2, "places": 2, "waiting": 1, "refused": 1}
    assert admission.status() == {"active": 2, "places": 2, "waiting": 0, "refused": 1}


async def test_callers_take_turns() -> None:
    admission = Admission(1, queue=100, wait=60)
    assert await admission.enter(scope("first"))
    noisy = await waiting(admission, ["noisy"] * 10)
    quiet = await waiting(admission, ["quiet"] * 3)

    entered = await order_of_entry(admission, {"noisy": noisy, "quiet": quiet})

    assert entered[:6] == ["noisy", "quiet", "noisy", "quiet", "noisy", "quiet"]
    assert len(entered) == 13


async def test_noisy_caller_does_not_fill_the_line() -> None:
    admission = Admission(1, queue=10, wait=60)
    assert await admission.enter(scope("first"))
    noisy = await waiting(admission, ["noisy"] * 10)
    too_many = await admission.enter(scope("noisy"))
    quiet = await waiting(admission, ["quiet"] * 5)
    sixth = await admission.enter(scope("quiet"))

    assert (too_many, sixth) == (False, False)
    assert [task.done() and not task.result() for task in noisy] == [False] * 5 + [True] * 5
    assert not any(task.done() for task in quiet)
    admission.turn_away()
    assert not any(await asyncio.gather(*noisy, *quiet))
    assert admission.queued == 0


async def test_credentials_of_one_tenant_stand_in_one_line() -> None:
    admission = Admission(1, queue=4, wait=60)
    for each in ("a", "b"):
        admission.learn(scope(each, tenant="acme"))
    admission.learn(scope("c"))
    admission.learn(scope(None, tenant="acme"))
    assert await admission.enter(scope("first"))
    noisy = await waiting(admission, ["a", "b", "a", "b"])
    other = await waiting(admission, ["c", "c"])

    assert [task.done() for task in noisy] == [False, False, True, True]
    assert not any(task.done() for task in other)
    admission.turn_away()
    await asyncio.gather(*noisy, *other)


async def test_whoever_waits_too_long_is_refused() -> None:
    admission = Admission(1, queue=10, wait=0.3)
    pulse = Pulse(admission)
    pulse.start()
    assert await admission.enter(scope("a"))
    [first] = await waiting(admission, ["a"])
    await asyncio.sleep(0.2)
    [second] = await waiting(admission, ["b"])

    assert await first is False
    assert not second.done()
    assert await second is False
    assert admission.status() == {"active": 1, "places": 1, "waiting": 0, "refused": 2}
    await pulse.close()


@pytest.mark.parametrize("is_let_in", [False, True], ids=["waiting", "let in meanwhile"])
async def test_whoever_is_cancelled_leaves_no_trace(is_let_in: bool) -> None:
    admission = Admission(1, queue=10, wait=60)
    assert await admission.enter(scope("a"))
    [task] = await waiting(admission, ["b"])
    if is_let_in:
        admission.leave()
    task.cancel()
    await asyncio.wait({task})

    assert task.cancelled()
    assert (admission.active, admission.queued) == (0 if is_let_in else 1, 0)


async def test_place_goes_to_the_next_where_the_first_was_cancelled_a_moment_ago() -> None:
    admission = Admission(1, queue=10, wait=60)
    assert await admission.enter(scope("a"))
    first, second = await waiting(admission, ["b", "b"])
    first.cancel()
    admission.leave()

    assert await second is True
    assert first.cancelled()
    assert admission.status() == {"active": 1, "places": 1, "waiting": 0, "refused": 0}


def test_late_loop_has_fewer_places_and_gets_them_back() -> None:
    admission = Admission(1000, queue=10, wait=60)
    admission.active = 400
    found = []
    for _ in range(20):
        admission.feel(LATE * 2)
        found.append(admission.limit)
    admission.active = 0
    back = []
    for _ in range(60):
        admission.feel(0.0)
        back.append(admission.limit)

    assert found[:2] == [280, 196]
    assert found[-1] == LEAST
    assert all(one >= other for one, other in pairwise(found))
    assert back[-1] == 1000


async def test_places_that_come_back_are_given_to_those_who_wait() -> None:
    admission = Admission(LEAST + 1, queue=10, wait=60)
    admission.active = admission.limit = LEAST
    [task] = await waiting(admission, ["a"])
    admission.feel(0.0)

    assert await task is True


async def test_pulse_tells_an_idle_loop_that_it_is_not_late() -> None:
    admission = Admission(100, queue=10, wait=60)
    admission.limit = 50
    pulse = Pulse(admission)
    pulse.start()
    async with asyncio.timeout(30):
        while admission.limit < 100:
            await asyncio.sleep(0.01)
    await pulse.close()

    assert admission.limit == 100


@given(st.integers(1, 4), st.integers(0, 6), st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_whatever_happens_places_and_line_keep_their_bounds(
    most: int, queue: int, steps: list[tuple[str, bool]]
) -> None:
    async def happen() -> None:
        admission = Admission(most, queue=queue, wait=60)
        tasks: list[asyncio.Task[bool]] = []
        left = 0
        for caller, leaves in steps:
            if leaves and admission.active:
                admission.leave()
                left += 1
            else:
                tasks.append(asyncio.create_task(admission.enter(scope(caller))))
            await asyncio.sleep(0)
            assert 0 <= admission.active <= most
            assert 0 <= admission.queued <= queue
            assert not admission.queued or admission.active == most
        admission.turn_away()
        answers = await asyncio.gather(*tasks)
        assert sum(answers) == admission.active + left

    asyncio.run(happen())

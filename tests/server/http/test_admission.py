"""Admission: slots, a bounded queue that is fair between callers, and fewer slots while the loop is late."""

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.caller import Principal
from gateway.server.http.admission import MAX_LOOP_LAG, MIN_LIMIT, AdmissionControl, LoopMonitor
from gateway.server.http.asgi import SCOPE_PRINCIPAL

pytestmark = pytest.mark.anyio


def scope(caller: str | None, *, tenant: str | None = None) -> dict[str, Any]:
    headers = [] if caller is None else [(b"authorization", caller.encode())]
    found: dict[str, Any] = {"headers": headers, "client": ("10.0.0.1", 1)}
    if tenant is not None:
        found[SCOPE_PRINCIPAL] = Principal("user:a", tenant=tenant)
    return found


async def queue_requests(admission: AdmissionControl, callers: Iterable[str | None]) -> list["asyncio.Task[bool]"]:
    """Start one request of each caller, in this order, and return once all of them wait."""
    tasks = []
    for each in callers:
        tasks.append(asyncio.create_task(admission.acquire(scope(each))))
        await run_pending_tasks()
    return tasks


async def run_pending_tasks() -> None:
    """Let every runnable task proceed."""
    for _ in range(3):
        await asyncio.sleep(0)


async def order_of_entry(admission: AdmissionControl, tasks: dict[str, list["asyncio.Task[bool]"]]) -> list[str]:
    entered: list[str] = []

    async def enter(caller: str, task: "asyncio.Task[bool]") -> None:
        if await task:
            entered.append(caller)
            admission.release()

    every = [enter(caller, task) for caller, found in tasks.items() for task in found]
    admission.release()
    await asyncio.gather(*every)
    return entered


async def test_requests_beyond_slots_and_queue_are_refused_at_once() -> None:
    admission = AdmissionControl(2, queue=1, wait=60)
    inside = [await admission.acquire(scope("a")) for _ in range(2)]
    [waits] = await queue_requests(admission, ["a"])
    refused = await admission.acquire(scope("a"))
    status = admission.status()
    admission.release()

    assert inside == [True, True]
    assert refused is False
    assert await waits is True
    assert status == {"active": 2, "places": 2, "waiting": 1, "refused": 1}
    assert admission.status() == {"active": 2, "places": 2, "waiting": 0, "refused": 1}


async def test_callers_take_turns() -> None:
    admission = AdmissionControl(1, queue=100, wait=60)
    assert await admission.acquire(scope("first"))
    noisy = await queue_requests(admission, ["noisy"] * 10)
    quiet = await queue_requests(admission, ["quiet"] * 3)

    entered = await order_of_entry(admission, {"noisy": noisy, "quiet": quiet})

    assert entered[:6] == ["noisy", "quiet", "noisy", "quiet", "noisy", "quiet"]
    assert len(entered) == 13


async def test_noisy_caller_does_not_fill_the_line() -> None:
    admission = AdmissionControl(1, queue=10, wait=60)
    assert await admission.acquire(scope("first"))
    noisy = await queue_requests(admission, ["noisy"] * 10)
    too_many = await admission.acquire(scope("noisy"))
    quiet = await queue_requests(admission, ["quiet"] * 5)
    sixth = await admission.acquire(scope("quiet"))

    assert (too_many, sixth) == (False, False)
    assert [task.done() and not task.result() for task in noisy] == [False] * 5 + [True] * 5
    assert not any(task.done() for task in quiet)
    admission.reject_waiters()
    assert not any(await asyncio.gather(*noisy, *quiet))
    assert admission.queued == 0


async def test_credentials_of_one_tenant_stand_in_one_line() -> None:
    admission = AdmissionControl(1, queue=4, wait=60)
    for each in ("a", "b"):
        admission.set_tenant(scope(each, tenant="acme"))
    admission.set_tenant(scope("c"))
    admission.set_tenant(scope(None, tenant="acme"))
    assert await admission.acquire(scope("first"))
    noisy = await queue_requests(admission, ["a", "b", "a", "b"])
    other = await queue_requests(admission, ["c", "c"])

    assert [task.done() for task in noisy] == [False, False, True, True]
    assert not any(task.done() for task in other)
    admission.reject_waiters()
    await asyncio.gather(*noisy, *other)


async def test_request_that_waits_too_long_is_refused() -> None:
    admission = AdmissionControl(1, queue=10, wait=0.3)
    pulse = LoopMonitor(admission)
    pulse.start()
    assert await admission.acquire(scope("a"))
    [first] = await queue_requests(admission, ["a"])
    await asyncio.sleep(0.2)
    [second] = await queue_requests(admission, ["b"])

    assert await first is False
    assert not second.done()
    assert await second is False
    assert admission.status() == {"active": 1, "places": 1, "waiting": 0, "refused": 2}
    await pulse.close()


@pytest.mark.parametrize("is_let_in", [False, True], ids=["waiting", "let in meanwhile"])
async def test_cancelled_request_leaves_no_trace(is_let_in: bool) -> None:
    admission = AdmissionControl(1, queue=10, wait=60)
    assert await admission.acquire(scope("a"))
    [task] = await queue_requests(admission, ["b"])
    if is_let_in:
        admission.release()
    task.cancel()
    await asyncio.wait({task})

    assert task.cancelled()
    assert (admission.active, admission.queued) == (0 if is_let_in else 1, 0)


async def test_place_goes_to_the_next_where_the_first_was_cancelled_a_moment_ago() -> None:
    admission = AdmissionControl(1, queue=10, wait=60)
    assert await admission.acquire(scope("a"))
    first, second = await queue_requests(admission, ["b", "b"])
    first.cancel()
    admission.release()

    assert await second is True
    assert first.cancelled()
    assert admission.status() == {"active": 1, "places": 1, "waiting": 0, "refused": 0}


def test_late_loop_has_fewer_places_and_gets_them_back() -> None:
    admission = AdmissionControl(1000, queue=10, wait=60)
    admission.active = 400
    found = []
    for _ in range(20):
        admission.adapt(MAX_LOOP_LAG * 2)
        found.append(admission.limit)
    admission.active = 0
    back = []
    for _ in range(60):
        admission.adapt(0.0)
        back.append(admission.limit)

    assert found[:2] == [280, 196]
    assert found[-1] == MIN_LIMIT
    assert all(one >= other for one, other in pairwise(found))
    assert back[-1] == 1000


async def test_returned_slots_go_to_waiting_requests() -> None:
    admission = AdmissionControl(MIN_LIMIT + 1, queue=10, wait=60)
    admission.active = admission.limit = MIN_LIMIT
    [task] = await queue_requests(admission, ["a"])
    admission.adapt(0.0)

    assert await task is True


async def test_pulse_of_an_idle_loop_is_not_late() -> None:
    admission = AdmissionControl(100, queue=10, wait=60)
    admission.limit = 50
    pulse = LoopMonitor(admission)
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
        admission = AdmissionControl(most, queue=queue, wait=60)
        tasks: list[asyncio.Task[bool]] = []
        left = 0
        for caller, leaves in steps:
            if leaves and admission.active:
                admission.release()
                left += 1
            else:
                tasks.append(asyncio.create_task(admission.acquire(scope(caller))))
            await asyncio.sleep(0)
            assert 0 <= admission.active <= most
            assert 0 <= admission.queued <= queue
            assert not admission.queued or admission.active == most
        admission.reject_waiters()
        answers = await asyncio.gather(*tasks)
        assert sum(answers) == admission.active + left

    asyncio.run(happen())

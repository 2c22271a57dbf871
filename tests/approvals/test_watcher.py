"""Waiting for a decision: this process and others wake the waiting call, for as long as it is held and no longer."""

import asyncio
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from gateway.approvals import lifecycle as deciding
from gateway.approvals.lifecycle import ApprovalRequestContext
from gateway.approvals.watcher import ApprovalWatcher
from gateway.errors import StoreUnavailable
from tests.approvals.held_calls import LEA, LEO, NOON, ApprovalFixture, Clock, action, make_approval_fixture, refund

pytestmark = pytest.mark.anyio

HELD = timedelta(seconds=30)


async def test_waiting_call_goes_on_when_it_is_granted(desk: ApprovalFixture) -> None:
    seen: list[str] = []
    waiting = asyncio.create_task(
        desk.again(hold_for=HELD, on_pending=lambda standing: seen.append(standing.approvals[0].id))
    )
    while not seen:
        await asyncio.sleep(0)

    await desk.approvals.decide(seen[0], LEA, "grant")

    with anyio.fail_after(5):
        assert (await waiting).state == "taken"


async def test_waiting_call_is_woken_by_a_refusal(desk: ApprovalFixture) -> None:
    id = await desk.pending()
    waiting = asyncio.create_task(desk.again(hold_for=HELD))
    await asyncio.sleep(0)

    await desk.approvals.decide(id, LEA, "refuse")

    with anyio.fail_after(5):
        assert (await waiting).state == "refused"


async def test_decision_of_another_process_is_noticed(tmp_path: Path) -> None:
    async with (
        make_approval_fixture(tmp_path / "gateway.db") as here,
        make_approval_fixture(tmp_path / "gateway.db") as there,
    ):
        id = await here.pending(refund(needed=2))
        waiting = asyncio.create_task(here.again(refund(needed=2), hold_for=HELD))
        await asyncio.sleep(0)

        await there.approvals.decide(id, LEA, "grant")
        await there.approvals.decide(id, LEO, "grant")

        with anyio.fail_after(5):
            assert (await waiting).state == "taken"


async def test_nudged_watcher_polls_at_once(tmp_path: Path) -> None:
    """Where other processes signal changes, the watcher does not poll often."""
    path = tmp_path / "gateway.db"
    async with make_approval_fixture(path, look_every=60.0) as here, make_approval_fixture(path) as there:
        id = await here.pending()
        waiting = asyncio.create_task(here.again(hold_for=HELD))
        while not here.approvals.count_waiting:
            await asyncio.sleep(0)

        await there.approvals.decide(id, LEA, "grant")

        with anyio.fail_after(5):
            while not waiting.done():
                here.approvals.refresh()
                await asyncio.sleep(0.01)
        assert waiting.result().state == "taken"


async def test_call_is_held_no_longer_than_it_may_be(desk: ApprovalFixture) -> None:
    standing = await desk.again(hold_for=timedelta(milliseconds=20))

    assert standing.state == "pending"


async def test_waiting_ends_when_the_approval_does(tmp_path: Path) -> None:
    clock = Clock()
    async with make_approval_fixture(tmp_path / "gateway.db", clock=clock) as desk:
        id = await desk.pending(refund(timeout=timedelta(milliseconds=30)))

        def late(standing: object) -> None:
            clock.advance(milliseconds=30)

        with anyio.fail_after(5):
            standing = await desk.again(refund(timeout=timedelta(milliseconds=30)), hold_for=HELD, on_pending=late)

        assert (standing.state, [each.id for each in standing.ended]) == ("expired", [id])


async def test_approval_that_was_forgotten_meanwhile_is_over(desk: ApprovalFixture) -> None:
    asking = ApprovalRequestContext(NOON, desk.approvals.holds, token="t", new_id=str, most_pending=1)

    standing = await desk.store.transact(lambda table: deciding.check_pending(table, ["forgotten"], asking))

    assert standing.state == "expired"


async def test_only_the_taking_itself_can_be_undone(desk: ApprovalFixture) -> None:
    id = await desk.granted()
    await desk.again()

    await desk.store.transact(lambda table: deciding.undo_take(table, [id, "forgotten"], "another"))

    assert (await desk.approvals.find(id, LEA)).state == "used"


async def test_cancelled_caller_does_not_use_the_approval_up(desk: ApprovalFixture) -> None:
    id = await desk.granted()
    taking = asyncio.create_task(desk.again())
    await asyncio.sleep(0)
    taking.cancel()
    await asyncio.wait([taking])

    with anyio.fail_after(5):
        again = await desk.again()

    assert (again.state, again.approvals[0].id) == ("taken", id)


async def test_nothing_is_kept_without_waiting_calls(desk: ApprovalFixture) -> None:
    watch = ApprovalWatcher(desk.store.list_changes, every=0.001)
    waiting = [asyncio.create_task(watch.wait_for_change([f"a{n}"], since=0, within=30)) for n in range(1000)]
    await asyncio.sleep(0)
    tasks = [task for task in asyncio.all_tasks() if task.get_name() == "gateway-approvals-watch"]
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    with anyio.fail_after(5):
        while watch.is_polling:
            await asyncio.sleep(0.001)

    assert len(tasks) == 1
    assert watch.waited_for == 0


async def test_waking_a_waiter_that_left_or_was_woken_is_harmless(desk: ApprovalFixture) -> None:
    watch = ApprovalWatcher(desk.store.list_changes)
    waiting = asyncio.create_task(watch.wait_for_change(["a", "b"], since=0, within=30))
    await asyncio.sleep(0)

    watch.wake(["a", "b", "unknown"])

    assert await waiting
    watch.wake(["a"])
    await watch.close()
    await watch.close()


async def test_watcher_does_not_poll_after_closing(desk: ApprovalFixture) -> None:
    watch = ApprovalWatcher(desk.store.list_changes)
    waiting = asyncio.create_task(watch.wait_for_change(["a"], since=0, within=30))
    await asyncio.sleep(0)

    await watch.close()

    assert not watch.is_polling
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_looking_goes_on_when_the_store_comes_back() -> None:
    answers = 0

    async def changes(since: int) -> list[tuple[str, int]]:
        nonlocal answers
        answers += 1
        if answers < 3:
            raise StoreUnavailable()
        return [("a", since + 1)]

    watch = ApprovalWatcher(changes, every=0.001)

    with anyio.fail_after(5):
        assert await watch.wait_for_change(["a"], since=7, within=30)
    await watch.close()


async def test_reader_with_an_older_position_is_served_next() -> None:
    asked: list[int] = []
    waiting: list[asyncio.Task[bool]] = []

    async def changes(since: int) -> list[tuple[str, int]]:
        asked.append(since)
        if len(asked) == 1:
            waiting.append(asyncio.create_task(watch.wait_for_change(["old"], since=3, within=30)))
            await asyncio.sleep(0)
        return [(id, number) for id, number in (("old", 4), ("new", 51), ("other", 52)) if number > since]

    watch = ApprovalWatcher(changes, every=0.001)

    with anyio.fail_after(5):
        assert await watch.wait_for_change(["new"], since=50, within=30)
        assert await waiting[0]
    assert asked[:2] == [50, 3]
    await watch.close()


async def test_no_waiter_is_woken_by_a_known_change() -> None:
    asked: list[int] = []

    async def changes(since: int) -> list[tuple[str, int]]:
        asked.append(since)
        return [("a", 7)] if len(asked) < 5 else [("a", 8)]

    watch = ApprovalWatcher(changes, every=0.001)
    others = asyncio.create_task(watch.wait_for_change(["b"], since=1, within=30))

    with anyio.fail_after(5):
        assert await watch.wait_for_change(["a"], since=7, within=30)
    others.cancel()
    await asyncio.wait([others])
    await watch.close()

    assert len(asked) >= 5


async def test_many_waiting_calls_do_not_wake_each_other(desk: ApprovalFixture) -> None:
    requests = [refund(action(arguments={"n": n})) for n in range(50)]
    waiting = [asyncio.create_task(desk.again(each, hold_for=HELD)) for each in requests]
    with anyio.fail_after(5):
        while desk.approvals.count_waiting < 50:
            await asyncio.sleep(0.001)
    [first, *_] = (await desk.approvals.page(LEA, limit=1))[0]

    await desk.approvals.decide(first.id, LEA, "refuse")
    with anyio.fail_after(5):
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    assert (len(done), len(pending)) == (1, 49)
    for each in pending:
        each.cancel()
    await asyncio.wait(pending)

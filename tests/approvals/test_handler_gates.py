"""Gates that handlers open become approvals: who may decide them, and what happens if no approver can be asked."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.approvals.approval_store import ApprovalSubject
from gateway.approvals.errors import GateRefused, UnknownApproval
from gateway.approvals.service import ApprovalService, approvers_by_policy
from gateway.engine.call import Call, call_context
from gateway.engine.gates.turn_gate_approvals import HandlerGates
from gateway.errors import StoreUnavailable, TurnGateAborted, TurnGateTimeout
from gateway.model.caller import Principal
from gateway.model.primitives.concurrency import AbortController
from gateway.model.turns.events import EventBuses
from gateway.model.turns.turn_gate import open_gate
from tests.approvals.held_calls import ADA, LEA, LEO, MAX, STRANGER, ApprovalFixture, make_approval_fixture

pytestmark = pytest.mark.anyio

RAW = {"id": "g", "reason": "it costs", "payload": {"sum": 1}}


def by_leo(approver: Principal, about: ApprovalSubject) -> bool:
    return approver == LEO and (about.catalogue, about.tool) == ("desk", "pay")


def a_call() -> Call:
    return Call("c1", "pay", {"amount": 1}, ADA, "desk", "r1")


async def open_handler_gate(approvals: ApprovalService, *, call: Call | None = None, **changes: Any) -> Any:
    """What the handler gets from a call that waits for a gate."""
    buses = EventBuses()
    HandlerGates(approvals).listen(buses)
    waiting = open_gate({**RAW, **changes}, "turn_1", signal=AbortController().signal, emit=buses.emit)
    with call_context(call or a_call()):
        return await asyncio.wait_for(waiting, 20)


async def wait_for_request(desk: ApprovalFixture, who: Principal) -> str:
    for _ in range(400):
        found, _ = await desk.approvals.page(who, state="pending")
        if found:
            return found[0].id
        await asyncio.sleep(0.02)
    raise AssertionError("nobody is asked")


async def test_only_approvers_that_the_policy_allows_are_asked(tmp_path: Path) -> None:
    async with make_approval_fixture(tmp_path / "gateway.db", may_approve=by_leo) as desk:
        waiting = asyncio.create_task(open_handler_gate(desk.approvals))
        id = await wait_for_request(desk, LEO)
        seen = [(await desk.approvals.page(each))[0] for each in (ADA, LEA, MAX, STRANGER, LEO)]
        for stranger in (LEA, MAX, STRANGER):
            with pytest.raises(UnknownApproval):
                await desk.approvals.decide(id, stranger, "grant")
        await desk.approvals.decide(id, LEO, "grant", resolution={"by": "leo"})
        answer = await waiting

    assert [len(each) for each in seen] == [1, 0, 0, 0, 1]
    assert answer == {"by": "leo"}


async def test_no_caller_can_hold_the_name_that_stands_for_the_policy(tmp_path: Path) -> None:
    async with make_approval_fixture(tmp_path / "gateway.db", may_approve=by_leo) as desk:
        every, about = approvers_by_policy("desk", "pay")
        impostor = Principal(every, frozenset({f"role:{about}"}), "acme")

        assert not desk.approvals.holds(impostor, every)
        assert [desk.approvals.holds(each, about) for each in (LEO, LEA, impostor)] == [True, False, False]


@pytest.mark.parametrize("note", [None, "too much"])
async def test_refusal_reaches_the_handler(note: str | None, tmp_path: Path) -> None:
    async with make_approval_fixture(tmp_path / "gateway.db", may_approve=by_leo) as desk:
        waiting = asyncio.create_task(open_handler_gate(desk.approvals))
        await desk.approvals.decide(await wait_for_request(desk, LEO), LEO, "refuse", note=note)
        with pytest.raises(GateRefused) as refused:
            await waiting

    assert refused.value.message == ("an approver refused" if note is None else "an approver refused: 'too much'")


async def test_no_approver_is_asked_while_too_many_calls_wait(tmp_path: Path) -> None:
    async with make_approval_fixture(tmp_path / "gateway.db", most_pending=0) as desk:
        with pytest.raises(GateRefused, match="already wait for approval"):
            await open_handler_gate(desk.approvals)


async def test_store_failure_reaches_the_handler(tmp_path: Path) -> None:
    async with make_approval_fixture(tmp_path / "gateway.db", may_approve=by_leo) as desk:
        pass
    with pytest.raises(StoreUnavailable):
        await open_handler_gate(desk.approvals)


async def test_gate_without_a_timeout_ends_with_its_approval(tmp_path: Path) -> None:
    async with make_approval_fixture(tmp_path / "gateway.db", may_approve=by_leo) as desk:
        waiting = asyncio.create_task(open_handler_gate(desk.approvals))
        await wait_for_request(desk, LEO)
        desk.clock.advance(minutes=16)
        await desk.approvals.sweep()
        with pytest.raises(TurnGateTimeout):
            await waiting


async def test_gate_of_a_call_without_a_caller_asks_no_approver(tmp_path: Path) -> None:
    async with make_approval_fixture(tmp_path / "gateway.db", may_approve=by_leo) as desk:
        buses, controller = EventBuses(), AbortController()
        HandlerGates(desk.approvals).listen(buses)
        waiting = asyncio.create_task(open_gate(RAW, "turn_1", signal=controller.signal, emit=buses.emit))
        await asyncio.sleep(0.1)
        controller.abort()
        with pytest.raises(TurnGateAborted):
            await waiting
        found, _ = await desk.approvals.page(LEO)

    assert found == []


async def test_gate_that_a_listener_settles_at_once_asks_no_approver(tmp_path: Path) -> None:
    async with make_approval_fixture(tmp_path / "gateway.db", may_approve=by_leo) as desk:
        buses = EventBuses()
        HandlerGates(desk.approvals).listen(buses)
        buses.observability.on("turnGateOpen", lambda event: event.gate.resolve("at once"))
        with call_context(a_call()):
            answer = await open_gate(RAW, "turn_1", signal=AbortController().signal, emit=buses.emit)
        await asyncio.sleep(0.1)
        found, _ = await desk.approvals.page(LEO)

    assert (answer, found) == ("at once", [])


async def test_schema_that_is_no_json_schema_leaves_the_check_to_the_gate(tmp_path: Path) -> None:
    class Odd:
        def coerce(self, value: Any) -> Any:
            return value["n"]

        def describe(self) -> Any:
            return {"type": "no such type"}

    async with make_approval_fixture(tmp_path / "gateway.db", may_approve=by_leo) as desk:
        for answer, outcome in (({"n": 1}, 1), ({"m": 1}, GateRefused)):
            waiting = asyncio.create_task(open_handler_gate(desk.approvals, schema=Odd(), id=f"g{answer}"))
            await desk.approvals.decide(await wait_for_request(desk, LEO), LEO, "grant", resolution=answer)
            if outcome is GateRefused:
                with pytest.raises(GateRefused, match="does not fit"):
                    await waiting
            else:
                assert await waiting == outcome

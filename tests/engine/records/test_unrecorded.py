"""Calls that ran while the store failed: answered truthfully, recorded when it recovers, never run again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.engine.call import OutcomeLost, OutcomeNotRecorded
from gateway.errors import IdempotencyConflict, StoreUnavailable
from gateway.model.turns.events import now
from gateway.storage.call_store import CallFilter
from tests.engine.records.test_auditor import Audited, audited, rename
from tests.engine.service_gateway import ANA, Plan, trust

pytestmark = pytest.mark.anyio

WRITES = trust("writes")


class Breaking:
    """A tool that has its effect and breaks the store while it runs."""

    def __init__(self) -> None:
        self.found: Audited | None = None
        self.ran = 0
        self.is_ready = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def __call__(self, call: Any) -> str:
        self.ran += 1
        if self.found is not None:
            await rename(self.found, "audit", "away")
        self.is_ready.set()
        await self.goes_on.wait()
        return f"paid {self.ran}"


async def statuses(found: Audited) -> list[str]:
    calls, _ = await found.gateway.store.list_calls(CallFilter(), limit=9)
    return [each.status for each in calls]


async def mend(found: Audited) -> None:
    await rename(found, "away", "audit")
    await found.gateway.store.close_interrupted_calls(now())


async def text_of(settled: Any) -> str:
    results = settled.record.results
    return str(await results.as_string() if hasattr(results, "as_string") else results)


async def test_writing_call_is_answered_with_its_result_and_recorded_later(tmp_path: Path) -> None:
    tool = Breaking()
    async with audited(tmp_path, Plan().tool("pay", tool, trust=WRITES)) as found:
        tool.found = found
        settled = await found.call(key="k")
        before = await statuses(found)
        again = await found.call(key="k")
        with pytest.raises(IdempotencyConflict, match="another call"):
            await found.call(key="k", args={"other": 1})
        await mend(found)
        after = await statuses(found)
        later = await found.call(key="k")

        assert (settled.is_recorded, settled.record.is_error, settled.has_begun) == (False, False, True)
        assert [await text_of(each) for each in (settled, again, later)] == ["paid 1"] * 3
        assert {each.record.id for each in (settled, again, later)} == {settled.record.id}
        assert (again.is_replay, later.is_replay, later.is_recorded) == (True, True, True)
        assert (before, after, tool.ran) == (["started"], ["settled"], 1)
        events = [each["event"] for each in found.entries]
        assert sorted(events) == ["call-replayed", "call-replayed", "call-settled", "call-started"]


async def test_reading_call_is_not_shown_before_it_is_recorded(tmp_path: Path) -> None:
    tool = Breaking()
    async with audited(tmp_path, Plan().tool("pay", tool)) as found:
        tool.found = found
        with pytest.raises(OutcomeNotRecorded) as lost:
            await found.call()
        await mend(found)
        stored, record = await found.gateway.service.find_call(ANA, lost.value.call_id, turn_id=lost.value.turn_id)

        assert isinstance(lost.value, OutcomeLost)
        assert (stored.status, record.is_error, lost.value.status) == ("settled", False, 424)


async def test_next_call_of_the_same_turn_goes_on_before_and_after_the_store_recovers(tmp_path: Path) -> None:
    tool = Breaking()
    async with audited(tmp_path, Plan().tool("pay", tool)) as found:
        service = found.gateway.service
        turn = await service.turns.open(ANA, "desk", is_kept=False, is_shared=True)
        tool.found = found
        with pytest.raises(OutcomeNotRecorded):
            await service.call_in_turn(turn, "pay", None)
        tool.found = None
        await rename(found, "away", "audit")
        between = await service.call_in_turn(turn, "pay", None)
        await found.gateway.store.close_interrupted_calls(now())
        after = await service.call_in_turn(turn, "pay", None)

        assert (between.is_recorded, after.is_recorded) == (True, True)
        assert await statuses(found) == ["settled"] * 3


async def test_call_that_was_cut_off_while_the_store_failed_is_unknown_without_a_restart(tmp_path: Path) -> None:
    tool = Breaking()
    tool.goes_on.clear()
    async with audited(tmp_path, Plan().tool("pay", tool, trust=WRITES)) as found:
        tool.found = found
        calling = asyncio.create_task(found.call(key="k"))
        await tool.is_ready.wait()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        before = await statuses(found)
        await mend(found)

        assert (before, await statuses(found)) == (["started"], ["unknown"])
        with pytest.raises(IdempotencyConflict, match="not known"):
            await found.call(key="k")
        assert tool.ran == 1


async def test_tool_that_did_not_run_is_not_reported_as_failed(tmp_path: Path) -> None:
    tool = Breaking()
    async with audited(tmp_path, Plan().tool("pay", tool, trust=WRITES)) as found:
        service, real = found.gateway.service, found.gateway.store.start_call
        found.gateway.store.start_call = _refusing  # type: ignore[method-assign] # only the start record finds no room
        settled = await found.call()
        found.gateway.store.start_call = real  # type: ignore[method-assign] # restored

        assert await text_of(settled) == "the call was not made: the disk is full"
        assert settled.fault is not None
        assert (settled.has_begun, settled.fault.code, settled.fault.status) == (False, "E_STORE_UNAVAILABLE", 503)
        assert (tool.ran, service.running is not None) == (0, True)


async def _refusing(*_: Any, **__: Any) -> None:
    raise StoreUnavailable("the disk is full")


async def test_result_that_cannot_be_kept_states_that_the_tool_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(call: Any) -> str:
        return "x" * 200_000

    async with audited(tmp_path, Plan().tool("pay", run, trust=WRITES)) as found:
        turn = await found.gateway.service.turns.open(ANA, "desk")
        monkeypatch.setattr(type(turn.spool), "write", _refusing)
        settled = await found.gateway.service.call_in_turn(turn, "pay", None)

        message = "the tool ran, but its result could not be stored: the disk is full; do not repeat the call"
        assert (settled.record.is_error, await text_of(settled)) == (True, message)
        assert settled.has_begun

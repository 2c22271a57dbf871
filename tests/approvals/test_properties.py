"""Approvals against a model: whatever people, clocks and processes do, a call runs only as it was approved."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.approvals.approval_store import ApprovalRequest
from gateway.errors import GatewayError
from tests.approvals.held_calls import (
    ADA,
    LEA,
    LEAD,
    LEO,
    LIV,
    MAX,
    ApprovalFixture,
    Clock,
    Directory,
    action,
    make_approval_fixture,
    refund,
)

PEOPLE = {each.subject: each for each in (ADA, LEA, LEO, LIV, MAX)}
CALLS: dict[str, ApprovalRequest] = {
    "once": refund(),
    "other": refund(action(arguments={"amount": 701, "order": "A-1"})),
    "twice": refund(action(definition="d2"), needed=2),
    "again": refund(action(revision="r2"), reuse_for=timedelta(minutes=10)),
}


@dataclass(slots=True)
class Expected:
    """What a simple count knows of one approval."""

    call: str
    asked: datetime
    voters: set[str] = field(default_factory=set)
    granted: datetime | None = None
    is_over: bool = False
    uses: int = 0


class ApprovalMachine(RuleBasedStateMachine):
    """Two processes on one file, one clock, one directory of roles."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = TemporaryDirectory()
        self.clock = Clock()
        self.directory = Directory()
        self.open = AsyncExitStack()
        self.desks: list[ApprovalFixture] = [self.runner.run(self._opened()) for _ in range(2)]
        self.expected: dict[str, Expected] = {}

    async def _opened(self) -> ApprovalFixture:
        path = Path(self.folder.name) / "gateway.db"
        return await self.open.enter_async_context(
            make_approval_fixture(path, clock=self.clock, directory=self.directory)
        )

    def teardown(self) -> None:
        self.runner.run(self.open.aclose())
        self.runner.close()
        self.folder.cleanup()

    @rule(call=st.sampled_from(sorted(CALLS)), desk=st.integers(0, 1))
    def call_tool(self, call: str, desk: int) -> None:
        standing = self.runner.run(self.desks[desk].again(CALLS[call]))

        [approval] = standing.approvals
        known = self.expected.get(approval.id)
        match standing.state:
            case "taken":
                assert known is not None
                self._may_run(known)
                known.uses += 1
            case "pending":
                if known is None:
                    assert standing.requested == (approval,)
                    assert self._live(call) == []
                    self.expected[approval.id] = Expected(call, self.clock())
                else:
                    assert known.granted is None
            case "refused":
                assert known is not None
                assert known.is_over
                assert self.clock() < known.asked + timedelta(minutes=30)
            case "void":
                assert known is not None
                assert known.granted is not None
                assert self._valid(known) < CALLS[call].needed
                known.is_over = True
            case _:
                raise AssertionError(standing.state)

    def _may_run(self, known: Expected) -> None:
        request = CALLS[known.call]
        assert known.granted is not None
        assert not known.is_over
        assert self._valid(known) >= request.needed
        if request.reuse_for is None:
            assert known.uses == 0
        if known.uses:
            assert self.clock() < known.granted + (request.reuse_for or timedelta(0))
        else:
            assert self.clock() < known.asked + request.timeout

    def _valid(self, known: Expected) -> int:
        return sum(LEAD in self.directory.roles.get(voter, ()) for voter in known.voters)

    def _live(self, call: str) -> list[Expected]:
        """Approvals of a call that exclude a new one."""
        return [
            each
            for each in self.expected.values()
            if each.call == call and not each.is_over and each.uses == 0 and self._is_in_time(each)
        ]

    def _is_in_time(self, known: Expected) -> bool:
        return self.clock() < known.asked + CALLS[known.call].timeout

    @rule(
        person=st.sampled_from(sorted(PEOPLE)),
        vote=st.sampled_from(["grant", "grant", "refuse"]),
        desk=st.integers(0, 1),
        data=st.data(),
    )
    def cast_vote(self, person: str, vote: Any, desk: int, data: st.DataObject) -> None:
        if not self.expected:
            return
        id = data.draw(st.sampled_from(sorted(self.expected)))
        known = self.expected[id]
        allowed = (
            person != ADA.subject
            and LEAD in self.directory.roles.get(person, ())
            and known.granted is None
            and not known.is_over
            and self._is_in_time(known)
            and person not in known.voters
        )
        self.desks[desk].served = CALLS[known.call].action.revision
        try:
            record = self.runner.run(self.desks[desk].approvals.decide(id, PEOPLE[person], vote))
        except GatewayError:
            assert not allowed
            return
        assert allowed
        if vote == "refuse":
            known.is_over = True
        else:
            known.voters.add(person)
            if self._valid(known) >= CALLS[known.call].needed:
                known.granted = self.clock()
        assert (record.state == "granted") == (known.granted is not None)

    @rule(person=st.sampled_from(sorted(PEOPLE)), has=st.booleans())
    def roles_change(self, person: str, has: bool) -> None:
        self.directory.roles[person] = {LEAD} if has else set()

    @rule(minutes=st.sampled_from([1, 9, 10, 29, 30]))
    def time_passes(self, minutes: int) -> None:
        self.clock.advance(minutes=minutes)

    @rule(desk=st.integers(0, 1))
    def sweep_approvals(self, desk: int) -> None:
        self.runner.run(self.desks[desk].approvals.sweep())

    @rule()
    def everything_is_started_again(self) -> None:
        self.runner.run(self.open.aclose())
        self.open = AsyncExitStack()
        self.desks = [self.runner.run(self._opened()) for _ in range(2)]

    @invariant()
    def no_approver_votes_twice_or_on_their_own_call(self) -> None:
        for id in self.expected:
            record = self.runner.run(self.desks[0].store.find(id))
            assert record is not None
            voters = [each.approver.subject for each in record.entries]
            assert len(set(voters)) == len(voters)
            assert ADA.subject not in voters
            if record.state == "used" and record.reuse_until is None:
                assert self.expected[id].uses == 1


TestApprovalMachine = ApprovalMachine.TestCase
TestApprovalMachine.settings = settings(max_examples=12, stateful_step_count=25)

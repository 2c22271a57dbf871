"""Held calls whose callers come back for them: what became of one, looked up by a name that outlives the process.

Everything a task is lies in its approvals, so that any process can answer for it. The call is made by whoever looks
first after people have decided: then its caller is there and known, whatever their rights are by now counts, and no
process has to stay alive to keep a promise. An idempotency key makes sure that it is made once.
"""

import asyncio
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

from gateway.approvals.approving import Approvals, refusal_of
from gateway.approvals.confirming import seal_of_confirmed
from gateway.approvals.deciding import Standing
from gateway.approvals.refusals import ApprovalPending, UnknownApproval
from gateway.core.events import now
from gateway.errors import (
    GatewayError,
    IdempotencyConflict,
    Missing,
    RecordConflict,
    UnknownCatalogue,
    UnknownTool,
    UnknownTurn,
)
from gateway.governance.approvals import ApprovalRecord
from gateway.governance.principals import Principal
from gateway.serving.claims import RUNNING
from gateway.serving.course import OutcomeLost
from gateway.serving.current import Holding
from gateway.serving.service import Service
from gateway.serving.settled import Settled

TaskStatus = Literal["working", "completed", "failed", "cancelled"]

ANSWERED_WITHIN: Final = 2.0
"""Seconds that whoever looks waits for a call that has just begun."""
SOON: Final = 1
MOST_APPROVALS: Final = 16

_BETWEEN: Final = "."
_CONFIRMED: Final = "~"
"""Before the proof that the caller has confirmed the call: a rule may ask for both."""
_FOR_GOOD: Final = (UnknownTool, UnknownTurn, UnknownCatalogue, IdempotencyConflict, OutcomeLost)
"""Looking again would come to the same."""


class UnknownTask(Missing):
    """Also for tasks of somebody else, of another catalogue, and those whose time is up."""

    code = "E_UNKNOWN_TASK"
    default_message = "there is no such task"


@dataclass(frozen=True, slots=True)
class HeldTask:
    """How a held call stands. `ends` is until when it can be looked up, `settled` what a call that was made came to."""

    id: str
    status: TaskStatus
    message: str
    created_at: datetime
    updated_at: datetime
    ends: datetime
    look_again: int | None = None
    """Seconds after which looking again is worth while."""
    settled: Settled | None = None
    error: GatewayError | None = None


class HeldTasks:
    """The tasks of one catalogue. One per process and catalogue; what it keeps in memory are calls that run."""

    def __init__(self, service: Service, approvals: Approvals, catalogue: str) -> None:
        self._service = service
        self._approvals = approvals
        self._catalogue = catalogue
        self._running: dict[str, asyncio.Task[Settled]] = {}

    def begun(self, settled: Settled) -> HeldTask:
        """The task of a call that was just told to wait for people."""
        approvals = settled.approvals
        id = _BETWEEN.join(each.id for each in approvals)
        if settled.is_confirmed:
            id += _CONFIRMED + seal_of_confirmed(settled.turn.turn_secret, approvals[0].digest)
        return self._waiting(id, approvals)

    async def look(self, id: str, principal: Principal) -> HeldTask:
        """How it stands. The first to look after people have decided makes the call. Raises `UnknownTask`."""
        records = await self._records(id, principal)
        running = self._running.get(id)
        if running is None:
            # After the approvals: one that is used already has its call on record by then.
            outcome = await self._service.replaying.outcome(principal, _call_id(records), turn_id=_turn_of(records))
            if isinstance(outcome, Settled):
                return self._completed(id, records, outcome)
            if outcome is not None:
                return self._at_work(id, records) if outcome.status == "started" else self._lost(id, records)
            if any(each.state == "withdrawn" for each in records):
                return self._told(id, records, "cancelled", "taken back by the caller")
            if _is_waiting(records):
                return self._waiting(id, records)
            running = self._running.get(id) or self._begin(id, records, principal)
        return await self._soon(id, records, running)

    async def cancel(self, id: str, principal: Principal) -> None:
        """Take the call back if it does not run yet; one that does goes on. Raises `UnknownTask`."""
        records = await self._records(id, principal)
        await self._approvals.withdraw(principal, [each.id for each in records])

    async def known(self, id: str, principal: Principal) -> None:
        """Raises `UnknownTask`."""
        await self._records(id, principal)

    async def close(self) -> None:
        running = tuple(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    # --- making the call ---

    def _begin(self, id: str, records: Sequence[ApprovalRecord], principal: Principal) -> "asyncio.Task[Settled]":
        """In a task of its own: whoever looks may go away, and that takes nothing back."""
        task = asyncio.create_task(self._made(id, records, principal), name="gateway-held-task")
        self._running[id] = task
        task.add_done_callback(lambda done: self._over(id, done))
        return task

    def _over(self, id: str, task: "asyncio.Task[Settled]") -> None:
        del self._running[id]
        if not task.cancelled():
            task.exception()  # whoever looks next is told

    async def _made(self, task_id: str, records: Sequence[ApprovalRecord], principal: Principal) -> Settled:
        request = records[0].request
        args: dict[str, Any] = json.loads(request.action.arguments)
        id = _call_id(records)
        holding = Holding(approvals=tuple(each.id for each in records))
        if seal := task_id.partition(_CONFIRMED)[2]:
            turn = await self._service.turns.find(principal, _turn_of(records), catalogue=self._catalogue)
            digest = records[0].digest
            # constant time: whoever tries seals learns nothing from how long it took
            if hmac.compare_digest(seal.encode(), seal_of_confirmed(turn.turn_secret, digest).encode()):
                holding = replace(holding, answer="accept", about=digest)
        return await self._service.call_alone(
            principal, self._catalogue, request.advertised, args, handle=request.turn_id, id=id, key=id, holding=holding
        )

    async def _soon(self, id: str, records: Sequence[ApprovalRecord], running: "asyncio.Task[Settled]") -> HeldTask:
        await asyncio.wait({running}, timeout=ANSWERED_WITHIN)
        if not running.done() or running.cancelled():
            return self._at_work(id, records)
        error = running.exception()
        if error is None:
            return self._completed(id, records, running.result())
        if isinstance(error, RecordConflict) or getattr(error, "code", "") == RUNNING:  # another process was faster
            return self._at_work(id, records)
        if isinstance(error, _FOR_GOOD):
            return self._told(id, records, "failed", error.message, error=error)
        raise error

    # --- telling ---

    def _completed(self, id: str, records: Sequence[ApprovalRecord], settled: Settled) -> HeldTask:
        at = settled.record.completed_at or now()
        message = "refused or failed" if settled.record.is_error else "done"
        created = records[0].created_at
        return HeldTask(id, "completed", message, created, at, at + self._service.lives, settled=settled)

    def _waiting(self, id: str, records: Sequence[ApprovalRecord]) -> HeldTask:
        refusal = refusal_of(Standing("pending", tuple(records)), now())
        assert isinstance(refusal, ApprovalPending)  # noqa: S101 - what is pending is told so
        message = "; ".join(f"waits for approval: {each.request.reason}" for each in records if each.state == "pending")
        return self._told(id, records, "working", message, look_again=refusal.retry_after)

    def _at_work(self, id: str, records: Sequence[ApprovalRecord]) -> HeldTask:
        return self._told(id, records, "working", "the call runs", look_again=SOON)

    def _lost(self, id: str, records: Sequence[ApprovalRecord]) -> HeldTask:
        error = GatewayError("what became of the call is not known", help="look at its effects before you try again")
        return self._told(id, records, "failed", error.message, error=error)

    def _told(
        self,
        id: str,
        records: Sequence[ApprovalRecord],
        status: TaskStatus,
        message: str,
        *,
        look_again: int | None = None,
        error: GatewayError | None = None,
    ) -> HeldTask:
        created = records[0].created_at
        updated = max(each.used_at or each.decided_at or each.created_at for each in records)
        return HeldTask(id, status, message, created, updated, self._end(records), look_again, error=error)

    async def _records(self, id: str, principal: Principal) -> list[ApprovalRecord]:
        ids = id.partition(_CONFIRMED)[0].split(_BETWEEN)
        if len(ids) > MOST_APPROVALS:
            raise UnknownTask()
        try:
            records = await self._approvals.asked_by(principal, ids)
        except UnknownApproval:
            raise UnknownTask() from None
        if records[0].request.action.catalogue != self._catalogue or now() >= self._end(records):
            raise UnknownTask()
        return records

    def _end(self, records: Sequence[ApprovalRecord]) -> datetime:
        return max(each.used_at or each.expires_at for each in records) + self._service.lives


def _is_waiting(records: Sequence[ApprovalRecord]) -> bool:
    """Whether people are still to decide: where one of them is decided against, nobody has to wait for the others."""
    states = {each.state for each in records}
    return "pending" in states and states <= {"pending", "granted", "used"}


def _call_id(records: Sequence[ApprovalRecord]) -> str:
    """The call that a task makes, and its idempotency key: one for each approval, whoever comes to make it."""
    return f"task-{records[0].id}"


def _turn_of(records: Sequence[ApprovalRecord]) -> str:
    return records[0].request.turn_id or ""

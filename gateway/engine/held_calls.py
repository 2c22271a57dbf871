"""Held calls as tasks: callers look up the status of one by an id that outlives the process.

All state of a task is in its approvals, so that any process can answer for it. The first status request after approvers
have decided makes the call: then its caller is present and known, the caller's current rights apply, and no process has
to stay alive for it. An idempotency key ensures that it is made once.

A confirmation is valid for its caller only. Its proof is a signature with the secret of the turn in which the question
was asked, which every process knows.
"""

import asyncio
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, Literal

from gateway.approvals import (
    ApprovalPending,
    ApprovalRecord,
    ApprovalService,
    HoldStatus,
    UnknownApproval,
    outcome_error,
)
from gateway.engine.call import HoldPolicy, OutcomeLost
from gateway.engine.records.idempotency import CALL_RUNNING_CODE
from gateway.engine.result_content import CallOutcome
from gateway.engine.service import Service
from gateway.errors import (
    GatewayError,
    IdempotencyConflict,
    Missing,
    RecordConflict,
    UnknownCatalogue,
    UnknownTool,
    UnknownTurn,
)
from gateway.model import Principal, now

TaskStatus = Literal["working", "completed", "failed", "cancelled"]

ANSWER_TIMEOUT: Final = 2.0
"""Seconds that a status request waits for a call that has just begun."""
POLL_SECONDS: Final = 1
MAX_APPROVALS: Final = 16

_BETWEEN: Final = "."
_CONFIRMED: Final = "~"
"""Precedes the proof that the caller has confirmed the call: a rule may require both."""
_CONFIRMATION: Final = b"confirmed"
_FOR_GOOD: Final = (UnknownTool, UnknownTurn, UnknownCatalogue, IdempotencyConflict, OutcomeLost)
"""Errors that another status request would return again."""


class UnknownTask(Missing):
    """Also raised for tasks of other callers, of another catalogue, and for expired ones."""

    code = "E_UNKNOWN_TASK"
    default_message = "there is no such task"


@dataclass(frozen=True, slots=True)
class HeldCall:
    """The status of a held call. `ends` is until when it can be looked up, `settled` the outcome of the call."""

    id: str
    status: TaskStatus
    message: str
    created_at: datetime
    updated_at: datetime
    ends: datetime
    look_again: int | None = None
    """Seconds after which another status request is worthwhile."""
    settled: CallOutcome | None = None
    error: GatewayError | None = None


class HeldCalls:
    """The tasks of one catalogue. One per process and catalogue; only running calls are in its memory."""

    def __init__(self, service: Service, approvals: ApprovalService, catalogue: str) -> None:
        self._service = service
        self._approvals = approvals
        self._catalogue = catalogue
        self._running: dict[str, asyncio.Task[CallOutcome]] = {}

    def create(self, settled: CallOutcome) -> HeldCall:
        """Return the task of a call that was just held for approval."""
        approvals = settled.approvals
        id = _BETWEEN.join(each.id for each in approvals)
        if settled.is_confirmed:
            id += _CONFIRMED + sign_confirmation(settled.turn.turn_secret, approvals[0].digest)
        return self._to_waiting(id, approvals)

    async def get_status(self, id: str, principal: Principal) -> HeldCall:
        """Return the status. The first request after approvers have decided makes the call. Raise `UnknownTask`."""
        records = await self._records(id, principal)
        running = self._running.get(id)
        if running is None:
            # Read after the approvals: the call of a used approval is on record by then.
            outcome = await self._service.replaying.get_outcome(principal, _call_id(records), turn_id=_turn_of(records))
            if isinstance(outcome, CallOutcome):
                return self._to_completed(id, records, outcome)
            if outcome is not None:
                return self._to_running(id, records) if outcome.status == "started" else self._to_lost(id, records)
            if any(each.state == "withdrawn" for each in records):
                return self._to_status(id, records, "cancelled", "withdrawn by the caller")
            if _is_waiting(records):
                return self._to_waiting(id, records)
            running = self._running.get(id) or self._begin(id, records, principal)
        return await self._wait(id, records, running)

    async def cancel(self, id: str, principal: Principal) -> None:
        """Withdraw the call if it does not run yet; a running one continues. Raise `UnknownTask`."""
        records = await self._records(id, principal)
        await self._approvals.withdraw(principal, [each.id for each in records])

    async def find(self, id: str, principal: Principal) -> None:
        """Raise `UnknownTask` if there is no such task."""
        await self._records(id, principal)

    async def close(self) -> None:
        running = tuple(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    # --- making the call ---

    def _begin(self, id: str, records: Sequence[ApprovalRecord], principal: Principal) -> "asyncio.Task[CallOutcome]":
        """Make the call in its own task: it continues if the requester leaves."""
        task = asyncio.create_task(self._make_call(id, records, principal), name="gateway-held-task")
        self._running[id] = task
        task.add_done_callback(lambda done: self._on_done(id, done))
        return task

    def _on_done(self, id: str, task: "asyncio.Task[CallOutcome]") -> None:
        del self._running[id]
        if not task.cancelled():
            task.exception()  # marks it as retrieved; the next status request reports it

    async def _make_call(self, task_id: str, records: Sequence[ApprovalRecord], principal: Principal) -> CallOutcome:
        request = records[0].request
        args: dict[str, Any] = json.loads(request.action.arguments)
        id = _call_id(records)
        holding = HoldPolicy(approvals=tuple(each.id for each in records))
        if seal := task_id.partition(_CONFIRMED)[2]:
            turn = await self._service.turns.find(principal, _turn_of(records), catalogue=self._catalogue)
            digest = records[0].digest
            # constant time, so that guessing seals reveals nothing
            if hmac.compare_digest(seal.encode(), sign_confirmation(turn.turn_secret, digest).encode()):
                holding = replace(holding, answer="accept", about=digest)
        return await self._service.call_tool(
            principal, self._catalogue, request.advertised, args, handle=request.turn_id, id=id, key=id, holding=holding
        )

    async def _wait(self, id: str, records: Sequence[ApprovalRecord], running: "asyncio.Task[CallOutcome]") -> HeldCall:
        await asyncio.wait({running}, timeout=ANSWER_TIMEOUT)
        if not running.done() or running.cancelled():
            return self._to_running(id, records)
        error = running.exception()
        if error is None:
            return self._to_completed(id, records, running.result())
        if isinstance(error, RecordConflict) or getattr(error, "code", "") == CALL_RUNNING_CODE:
            return self._to_running(id, records)  # another process makes the call
        if isinstance(error, _FOR_GOOD):
            return self._to_status(id, records, "failed", error.message, error=error)
        raise error

    # --- statuses ---

    def _to_completed(self, id: str, records: Sequence[ApprovalRecord], settled: CallOutcome) -> HeldCall:
        at = settled.record.completed_at or now()
        message = "refused or failed" if settled.record.is_error else "done"
        created = records[0].created_at
        return HeldCall(id, "completed", message, created, at, at + self._service.lives, settled=settled)

    def _to_waiting(self, id: str, records: Sequence[ApprovalRecord]) -> HeldCall:
        refusal = outcome_error(HoldStatus("pending", tuple(records)), now())
        assert isinstance(refusal, ApprovalPending)  # noqa: S101 - the status is pending
        message = "; ".join(f"waits for approval: {each.request.reason}" for each in records if each.state == "pending")
        return self._to_status(id, records, "working", message, look_again=refusal.retry_after)

    def _to_running(self, id: str, records: Sequence[ApprovalRecord]) -> HeldCall:
        return self._to_status(id, records, "working", "the call runs", look_again=POLL_SECONDS)

    def _to_lost(self, id: str, records: Sequence[ApprovalRecord]) -> HeldCall:
        error = GatewayError("the outcome of the call is not known", help="check its effects before you try again")
        return self._to_status(id, records, "failed", error.message, error=error)

    def _to_status(
        self,
        id: str,
        records: Sequence[ApprovalRecord],
        status: TaskStatus,
        message: str,
        *,
        look_again: int | None = None,
        error: GatewayError | None = None,
    ) -> HeldCall:
        created = records[0].created_at
        updated = max(each.used_at or each.decided_at or each.created_at for each in records)
        return HeldCall(id, status, message, created, updated, self._end(records), look_again, error=error)

    async def _records(self, id: str, principal: Principal) -> list[ApprovalRecord]:
        ids = id.partition(_CONFIRMED)[0].split(_BETWEEN)
        if len(ids) > MAX_APPROVALS:
            raise UnknownTask()
        try:
            records = await self._approvals.find_requested(principal, ids)
        except UnknownApproval:
            raise UnknownTask() from None
        if records[0].request.action.catalogue != self._catalogue or now() >= self._end(records):
            raise UnknownTask()
        return records

    def _end(self, records: Sequence[ApprovalRecord]) -> datetime:
        return max(each.used_at or each.expires_at for each in records) + self._service.lives


def _is_waiting(records: Sequence[ApprovalRecord]) -> bool:
    """Whether approvers still have to decide: once one approval is refused, the others do not matter."""
    states = {each.state for each in records}
    return "pending" in states and states <= {"pending", "granted", "used"}


def _call_id(records: Sequence[ApprovalRecord]) -> str:
    """Return the id and idempotency key of a task's call: the same for each approval in every process."""
    return f"task-{records[0].id}"


def _turn_of(records: Sequence[ApprovalRecord]) -> str:
    return records[0].request.turn_id or ""


def sign_confirmation(secret: bytes, digest: str) -> str:
    """Prove that the caller has confirmed the action of that digest, in the turn of that secret."""
    return hmac.new(secret, _CONFIRMATION + b"\0" + digest.encode(), sha256).hexdigest()[:32]

"""Idempotency keys: a call that is sent again runs once; its caller receives the outcome of the first call.

A key grants no rights: the outcome of a call that the caller may no longer make or read is not returned again.
"""

from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final

from gateway.engine.access_rights import may_call, may_read
from gateway.engine.call import Call, Fault
from gateway.engine.records.auditor import Auditor
from gateway.engine.records.call_mapper import Spool, from_stored_call, to_started_row
from gateway.engine.records.recorder import CallRecorder
from gateway.engine.result_content import CallOutcome
from gateway.engine.turns.turn import Turn
from gateway.engine.turns.turn_store import TurnStore
from gateway.errors import (
    IdempotencyConflict,
    InvalidToolArgs,
    RecordConflict,
    StoreUnavailable,
    UnknownCall,
    UnknownTurn,
)
from gateway.model import Principal, candidate_call_ids, now, to_microseconds
from gateway.storage import CallStore, HeldKey, RecordStore, StoredCall

KEY_RETENTION: Final = timedelta(days=1)
"""How long a key is stored if no pipeline sets it."""

CALL_RUNNING_CODE: Final = "E_IDEMPOTENCY_RUNNING"

MAX_KEY: Final = 255


def is_key(text: str) -> bool:
    """Whether the text is a valid key: 1 to `MAX_KEY` printable ASCII characters."""
    return 0 < len(text) <= MAX_KEY and text.isascii() and text.isprintable()


async def claim_key(store: CallStore, turn: Turn, call: Call) -> StoredCall | None:
    """Return `None` if the call may run, or the settled call if it ran before."""
    claiming = to_started_row(call, turn.id)
    assert call.idempotency_key is not None  # noqa: S101 - only calls with a key are claimed
    digest, until = f"{call.catalogue}:{claiming.fingerprint}", now() + _life(turn, call)
    claiming_with = partial(
        store.claim_idempotency_key, call.idempotency_key, turn.principal, digest=digest, call=claiming, until=until
    )
    try:
        claim = await claiming_with(turn=None if turn.is_stored else turn.stored)
    except RecordConflict:
        if not turn.is_stored:
            raise
        claim = await claiming_with(turn=turn.stored)  # the store was replaced and does not know the turn
    if claim.state == "fresh":
        turn.is_stored = call.is_started = True
        call.held_key = HeldKey(call.idempotency_key, digest, to_microseconds(until))
    if claim.state == "taken":
        raise IdempotencyConflict(help="use a new key, or send the arguments that this key was first used with")
    if claim.state == "unknown":
        raise IdempotencyConflict(
            "the outcome of the call with this idempotency key is not known",
            help="check its effects before you try again",
        )
    if claim.state == "running":
        raise IdempotencyConflict(
            "the call with this idempotency key is still running",
            help="ask again later",
            code=CALL_RUNNING_CODE,
        )
    return claim.call if claim.state == "settled" else None


def _life(turn: Turn, call: Call) -> timedelta:
    """Return how long the key is stored, by the pipeline. The key of an approved call lives at least a day."""
    snapshot = turn.published.snapshot
    pipeline = snapshot.pipelines.get(snapshot.catalogues[call.catalogue].pipeline)
    stage = None if pipeline is None else pipeline.stage("idempotency")
    retention: timedelta = KEY_RETENTION if stage is None else stage.options["keep"]
    return max(retention, KEY_RETENTION) if call.holding.approvals or call.holding.answer else retention


class CallReplay:
    """One per process."""

    def __init__(
        self, store: RecordStore, spool: Spool, turns: TurnStore, writing: CallRecorder, auditor: Auditor | None
    ) -> None:
        self._store = store
        self._spool = spool
        self._turns = turns
        self._writing = writing
        self._auditor = auditor

    async def find_outcome(self, turn: Turn, call: Call) -> CallOutcome | None:
        """Return the outcome of an earlier call with the same key; if there is none, this call claims the key."""
        call.identity = None if call.declared is None else call.declared.name
        earlier = await claim_key(self._store, turn, call)
        return None if earlier is None else await self._replay(earlier, turn, call)

    async def get_outcome(self, principal: Principal, id: str, *, turn_id: str) -> StoredCall | CallOutcome | None:
        """Return the outcome of the caller's own call: its row if it has not settled, `None` if it was not made.

        Raise `UnknownCall` for a call that the caller may no longer make or read.
        """
        stored = await self._store.find_call(id, principal, turn_id=turn_id)
        if stored is None or stored.status != "settled":
            return stored
        return await self._load_outcome(stored, await self._turns.find_any(principal, turn_id))

    async def _replay(self, earlier: StoredCall, turn: Turn, call: Call) -> CallOutcome:
        """Replay an outcome, with an audit entry and with its taint recorded in the turn that receives it."""
        try:
            replayed = await self._load_outcome(earlier, turn)
        except UnknownCall:
            await self._writing.record_refusal(call, "not-permitted")
            raise
        target = await self._target_of(earlier, turn.principal)
        if earlier.turn_id != turn.id and target is not None:
            turn.record_read(target)
        audit = [self._auditor.replay_entry(call, earlier)] if self._auditor is not None else ()
        try:
            await self._writing.record_turn_state(turn, audit)
        except StoreUnavailable:  # the call ran: return the same outcome, and write the entry later
            self._store.postpone_audit(audit)
        return replayed

    async def _load_outcome(self, earlier: StoredCall, turn: Turn) -> CallOutcome:
        """Return the outcome in its own turn while that is open. Raise `UnknownCall` if the caller may not read it."""
        if not await self._may_replay(turn.principal, earlier):
            raise UnknownCall()
        record = await from_stored_call(earlier, turn.published.types, self._spool)
        if earlier.turn_id != turn.id:
            with suppress(UnknownTurn, StoreUnavailable):
                turn = await self._turns.find(turn.principal, earlier.turn_id)
        return CallOutcome(record, turn, is_replay=True, fault=_fault_of(earlier))

    async def _target_of(self, earlier: StoredCall, principal: Principal) -> StoredCall | None:
        """Return the call whose result it contains: for a query, the call that the query reads."""
        if not earlier.from_artifact_tool:
            return earlier
        for id in candidate_call_ids(str(earlier.args.get("callId"))):
            if (found := await self._store.find_call(id, principal)) is not None:
                return found
        return None

    async def _may_replay(self, principal: Principal, earlier: StoredCall) -> bool:
        if earlier.is_error:
            return True
        published = self._turns.published
        if earlier.from_artifact_tool:
            found = await self._target_of(earlier, principal)
            return found is not None and may_read(published, principal, found, by=earlier.tool)
        return may_call(published, principal, earlier) or may_read(published, principal, earlier)


def _fault_of(earlier: StoredCall) -> Fault | None:
    """Return the fault. A call with invalid arguments has no decision; every other call with a key has run."""
    if earlier.is_error and earlier.decision is None and not earlier.from_artifact_tool:
        return Fault(InvalidToolArgs.code, InvalidToolArgs.status)
    return None

"""What an earlier call settled as, told again: to a caller who sent it twice, or who asks what became of it.

A key is no right: what the caller may neither call nor read any more is not told again.
"""

from contextlib import suppress

from gateway.core.artifacts import calls_named_by
from gateway.errors import InvalidToolArgs, StoreUnavailable, UnknownCall, UnknownTurn
from gateway.governance.outcomes import RecordStore
from gateway.governance.principals import Principal
from gateway.governance.records import StoredCall
from gateway.serving.auditing import Auditor
from gateway.serving.claims import claimed
from gateway.serving.course import Fault
from gateway.serving.current import ServedCall
from gateway.serving.keeping import Spool, restored
from gateway.serving.own_turns import OwnTurns
from gateway.serving.rights import may_call, may_read
from gateway.serving.settled import Settled
from gateway.serving.turns import Turn
from gateway.serving.writing import Writing


class Replaying:
    """One per process."""

    def __init__(
        self, store: RecordStore, spool: Spool, turns: OwnTurns, writing: Writing, auditor: Auditor | None
    ) -> None:
        self._store = store
        self._spool = spool
        self._turns = turns
        self._writing = writing
        self._auditor = auditor

    async def settled_before(self, turn: Turn, call: ServedCall) -> Settled | None:
        """What an earlier call with the same key has settled as; if there was none, the key is this one's."""
        call.identity = None if call.declared is None else call.declared.name
        earlier = await claimed(self._store, turn, call)
        return None if earlier is None else await self._told_again(earlier, turn, call)

    async def outcome(self, principal: Principal, id: str, *, turn_id: str) -> StoredCall | Settled | None:
        """What became of the caller's own call: how it stands if it has not settled, `None` if it was not made.

        Raises `UnknownCall` for what the caller may neither call nor read any more.
        """
        stored = await self._store.find_call(id, principal, turn_id=turn_id)
        if stored is None or stored.status != "settled":
            return stored
        return await self._replayed(stored, await self._turns.look_at(principal, turn_id))

    async def _told_again(self, earlier: StoredCall, turn: Turn, call: ServedCall) -> Settled:
        """That it was told is on record, and what it tells is known to the turn it was sent in."""
        try:
            replayed = await self._replayed(earlier, turn)
        except UnknownCall:
            await self._writing.refused(call, "not-permitted")
            raise
        told = await self._target_of(earlier, turn.principal)
        if earlier.turn_id != turn.id and told is not None:
            turn.reads(told)
        audit = [self._auditor.replayed(call, earlier)] if self._auditor is not None else ()
        try:
            await self._writing.remember(turn, audit)
        except StoreUnavailable:  # the call ran: its key answers the same, whether or not that can be noted now
            self._store.postpone_audit(audit)
        return replayed

    async def _replayed(self, earlier: StoredCall, turn: Turn) -> Settled:
        """In its own turn, as long as that is open. Raises `UnknownCall`."""
        if not await self._may_hear_again(turn.principal, earlier):
            raise UnknownCall()
        record = await restored(earlier, turn.published.types, self._spool)
        if earlier.turn_id != turn.id:
            with suppress(UnknownTurn, StoreUnavailable):
                turn = await self._turns.find(turn.principal, earlier.turn_id)
        return Settled(record, turn, is_replay=True, fault=_fault_of(earlier))

    async def _target_of(self, earlier: StoredCall, principal: Principal) -> StoredCall | None:
        """The call whose result it tells of: of a query, the one that it asks about."""
        if not earlier.from_artifact_tool:
            return earlier
        for id in calls_named_by(str(earlier.args.get("callId"))):
            if (found := await self._store.find_call(id, principal)) is not None:
                return found
        return None

    async def _may_hear_again(self, principal: Principal, earlier: StoredCall) -> bool:
        if earlier.is_error:
            return True
        published = self._turns.published
        if earlier.from_artifact_tool:
            found = await self._target_of(earlier, principal)
            return found is not None and may_read(published, principal, found, by=earlier.tool)
        return may_call(published, principal, earlier) or may_read(published, principal, earlier)


def _fault_of(earlier: StoredCall) -> Fault | None:
    """Nothing was decided about a call whose arguments were invalid; every other one with a key has run."""
    if earlier.is_error and earlier.decision is None and not earlier.from_artifact_tool:
        return Fault(InvalidToolArgs.code, InvalidToolArgs.status)
    return None

"""Turns that several processes serve at once: a caller with a handle may reach any of them.

The state of a turn in one process is what that process saw. Before a decision depends on it, it is merged with what
other processes stored; calls that rules count are counted in the shared store, so that no two take the same place.
Calls that another process made in a turn are added to it from the store.
"""

from collections.abc import Sequence
from typing import Protocol

from gateway.engine.access_rights import filter_readable
from gateway.engine.records.rows import Spool, from_stored_call
from gateway.engine.turns.implicit import ImplicitTurn
from gateway.engine.turns.turn import Turn
from gateway.errors import StoreUnavailable
from gateway.policy import CallBounds
from gateway.storage import AuditBody, CallStore, TurnStateStore


class TurnSync:
    def __init__(self, store: CallStore, spool: Spool) -> None:
        self._store = store
        self._spool = spool

    async def __call__(self, turn: Turn) -> None:
        """Add the settled calls that are stored and not in memory, except those that this process still adds itself."""
        known = {record.id for record in turn.ctx.turn_tool_calls}
        missing = [each for each in await self._store.list_turn_calls(turn.id) if each.id not in known]
        if not missing:
            return
        types = turn.published.types
        found = {each.id: await from_stored_call(each, types, self._spool) for each in missing}
        here = turn.ctx.turn_tool_calls
        settled = turn.running | {record.id for record in here}
        for record in filter_readable(turn, [*here, *found.values()]):
            if record.id in found and record.id not in settled:
                turn.ctx.add_stored_call(record)


class Memories(TurnStateStore, Protocol):
    async def note(
        self, audit: Sequence[AuditBody], *, turn_id: str | None, memory: bytes | None, knowing: bytes | None
    ) -> None: ...


class SharedTurnState:
    def __init__(self, memories: Memories) -> None:
        self._memories = memories

    async def keep(self, turn: Turn | ImplicitTurn) -> None:
        """Make the state of a turn durable. Raise `StoreUnavailable`."""
        memory, knowing = turn.state.begin_write()
        try:
            await self._memories.note((), turn_id=turn.id, memory=memory, knowing=knowing)
        except StoreUnavailable:
            turn.state.abort_write(memory, knowing)
            raise

    async def refresh(self, turn: Turn | ImplicitTurn) -> None:
        """Merge the stored state of a turn. Raise `StoreUnavailable` and `InvalidTurnState`."""
        if turn.is_stored:  # otherwise no other process knows it
            turn.state.merge_stored(await self._memories.read_turn_state(turn.id))

    async def reserve(self, turn: Turn | ImplicitTurn, fingerprint: str, bounds: CallBounds) -> bool:
        """Count a call that is about to be made; return `False` if other processes have reached the bounds."""
        if not turn.is_stored:
            turn.state.reserve_call(fingerprint)
            return True
        memory, knowing = turn.state.begin_write()
        try:
            reserved = await self._memories.reserve_call(
                turn.id, fingerprint, bounds=bounds, memory=memory, knowing=knowing
            )
        except StoreUnavailable:
            turn.state.abort_write(memory, knowing)
            raise
        turn.state.merge_stored(reserved.memory)
        return reserved.is_made

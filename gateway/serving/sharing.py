"""Turns that several processes serve at once: whoever is given a handle may have it served by any of them.

What a process remembers of a turn is what it saw itself. Before anything is decided by it, what others saw is asked
for; and calls that rules count are counted where all processes count, so that no two take the same place.
"""

from collections.abc import Sequence
from typing import Protocol

from gateway.errors import StoreUnavailable
from gateway.governance.memory import Bounds
from gateway.governance.records import AuditBody, TurnMemories
from gateway.serving.implicit_turns import ImplicitTurn
from gateway.serving.turns import Turn


class Memories(TurnMemories, Protocol):
    async def note(
        self, audit: Sequence[AuditBody], *, turn_id: str | None, memory: bytes | None, knowing: bytes | None
    ) -> None: ...


class SharedTurns:
    def __init__(self, memories: Memories) -> None:
        self._memories = memories

    async def keep(self, turn: Turn | ImplicitTurn) -> None:
        """Make durable what a turn remembers. Raises `StoreUnavailable`."""
        memory, knowing = turn.memory.to_write()
        try:
            await self._memories.note((), turn_id=turn.id, memory=memory, knowing=knowing)
        except StoreUnavailable:
            turn.memory.was_not_written(memory, knowing)
            raise

    async def remind(self, turn: Turn | ImplicitTurn) -> None:
        """Have a turn know what it has come to know elsewhere. Raises `StoreUnavailable` and `MemoryUnreadable`."""
        if turn.is_stored:  # else nobody else can have heard of it
            turn.memory.learns(await self._memories.memory_of_turn(turn.id))

    async def reserve(self, turn: Turn | ImplicitTurn, fingerprint: str, bounds: Bounds) -> bool:
        """Count a call that is about to be made; `False` if other processes have used up what there is."""
        if not turn.is_stored:
            turn.memory.reserves(fingerprint)
            return True
        memory, knowing = turn.memory.to_write()
        try:
            reserved = await self._memories.reserve_call(
                turn.id, fingerprint, bounds=bounds, memory=memory, knowing=knowing
            )
        except StoreUnavailable:
            turn.memory.was_not_written(memory, knowing)
            raise
        turn.memory.learns(reserved.memory)
        return reserved.is_made

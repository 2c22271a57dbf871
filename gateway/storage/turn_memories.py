"""What turns remember, changed by one process at a time: as functions of a connection, inside one transaction."""

import sqlite3
from typing import Any

from gateway.errors import RecordConflict
from gateway.governance.memory import Bounds, both_remembered, memory_of
from gateway.governance.records import KeptTurn, Reserved
from gateway.storage import statements


def remember(connection: sqlite3.Connection, turn_id: str, memory: bytes, knowing: bytes | None) -> None:
    """Another process may have served a call of the turn meanwhile: what that one saw must not be forgotten."""
    for found in statements.REMEMBERED.rows(connection, {"turn": turn_id}):
        others = found["memory"]
        kept = memory if others is None or others == knowing else both_remembered(memory, others, since=knowing)
        _write(connection, turn_id, kept)


def keep_going(connection: sqlite3.Connection, turn: dict[str, Any], at: int) -> KeptTurn:
    """A turn that has no calls goes on until its `expires_at`. One that is over begins anew, and remembers nothing."""
    wanted = {"id": turn["id"], "owner": turn["owner"], "at": at}
    for found in statements.FIND_TURN.rows(connection, wanted):
        statements.ENSURE_TURN.run(connection, turn)
        return KeptTurn(False, found["memory"])
    statements.PRUNE_TURN.run(connection, {"turn": turn["id"]})
    statements.INSERT_TURN.run(connection, turn)
    return KeptTurn(True)


def recalled(connection: sqlite3.Connection, turn_id: str) -> bytes | None:
    found = statements.REMEMBERED.rows(connection, {"turn": turn_id})
    memory: bytes | None = found[0]["memory"] if found else None
    return memory


class Reservation:
    """One more call of a turn, if there is room for it; taken back if its caller never learned of it."""

    def __init__(self, turn_id: str, fingerprint: str, bounds: Bounds) -> None:
        self._turn_id = turn_id
        self._fingerprint = fingerprint
        self._bounds = bounds
        self._is_made = False

    def make(self, connection: sqlite3.Connection) -> Reserved:
        """Raises `RecordConflict` for a turn that is gone, `MemoryUnreadable` for one that cannot be read."""
        self._is_made = False
        if not statements.REMEMBERED.rows(connection, {"turn": self._turn_id}):
            raise RecordConflict("the turn is not kept any more")
        stored = recalled(connection, self._turn_id)
        memory = memory_of(stored)
        if not memory.has_room(self._fingerprint, self._bounds):
            return Reserved(False, stored)
        memory.reserves(self._fingerprint)
        kept = memory.to_json()
        _write(connection, self._turn_id, kept)
        self._is_made = True
        return Reserved(True, kept)

    def undo(self, connection: sqlite3.Connection) -> None:
        if self._is_made:
            memory = memory_of(recalled(connection, self._turn_id))
            memory.releases(self._fingerprint)
            _write(connection, self._turn_id, memory.to_json())


def _write(connection: sqlite3.Connection, turn_id: str, memory: bytes) -> None:
    statements.REMEMBER.run(connection, {"turn": turn_id, "remembered": memory})

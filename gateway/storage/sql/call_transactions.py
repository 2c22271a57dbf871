"""The transactions of calls: turn states, starts, outcomes, claims, and the deletion of old turns."""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from typing import Any

from gateway.errors import RecordConflict
from gateway.policy import CallBounds, TurnStateWrite, load_turn_state, merge_state_writes
from gateway.storage.call_store import (
    AuditBody,
    CallReservation,
    ExtendedTurn,
    IdempotencyClaim,
    StoredCall,
    StoredTurn,
)
from gateway.storage.sql.call_rows import blob_rows, call_from_row, call_to_row, owner_key, turn_to_row
from gateway.storage.sql.call_statements import (
    ABANDON_CALL,
    CALL_OF_TURN,
    DROP_CLAIM,
    ENSURE_TURN,
    FIND_CLAIM,
    FIND_TURN,
    FORGET_PIECE,
    INSERT_CLAIM,
    INSERT_PIECE,
    INSERT_TURN,
    PRUNABLE,
    PRUNE_CALLS,
    PRUNE_PIECES,
    PRUNE_TURN,
    PRUNE_TURNS,
    SELECT_TURN_STATE,
    STARTED_BY,
    UNDO_CLAIM,
    UNDO_START,
    UPDATE_CALL_OUTCOME,
    UPDATE_TURN_STATE,
    Row,
)
from gateway.storage.unwritten_outcomes import LateOutcome


def read_turn_states(connection: Any, turn_ids: Iterable[str]) -> dict[str, bytes | None]:
    """Return the states of those turns that are stored."""
    if (known := _known_states(connection)) is not None:
        return {id: found[0] for id in turn_ids if (found := known[id]) is not None}
    rows = [(id, SELECT_TURN_STATE.rows(connection, {"turn": id})) for id in turn_ids]
    return {id: found[0]["memory"] for id, found in rows if found}


def write_turn_states(connection: Any, states: Iterable[TurnStateWrite | None]) -> None:
    """Write turn states of this process, merged with what other processes have written."""
    writes = [state for state in states if state is not None]
    stored = read_turn_states(connection, dict.fromkeys(write.turn_id for write in writes))
    _write(connection, merge_state_writes(writes, stored))


def keep_turn_alive(connection: sqlite3.Connection, turn: dict[str, Any], at: int) -> ExtendedTurn:
    """Extend a turn without calls until its `expires_at`. An expired one begins anew, with an empty turn state."""
    wanted = {"id": turn["id"], "owner": turn["owner"], "at": at}
    for found in FIND_TURN.rows(connection, wanted):
        ENSURE_TURN.run(connection, turn)
        return ExtendedTurn(False, found["memory"])
    PRUNE_TURN.run(connection, {"turn": turn["id"]})
    INSERT_TURN.run(connection, turn)
    return ExtendedTurn(True)


class TurnStateReservation:
    """One more call of a turn, if there is room for it. It is undone if its caller stopped waiting."""

    def __init__(self, turn_id: str, fingerprint: str, bounds: CallBounds, seen: TurnStateWrite | None = None) -> None:
        """`seen` is the state of the turn in this process, which is written first."""
        self.turn_id = turn_id
        self._fingerprint = fingerprint
        self._bounds = bounds
        self._seen = seen
        self.made = CallReservation(False, None)

    def make(self, connection: Any) -> None:
        """Raise `RecordConflict` if the turn is gone, `MemoryUnreadable` if its state cannot be read."""
        self.made = CallReservation(False, None)
        write_turn_states(connection, [self._seen])
        states = read_turn_states(connection, [self.turn_id])
        if not states:
            raise RecordConflict("the turn is not stored any more")
        stored = states[self.turn_id]
        memory = load_turn_state(stored)
        if not memory.has_room(self._fingerprint, self._bounds):
            self.made = CallReservation(False, stored)
            return
        memory.reserve_call(self._fingerprint)
        reserved = memory.to_json()
        _write(connection, {self.turn_id: reserved})
        self.made = CallReservation(True, reserved)

    def undo(self, connection: Any) -> None:
        if self.made.is_made:
            memory = load_turn_state(read_turn_states(connection, [self.turn_id]).get(self.turn_id))
            memory.release_call(self._fingerprint)
            _write(connection, {self.turn_id: memory.to_json()})


def _write(connection: Any, states: Mapping[str, bytes]) -> None:
    rows = [{"turn": id, "remembered": memory} for id, memory in states.items()]
    UPDATE_TURN_STATE.run_all(connection, rows, by="turn")
    if (known := _known_states(connection)) is not None:
        known.update({id: (memory,) for id, memory in states.items()})


def _known_states(connection: Any) -> dict[str, tuple[bytes | None] | None] | None:
    """Return the states that a transaction of PostgreSQL read when it began, by turn; a turn that is not stored has
    none. `None` if it reads them when it needs them.
    """
    return None if type(connection) is sqlite3.Connection else connection.states


def ensure_turns(connection: Any, turns: Sequence[Row]) -> None:
    """Insert turns, or extend those that are there."""
    ENSURE_TURN.run_all(connection, turns, by="id")
    if (known := _known_states(connection)) is not None:
        known.update({turn["id"]: (turn["memory"],) for turn in turns if known.get(turn["id"], ()) is None})


@dataclass(slots=True)
class CallStart:
    """The start of a call. It is undone if its caller stopped waiting for it, and so never ran the tool."""

    row: Row
    turn: Row | None
    audit: Sequence[AuditBody] = ()
    is_written: bool = False

    @classmethod
    def of(
        cls, call: StoredCall, turn: StoredTurn | None, audit: Sequence[AuditBody] = (), *, process: str
    ) -> "CallStart":
        row = call_to_row(call, status="started", process=process)
        return cls(row, None if turn is None else turn_to_row(turn), audit)

    def undo(self, connection: Any) -> None:
        if self.is_written:  # otherwise the row, if there is one, belongs to another call
            UNDO_CLAIM.run(connection, self.row)
            UNDO_START.run(connection, self.row)


def write_outcomes(connection: Any, rows: Sequence[Row], *, turns: Sequence[Row], pieces: Sequence[Row]) -> None:
    """Raises `RecordConflict` if one of the calls has an outcome, and the driver's error for a violated constraint."""
    ensure_turns(connection, turns)
    if not UPDATE_CALL_OUTCOME.change_all(connection, rows, by="turn_id"):
        raise RecordConflict("the call has an outcome already")
    INSERT_PIECE.run_all(connection, pieces)


def write_late(connection: Any, late: LateOutcome, *, process: str, at: int) -> None:
    """Write an outcome that could not be written before. Raises as `write_outcomes` does.

    If the database was replaced meanwhile, turn and idempotency key are written again.
    """
    call, memory = late.call, late.memory
    is_known = bool(read_turn_states(connection, [call.turn_id]))
    turn = turn_to_row(late.turn) if memory is None else {**turn_to_row(late.turn), "memory": memory}
    row = call_to_row(call, status="settled", process=process)
    write_outcomes(connection, [row], turns=[turn], pieces=blob_rows(call))
    if memory is not None and is_known:
        write_turn_states(connection, [TurnStateWrite(call.turn_id, memory, late.knowing)])
    if late.held is not None:
        held: Row = {"owner": owner_key(call.principal), "key": late.held.key, "digest": late.held.digest}
        held |= {"until": late.held.until, "turn_id": call.turn_id, "call_id": call.id}
        if not FIND_CLAIM.rows(connection, {**held, "at": at}):
            DROP_CLAIM.run(connection, held)
            INSERT_CLAIM.run(connection, held)


def abandon_left_calls(
    connection: Any, process: str, at: int, is_running: Callable[[tuple[str, str]], bool]
) -> list[StoredCall]:
    """Mark started calls of this process as `unknown` that it does not run. Return them."""
    left = []
    for row in STARTED_BY.rows(connection, {"gone": process}):
        name = (row["turn_id"], row["id"])
        if not is_running(name):
            ABANDON_CALL.run(connection, {"turn": name[0], "call": name[1], "at": at})
            left.append(call_from_row(row))
    return left


def claim(connection: Any, wanted: Row, at: int, start: Callable[[], None]) -> IdempotencyClaim:
    """Start the call of an idempotency key, unless another call has the key."""
    for holder in FIND_CLAIM.rows(connection, {**wanted, "at": at}):
        if holder["digest"] != wanted["digest"]:
            return IdempotencyClaim("taken")
        [found] = CALL_OF_TURN.rows(connection, {"turn_id": holder["turn_id"], "id": holder["call_id"]})
        call = call_from_row(found)
        if call.status != "settled" or call.decision not in ("hold", "deny"):  # held and denied calls never ran
            return IdempotencyClaim("running" if call.status == "started" else call.status, call)
    start()
    DROP_CLAIM.run(connection, wanted)
    INSERT_CLAIM.run(connection, wanted)
    return IdempotencyClaim("fresh")


def delete_blob_rows(connection: Any, rows: Sequence[Row]) -> None:
    FORGET_PIECE.run_all(connection, rows)


def prune_turns(connection: Any, wanted: Row) -> int:
    """Delete some expired turns with their calls. Return how many of both.

    A statement deletes what belongs to all of them: on PostgreSQL, other processes wait meanwhile.
    """
    turns = {"turns": dumps([row["id"] for row in PRUNABLE.rows(connection, wanted)])}
    PRUNE_PIECES.run(connection, turns)
    pruned: int = PRUNE_CALLS.run(connection, turns).rowcount
    return pruned + PRUNE_TURNS.run(connection, turns).rowcount

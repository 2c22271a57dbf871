"""Statements about turns, calls and pieces, compiled on import, and the functions that run several of them.

A connection is SQLite's, or a `PostgresConnection`, which has the same methods.
"""

import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from json import dumps
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    func,
    literal_column,
    not_,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects.sqlite import insert

from gateway.errors import RecordConflict
from gateway.policy import CallBounds, TurnStateWrite, load_turn_state, merge_state_writes
from gateway.storage.call_store import (
    AuditBody,
    CallFilter,
    CallReservation,
    ExtendedTurn,
    IdempotencyClaim,
    StoredCall,
    StoredTurn,
)
from gateway.storage.refusal_store import LateOutcome
from gateway.storage.sql.call_rows import blob_rows, call_from_row, call_to_row, owner_key, turn_to_row
from gateway.storage.sql.column_values import LIKE_ESCAPE, escape_pattern, is_storable
from gateway.storage.sql.compiled_statement import CompiledStatement
from gateway.storage.sql.tables import calls, claims, pieces, turns

_OUTCOME: Final = (
    *("status", "definition", "decision", "because", "is_error", "inline", "trusted"),
    *("from_artifact_tool", "results", "completed_at"),
)
"""Columns that an outcome overwrites in the row of a started call."""

Row = dict[str, Any]

_TURNS: Final = select(func.json_each(bindparam("turns")).table_valued("value").c.value)

_STARTED: Final = calls.c.status == literal_column("'started'")


def _values(table: Table, **computed: ColumnElement[Any]) -> dict[str, ColumnElement[Any]]:
    given = {column.name: bindparam(column.name, type_=column.type) for column in table.c if column.name != "number"}
    return {**given, **computed}


def _next_in_turn() -> ColumnElement[Any]:
    earlier = calls.alias("earlier")
    last = select(func.coalesce(func.max(earlier.c.settled_as), literal_column("0")) + literal_column("1"))
    return last.where(earlier.c.turn_id == bindparam("turn_id")).scalar_subquery()


def _build_outcome_statement() -> CompiledStatement:
    statement = insert(calls).values(_values(calls, settled_as=_next_in_turn()))
    outcome = {name: statement.excluded[name] for name in (*_OUTCOME, "settled_as")}
    return CompiledStatement(
        statement.on_conflict_do_update(
            index_elements=["turn_id", "id"],
            set_=outcome,
            where=and_(_STARTED, calls.c.owner == statement.excluded.owner),
        )
    )


def _build_ensure_statement() -> CompiledStatement:
    """Insert a turn, or extend the one that is there."""
    statement = insert(turns).values(_values(turns))
    later = and_(turns.c.owner == statement.excluded.owner, turns.c.expires_at < statement.excluded.expires_at)
    expiry = {"expires_at": statement.excluded.expires_at}
    return CompiledStatement(statement.on_conflict_do_update(index_elements=["id"], set_=expiry, where=later))


def _is_over() -> ColumnElement[bool]:
    """Expired turns without a running call and without a call that an idempotency key still names."""
    running = exists().where(calls.c.turn_id == turns.c.id, _STARTED).correlate(turns)
    claimed = exists().where(claims.c.turn_id == turns.c.id, claims.c.until > bindparam("at")).correlate(turns)
    return and_(turns.c.expires_at <= bindparam("at"), not_(running), not_(claimed))


INSERT_TURN: Final = CompiledStatement(insert(turns).values(_values(turns)))
ENSURE_TURN: Final = _build_ensure_statement()
FIND_TURN: Final = CompiledStatement(
    select(turns).where(
        turns.c.id == bindparam("id"), turns.c.owner == bindparam("owner"), turns.c.expires_at > bindparam("at")
    )
)
END_TURN: Final = CompiledStatement(
    update(turns)
    .values(ended_at=bindparam("at"), ending=bindparam("how"), stash=bindparam("left"))
    .where(turns.c.id == bindparam("turn"), turns.c.ended_at.is_(None))
)

SELECT_TURN_STATE: Final = CompiledStatement(select(turns.c.memory).where(turns.c.id == bindparam("turn")))
UPDATE_TURN_STATE: Final = CompiledStatement(
    update(turns).values(memory=bindparam("remembered")).where(turns.c.id == bindparam("turn"))
)

START_CALL: Final = CompiledStatement(insert(calls).values(_values(calls, settled_as=literal_column("NULL"))))
UNDO_CLAIM: Final = CompiledStatement(
    delete(claims).where(claims.c.turn_id == bindparam("turn_id"), claims.c.call_id == bindparam("id"))
)
UNDO_START: Final = CompiledStatement(
    delete(calls).where(
        calls.c.turn_id == bindparam("turn_id"),
        calls.c.id == bindparam("id"),
        calls.c.process == bindparam("process"),
        _STARTED,
    )
)
UPDATE_CALL_OUTCOME: Final = _build_outcome_statement()
INSERT_PIECE: Final = CompiledStatement(
    insert(pieces).values(_values(pieces)).on_conflict_do_nothing(index_elements=["key"])
)
CALL_OF_TURN: Final = CompiledStatement(
    select(calls).where(calls.c.turn_id == bindparam("turn_id"), calls.c.id == bindparam("id"))
)
FIND_CALL: Final = CompiledStatement(
    select(calls)
    .join(turns, turns.c.id == calls.c.turn_id)
    .where(
        calls.c.owner == bindparam("owner"),
        calls.c.id == bindparam("id"),
        or_(bindparam("turn_id", type_=calls.c.turn_id.type).is_(None), calls.c.turn_id == bindparam("turn_id")),
        turns.c.expires_at > bindparam("at"),
    )
    .order_by(calls.c.number.desc())
    .limit(literal_column("1"))
)
CALLS_OF: Final = CompiledStatement(
    select(calls)
    .where(calls.c.turn_id == bindparam("turn_id"), calls.c.settled_as.is_not(None))
    .order_by(calls.c.settled_as)
)

FIND_CLAIM: Final = CompiledStatement(
    select(claims).where(
        claims.c.owner == bindparam("owner"), claims.c.key == bindparam("key"), claims.c.until > bindparam("at")
    )
)
DROP_CLAIM: Final = CompiledStatement(
    delete(claims).where(claims.c.owner == bindparam("owner"), claims.c.key == bindparam("key"))
)
INSERT_CLAIM: Final = CompiledStatement(insert(claims).values(_values(claims)))

STARTED_BY: Final = CompiledStatement(select(calls).where(_STARTED, calls.c.process == bindparam("gone")))
RUNNING_PROCESSES: Final = CompiledStatement(select(calls.c.process).where(_STARTED).distinct())
ABANDON_CALLS: Final = CompiledStatement(
    update(calls)
    .values(status=literal_column("'unknown'"), completed_at=bindparam("at"))
    .where(_STARTED, calls.c.process == bindparam("gone"))
)
ABANDON_CALL: Final = CompiledStatement(
    update(calls)
    .values(status=literal_column("'unknown'"), completed_at=bindparam("at"))
    .where(_STARTED, calls.c.turn_id == bindparam("turn"), calls.c.id == bindparam("call"))
)

FIND_PIECE: Final = CompiledStatement(select(pieces.c.content).where(pieces.c.key == bindparam("key")))
LAST_PIECE: Final = CompiledStatement(
    select(pieces.c.key, pieces.c.content)
    .where(pieces.c.key > bindparam("prefix"), pieces.c.key < bindparam("end"), pieces.c.content.is_not(None))
    .order_by(pieces.c.key.desc())
    .limit(literal_column("1"))
)
DROP_PIECES: Final = CompiledStatement(
    delete(pieces).where(pieces.c.key > bindparam("prefix"), pieces.c.key < bindparam("end"))
)
EXPIRED_PIECES: Final = CompiledStatement(
    select(pieces.c.position, calls.c.results)
    .join(calls, and_(calls.c.turn_id == pieces.c.turn_id, calls.c.id == pieces.c.call_id))
    .join(turns, turns.c.id == calls.c.turn_id)
    .where(pieces.c.content.is_(None), _is_over())
    .order_by(turns.c.expires_at, calls.c.number, pieces.c.position)
    .limit(bindparam("limit"))
)
FORGET_PIECE: Final = CompiledStatement(delete(pieces).where(pieces.c.key == bindparam("key")))

PRUNABLE: Final = CompiledStatement(
    select(turns.c.id)
    .where(_is_over(), not_(exists().where(pieces.c.turn_id == turns.c.id, pieces.c.content.is_(None))))
    .order_by(turns.c.expires_at)
    .limit(bindparam("limit"))
)
PRUNE_CLAIMS: Final = CompiledStatement(delete(claims).where(claims.c.until <= bindparam("at")))
PRUNE_PIECES: Final = CompiledStatement(delete(pieces).where(pieces.c.turn_id.in_(_TURNS)))
PRUNE_CALLS: Final = CompiledStatement(delete(calls).where(calls.c.turn_id.in_(_TURNS)))
PRUNE_TURNS: Final = CompiledStatement(delete(turns).where(turns.c.id.in_(_TURNS)))
PRUNE_TURN: Final = CompiledStatement(delete(turns).where(turns.c.id == bindparam("turn")))


@lru_cache(maxsize=128)
def call_list_statement(
    filters: frozenset[str], *, from_the_top: bool, tables: tuple[Table, ...] = (calls,)
) -> CompiledStatement:
    """Return the statement of a page of calls, newest first. Each of the tables has the columns of `calls`."""
    found = union_all(*(_select_calls(table, filters, from_the_top) for table in tables))
    return CompiledStatement(found.order_by(found.selected_columns.number.desc()).limit(bindparam("limit")))


def _select_calls(table: Table, filters: frozenset[str], from_the_top: bool) -> Select[Any]:
    below = [] if from_the_top else [table.c.number < bindparam("before")]
    return select(*(table.c[each.name] for each in calls.c)).where(*call_conditions(table, filters), *below)


def call_conditions(table: Table, names: Collection[str]) -> list[ColumnElement[bool]]:
    """Return the conditions of a list of calls, one for each name: a column, or `rule`."""
    chosen: list[ColumnElement[bool]] = [table.c[name] == bindparam(name) for name in names if name in table.c]
    return [*chosen, table.c.because.like(bindparam("rule"), escape=LIKE_ESCAPE)] if "rule" in names else chosen


def call_parameters(filter: CallFilter) -> Row | None:
    """Return the parameters of these conditions; `None` if no call can match."""
    asked = {name: getattr(filter, name) for name in CallFilter.__dataclass_fields__}
    chosen: Row = {name: value for name, value in asked.items() if value is not None}
    if not all(map(is_storable, chosen.values())):
        return None
    if filter.rule is not None:
        chosen["rule"] = f"%{escape_pattern(filter.rule)}%"
    return chosen


LARGEST_PAGE: Final = 1000
Read = Callable[[Callable[[Any], list[Row]]], Awaitable[list[Row]]]
"""Runs work on a read-only connection."""


async def read_call_page(
    read: Read, filter: CallFilter, *, limit: int, before: str | None, tables: tuple[Table, ...] = (calls,)
) -> tuple[list[StoredCall], str | None]:
    """Return calls, and the cursor of the next page if there is one. Raises `ValueError` for a bad limit or cursor."""
    if not 1 <= limit <= LARGEST_PAGE:
        raise ValueError(f"a page has 1 to {LARGEST_PAGE} calls, not {limit}")
    wanted: Row = {"limit": limit + 1}
    if before is not None:
        wanted["before"] = _number(before)
    chosen = call_parameters(filter)
    if chosen is None:
        return [], None
    statement = call_list_statement(frozenset(chosen), from_the_top=before is None, tables=tables)
    rows = await read(lambda connection: statement.rows(connection, {**wanted, **chosen}))
    page = rows[:limit]
    return [call_from_row(row) for row in page], str(page[-1]["number"]) if len(rows) > limit else None


def key_range(prefix: str) -> Row:
    """Return the parameters that select all keys of a prefix."""
    return {"prefix": prefix, "end": f"{prefix}\U0010ffff"}


def _number(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= 18):
        raise ValueError("the cursor is not valid")
    return int(cursor)


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

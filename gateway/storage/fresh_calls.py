"""Calls that settle in a turn of their own, which is what most of them do: many are written by three statements.

Nobody can know such a turn before its call is answered, so nothing in these rows can contradict what is stored, but by
an error; then each is written on its own, and told what is wrong.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Table, bindparam
from sqlalchemy.dialects.sqlite import dialect, insert

from gateway.governance.records import AuditBody, StoredCall, StoredTurn
from gateway.storage.inserting import Insertion, Row, insert_rows
from gateway.storage.rows import (
    checked_id,
    json_text,
    microseconds,
    piece_rows,
    principal_columns,
    results_text,
    writable,
)
from gateway.storage.schema import calls, pieces, turns

_DIALECT: Final = dialect(paramstyle="qmark")
_COUNTED: Final = "number"
_FIRST: Final = 1


@dataclass(slots=True)
class FreshCall:
    """The rows of a turn and of its one call, values in the order of the tables' columns, and what is said of it."""

    turn: Row
    call: Row
    pieces: Sequence[Row]
    audit: Sequence[AuditBody] = ()


def _insertion(table: Table) -> Insertion:
    one = insert(table).values({name: bindparam(name) for name in _columns(table)})
    before, values, row = str(one.compile(dialect=_DIALECT)).partition(" VALUES ")
    return Insertion(before + values, row)


def _columns(table: Table) -> tuple[str, ...]:
    """Those that are given; SQLite counts the rest up by itself."""
    return tuple(column.name for column in table.c if column.name != _COUNTED)


def fresh_call(
    call: StoredCall,
    turn: StoredTurn,
    *,
    process: str,
    memory: bytes | None = None,
    audit: Sequence[AuditBody] = (),
) -> FreshCall:
    """A call that is alone in its turn is its first to settle."""
    who = principal_columns(call.principal)
    principal = (who["owner"], who["tenant"], who["subject"], who["roles"])
    return FreshCall(
        turn_values(turn, principal, memory), call_values(call, principal, process), piece_values(call), audit
    )


def turn_values(turn: StoredTurn, principal: Row, memory: bytes | None) -> Row:
    return (
        checked_id(turn.id),
        *principal,
        turn.catalogue,
        turn.revision,
        turn.secret,
        microseconds(turn.created_at),
        microseconds(turn.expires_at),
        json_text(turn.stash) if turn.stash else "{}",
        None if turn.ended_at is None else microseconds(turn.ended_at),
        turn.ending,
        memory,
    )


def call_values(call: StoredCall, principal: Row, process: str) -> Row:
    return (
        call.turn_id,
        checked_id(call.id),
        *principal,
        writable(call.tool),
        writable(call.identity),
        json_text(call.args),
        call.checksum,
        call.catalogue,
        call.revision,
        microseconds(call.created_at),
        "settled",
        call.definition,
        call.decision,
        None if call.because is None else writable(call.because),
        call.is_error,
        call.inline,
        call.trusted,
        call.from_artifact_tool,
        results_text(call.results),
        None if call.completed_at is None else microseconds(call.completed_at),
        call.idempotency_key,
        process,
        _FIRST,
    )


def piece_values(call: StoredCall) -> list[Row]:
    return [tuple(row[name] for name in _PIECE) for row in piece_rows(call)]


_PIECE: Final = _columns(pieces)

INTO_TURNS: Final = _insertion(turns)
INTO_CALLS: Final = _insertion(calls)
INTO_PIECES: Final = _insertion(pieces)


def write_fresh_calls(connection: sqlite3.Connection, fresh: list[FreshCall]) -> None:
    insert_rows(connection, INTO_TURNS, [each.turn for each in fresh])
    insert_rows(connection, INTO_CALLS, [each.call for each in fresh])
    insert_rows(connection, INTO_PIECES, [piece for each in fresh for piece in each.pieces])

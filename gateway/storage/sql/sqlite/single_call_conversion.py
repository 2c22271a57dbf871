"""Convert a turn with one call to a single-call row, and select from such rows.

Such a turn is unknown to every client until its call returns, so a row can contradict no other record. The same call
may be written twice, and counts once.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Table, bindparam
from sqlalchemy.dialects.sqlite import dialect, insert

from gateway.storage.blobs.blob_store import is_inline, turn_id_prefix
from gateway.storage.call_store import StoredCall, StoredTurn
from gateway.storage.sql.call_rows import (
    arguments_text,
    checksum_text,
    encode_json,
    replay_text,
    results_to_json,
)
from gateway.storage.sql.column_values import InsertStatement, require_storable_id
from gateway.storage.sql.compiled_statement import CompiledStatement
from gateway.storage.sql.sqlite.single_call_table import Expansion, Result, SingleCallValues
from gateway.storage.sql.tables import calls, fresh, pieces, turns

_DIALECT: Final = dialect(paramstyle="qmark")
_FIRST: Final = 1
_HAS_PIECE: Final = " AND piece_key IS NOT NULL"
_SOURCES: Final[dict[str, dict[str, str]]] = {
    "turns": {
        "id": "turn_id",
        "secret": "turn_secret",
        "created_at": "turn_created_at",
        "expires_at": "turn_expires_at",
        "stash": "turn_stash",
        "memory": "turn_memory",
        "ended_at": "NULL",
        "ending": "NULL",
    },
    "calls": {},
    "pieces": {"key": "piece_key", "call_id": "id", "position": "0", "content": "piece_content"},
}
"""Columns of other tables that have another name in `fresh`, or the same value for all its rows."""


def to_single_call_values(
    call: StoredCall, turn: StoredTurn, *, process: str, memory: bytes | None = None
) -> SingleCallValues | None:
    """Return the values of a row for the only call of a turn, `None` if it does not fit into one.

    Raises `ValueError` for an id that cannot be written, and for a small piece without its bytes.
    """
    results, principal = call.results, call.principal
    if len(results) > 1 or turn.ended is not None or turn.revision != call.revision:
        return None
    fields: list[Result] = []
    key = content = None
    for each in results:
        key, content = each.key, each.content
        fields.append((each.kind, each.text, key, each.type, each.byte_length))
        if key is None:
            continue
        if content is None and is_inline(key):
            raise ValueError("the result of the call is a small piece without content")
        if not call.turn_id.startswith(turn_id_prefix(key)):
            return None  # the piece could not be found by its key
    return (
        call.turn_id,
        require_storable_id(call.id),
        (principal.tenant, principal.subject, principal.roles),
        call.tool,
        call.identity,
        (
            arguments_text(call),
            checksum_text(call),
            call.catalogue,
            call.revision,
            call.created,
            "settled",
            call.definition,
            call.decision,
        ),
        call.because,
        (call.is_error, call.inline, call.trusted, call.from_artifact_tool),
        results_to_json(results) if results and results[0].details else tuple(fields),
        (
            call.completed,
            call.idempotency_key,
            process,
            _FIRST,
            call.trace_id,
            call.span_id,
            call.reason,
            call.decided,
            call.implicit,
            None if call.replay is None else replay_text(call),
            turn.secret,
            turn.created,
            turn.expires,
            encode_json(turn.stash) if turn.stash else "{}",
            memory,
            key,
            content,
        ),
    )


def select_from_single_calls(
    connection: sqlite3.Connection, turn_ids: Sequence[str], statement: CompiledStatement, wanted: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return what a statement would find in the expanded single-call rows of these turns."""
    text = _among(statement.sql, len(turn_ids))
    return statement.to_dicts(connection.execute(text, (*turn_ids, *statement.values(wanted))))


@lru_cache(maxsize=64)
def _among(sql: str, turns_of_it: int) -> str:
    """Replace the tables of a statement by subqueries of `fresh`."""
    chosen = f"chosen AS (SELECT * FROM fresh WHERE turn_id IN ({', '.join('?' * turns_of_it)}))"  # noqa: S608 - nothing but signs
    return f"WITH {', '.join([chosen, *(_subquery(table) for table in (turns, calls, pieces))])} {sql}"


def _subquery(table: Table) -> str:
    sources = _SOURCES[table.name]
    taken = ", ".join(f'{sources.get(name, name)} AS "{name}"' for name in _columns(table))
    also = _HAS_PIECE if table is pieces else ""
    return f"{table.name} AS (SELECT {taken} FROM chosen WHERE true{also})"  # noqa: S608 - our names


def _columns(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.c)


def _insertion() -> InsertStatement:
    one = insert(fresh).values({name: bindparam(name) for name in _columns(fresh)})
    before, values, row = str(one.compile(dialect=_DIALECT)).partition(" VALUES ")
    return InsertStatement(before + values, row)


def _move(table: Table, names: Iterable[str], *, unless: str, also: str = "") -> str:
    """Return the statement that moves rows from `fresh`. `unless` has the key columns of the table."""
    into = ", ".join(f'"{name}"' for name in names)
    taken = ", ".join(_SOURCES[table.name].get(name, f'"{name}"') for name in names)
    condition = f"{{condition}}{also}"
    statement = f"INSERT INTO {table.name} ({into}) SELECT {taken} FROM fresh WHERE {condition}"  # noqa: S608 - our names
    return f"{statement} ORDER BY number ON CONFLICT ({unless}) DO NOTHING"


SINGLE_CALL_INSERT: Final = _insertion()
EXPANSION: Final = Expansion(
    turns=_move(turns, [name for name in _columns(turns) if name not in ("ended_at", "ending")], unless="id"),
    calls=_move(calls, _columns(calls), unless="turn_id, id"),
    pieces=_move(pieces, _columns(pieces), unless="key", also=_HAS_PIECE),
)

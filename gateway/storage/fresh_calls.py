"""Calls that settle in a turn of their own, which is what most of them do: call, turn and result are one row.

Nobody can know such a turn before its call is answered, so nothing in the row can contradict what is stored, but for
the same call written twice, which counts once.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Table, bindparam
from sqlalchemy.dialects.sqlite import dialect, insert

from gateway.governance.records import StoredCall, StoredTurn
from gateway.storage.columns import checked_id
from gateway.storage.fresh_rows import Result, Values
from gateway.storage.inserting import Insertion
from gateway.storage.keys import beginning_of_turn, is_small
from gateway.storage.prepared import Prepared
from gateway.storage.putting_away import Moves
from gateway.storage.rows import arguments_text, checksum_text, json_text, results_text
from gateway.storage.schema import calls, fresh, pieces, turns

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
"""Columns of other tables that have another name in `fresh`, or are the same for all that is."""


def fresh_values(call: StoredCall, turn: StoredTurn, *, process: str, memory: bytes | None = None) -> Values | None:
    """A call that is alone in its turn is its first to settle. `None` for one that does not fit into a row.

    Raises `ValueError` for an id that cannot be written, and for a small piece without its bytes: nobody else has them.
    """
    results, principal = call.results, call.principal
    if len(results) > 1 or turn.ended is not None or turn.revision != call.revision:
        return None
    told: list[Result] = []
    key = content = None
    for each in results:
        key, content = each.key, each.content
        told.append((each.kind, each.text, key, each.type, each.byte_length))
        if key is None:
            continue
        if content is None and is_small(key):
            raise ValueError("the result of the call is a small piece and comes without its content")
        if not call.turn_id.startswith(beginning_of_turn(key)):
            return None  # nobody would find the piece by its key
    return (
        call.turn_id,
        checked_id(call.id),
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
        results_text(results) if results and results[0].details else tuple(told),
        (
            call.completed,
            call.idempotency_key,
            process,
            _FIRST,
            call.trace_id,
            call.span_id,
            turn.secret,
            turn.created,
            turn.expires,
            json_text(turn.stash) if turn.stash else "{}",
            memory,
            key,
            content,
        ),
    )


def rows_among(
    connection: sqlite3.Connection, turn_ids: Sequence[str], statement: Prepared, wanted: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """What a statement finds in turns that are fresh, as if they had been put away. In others it finds nothing."""
    text = _among(statement.sql, len(turn_ids))
    return statement.named(connection.execute(text, (*turn_ids, *statement.values(wanted))))


@lru_cache(maxsize=64)
def _among(sql: str, turns_of_it: int) -> str:
    """Tables of the statement are replaced by what each would have been filled with."""
    chosen = f"chosen AS (SELECT * FROM fresh WHERE turn_id IN ({', '.join('?' * turns_of_it)}))"  # noqa: S608 - nothing but signs
    return f"WITH {', '.join([chosen, *(_as_if(table) for table in (turns, calls, pieces))])} {sql}"


def _as_if(table: Table) -> str:
    sources = _SOURCES[table.name]
    taken = ", ".join(f'{sources.get(name, name)} AS "{name}"' for name in _columns(table))
    also = _HAS_PIECE if table is pieces else ""
    return f"{table.name} AS (SELECT {taken} FROM chosen WHERE true{also})"  # noqa: S608 - our names


def _columns(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.c)


def _insertion() -> Insertion:
    one = insert(fresh).values({name: bindparam(name) for name in _columns(fresh)})
    before, values, row = str(one.compile(dialect=_DIALECT)).partition(" VALUES ")
    return Insertion(before + values, row)


def _move(table: Table, names: Iterable[str], *, unless: str, also: str = "") -> str:
    """`unless` are the columns by which a row is the same as another."""
    into = ", ".join(f'"{name}"' for name in names)
    taken = ", ".join(_SOURCES[table.name].get(name, f'"{name}"') for name in names)
    condition = f"{{condition}}{also}"
    statement = f"INSERT INTO {table.name} ({into}) SELECT {taken} FROM fresh WHERE {condition}"  # noqa: S608 - our names
    return f"{statement} ORDER BY number ON CONFLICT ({unless}) DO NOTHING"


INTO_FRESH: Final = _insertion()
MOVES: Final = Moves(
    turns=_move(turns, [name for name in _columns(turns) if name not in ("ended_at", "ending")], unless="id"),
    calls=_move(calls, _columns(calls), unless="turn_id, id"),
    pieces=_move(pieces, _columns(pieces), unless="key", also=_HAS_PIECE),
)

"""The table `fresh`: a turn with one call as one row, which costs a tenth of writing all tables.

A row is expanded into the other tables when anything else is written about its turn. Its values are plain, so that they
can be sent to the writer process, and statements are plain texts, so that this process imports no schema.

The key of a piece leads to its row by the turn. For ids there are runs: an index of all ids would be written to in a
different place for each call, which costs more than the rest of its row. So the ids of some thousand calls are sorted
and written at once, and a search goes from the newest run to the oldest, at 3 µs per thousand calls. Rows since the
last run are scanned.
"""

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from gateway.storage.blobs.blob_store import turn_id_prefix
from gateway.storage.sql.column_values import (
    InsertStatement,
    Row,
    encode_results,
    insert_rows,
    owner_columns,
    replace_surrogates,
    require_storable_id,
    result_fields,
)

ID_RUN_SIZE: Final = 1024
"""Single-call rows whose ids are written at once."""

_ADD_RUN: Final = """
INSERT INTO fresh_ids (upto, id, number)
SELECT (SELECT max(number) FROM fresh), id, number FROM fresh
WHERE number > coalesce((SELECT max(upto) FROM fresh_ids), 0) ORDER BY id
"""
_EMPTY_RUNS: Final = """
WITH RECURSIVE runs (upto, since) AS (
    SELECT min(upto), 0 FROM fresh_ids
    UNION ALL
    SELECT (SELECT min(upto) FROM fresh_ids WHERE upto > runs.upto), upto FROM runs WHERE upto IS NOT NULL
)
SELECT upto FROM runs
WHERE upto IS NOT NULL AND NOT EXISTS (SELECT 1 FROM fresh WHERE number > runs.since AND number <= runs.upto)
"""
"""Runs without a single-call row. They stay empty, because numbers only grow."""
_DROP_RUN: Final = "DELETE FROM fresh_ids WHERE upto = ?"
# The plus signs keep SQLite from using other indexes, which take longer.
_SINCE_THE_LAST_RUN: Final = """
SELECT turn_id FROM fresh
WHERE number > coalesce((SELECT max(upto) FROM fresh_ids), 0) AND id = ? AND owner = ? AND +turn_expires_at > ?
"""
_IN_RUN: Final = """
SELECT fresh.turn_id FROM fresh_ids CROSS JOIN fresh ON fresh.number = fresh_ids.number
WHERE fresh_ids.id = ? AND fresh.owner = ? AND +fresh.turn_expires_at > ? AND fresh_ids.upto = ?
"""
_NEWEST_RUN: Final = """
WITH RECURSIVE runs (upto) AS (
    SELECT max(upto) FROM fresh_ids
    UNION ALL
    SELECT (SELECT max(upto) FROM fresh_ids WHERE upto < runs.upto) FROM runs WHERE runs.upto IS NOT NULL
)
SELECT runs.upto FROM runs
CROSS JOIN fresh_ids ON fresh_ids.upto = runs.upto
CROSS JOIN fresh ON fresh.number = fresh_ids.number
WHERE fresh_ids.id = ? AND fresh.owner = ? AND +fresh.turn_expires_at > ? LIMIT 1
"""
_OF_PIECES: Final = "SELECT turn_id FROM fresh WHERE turn_id >= ? AND turn_id < ? AND piece_key >= ? AND piece_key <= ?"
_EXPIRED_IN_SPOOL: Final = """
SELECT turn_id FROM fresh WHERE piece_key IS NOT NULL AND piece_content IS NULL AND turn_expires_at <= ?
ORDER BY turn_expires_at LIMIT ?
"""
_FORGET: Final = """
DELETE FROM fresh WHERE number IN (
    SELECT number FROM fresh WHERE turn_expires_at <= ? AND (piece_key IS NULL OR piece_content IS NOT NULL) LIMIT ?
)
"""


def add_id_run(connection: sqlite3.Connection) -> None:
    """Write the ids of all rows since the last run."""
    connection.execute(_ADD_RUN)


def find_turns_of_call(connection: sqlite3.Connection, id: str, owner: str, *, at: int) -> list[str]:
    """Return the newest turn with a call of that id, and others of the same run. Ids are unique in a turn."""
    wanted = (id, owner, at)
    found = connection.execute(_SINCE_THE_LAST_RUN, wanted).fetchall()
    if not found and (run := connection.execute(_NEWEST_RUN, wanted).fetchone()):
        found = connection.execute(_IN_RUN, (*wanted, *run)).fetchall()
    return [turn_id for [turn_id] in found]


def find_turns_of_blobs(connection: sqlite3.Connection, prefix: str, end: str) -> list[str]:
    """Return turns with a piece whose key is one of these, or between them."""
    turns = turn_id_prefix(prefix)
    found = connection.execute(_OF_PIECES, (turns, f"{turns}\U0010ffff", prefix, end))
    return [turn_id for [turn_id] in found]


def find_expired_blobs(connection: sqlite3.Connection, *, at: int, limit: int) -> list[str]:
    """Return expired turns whose piece is in the spool."""
    return [turn_id for [turn_id] in connection.execute(_EXPIRED_IN_SPOOL, (at, limit))]


def delete_expired(connection: sqlite3.Connection, *, at: int, limit: int) -> int:
    """Delete some expired turns without a piece in the spool. Return how many."""
    return connection.execute(_FORGET, (at, limit)).rowcount


def empty_runs(connection: sqlite3.Connection) -> list[int]:
    """Return runs of ids that are not needed any more."""
    return [upto for [upto] in connection.execute(_EMPTY_RUNS)]


def drop_run(connection: sqlite3.Connection, upto: int) -> None:
    connection.execute(_DROP_RUN, (upto,))


Result = tuple[str, str | None, str | None, str | None, int | None]
"""Arguments of `result_fields`."""

SingleCallValues = tuple[
    str,
    str,
    tuple[str | None, str, frozenset[str]],
    str,
    str,
    tuple[Any, ...],
    str | None,
    tuple[bool, bool, bool, bool],
    str | tuple[Result, ...],
    tuple[Any, ...],
]
"""A call in the order of the table's columns. Columns that are written unchanged are grouped; the others are turn and
id of the call, tenant, subject and roles of its caller, tool, identity, reason, and results, as JSON if they have
details.
"""

_owner: Final = lru_cache(maxsize=1024)(owner_columns)  # the same callers come again


def to_single_call_row(values: SingleCallValues) -> Row:
    """Raises `ValueError` for ids that cannot be written."""
    turn_id, id, caller, tool, identity, request, because, flags, results, others = values
    return (
        require_storable_id(turn_id),
        require_storable_id(id),
        *_owner(*caller),
        replace_surrogates(tool),
        replace_surrogates(identity),
        *request,
        None if because is None else replace_surrogates(because),
        *flags,
        results if isinstance(results, str) else encode_results([result_fields(*each) for each in results]),
        *others,
    )


AT_ONCE: Final = 256
"""Rows that are expanded in one transaction: calls that are recorded meanwhile wait for it."""

_LAST_NUMBER: Final = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name IN ('calls', 'fresh')"
_COUNT_ON: Final = "UPDATE sqlite_sequence SET seq = ? WHERE name = 'calls'"
"""The next row of `calls` gets a higher number."""


class Expansion(NamedTuple):
    """For each table, the statement that fills it from `fresh`, with a placeholder for the condition.

    A row that is there already stays: another writer may have written the same call. With `strict` it raises.
    """

    turns: str
    calls: str
    pieces: str

    def strict(self) -> "Expansion":
        return Expansion(*(each.partition(" ON CONFLICT ")[0] for each in self))


def insert_single_calls(connection: sqlite3.Connection, into: InsertStatement, rows: Sequence[Row]) -> int:
    """Number and write rows. Return the last number before them.

    Raises `sqlite3.IntegrityError` if a turn is stored already: its call would be stored twice.
    """
    if rows and connection.execute(_any_of_turns(len(rows)), [turn_id for turn_id, *_ in rows]).fetchone():
        raise sqlite3.IntegrityError("the turn of a single call is stored already")
    [before] = connection.execute(_LAST_NUMBER).fetchone()
    insert_rows(connection, into, [(number, *row) for number, row in enumerate(rows, before + 1)])
    connection.execute(_COUNT_ON, (before + len(rows),))
    return int(before)


@lru_cache(maxsize=1024)
def _any_of_turns(count: int) -> str:
    return f"SELECT 1 FROM turns WHERE id IN ({', '.join('?' * count)}) LIMIT 1"  # noqa: S608 - nothing but signs


def is_single_call_turn(connection: sqlite3.Connection, turn_id: str) -> bool:
    return connection.execute("SELECT 1 FROM fresh WHERE turn_id = ?", (turn_id,)).fetchone() is not None


def expand_turn(connection: sqlite3.Connection, moves: Expansion, turn_id: str) -> None:
    """Expand the row of a turn, if it has one, before anything else is written about the turn."""
    if is_single_call_turn(connection, turn_id):
        _expand_rows(connection, moves, "turn_id = ?", turn_id)


def expand_batch(connection: sqlite3.Connection, moves: Expansion, *, at_once: int = AT_ONCE) -> int:
    """Expand the oldest rows. Return how many, which is less than `at_once` if no more are left."""
    found = connection.execute("SELECT number FROM fresh ORDER BY number LIMIT ?", (at_once,)).fetchall()
    if found:
        _expand_rows(connection, moves, "number <= ?", found[-1][0])
    return len(found)


def insert_expanded(
    connection: sqlite3.Connection, moves: Expansion, into: InsertStatement, *, rows: Sequence[Row]
) -> None:
    """Write rows and expand them at once. Raises `sqlite3.IntegrityError` if a call is stored already."""
    before = insert_single_calls(connection, into, rows)
    _expand_rows(connection, moves.strict(), "number > ?", before)


def _expand_rows(connection: sqlite3.Connection, moves: Expansion, condition: str, value: str | int) -> None:
    for statement in moves:
        connection.execute(statement.format(condition=condition), (value,))
    connection.execute(f"DELETE FROM fresh WHERE {condition}", (value,))  # noqa: S608 - one of the two above

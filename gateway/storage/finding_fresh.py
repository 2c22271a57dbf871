"""Finding fresh calls by what is not their turn. The key of a piece leads to it; ids have runs of their own.

An index of all ids would be written to in a different place for each call, which costs more than the rest of its row.
So the ids of some thousand calls are sorted and written at once, and one is looked for in run after run, the newest
first: that is 3 µs for each thousand calls. Those that came since the last run are looked through.
"""

import sqlite3
from typing import Final

from gateway.storage.keys import beginning_of_turn

A_RUN: Final = 1024
"""Fresh calls whose ids are written at once."""

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
"""Of which no call is fresh any more, nor ever will be again: numbers only grow."""
_DROP_RUN: Final = "DELETE FROM fresh_ids WHERE upto = ?"
# The signs keep SQLite from other ways of looking, which are longer.
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


def add_run(connection: sqlite3.Connection) -> None:
    """Of all that came since the last one."""
    connection.execute(_ADD_RUN)


def turns_of_call(connection: sqlite3.Connection, id: str, owner: str, *, at: int) -> list[str]:
    """The newest fresh turn that has a call of that id, with others that are about as new. Ids are unique in a turn."""
    wanted = (id, owner, at)
    found = connection.execute(_SINCE_THE_LAST_RUN, wanted).fetchall()
    if not found and (run := connection.execute(_NEWEST_RUN, wanted).fetchone()):
        found = connection.execute(_IN_RUN, (*wanted, *run)).fetchall()
    return [turn_id for [turn_id] in found]


def turns_of_pieces(connection: sqlite3.Connection, prefix: str, end: str) -> list[str]:
    """Those with a piece whose key is one of these, or between them."""
    turns = beginning_of_turn(prefix)
    found = connection.execute(_OF_PIECES, (turns, f"{turns}\U0010ffff", prefix, end))
    return [turn_id for [turn_id] in found]


def expired_in_spool(connection: sqlite3.Connection, *, at: int, limit: int) -> list[str]:
    """Turns past their end of life whose piece is in the spool."""
    return [turn_id for [turn_id] in connection.execute(_EXPIRED_IN_SPOOL, (at, limit))]


def forget_expired(connection: sqlite3.Connection, *, at: int, limit: int) -> int:
    """Drop some turns past their end of life, but for those that the spool has a piece of; how many."""
    return connection.execute(_FORGET, (at, limit)).rowcount


def empty_runs(connection: sqlite3.Connection) -> list[int]:
    """Runs of ids that nobody needs any more."""
    return [upto for [upto] in connection.execute(_EMPTY_RUNS)]


def drop_run(connection: sqlite3.Connection, upto: int) -> None:
    connection.execute(_DROP_RUN, (upto,))

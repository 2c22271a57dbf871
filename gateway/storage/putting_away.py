"""Writing fresh calls, each as one row, which costs a tenth of all its rows; and putting them where the others are.

That happens when something else is to be written about their turn. The statements are plain texts, made of columns that
are given: the process that runs them knows no schema.
"""

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from gateway.storage.inserting import Insertion, Row, insert_rows

AT_ONCE: Final = 256
"""Calls in one transaction: those that settle meanwhile wait for it."""

_LAST_NUMBER: Final = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name IN ('calls', 'fresh')"
_COUNT_ON: Final = "UPDATE sqlite_sequence SET seq = ? WHERE name = 'calls'"
"""Whatever is written there next is newer."""


class Moves(NamedTuple):
    """For each table, the statement that fills it from `fresh`, with a place for the condition.

    The very same that is there already is left as it is: a writer that ended before it told what it wrote is followed
    by another. Another row in its place is no such thing, and raises.
    """

    turns: str
    calls: str
    pieces: str

    def strict(self) -> "Moves":
        return Moves(*(each.partition(" ON CONFLICT ")[0] for each in self))


def insert_fresh(connection: sqlite3.Connection, into: Insertion, rows: Sequence[Row]) -> int:
    """Number and write them; the last number that was given to another call before.

    Raises `sqlite3.IntegrityError` for a turn that is there already: its call would be there twice.
    """
    if rows and connection.execute(_any_of_turns(len(rows)), [turn_id for turn_id, *_ in rows]).fetchone():
        raise sqlite3.IntegrityError("the turn of a fresh call is there already")
    [before] = connection.execute(_LAST_NUMBER).fetchone()
    insert_rows(connection, into, [(number, *row) for number, row in enumerate(rows, before + 1)])
    connection.execute(_COUNT_ON, (before + len(rows),))
    return int(before)


@lru_cache(maxsize=1024)
def _any_of_turns(count: int) -> str:
    return f"SELECT 1 FROM turns WHERE id IN ({', '.join('?' * count)}) LIMIT 1"  # noqa: S608 - nothing but signs


def is_fresh(connection: sqlite3.Connection, turn_id: str) -> bool:
    return connection.execute("SELECT 1 FROM fresh WHERE turn_id = ?", (turn_id,)).fetchone() is not None


def put_turn_away(connection: sqlite3.Connection, moves: Moves, turn_id: str) -> None:
    """What is fresh of one turn, before anything else is written about it."""
    if is_fresh(connection, turn_id):
        _move(connection, moves, "turn_id = ?", turn_id)


def put_some_away(connection: sqlite3.Connection, moves: Moves, *, at_once: int = AT_ONCE) -> int:
    """The oldest of what is fresh; how many calls that were, which is less than `at_once` if there were no more."""
    found = connection.execute("SELECT number FROM fresh ORDER BY number LIMIT ?", (at_once,)).fetchall()
    if found:
        _move(connection, moves, "number <= ?", found[-1][0])
    return len(found)


def write_away(connection: sqlite3.Connection, moves: Moves, into: Insertion, *, rows: Sequence[Row]) -> None:
    """Write calls where they belong at once. Raises `sqlite3.IntegrityError` for one that is there already."""
    before = insert_fresh(connection, into, rows)
    _move(connection, moves.strict(), "number > ?", before)


def _move(connection: sqlite3.Connection, moves: Moves, condition: str, value: str | int) -> None:
    for statement in moves:
        connection.execute(statement.format(condition=condition), (value,))
    connection.execute(f"DELETE FROM fresh WHERE {condition}", (value,))  # noqa: S608 - one of the two above

"""Putting fresh calls where the others are: each is written in one row first, which costs a tenth of all its rows.

The statements are plain texts, made of columns that are given: the process that runs them knows no schema.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final, NamedTuple

from gateway.storage.inserting import Insertion, Row, insert_rows

UNLESS_THERE: Final = " ON CONFLICT DO NOTHING"

AT_ONCE: Final = 256
"""Calls in one transaction: those that settle meanwhile wait for it."""


class Moves(NamedTuple):
    """For each table, the statement that fills it from `fresh`, with a place for the condition.

    What is there already is left as it is: a writer that ended before it told what it wrote is followed by another.
    """

    turns: str
    calls: str
    pieces: str

    def strict(self) -> "Moves":
        return Moves(*(each.removesuffix(UNLESS_THERE) for each in self))


def is_any_fresh(connection: sqlite3.Connection, turn_id: str | None = None) -> bool:
    if turn_id is None:
        return connection.execute("SELECT 1 FROM fresh LIMIT 1").fetchone() is not None
    return connection.execute("SELECT 1 FROM fresh WHERE turn_id = ?", (turn_id,)).fetchone() is not None


def put_turn_away(connection: sqlite3.Connection, moves: Moves, turn_id: str) -> None:
    """What is fresh of one turn, before anything else is written about it."""
    if is_any_fresh(connection, turn_id):
        _move(connection, moves, "turn_id = ?", turn_id)


def put_some_away(connection: sqlite3.Connection, moves: Moves, *, at_once: int = AT_ONCE) -> int:
    """The oldest of what is fresh; how many calls that were, which is less than `at_once` if there were no more."""
    found = connection.execute("SELECT number FROM fresh ORDER BY number LIMIT ?", (at_once,)).fetchall()
    if found:
        _move(connection, moves, "number <= ?", found[-1][0])
    return len(found)


def write_away(connection: sqlite3.Connection, moves: Moves, into: Insertion, *, rows: Sequence[Row]) -> None:
    """Write calls where they belong at once. Raises `sqlite3.IntegrityError` for one that is there already."""
    [last] = connection.execute("SELECT coalesce(max(number), 0) FROM fresh").fetchone()
    insert_rows(connection, into, rows)
    _move(connection, moves.strict(), "number > ?", last)


def _move(connection: sqlite3.Connection, moves: Moves, condition: str, value: str | int) -> None:
    for statement in moves:
        connection.execute(statement.format(condition=condition), (value,))
    connection.execute(f"DELETE FROM fresh WHERE {condition}", (value,))  # noqa: S608 - one of the two above

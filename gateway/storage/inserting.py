"""Many rows in one statement: each statement hands the interpreter over and back, whatever it does.

It knows SQLite alone, so that a process that does nothing else begins quickly.
"""

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

Row = tuple[Any, ...]

AT_ONCE: Final = 128
"""Rows in one statement."""


class Insertion(NamedTuple):
    """The two parts of a statement: what stands before the rows, and what stands for each of them."""

    before: str
    row: str


def insert_rows(connection: sqlite3.Connection, into: Insertion, rows: Sequence[Row]) -> None:
    """Any number of rows, in one statement if they are not too many."""
    for start in range(0, len(rows), AT_ONCE):
        some = rows[start : start + AT_ONCE]
        connection.execute(_statement(into, len(some)), tuple(chain.from_iterable(some)))


@lru_cache(maxsize=1024)
def _statement(into: Insertion, size: int) -> str:
    return into.before + ", ".join([into.row] * size)

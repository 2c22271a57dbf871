"""Calls that settle in a turn of their own, which is what most of them do: many are written by three statements.

Nobody can know such a turn before its call is answered, so nothing in these rows can contradict what is stored, but by
an error; then each is written on its own, and told what is wrong.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Table, bindparam
from sqlalchemy.dialects.sqlite import dialect, insert

from gateway.storage.schema import calls, pieces, turns

Row = tuple[Any, ...]

_DIALECT: Final = dialect(paramstyle="qmark")
_CHUNKS: Final = (64, 16, 4, 1)
"""Rows in one statement: each size is compiled once, and any number is a sum of them."""
_COUNTED: Final = "number"


@dataclass(slots=True)
class FreshCall:
    """The rows of a turn and of its one call, values in the order of the tables' columns."""

    turn: Row
    call: Row
    pieces: Sequence[Row]


def write_fresh_calls(connection: sqlite3.Connection, fresh: list[FreshCall]) -> None:
    _insert(connection, turns, [each.turn for each in fresh])
    _insert(connection, calls, [each.call for each in fresh])
    _insert(connection, pieces, [piece for each in fresh for piece in each.pieces])


def _columns(table: Table) -> tuple[str, ...]:
    """Those that are given; SQLite counts the rest up by itself."""
    return tuple(column.name for column in table.c if column.name != _COUNTED)


_turn_values: Final = itemgetter(*_columns(turns))
_call_values: Final = itemgetter(*_columns(calls))
_piece_values: Final = itemgetter(*_columns(pieces))


def fresh_call(call: dict[str, Any], turn: Mapping[str, Any], of_call: Sequence[Mapping[str, Any]]) -> FreshCall:
    """From rows by name. A call that is alone in its turn is its first to settle."""
    call["settled_as"] = 1
    return FreshCall(_turn_values(turn), _call_values(call), [_piece_values(each) for each in of_call])


def _insert(connection: sqlite3.Connection, table: Table, rows: list[Row]) -> None:
    done = 0
    for size in _CHUNKS:
        while len(rows) - done >= size:
            connection.execute(_statement(table, size), tuple(chain.from_iterable(rows[done : done + size])))
            done += size


@lru_cache(maxsize=16)
def _statement(table: Table, size: int) -> str:
    names = _columns(table)
    values: list[dict[str, Any]] = [{name: bindparam(f"{name}_{row}") for name in names} for row in range(size)]
    return str(insert(table).values(values).compile(dialect=_DIALECT))

"""Statements about turns, calls and pieces, compiled on import. `call_transactions` runs several of them.

A connection is SQLite's, or a `PostgresConnection`, which has the same methods.
"""

from collections.abc import Awaitable, Callable, Collection
from functools import lru_cache
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

from gateway.storage.call_store import (
    CallFilter,
    StoredCall,
)
from gateway.storage.sql.call_rows import call_from_row
from gateway.storage.sql.column_values import LIKE_ESCAPE, escape_pattern, is_storable
from gateway.storage.sql.compiled_statement import CompiledStatement
from gateway.storage.sql.tables import calls, claims, pieces, turns

_OUTCOME: Final = (
    *("status", "definition", "decision", "because", "is_error", "inline", "trusted"),
    *("from_artifact_tool", "results", "completed_at"),
    *("reason", "decided_at", "implicit", "replay"),
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

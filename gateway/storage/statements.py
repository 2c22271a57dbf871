"""Every statement a store runs, written with SQLAlchemy and compiled on import."""

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

from gateway.storage.prepared import Prepared
from gateway.storage.schema import calls, claims, pieces, turns

_OUTCOME: Final = (
    *("status", "definition", "decision", "because", "is_error", "inline", "trusted"),
    *("from_artifact_tool", "results", "completed_at"),
)
"""What settling writes over a call that was started; the rest stays as it was then."""

_FILTERS: Final = ("tenant", "subject", "turn_id", "catalogue", "tool", "status")

_STARTED: Final = calls.c.status == literal_column("'started'")


def _values(table: Table, **computed: ColumnElement[Any]) -> dict[str, ColumnElement[Any]]:
    given = {column.name: bindparam(column.name, type_=column.type) for column in table.c if column.name != "number"}
    return {**given, **computed}


def _next_in_turn() -> ColumnElement[Any]:
    earlier = calls.alias("earlier")
    last = select(func.coalesce(func.max(earlier.c.settled_as), literal_column("0")) + literal_column("1"))
    return last.where(earlier.c.turn_id == bindparam("turn_id")).scalar_subquery()


def _settling() -> Prepared:
    statement = insert(calls).values(_values(calls, settled_as=_next_in_turn()))
    outcome = {name: statement.excluded[name] for name in (*_OUTCOME, "settled_as")}
    return Prepared(
        statement.on_conflict_do_update(
            index_elements=["turn_id", "id"],
            set_=outcome,
            where=and_(_STARTED, calls.c.owner == statement.excluded.owner),
        )
    )


def _ensuring() -> Prepared:
    """A turn that is there already only ever lives longer."""
    statement = insert(turns).values(_values(turns))
    later = and_(turns.c.owner == statement.excluded.owner, turns.c.expires_at < statement.excluded.expires_at)
    expiry = {"expires_at": statement.excluded.expires_at}
    return Prepared(statement.on_conflict_do_update(index_elements=["id"], set_=expiry, where=later))


def _is_over() -> ColumnElement[bool]:
    """Turns past their end of life: nothing of them runs, and no idempotency key stands for a call of theirs."""
    running = exists().where(calls.c.turn_id == turns.c.id, _STARTED).correlate(turns)
    claimed = exists().where(claims.c.turn_id == turns.c.id, claims.c.until > bindparam("at")).correlate(turns)
    return and_(turns.c.expires_at <= bindparam("at"), not_(running), not_(claimed))


INSERT_TURN: Final = Prepared(insert(turns).values(_values(turns)))
ENSURE_TURN: Final = _ensuring()
FIND_TURN: Final = Prepared(
    select(turns).where(
        turns.c.id == bindparam("id"), turns.c.owner == bindparam("owner"), turns.c.expires_at > bindparam("at")
    )
)
END_TURN: Final = Prepared(
    update(turns)
    .values(ended_at=bindparam("at"), ending=bindparam("how"), stash=bindparam("left"))
    .where(turns.c.id == bindparam("turn"), turns.c.ended_at.is_(None))
)

REMEMBERED: Final = Prepared(select(turns.c.memory).where(turns.c.id == bindparam("turn")))
REMEMBER: Final = Prepared(update(turns).values(memory=bindparam("remembered")).where(turns.c.id == bindparam("turn")))

START_CALL: Final = Prepared(insert(calls).values(_values(calls, settled_as=literal_column("NULL"))))
UNDO_CLAIM: Final = Prepared(
    delete(claims).where(claims.c.turn_id == bindparam("turn_id"), claims.c.call_id == bindparam("id"))
)
UNDO_START: Final = Prepared(
    delete(calls).where(
        calls.c.turn_id == bindparam("turn_id"),
        calls.c.id == bindparam("id"),
        calls.c.process == bindparam("process"),
        _STARTED,
    )
)
SETTLE_CALL: Final = _settling()
INSERT_PIECE: Final = Prepared(insert(pieces).values(_values(pieces)).on_conflict_do_nothing(index_elements=["key"]))
CALL_OF_TURN: Final = Prepared(
    select(calls).where(calls.c.turn_id == bindparam("turn_id"), calls.c.id == bindparam("id"))
)
FIND_CALL: Final = Prepared(
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
CALLS_OF: Final = Prepared(
    select(calls)
    .where(calls.c.turn_id == bindparam("turn_id"), calls.c.settled_as.is_not(None))
    .order_by(calls.c.settled_as)
)

FIND_CLAIM: Final = Prepared(
    select(claims).where(
        claims.c.owner == bindparam("owner"), claims.c.key == bindparam("key"), claims.c.until > bindparam("at")
    )
)
DROP_CLAIM: Final = Prepared(
    delete(claims).where(claims.c.owner == bindparam("owner"), claims.c.key == bindparam("key"))
)
INSERT_CLAIM: Final = Prepared(insert(claims).values(_values(claims)))

STARTED_BY: Final = Prepared(select(calls).where(_STARTED, calls.c.process == bindparam("gone")))
RUNNING_PROCESSES: Final = Prepared(select(calls.c.process).where(_STARTED).distinct())
GIVE_UP: Final = Prepared(
    update(calls)
    .values(status=literal_column("'unknown'"), completed_at=bindparam("at"))
    .where(_STARTED, calls.c.process == bindparam("gone"))
)
GIVE_UP_CALL: Final = Prepared(
    update(calls)
    .values(status=literal_column("'unknown'"), completed_at=bindparam("at"))
    .where(_STARTED, calls.c.turn_id == bindparam("turn"), calls.c.id == bindparam("call"))
)

FIND_PIECE: Final = Prepared(select(pieces.c.content).where(pieces.c.key == bindparam("key")))
LAST_PIECE: Final = Prepared(
    select(pieces.c.key, pieces.c.content)
    .where(pieces.c.key > bindparam("prefix"), pieces.c.key < bindparam("end"), pieces.c.content.is_not(None))
    .order_by(pieces.c.key.desc())
    .limit(literal_column("1"))
)
DROP_PIECES: Final = Prepared(delete(pieces).where(pieces.c.key > bindparam("prefix"), pieces.c.key < bindparam("end")))
EXPIRED_PIECES: Final = Prepared(
    select(pieces.c.position, calls.c.results)
    .join(calls, and_(calls.c.turn_id == pieces.c.turn_id, calls.c.id == pieces.c.call_id))
    .join(turns, turns.c.id == calls.c.turn_id)
    .where(pieces.c.content.is_(None), _is_over())
    .order_by(turns.c.expires_at, calls.c.number, pieces.c.position)
    .limit(bindparam("limit"))
)
FORGET_PIECE: Final = Prepared(delete(pieces).where(pieces.c.key == bindparam("key")))

PRUNABLE: Final = Prepared(
    select(turns.c.id)
    .where(_is_over(), not_(exists().where(pieces.c.turn_id == turns.c.id, pieces.c.content.is_(None))))
    .order_by(turns.c.expires_at)
    .limit(bindparam("limit"))
)
PRUNE_CLAIMS: Final = Prepared(delete(claims).where(claims.c.until <= bindparam("at")))
PRUNE_PIECES: Final = Prepared(delete(pieces).where(pieces.c.turn_id == bindparam("turn")))
PRUNE_CALLS: Final = Prepared(delete(calls).where(calls.c.turn_id == bindparam("turn")))
PRUNE_TURN: Final = Prepared(delete(turns).where(turns.c.id == bindparam("turn")))


@lru_cache(maxsize=128)
def listing(filters: frozenset[str], *, from_the_top: bool, tables: tuple[Table, ...] = (calls,)) -> Prepared:
    """A page of calls, newest first, by the columns that matter. Each of the tables has the columns of `calls`."""
    found = union_all(*(_chosen(table, filters, from_the_top) for table in tables))
    return Prepared(found.order_by(found.selected_columns.number.desc()).limit(bindparam("limit")))


def _chosen(table: Table, filters: frozenset[str], from_the_top: bool) -> Select[Any]:
    chosen = [table.c[name] == bindparam(name) for name in _FILTERS if name in filters]
    below = [] if from_the_top else [table.c.number < bindparam("before")]
    return select(*(table.c[each.name] for each in calls.c)).where(*chosen, *below)

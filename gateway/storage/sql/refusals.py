"""Counts of refused calls, one row for each caller, reason and minute.

A count is written in the transaction of its refusals, so it is exact whenever a process is killed. The row also has how
many of them the decision log has: refusals that are counted later get another entry.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json import loads
from typing import Any, Final

from sqlalchemy import bindparam, delete, func, literal_column, select, update
from sqlalchemy.dialects.sqlite import insert

from gateway.storage.call_store import AuditBody
from gateway.storage.outcome_store import KEPT_FOR, WINDOW, Refusal, RefusalCount
from gateway.storage.sql import call_statements as statements
from gateway.storage.sql.call_statements import write_turn_state
from gateway.storage.sql.dialect import CompiledStatement
from gateway.storage.sql.rows import blob_rows, call_to_row, owner_key, turn_to_row
from gateway.storage.sql.schema import calls, refusals, turns

TOLD_AT_ONCE: Final = 200

Row = dict[str, Any]
Summed = Callable[[RefusalCount], AuditBody]
"""Makes the entry of the decision log about counted refusals."""

_OF_WINDOW: Final = (
    refusals.c.owner == bindparam("owner"),
    refusals.c.reason == bindparam("reason"),
    refusals.c.since == bindparam("since"),
)
_FIND: Final = CompiledStatement(select(refusals.c.kept).where(*_OF_WINDOW))
_ADDED: Final = insert(refusals).values(
    {**{name: bindparam(name) for name in ("owner", "reason", "since", "kept", "counted")}, "told": literal_column("0")}
)
_COUNT: Final = CompiledStatement(
    _ADDED.on_conflict_do_update(
        index_elements=["owner", "reason", "since"],
        set_={
            "kept": refusals.c.kept + _ADDED.excluded.kept,
            "counted": refusals.c.counted + _ADDED.excluded.counted,
        },
    )
)
_FIND_PENDING: Final = CompiledStatement(
    select(refusals)
    .where(refusals.c.counted > refusals.c.told, refusals.c.since <= bindparam("before"))
    .order_by(refusals.c.since)
    .limit(bindparam("limit"))
)
_MARK_RECORDED: Final = CompiledStatement(update(refusals).values(told=bindparam("number")).where(*_OF_WINDOW))
_PRUNE: Final = CompiledStatement(
    delete(refusals).where(
        refusals.c.since <= bindparam("before"), refusals.c.counted - refusals.c.told <= bindparam("untold")
    )
)
_BY_REASON: Final = CompiledStatement(
    select(
        refusals.c.reason,
        func.sum(refusals.c.kept).label("kept"),
        func.sum(refusals.c.counted).label("counted"),
    ).group_by(refusals.c.reason)
)
_CUT_ARGUMENTS: Final = CompiledStatement(
    update(calls)
    .values(args=bindparam("shortened"))
    .where(calls.c.turn_id == bindparam("turn"), calls.c.id == bindparam("call"))
)
_DROP_EMPTY_TURN: Final = CompiledStatement(
    delete(turns).where(
        turns.c.id == bindparam("turn"),
        ~select(literal_column("1")).where(calls.c.turn_id == turns.c.id).correlate(turns).exists(),
    )
)


@dataclass(slots=True)
class RefusalRows:
    """A refusal as rows. `is_kept` is set each time it is written: whether it is recorded and not only counted."""

    refusal: Refusal
    call: Row | None = None
    turn: Row | None = None
    pieces: Sequence[Row] = ()
    is_kept: bool = False

    @classmethod
    def of(cls, refusal: Refusal, *, process: str) -> "RefusalRows":
        call = refusal.call
        if call is None:
            return cls(refusal)
        turn = None if refusal.turn is None else turn_to_row(refusal.turn)
        if turn is not None and refusal.is_alone:
            turn["memory"] = refusal.memory
        return cls(refusal, call_to_row(call, status="settled", process=process), turn, blob_rows(call))


def write_refusals(connection: Any, all: Sequence[RefusalRows], *, at: int) -> list[AuditBody]:
    """Count refusals, record those within the limit, and return their entries of the decision log.

    No other process may write meanwhile. Raises as `write_outcomes` does.
    """
    _count(connection, all, since=at - at % WINDOW)
    kept = [each for each in all if each.is_kept]
    statements.write_outcomes(
        connection,
        [each.call for each in kept if each.call is not None],
        turns=[each.turn for each in kept if each.turn is not None],
        pieces=[piece for each in kept for piece in each.pieces],
    )
    for each in all:
        if each.call is not None:
            _finish(connection, each, each.call)
    return [body for each in kept for body in each.refusal.audit]


def _count(connection: Any, all: Sequence[RefusalRows], *, since: int) -> None:
    """Write one row for all refusals of one caller for one reason."""
    groups: dict[tuple[str, str], list[RefusalRows]] = {}
    for each in all:
        groups.setdefault((owner_key(each.refusal.principal), each.refusal.reason), []).append(each)
    for (owner, reason), members in groups.items():
        row: Row = {"owner": owner, "reason": reason, "since": since}
        found = _FIND.rows(connection, row)
        before = found[0]["kept"] if found else 0
        kept = 0
        for each in members:
            each.is_kept = before + kept < each.refusal.most
            kept += each.is_kept
        _COUNT.run(connection, {**row, "kept": kept, "counted": len(members) - kept})


def _finish(connection: Any, rows: RefusalRows, call: Row) -> None:
    """Shorten the arguments of a recorded start to an excerpt, or delete the start if the refusal is only counted."""
    refusal, turn = rows.refusal, {"turn": call["turn_id"]}
    if refusal.is_started and rows.is_kept:
        _CUT_ARGUMENTS.run(connection, {**turn, "shortened": call["args"], "call": call["id"]})
    elif refusal.is_started:
        statements.UNDO_CLAIM.run(connection, call)
        statements.UNDO_START.run(connection, call)
        if refusal.is_alone:
            _DROP_EMPTY_TURN.run(connection, turn)
    has_state = refusal.is_alone and not refusal.is_started  # the turn was written with its state, or not at all
    if refusal.memory is not None and not has_state:
        write_turn_state(connection, call["turn_id"], refusal.memory, refusal.knowing)


def find_pending(connection: Any, *, at: int, limit: int = TOLD_AT_ONCE) -> list[Row]:
    """Return rows of past windows with counts that the decision log does not have yet."""
    return _FIND_PENDING.rows(connection, {"before": at - WINDOW, "limit": limit})


def mark_recorded(connection: Any, rows: Sequence[Row], summed: Summed) -> list[AuditBody]:
    """Mark counts as recorded in the decision log, and return the entries."""
    for row in rows:
        _MARK_RECORDED.run(connection, {**row, "number": row["counted"]})
    return [summed(_to_count(row)) for row in rows]


def prune(connection: Any, *, at: int, is_told: bool) -> int:
    """Delete old counts; with a decision log (`is_told`) only those that it has."""
    wanted = {"before": at - KEPT_FOR, "untold": 0 if is_told else 2**62}
    went: int = _PRUNE.run(connection, wanted).rowcount
    return went


def count_by_reason(connection: Any) -> dict[str, tuple[int, int]]:
    return {row["reason"]: (int(row["kept"]), int(row["counted"])) for row in _BY_REASON.rows(connection, {})}


def _to_count(row: Row) -> RefusalCount:
    tenant, subject = loads(row["owner"])
    return RefusalCount(
        tenant, subject, row["reason"], row["since"], row["since"] + WINDOW, row["counted"] - row["told"]
    )

"""Counts of refused calls, one row for each caller, reason and minute, in whichever database.

A row is written in the transaction of what it counts, so that the count is exact whoever is killed when. What the
decision log has told of a row is noted in it: a count that comes late is told in an entry of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json import loads
from typing import Any, Final

from sqlalchemy import bindparam, delete, func, literal_column, select, update
from sqlalchemy.dialects.sqlite import insert

from gateway.errors import RecordConflict
from gateway.governance.records import AuditBody
from gateway.governance.refusals import KEPT_FOR, WINDOW, Refusal, RefusalCount
from gateway.storage import statements
from gateway.storage.prepared import Prepared
from gateway.storage.rows import call_row, owner_of, piece_rows, turn_row
from gateway.storage.schema import calls, refusals, turns
from gateway.storage.turn_memories import remember

TOLD_AT_ONCE: Final = 200

Row = dict[str, Any]
Summed = Callable[[RefusalCount], AuditBody]
"""Makes the entry of the decision log about refusals that were counted."""

_OF_WINDOW: Final = (
    refusals.c.owner == bindparam("owner"),
    refusals.c.reason == bindparam("reason"),
    refusals.c.since == bindparam("since"),
)
_FIND: Final = Prepared(select(refusals.c.kept).where(*_OF_WINDOW))
_ADDED: Final = insert(refusals).values(
    {**{name: bindparam(name) for name in ("owner", "reason", "since", "kept", "counted")}, "told": literal_column("0")}
)
_COUNT: Final = Prepared(
    _ADDED.on_conflict_do_update(
        index_elements=["owner", "reason", "since"],
        set_={
            "kept": refusals.c.kept + _ADDED.excluded.kept,
            "counted": refusals.c.counted + _ADDED.excluded.counted,
        },
    )
)
_UNTOLD: Final = Prepared(
    select(refusals)
    .where(refusals.c.counted > refusals.c.told, refusals.c.since <= bindparam("before"))
    .order_by(refusals.c.since)
    .limit(bindparam("limit"))
)
_TELL: Final = Prepared(update(refusals).values(told=bindparam("number")).where(*_OF_WINDOW))
_PRUNE: Final = Prepared(
    delete(refusals).where(
        refusals.c.since <= bindparam("before"), refusals.c.counted - refusals.c.told <= bindparam("untold")
    )
)
_BY_REASON: Final = Prepared(
    select(
        refusals.c.reason,
        func.sum(refusals.c.kept).label("kept"),
        func.sum(refusals.c.counted).label("counted"),
    ).group_by(refusals.c.reason)
)
_CUT_ARGUMENTS: Final = Prepared(
    update(calls)
    .values(args=bindparam("shortened"))
    .where(calls.c.turn_id == bindparam("turn"), calls.c.id == bindparam("call"))
)
_DROP_EMPTY_TURN: Final = Prepared(
    delete(turns).where(
        turns.c.id == bindparam("turn"),
        ~select(literal_column("1")).where(calls.c.turn_id == turns.c.id).correlate(turns).exists(),
    )
)


@dataclass(slots=True)
class RefusalRows:
    """A refusal as rows. `is_kept` is known once it is written; work that is done again sets it again."""

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
        turn = None if refusal.turn is None else turn_row(refusal.turn)
        if turn is not None and refusal.is_alone:
            turn["memory"] = refusal.memory
        return cls(refusal, call_row(call, status="settled", process=process), turn, piece_rows(call))


def write_refusals(connection: Any, all: Sequence[RefusalRows], *, at: int) -> list[AuditBody]:
    """Count refusals, and write those that are kept; their entries of the decision log. Nobody else writes meanwhile.

    Raises `RecordConflict` for a call that has an outcome, and what a violated constraint raises.
    """
    _count(connection, all, since=at - at % WINDOW)
    kept = [each for each in all if each.is_kept]
    statements.ENSURE_TURN.run_all(connection, [each.turn for each in kept if each.turn is not None])
    calls = [each.call for each in kept if each.call is not None]
    if statements.SETTLE_CALL.run_all(connection, calls) != len(calls):
        raise RecordConflict("the call has an outcome already")
    statements.INSERT_PIECE.run_all(connection, [piece for each in kept for piece in each.pieces])
    for each in all:
        if each.call is not None:
            _finish(connection, each, each.call)
    return [body for each in kept for body in each.refusal.audit]


def _count(connection: Any, all: Sequence[RefusalRows], *, since: int) -> None:
    """One row for all that are of one caller and for one reason."""
    groups: dict[tuple[str, str], list[RefusalRows]] = {}
    for each in all:
        groups.setdefault((owner_of(each.refusal.principal), each.refusal.reason), []).append(each)
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
    """What is on record of its start has all of its arguments: an excerpt is left of them, or nothing of the call."""
    refusal, turn = rows.refusal, {"turn": call["turn_id"]}
    if refusal.is_started and rows.is_kept:
        _CUT_ARGUMENTS.run(connection, {**turn, "shortened": call["args"], "call": call["id"]})
    elif refusal.is_started:
        statements.UNDO_CLAIM.run(connection, call)
        statements.UNDO_START.run(connection, call)
        if refusal.is_alone:
            _DROP_EMPTY_TURN.run(connection, turn)
    is_told = refusal.is_alone and not refusal.is_started  # then the row of the turn tells it, or there is none
    if refusal.memory is not None and not is_told:
        remember(connection, call["turn_id"], refusal.memory, refusal.knowing)


def untold(connection: Any, *, at: int, limit: int = TOLD_AT_ONCE) -> list[Row]:
    """Rows of windows that are over with counts that the decision log has not told of."""
    return _UNTOLD.rows(connection, {"before": at - WINDOW, "limit": limit})


def tell(connection: Any, rows: Sequence[Row], summed: Summed) -> list[AuditBody]:
    """Note that they are told; the entries that do."""
    for row in rows:
        _TELL.run(connection, {**row, "number": row["counted"]})
    return [summed(_count_of(row)) for row in rows]


def prune(connection: Any, *, at: int, is_told: bool) -> int:
    """Remove old counts; with a decision log only those that it has told of."""
    wanted = {"before": at - KEPT_FOR, "untold": 0 if is_told else 2**62}
    went: int = _PRUNE.run(connection, wanted).rowcount
    return went


def by_reason(connection: Any) -> dict[str, tuple[int, int]]:
    return {row["reason"]: (int(row["kept"]), int(row["counted"])) for row in _BY_REASON.rows(connection, {})}


def _count_of(row: Row) -> RefusalCount:
    tenant, subject = loads(row["owner"])
    return RefusalCount(
        tenant, subject, row["reason"], row["since"], row["since"] + WINDOW, row["counted"] - row["told"]
    )

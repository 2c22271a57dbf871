"""Counts of refused calls, one row for each caller, reason and minute.

A count is written in the transaction of its refusals, and from the moment on at which none of them is recorded any more
once a second by a `RefusalCounter`. The row also has how many of them the decision log has: refusals that are counted
later get another entry.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from json import loads
from typing import Any, Final

from sqlalchemy import bindparam, delete, func, literal_column, select, update
from sqlalchemy.dialects.sqlite import insert

from gateway.errors import StoreUnavailable
from gateway.model import Principal
from gateway.policy import TurnStateWrite
from gateway.storage.call_store import AuditBody
from gateway.storage.refusal_store import KEPT_FOR, WINDOW, Refusal, RefusalCount
from gateway.storage.sql import call_statements as statements
from gateway.storage.sql import call_transactions as transactions
from gateway.storage.sql.call_rows import blob_rows, call_to_row, owner_key, owner_text, to_microseconds, turn_to_row
from gateway.storage.sql.call_transactions import write_turn_states
from gateway.storage.sql.compiled_statement import CompiledStatement
from gateway.storage.sql.group_commit import GroupCommit
from gateway.storage.sql.lock_keys import Footprint, claim_key, refusal_key, state_footprint, turn_key
from gateway.storage.sql.tables import calls, refusals, turns

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
    """A refusal as rows. Each write sets `is_kept`, whether it is recorded and not only counted, and `since`, when its
    minute began.
    """

    refusal: Refusal
    call: Row | None = None
    turn: Row | None = None
    pieces: Sequence[Row] = ()
    is_kept: bool = False
    since: int = 0

    @classmethod
    def of(cls, refusal: Refusal, *, process: str) -> "RefusalRows":
        call = refusal.call
        if call is None:
            return cls(refusal)
        turn = None if refusal.turn is None else turn_to_row(refusal.turn)
        if turn is not None and refusal.is_alone:
            turn["memory"] = refusal.memory
        return cls(refusal, call_to_row(call, status="settled", process=process), turn, blob_rows(call))

    @property
    def footprint(self) -> Footprint:
        refusal, owner = self.refusal, owner_key(self.refusal.principal)
        keys, states = [refusal_key(owner, refusal.reason)], [refusal.implicit]
        if (call := refusal.call) is not None:
            keys.append(turn_key(call.turn_id))
            if call.idempotency_key is not None:
                keys.append(claim_key(owner, call.idempotency_key))
            if refusal.memory is not None:
                states.append(TurnStateWrite(call.turn_id, refusal.memory, refusal.knowing))
        return state_footprint(*states, keys=keys)


def write_refusals(connection: Any, all: Sequence[RefusalRows], *, at: int) -> list[AuditBody]:
    """Count refusals, record those within the limit, and return their entries of the decision log.

    No other process may write meanwhile. Raises as `write_outcomes` does.
    """
    _count(connection, all, since=at - at % WINDOW)
    kept = [each for each in all if each.is_kept]
    transactions.write_outcomes(
        connection,
        [each.call for each in kept if each.call is not None],
        turns=[each.turn for each in kept if each.turn is not None],
        pieces=[piece for each in kept for piece in each.pieces],
    )
    for each in all:
        if each.call is not None:
            _finish(connection, each, each.call)
    write_turn_states(connection, (each.refusal.implicit for each in all))
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
            each.is_kept, each.since = before + kept < each.refusal.most, since
            kept += each.is_kept
        _COUNT.run(connection, {**row, "kept": kept, "counted": len(members) - kept})


def add_counts(connection: Any, rows: Sequence[Row]) -> None:
    """Add refusals that were counted elsewhere."""
    for row in rows:
        _COUNT.run(connection, row)


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
        write_turn_states(connection, [TurnStateWrite(call["turn_id"], refusal.memory, refusal.knowing)])


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


WRITE_EVERY: Final = 1.0
"""Seconds."""

_MOST_CALLERS: Final = 10_000

_Key = tuple[str | None, str, str]
"""Tenant, subject and reason."""


class RefusalCounter:
    """One per store and process. Only the thread of the event loop uses it."""

    def __init__(self, writer: GroupCommit, *, clock: Callable[[], datetime]) -> None:
        self._writer = writer
        self._clock = clock
        self._since = 0
        self._only_counted: set[_Key] = set()
        """Those of the minute that began at `_since`."""
        self._counts: Counter[tuple[_Key, int]] = Counter()
        self._is_failing = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def count(self, principal: Principal, reason: str) -> bool:
        """Count a refusal; false if the table has to decide whether it is recorded."""
        at = to_microseconds(self._clock())
        key = (principal.tenant, principal.subject, reason)
        if self._is_failing or at - at % WINDOW != self._since or key not in self._only_counted:
            return False
        self._counts[key, self._since] += 1
        self._expect_write()
        return True

    def learn(self, rows: RefusalRows) -> None:
        """Remember whether the table only counted a refusal."""
        if rows.since > self._since:
            self._since = rows.since
            self._only_counted.clear()
        if not rows.is_kept and rows.since == self._since and len(self._only_counted) < _MOST_CALLERS:
            principal = rows.refusal.principal
            self._only_counted.add((principal.tenant, principal.subject, rows.refusal.reason))

    async def write(self) -> None:
        """Write what is counted. While the store fails, it stays in memory, and the table decides about the next."""
        counts, self._counts = self._counts, Counter()
        if not counts:
            return
        rows = [
            {"owner": owner_text(tenant, subject), "reason": reason, "since": since, "kept": 0, "counted": number}
            for ((tenant, subject, reason), since), number in counts.items()
        ]
        try:
            await self._writer.run(lambda connection: add_counts(connection, rows))
            self._is_failing = False
        except StoreUnavailable:
            self._counts.update(counts)
            self._is_failing = True

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await self._task
        await self.write()

    def _expect_write(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WRITE_EVERY, self._begin_write)

    def _begin_write(self) -> None:
        self._task = asyncio.create_task(self._write_again())

    async def _write_again(self) -> None:
        await self.write()
        self._timer = None
        if self._counts:
            self._expect_write()

"""Quotas in the database: one row per key and window.

Each window has its own row, so a clock that is set back finds the earlier count: nothing is granted twice.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import BindParameter, bindparam, delete, select, tuple_, update
from sqlalchemy.dialects.sqlite import insert

from gateway.policy import (
    ExceededLimit,
    LimitKey,
    LimitReservation,
    QuotaLimit,
    QuotaWindow,
    encode_limit_key,
    find_window,
)
from gateway.storage.sql.call_rows import to_microseconds
from gateway.storage.sql.compiled_statement import CompiledStatement
from gateway.storage.sql.group_commit import GroupCommit
from gateway.storage.sql.lock_keys import Footprint, limit_key
from gateway.storage.sql.tables import quotas

QUOTA_RETENTION: Final = timedelta(days=1)
"""How far a clock may run ahead while counts are pruned, and then be set back, without granting anything twice."""

_WITHIN: Final = 1.0
"""Seconds a call waits for its count to be durable; it has not run yet."""

_PRUNED_AT_ONCE: Final = 500

_BELIEVED_FOR: Final = timedelta(milliseconds=20)
"""For how long a quota counts as used up without another look: other processes may have given a call back."""

_MOST_USED_UP: Final = 4096

_AMOUNT: Final[BindParameter[int]] = bindparam("amount_", type_=quotas.c.used.type)
_COUNTED: Final = (quotas.c.key == bindparam("key_"), quotas.c.window == bindparam("window_"))

_FIND: Final = CompiledStatement(select(quotas.c.used).where(*_COUNTED))
_COUNT: Final = CompiledStatement(
    insert(quotas)
    .values(key=bindparam("key_"), window=bindparam("window_"), used=_AMOUNT, ends_at=bindparam("ends_at_"))
    .on_conflict_do_update(index_elements=["key", "window"], set_={"used": quotas.c.used + _AMOUNT})
)
_GIVE_BACK: Final = CompiledStatement(
    update(quotas).values(used=quotas.c.used - _AMOUNT).where(*_COUNTED, quotas.c.used >= _AMOUNT)
)
_PRUNE: Final = CompiledStatement(
    delete(quotas).where(
        tuple_(quotas.c.key, quotas.c.window).in_(
            select(quotas.c.key, quotas.c.window)
            .where(quotas.c.ends_at <= bindparam("before"))
            .order_by(quotas.c.ends_at)
            .limit(bindparam("at_once"))
        )
    )
)


@dataclass(frozen=True, slots=True)
class _Count:
    quota: QuotaLimit
    window: QuotaWindow
    row: dict[str, Any]

    @property
    def place(self) -> tuple[bytes, int]:
        return self.row["key_"], self.row["window_"]


class SqlQuotas:
    """Implements `gateway.policy.QuotaStore`."""

    def __init__(self, writer: GroupCommit, *, clock: Callable[[], datetime]) -> None:
        self._writer = writer
        self._clock = clock
        self._used_up: dict[tuple[bytes, int], datetime] = {}
        """When quotas were found to be used up: for a moment, a caller who goes on is refused in memory."""

    async def take(self, quotas: Sequence[QuotaLimit], call: LimitKey) -> LimitReservation:
        taking = QuotaReservation(quotas, call, at=self._clock())
        if self._used_up and taking.is_refused_by(self._used_up):
            return taking.refuse_all()
        taken = await self._writer.run(taking.run, within=_WITHIN, undo=taking.undo, footprint=taking.footprint)
        if taking.used_up:
            if len(self._used_up) > _MOST_USED_UP:
                self._used_up.clear()
            self._used_up.update(dict.fromkeys(taking.used_up, self._clock()))
        return taken

    async def give_back(self, quotas: Sequence[QuotaLimit], call: LimitKey, *, at: datetime) -> None:
        self._used_up.clear()
        rows = [_to_count(quota, call, at).row for quota in quotas]
        await self._writer.run(lambda connection: _give_back(connection, rows), footprint=_footprint(rows))

    async def charge(self, quotas: Sequence[QuotaLimit], call: LimitKey, amount: int) -> None:
        at = self._clock()
        rows = [{**_to_count(quota, call, at).row, "amount_": amount} for quota in quotas]

        def charge(connection: sqlite3.Connection) -> None:
            for row in rows:
                _COUNT.run(connection, row)

        await self._writer.run(charge, footprint=_footprint(rows))

    async def prune(self, *, kept: timedelta | None = None) -> int:
        after_end = max(kept or QUOTA_RETENTION, QUOTA_RETENTION)
        wanted = {"before": to_microseconds(self._clock() - after_end), "at_once": _PRUNED_AT_ONCE}
        pruned = 0
        # Few rows per transaction: calls that are recorded meanwhile go in between.
        while went := await self._writer.run(lambda connection: _PRUNE.run(connection, wanted).rowcount):
            pruned += went
        return pruned


class QuotaReservation:
    """Counts one call in all of its quotas or in none, in a transaction that the caller commits."""

    def __init__(self, quotas: Sequence[QuotaLimit], call: LimitKey, *, at: datetime) -> None:
        self._counts = [_to_count(quota, call, at) for quota in quotas]
        self._at = at
        self._written: list[dict[str, Any]] = []
        self.used_up: list[tuple[bytes, int]] = []
        """Keys and windows of the quotas that are used up, whatever the call would have added."""
        self.footprint = _footprint([count.row for count in self._counts])

    def is_refused_by(self, used_up: Mapping[tuple[bytes, int], datetime]) -> bool:
        """Whether all quotas refuse the call, because they were just found to be used up."""
        for each in self._counts:
            found = used_up.get(each.place)
            if found is None or each.quota.is_lifted or not each.quota.enforced:
                return False
            if not timedelta(0) <= self._at - found < _BELIEVED_FOR:
                return False
        return True

    def refuse_all(self) -> LimitReservation:
        return LimitReservation(tuple([self._exceed(each) for each in self._counts]))

    def run(self, connection: sqlite3.Connection) -> LimitReservation:
        self._written = []
        free, exhausted = self._check_counts(connection)
        exceeded = tuple(each for each in exhausted if each.limit.enforced)
        observed = tuple(each for each in exhausted if not each.limit.enforced)
        if exceeded:
            return LimitReservation(exceeded, observed)
        for count in free:
            _COUNT.run(connection, count.row)
        self._written = [count.row for count in free]
        return LimitReservation((), observed, tuple(count.quota for count in free), self._at)

    def undo(self, connection: sqlite3.Connection) -> None:
        _give_back(connection, self._written)

    def _check_counts(self, connection: sqlite3.Connection) -> tuple[list[_Count], list[ExceededLimit]]:
        free: list[_Count] = []
        exhausted: list[ExceededLimit] = []
        self.used_up = []
        for count in self._counts:
            found = _FIND.run(connection, count.row).fetchone()
            used = 0 if found is None else found[0]
            most = count.quota.most
            if count.quota.is_lifted or (used < most and used + count.row["amount_"] <= most):
                free.append(count)
                continue
            exhausted.append(self._exceed(count))
            if used >= most:
                self.used_up.append(count.place)
        return free, exhausted

    def _exceed(self, count: _Count) -> ExceededLimit:
        return ExceededLimit(count.quota, count.window.end - self._at)


def _to_count(quota: QuotaLimit, call: LimitKey, at: datetime) -> _Count:
    window = find_window(at, quota.per)
    key = sha256(encode_limit_key(quota, call)).digest()
    row = {
        "key_": key,
        "window_": window.number,
        "ends_at_": to_microseconds(window.end),
        "amount_": call.amount(quota),
    }
    return _Count(quota, window, row)


def _footprint(rows: Sequence[dict[str, Any]]) -> Footprint:
    return Footprint(tuple(limit_key(row["key_"]) for row in rows))


def _give_back(connection: sqlite3.Connection, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        _GIVE_BACK.run(connection, row)

"""The stop list in two tables, `quarantines` and `revocations`, cached in memory until a change is published."""

import sqlite3
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

from sqlalchemy import Table, bindparam, delete, select
from sqlalchemy.dialects.sqlite import insert

from gateway.errors import StoreUnavailable
from gateway.policy import QuarantineNotFound, RevocationNotFound, Stop, StopChange, StopHook, StopTarget
from gateway.storage.cache_invalidation import STOP_RETENTION, CachedValue, ChangeSignal
from gateway.storage.sql.call_rows import from_microseconds, to_microseconds
from gateway.storage.sql.column_values import is_storable
from gateway.storage.sql.compiled_statement import CompiledStatement
from gateway.storage.sql.group_commit import GroupCommit
from gateway.storage.sql.tables import quarantines, revocations


class _StopTable:
    """One of the two tables, which differ in the name and the meaning of their key."""

    def __init__(self, table: Table, to_target: Callable[[str], StopTarget]) -> None:
        [key] = table.primary_key
        others = [column for column in table.c if column is not key]
        rows, is_wanted = select(key.label("key"), *others), key == bindparam("key")
        self.all = CompiledStatement(rows.order_by(table.c.since, key))
        self.ends = CompiledStatement(select(key, table.c.until))
        self.find = CompiledStatement(rows.where(is_wanted))
        self.delete = CompiledStatement(delete(table).where(is_wanted))
        self.delete_expired = CompiledStatement(delete(table).where(table.c.until <= bindparam("at")))
        names = {key.name: "key"} | {column.name: column.name for column in others}
        self.insert = CompiledStatement(insert(table).values({name: bindparam(to) for name, to in names.items()}))
        self._to_target = to_target

    def from_row(self, row: Mapping[str, Any]) -> Stop:
        until = row["until"]
        return Stop(
            self._to_target(row["key"]),
            row["reason"],
            row["by"],
            from_microseconds(row["since"]),
            None if until is None else from_microseconds(until),
        )


_QUARANTINES: Final = _StopTable(quarantines, StopTarget.parse)
_REVOCATIONS: Final = _StopTable(revocations, partial(StopTarget, "token"))


class _Stops(NamedTuple):
    by_target: Mapping[str, Stop]
    revoked: Mapping[str, int | None]
    """Token ids and until when, in microseconds. There may be many, and calls wait while they are read."""


class SqlStopList:
    """Implements `gateway.policy.stop_list.StopList`.

    Ids of tokens are compared without case: a digest may be written in capitals, and to refuse one token too many is
    better than to accept a revoked one.
    """

    def __init__(self, writer: GroupCommit, notices: ChangeSignal, *, clock: Callable[[], datetime]) -> None:
        self._writer = writer
        self._notices = notices
        self._clock = clock
        self._stops: CachedValue[_Stops] = notices.cache(_read_stops, at_first=_Stops({}, {}))

    @property
    def problem(self) -> str | None:
        return self._stops.problem

    def find_stop(self, *, tool: str, subject: str, upstream: str | None = None, is_consequential: bool) -> Stop | None:
        try:
            stops = self._stops.current().by_target
        except StoreUnavailable:
            if is_consequential:
                raise
            stops = self._stops.last.by_target
        if not stops:
            return None
        at = self._clock()
        found = map(stops.get, (f"tool:{tool}", f"principal:{subject}", f"upstream:{upstream or ''}"))
        return next((stop for stop in found if stop is not None and not stop.is_expired(at)), None)

    def has_revoked(self, token_ids: frozenset[str]) -> bool:
        revoked = self._stops.current().revoked
        if not revoked:
            return False
        at = to_microseconds(self._clock())
        ends = [revoked[id.lower()] for id in token_ids if id.lower() in revoked]
        return any(end is None or at < end for end in ends)

    async def add(self, stop: Stop, *, also: StopHook | None = None) -> StopChange:
        change = StopChange("add", stop, stop.reason, stop.by, self._clock())
        table, row = _table_of(stop.target), _to_row(stop)

        def write(connection: sqlite3.Connection) -> None:
            table.delete_expired.run(connection, {"at": to_microseconds(change.at - STOP_RETENTION)})
            table.delete.run(connection, row)
            table.insert.run(connection, row)
            if also is not None:
                also(connection, change)

        await self._writer.run(write)
        await self._notices.publish()
        return change

    async def lift(self, target: StopTarget, *, reason: str, by: str, also: StopHook | None = None) -> StopChange:
        at = self._clock()
        not_found = RevocationNotFound() if target.is_token else QuarantineNotFound(f"{target} is not quarantined")
        if not is_storable(target.name):
            raise not_found
        Stop(target, reason, by, at)  # raises for a reason that no stop may have
        table, wanted = _table_of(target), {"key": _to_key(target)}

        def write(connection: sqlite3.Connection) -> StopChange:
            stop = next(map(table.from_row, table.find.rows(connection, wanted)), None)
            if stop is None or stop.is_expired(at):
                raise not_found
            table.delete.run(connection, wanted)
            change = StopChange("lift", stop, reason, by, at)
            if also is not None:
                also(connection, change)
            return change

        change = await self._writer.run(write)
        await self._notices.publish()
        return change

    async def list_stops(self) -> list[Stop]:
        at = self._clock()
        return [stop for stop in self._stops.current().by_target.values() if not stop.is_expired(at)]

    async def list_revoked_tokens(self) -> list[Stop]:
        at = self._clock()
        rows = await self._writer.run(lambda connection: _REVOCATIONS.all.rows(connection, {}))
        return [stop for stop in map(_REVOCATIONS.from_row, rows) if not stop.is_expired(at)]

    def close(self) -> None:
        self._stops.close()


def _read_stops(connection: sqlite3.Connection) -> _Stops:
    stops = map(_QUARANTINES.from_row, _QUARANTINES.all.rows(connection, {}))
    revoked = dict(_REVOCATIONS.ends.run(connection, {}).fetchall())
    return _Stops({str(stop.target): stop for stop in stops}, revoked)


def _table_of(target: StopTarget) -> _StopTable:
    return _REVOCATIONS if target.is_token else _QUARANTINES


def _to_key(target: StopTarget) -> str:
    return target.name.lower() if target.is_token else str(target)


def _to_row(stop: Stop) -> dict[str, Any]:
    return {
        "key": _to_key(stop.target),
        "reason": stop.reason,
        "by": stop.by,
        "since": to_microseconds(stop.since),
        "until": None if stop.until is None else to_microseconds(stop.until),
    }

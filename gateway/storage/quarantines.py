"""Quarantines in SQLite, and in memory for as long as nobody announces a change."""

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy import bindparam, delete, select
from sqlalchemy.dialects.sqlite import insert

from gateway.errors import StoreUnavailable
from gateway.governance.quarantines import (
    Also,
    NotQuarantined,
    Quarantine,
    QuarantineChange,
    Target,
    refuse_words,
)
from gateway.storage.group_commit import GroupCommit
from gateway.storage.notices import KEPT_AFTER_END, Announcing, Reading
from gateway.storage.prepared import Prepared
from gateway.storage.rows import microseconds, moment
from gateway.storage.schema import quarantines

_ALL: Final = Prepared(select(quarantines).order_by(quarantines.c.since, quarantines.c.target))
_FIND: Final = Prepared(select(quarantines).where(quarantines.c.target == bindparam("target")))
_DROP: Final = Prepared(delete(quarantines).where(quarantines.c.target == bindparam("target")))
_DROP_OVER: Final = Prepared(delete(quarantines).where(quarantines.c.until <= bindparam("at")))
_INSERT: Final = Prepared(insert(quarantines).values({column.name: bindparam(column.name) for column in quarantines.c}))

_Stopped = Mapping[str, Quarantine]
"""By target, as it is written."""


class SqliteQuarantines:
    """Implements `gateway.governance.quarantines.Quarantines`."""

    def __init__(self, writer: GroupCommit, notices: Announcing, *, clock: Callable[[], datetime]) -> None:
        self._writer = writer
        self._notices = notices
        self._clock = clock
        self._stopped: Reading[_Stopped] = notices.noticed(_stopped, at_first={})

    @property
    def problem(self) -> str | None:
        return self._stopped.problem

    def stopped_by(
        self, *, tool: str, subject: str, upstream: str | None = None, is_consequential: bool
    ) -> Quarantine | None:
        try:
            stopped = self._stopped.current()
        except StoreUnavailable:
            if is_consequential:
                raise
            stopped = self._stopped.last
        if not stopped:
            return None
        return self._first_in_force(stopped, (f"tool:{tool}", f"principal:{subject}", f"upstream:{upstream or ''}"))

    async def add(self, quarantine: Quarantine, *, also: Also | None = None) -> QuarantineChange:
        change = QuarantineChange("add", quarantine, quarantine.reason, quarantine.by, self._clock())
        row = _row(quarantine)

        def write(connection: sqlite3.Connection) -> None:
            _DROP_OVER.run(connection, {"at": microseconds(change.at - KEPT_AFTER_END)})
            _DROP.run(connection, row)
            _INSERT.run(connection, row)
            if also is not None:
                also(connection, change)

        await self._writer.run(write)
        await self._notices.announce()
        return change

    async def lift(self, target: Target, *, reason: str, by: str, also: Also | None = None) -> QuarantineChange:
        refuse_words(reason, by)
        at = self._clock()

        def write(connection: sqlite3.Connection) -> QuarantineChange:
            found = _FIND.rows(connection, {"target": str(target)})
            if not found or _from(found[0]).is_over(at):
                raise NotQuarantined(f"{target} is not quarantined")
            _DROP.run(connection, found[0])
            change = QuarantineChange("lift", _from(found[0]), reason, by, at)
            if also is not None:
                also(connection, change)
            return change

        change = await self._writer.run(write)
        await self._notices.announce()
        return change

    async def listed(self) -> list[Quarantine]:
        at = self._clock()
        return [each for each in self._stopped.current().values() if not each.is_over(at)]

    def close(self) -> None:
        self._stopped.close()

    def _first_in_force(self, stopped: _Stopped, targets: Iterable[str]) -> Quarantine | None:
        at = self._clock()
        found = (stopped.get(target) for target in targets)
        return next((each for each in found if each is not None and not each.is_over(at)), None)


def _stopped(connection: sqlite3.Connection) -> _Stopped:
    return {str(each.target): each for each in map(_from, _ALL.rows(connection, {}))}


def _row(quarantine: Quarantine) -> dict[str, Any]:
    return {
        "target": str(quarantine.target),
        "reason": quarantine.reason,
        "by": quarantine.by,
        "since": microseconds(quarantine.since),
        "until": None if quarantine.until is None else microseconds(quarantine.until),
    }


def _from(row: Mapping[str, Any]) -> Quarantine:
    return Quarantine(
        Target.parse(row["target"]),
        row["reason"],
        row["by"],
        moment(row["since"]),
        None if row["until"] is None else moment(row["until"]),
    )

"""Revoked tokens in SQLite, and in memory for as long as nobody announces a change."""

import sqlite3
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy import bindparam, delete, select
from sqlalchemy.dialects.sqlite import insert

from gateway.governance.revocations import AlsoRevoking, NotRevoked, Revocation, RevocationChange
from gateway.storage.columns import is_storable
from gateway.storage.group_commit import GroupCommit
from gateway.storage.notices import KEPT_AFTER_END, Announcing, Reading
from gateway.storage.prepared import Prepared
from gateway.storage.rows import microseconds, moment
from gateway.storage.schema import revocations

_ALL: Final = Prepared(select(revocations).order_by(revocations.c.since, revocations.c.token_id))
_FIND: Final = Prepared(select(revocations).where(revocations.c.token_id == bindparam("token_id")))
_DROP: Final = Prepared(delete(revocations).where(revocations.c.token_id == bindparam("token_id")))
_DROP_OVER: Final = Prepared(delete(revocations).where(revocations.c.until <= bindparam("at")))
_INSERT: Final = Prepared(insert(revocations).values({column.name: bindparam(column.name) for column in revocations.c}))

_ENDS: Final = Prepared(select(revocations.c.token_id, revocations.c.until))

_Revoked = Mapping[str, int | None]
"""When each is forgotten, in microseconds. There may be many, and they are read while calls wait: no more than that."""


class SqliteRevocations:
    """Implements `gateway.governance.revocations.Revocations`.

    Ids are compared without case as well: a digest may be written in capitals, and taking one token too many is better
    than leaving one.
    """

    def __init__(self, writer: GroupCommit, notices: Announcing, *, clock: Callable[[], datetime]) -> None:
        self._writer = writer
        self._notices = notices
        self._clock = clock
        self._revoked: Reading[_Revoked] = notices.noticed(_revoked, at_first={})

    def has_any(self, token_ids: frozenset[str]) -> bool:
        revoked = self._revoked.current()
        if not revoked:
            return False
        at = microseconds(self._clock())
        ends = [revoked[id.lower()] for id in token_ids if id.lower() in revoked]
        return any(end is None or at < end for end in ends)

    async def revoke(self, revocation: Revocation, *, also: AlsoRevoking | None = None) -> RevocationChange:
        change = RevocationChange("revoke", revocation, revocation.reason, revocation.by, self._clock())
        row = _row(revocation)

        def write(connection: sqlite3.Connection) -> None:
            _DROP_OVER.run(connection, {"at": microseconds(change.at - KEPT_AFTER_END)})
            _DROP.run(connection, row)
            _INSERT.run(connection, row)
            if also is not None:
                also(connection, change)

        await self._writer.run(write)
        await self._notices.announce()
        return change

    async def restore(
        self, token_id: str, *, reason: str, by: str, also: AlsoRevoking | None = None
    ) -> RevocationChange:
        at = self._clock()
        if not is_storable(token_id):
            raise NotRevoked
        Revocation(token_id, reason, by, at)  # the same is asked of a reason to restore as of one to revoke

        def write(connection: sqlite3.Connection) -> RevocationChange:
            found = _FIND.rows(connection, {"token_id": token_id.lower()})
            if not found or _from(found[0]).is_over(at):
                raise NotRevoked
            _DROP.run(connection, found[0])
            change = RevocationChange("restore", _from(found[0]), reason, by, at)
            if also is not None:
                also(connection, change)
            return change

        change = await self._writer.run(write)
        await self._notices.announce()
        return change

    async def listed(self) -> list[Revocation]:
        at = self._clock()
        found = await self._writer.run(lambda connection: _ALL.rows(connection, {}))
        return [each for each in map(_from, found) if not each.is_over(at)]

    def close(self) -> None:
        self._revoked.close()


def _revoked(connection: sqlite3.Connection) -> _Revoked:
    return dict(_ENDS.run(connection, {}).fetchall())


def _row(revocation: Revocation) -> dict[str, Any]:
    return {
        "token_id": revocation.token_id.lower(),
        "reason": revocation.reason,
        "by": revocation.by,
        "since": microseconds(revocation.since),
        "until": None if revocation.until is None else microseconds(revocation.until),
    }


def _from(row: Mapping[str, Any]) -> Revocation:
    until = row["until"]
    return Revocation(
        row["token_id"],
        row["reason"],
        row["by"],
        moment(row["since"]),
        None if until is None else moment(until),
    )

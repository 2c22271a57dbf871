"""The kill switch and the revoked tokens of a store, for whoever operates it, whether or not a gateway runs on it.

Nothing is upgraded: a command of another version must not change the store under a gateway that serves. A change and
its entry in the decision log are one transaction.
"""

import platform
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

from gateway.audit.chain import shard_name
from gateway.audit.entries import Place
from gateway.core.moments import clock
from gateway.errors import StoreUnavailable
from gateway.governance.quarantines import Quarantine, QuarantineChange, Quarantines, Target
from gateway.governance.revocations import Revocation, RevocationChange
from gateway.runtime.engines import PostgresAddress, postgres
from gateway.runtime.looking import NothingKept
from gateway.serving.auditing import quarantined, revoked
from gateway.storage.audit_log import AuditLog
from gateway.storage.group_commit import GroupCommit
from gateway.storage.links import Link
from gateway.storage.notices import Notices
from gateway.storage.opening import when_free
from gateway.storage.quarantines import SqliteQuarantines
from gateway.storage.revocations import SqliteRevocations


@dataclass(frozen=True, slots=True)
class Stops:
    """What an operator can stop at once: calls by their tool, caller or upstream, and credentials."""

    quarantines: SqliteQuarantines
    revocations: SqliteRevocations
    log: AuditLog
    """A shard of this command alone, begun with its first change."""
    place: Place

    async def add(self, quarantine: Quarantine) -> QuarantineChange:
        return await self.quarantines.add(quarantine, also=self._note_quarantine)

    async def lift(self, target: Target, *, reason: str, by: str) -> QuarantineChange:
        """Raises `NotQuarantined`."""
        return await self.quarantines.lift(target, reason=reason, by=by, also=self._note_quarantine)

    async def revoke(self, revocation: Revocation) -> RevocationChange:
        return await self.revocations.revoke(revocation, also=self._note_revocation)

    async def restore(self, token_id: str, *, reason: str, by: str) -> RevocationChange:
        """Raises `NotRevoked`."""
        return await self.revocations.restore(token_id, reason=reason, by=by, also=self._note_revocation)

    def _note_quarantine(self, connection: sqlite3.Connection, change: QuarantineChange) -> None:
        self.log.append(connection, [quarantined(change, self.place, at=clock())])

    def _note_revocation(self, connection: sqlite3.Connection, change: RevocationChange) -> None:
        self.log.append(connection, [revoked(change, self.place, at=clock())])


@asynccontextmanager
async def stops_of(database: Path | PostgresAddress) -> AsyncIterator[Stops]:
    """Raises `NothingKept`, or `StoreUnavailable`."""
    if isinstance(database, PostgresAddress):
        node = platform.node() or "gateway"
        async with postgres().changing(database.text, partial(_shard, node), Place(node)) as (writer, notices, log):
            quarantines = SqliteQuarantines(writer, notices, clock=_now)
            yield Stops(quarantines, SqliteRevocations(writer, notices, clock=_now), log, Place(node))
        return
    if not database.exists():
        raise NothingKept(
            f"there are no records in {database}",
            help="run this where the gateway runs: the path is relative to its folder",
        )
    path = database.absolute()
    writer = when_free(lambda: GroupCommit(lambda: Link(path)))
    node = platform.node() or "gateway"
    place = Place(node)
    log = AuditLog(partial(_shard, node), place, clock=clock)
    writer.ledger = log
    try:
        notices = Notices(path)
        quarantines = SqliteQuarantines(writer, notices, clock=_now)
        revocations = SqliteRevocations(writer, notices, clock=_now)
        try:
            yield Stops(quarantines, revocations, log, place)
        except sqlite3.OperationalError as error:
            raise StoreUnavailable(
                f"{database} cannot be read as a store of this version",
                help="start the gateway on it once, or correct the path",
            ) from error
        finally:
            quarantines.close()
            revocations.close()
            notices.close()
    finally:
        await writer.close()


async def stopped_status(quarantines: Quarantines) -> Mapping[str, Any]:
    """For status pages: what is stopped, or why nobody knows. Never raises for a store that cannot be read."""
    try:
        found = [dict(each.as_data()) for each in await quarantines.listed()]
    except StoreUnavailable as error:
        return {"quarantines": None, "problem": error.message}
    return {"quarantines": found, "problem": quarantines.problem}


def _shard(node: str) -> str:
    return shard_name(node, clock(), unique=token_hex(8))


def _now() -> datetime:
    return datetime.now(UTC)

"""The stop list for commands of operators: a change and its entry in the decision log are one transaction.

It works whether or not a gateway runs on the store. The schema is not upgraded: a command of another version must not
change the store of a running gateway.
"""

import platform
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from secrets import token_hex

from gateway.app.stores.databases import PostgresUrl, load_postgres, require_database_file
from gateway.audit import AuditOrigin, shard_name
from gateway.engine import stop_entry
from gateway.errors import StoreUnavailable
from gateway.model import now_microseconds
from gateway.policy import Stop, StopChange, StopTarget
from gateway.storage import AuditLog, FileChangeSignal, GroupCommit, SqliteConnection, SqlStopList, retry_while_locked


@dataclass(frozen=True, slots=True)
class AuditedStopList:
    """The stop list of a store: every change is in the decision log."""

    stops: SqlStopList
    log: AuditLog
    """The audit shard of this command, which its first change creates."""
    place: AuditOrigin

    async def add(self, stop: Stop) -> StopChange:
        return await self.stops.add(stop, also=self._audit)

    async def lift(self, target: StopTarget, *, reason: str, by: str) -> StopChange:
        """Raises `QuarantineNotFound` or `RevocationNotFound`."""
        return await self.stops.lift(target, reason=reason, by=by, also=self._audit)

    def _audit(self, connection: sqlite3.Connection, change: StopChange) -> None:
        self.log.append(connection, [stop_entry(change, self.place, at=now_microseconds())])


@asynccontextmanager
async def open_stop_list(database: Path | PostgresUrl) -> AsyncIterator[AuditedStopList]:
    """Open the stop list of a store. Raises `StoreMissing` or `StoreUnavailable`."""
    if isinstance(database, PostgresUrl):
        node = platform.node() or "gateway"
        async with load_postgres().open_for_changes(database.text, partial(_shard, node), AuditOrigin(node)) as (
            writer,
            notices,
            log,
        ):
            yield AuditedStopList(SqlStopList(writer, notices, clock=_now), log, AuditOrigin(node))
        return
    require_database_file(database)
    path = database.absolute()
    writer = retry_while_locked(lambda: GroupCommit(lambda: SqliteConnection(path)))
    node = platform.node() or "gateway"
    place = AuditOrigin(node)
    log = AuditLog(partial(_shard, node), place, clock=now_microseconds)
    writer.ledger = log
    try:
        notices = FileChangeSignal(path)
        stops = SqlStopList(writer, notices, clock=_now)
        try:
            yield AuditedStopList(stops, log, place)
        except sqlite3.OperationalError as error:
            raise StoreUnavailable(
                f"{database} cannot be read as a store of this version",
                help="start the gateway on it once, or correct the path",
            ) from error
        finally:
            stops.close()
            notices.close()
    finally:
        await writer.close()


def _shard(node: str) -> str:
    return shard_name(node, now_microseconds(), unique=token_hex(8))


def _now() -> datetime:
    return datetime.now(UTC)

"""PostgreSQL below a gateway: what its parts are, for whoever puts one together. Imported where it is asked for."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from gateway.audit.contents import ContentKey
from gateway.audit.entries import Place
from gateway.core.events import now
from gateway.core.moments import clock
from gateway.governance.approvals import ApprovalChange, ApprovalRecord
from gateway.runtime.peers import Addresses
from gateway.storage.approvals import Noted
from gateway.storage.postgres.audit import PostgresAuditLog
from gateway.storage.postgres.copying import copy_sqlite
from gateway.storage.postgres.integrity import postgres_findings
from gateway.storage.postgres.limits import PostgresLimits
from gateway.storage.postgres.migrating import migrate, state_of
from gateway.storage.postgres.places import PostgresAuditRows, looking_at
from gateway.storage.postgres.pulse import APPROVALS, PostgresNotices, Pulse, tell
from gateway.storage.postgres.store import PostgresStore, refuse_other_versions_at
from gateway.storage.postgres.writing import PostgresWriter

__all__ = [
    "PostgresAuditRows",
    "PostgresEngine",
    "changing",
    "copy_sqlite",
    "looking_at",
    "migrate",
    "postgres_findings",
    "state_of",
]


@asynccontextmanager
async def changing(
    address: str, shard: Callable[[], str], place: Place
) -> AsyncIterator[tuple[PostgresWriter, PostgresNotices, PostgresAuditLog]]:
    """For commands that change a store under running gateways: a writer without a lease, and how others are told."""
    pulse = await asyncio.to_thread(_checked_pulse, address)
    try:
        writer = PostgresWriter(address)
        log = PostgresAuditLog(shard, place, clock=clock)
        writer.ledger = log
        try:
            yield writer, PostgresNotices(pulse, writer), log
        finally:
            await writer.close()
    finally:
        await asyncio.to_thread(pulse.close)


def _checked_pulse(address: str) -> Pulse:
    refuse_other_versions_at(address)
    return Pulse(address)


class PostgresEngine:
    """One database, for gateways on any number of hosts."""

    look_every = 1.0

    def __init__(self, store: PostgresStore) -> None:
        self.store = store

    @classmethod
    async def open(cls, address: str) -> "PostgresEngine":
        return cls(await PostgresStore.open(address))

    @property
    def problem(self) -> str | None:
        return self.store.problem

    def notices(self) -> PostgresNotices:
        return PostgresNotices(self.store.pulse, self.store.writer)

    def limits(self) -> PostgresLimits:
        return PostgresLimits(self.store.writer, clock=now)

    def log(
        self, shard: Callable[[], str], place: Place, *, clock: Callable[[], int], key: ContentKey
    ) -> PostgresAuditLog:
        return PostgresAuditLog(shard, place, clock=clock, key=key)

    def record_apart(
        self, *, place: tuple[str, str | None, str | None, str | None], shard: str, key: ContentKey
    ) -> None:
        """The database's own processes do the work."""

    def noted(self, noted: Noted) -> Noted:
        def note(connection: Any, change: ApprovalChange, record: ApprovalRecord) -> None:
            noted(connection, change, record)
            tell(connection, APPROVALS)

        return note

    def when_approvals_change(self, callback: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def told() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(callback)

        self.store.pulse.on_approvals.append(told)

    async def sizes(self) -> Mapping[str, int]:
        def read(connection: Any) -> int:
            [size] = connection.execute("SELECT pg_database_size(current_database())").fetchone()
            return int(size)

        return {"databaseBytes": await self.store.reader.run(read)}

    def joined(self, address: str) -> Addresses:
        self.store.advertise(address)
        return self.store.addresses

    async def close(self) -> None:
        await self.store.close()

"""PostgreSQL as the database of a gateway. Imported only if a project uses it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from gateway.app.cluster.peer_router import PeerAddresses
from gateway.approvals import ApprovalChange, ApprovalRecord
from gateway.audit import AuditOrigin, ContentKey
from gateway.model import now, now_microseconds
from gateway.storage import (
    APPROVALS,
    AuditHook,
    Heartbeat,
    PostgresAuditLog,
    PostgresAuditReader,
    PostgresChangeSignal,
    PostgresLimitStore,
    PostgresStore,
    PostgresWriter,
    import_sqlite,
    migrate_postgres,
    notify_channel,
    open_postgres_store,
    open_read_only_session,
    postgres_findings,
    read_schema_state,
    require_schema_version_at,
)

__all__ = [
    "PostgresAuditReader",
    "PostgresDatabase",
    "import_sqlite",
    "migrate_postgres",
    "open_for_changes",
    "open_read_only_session",
    "postgres_findings",
    "read_schema_state",
]


@asynccontextmanager
async def open_for_changes(
    address: str, shard: Callable[[], str], place: AuditOrigin
) -> AsyncIterator[tuple[PostgresWriter, PostgresChangeSignal, PostgresAuditLog]]:
    """Open a writer without a lease, for commands that change the store of running gateways."""
    pulse = await asyncio.to_thread(_open_heartbeat, address)
    try:
        writer = PostgresWriter(address)
        log = PostgresAuditLog(shard, place, clock=now_microseconds)
        writer.ledger = log
        try:
            yield writer, PostgresChangeSignal(pulse, writer), log
        finally:
            await writer.close()
    finally:
        await asyncio.to_thread(pulse.close)


def _open_heartbeat(address: str) -> Heartbeat:
    require_schema_version_at(address)
    return Heartbeat(address)


class PostgresDatabase:
    """One database, for gateways on any number of hosts."""

    look_every = 1.0

    def __init__(self, store: PostgresStore) -> None:
        self.store = store

    @classmethod
    async def open(cls, address: str) -> "PostgresDatabase":
        return cls(await open_postgres_store(address))

    @property
    def problem(self) -> str | None:
        return self.store.engine.problem

    def alone_since(self) -> int | None:
        return self.store.engine.alone_since()

    def notices(self) -> PostgresChangeSignal:
        return PostgresChangeSignal(self.store.engine.pulse, self.store.writer)

    def limits(self) -> PostgresLimitStore:
        return PostgresLimitStore(self.store.writer, clock=now)

    def log(
        self, shard: Callable[[], str], place: AuditOrigin, *, clock: Callable[[], int], key: ContentKey
    ) -> PostgresAuditLog:
        return PostgresAuditLog(shard, place, clock=clock, key=key)

    def start_writer_process(
        self, *, place: tuple[str, str | None, str | None, str | None], shard: str, key: ContentKey
    ) -> None:
        """Do nothing: PostgreSQL has its own processes."""

    def audit_approval_changes(self, noted: AuditHook) -> AuditHook:
        def note(connection: Any, change: ApprovalChange, record: ApprovalRecord) -> None:
            noted(connection, change, record)
            notify_channel(connection, APPROVALS)

        return note

    def on_approvals_change(self, callback: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(callback)

        self.store.engine.pulse.on_approvals.append(on_signal)

    async def sizes(self) -> Mapping[str, int]:
        def read(connection: Any) -> int:
            [size] = connection.execute("SELECT pg_database_size(current_database())").fetchone()
            return int(size)

        return {"databaseBytes": await self.store.reader.run(read)}

    def join_cluster(self, address: str) -> PeerAddresses:
        self.store.engine.advertise(address)
        return self.store.engine.addresses

    async def close(self) -> None:
        await self.store.close()

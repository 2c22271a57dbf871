"""SQLite as the database of a gateway: one file, checked and upgraded when it is opened."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from gateway.audit import AuditOrigin, ContentKey
from gateway.model import now
from gateway.policy import Limiter
from gateway.storage import (
    QUICK_SECONDS,
    AuditHook,
    AuditLog,
    DiskSpaceMonitor,
    FileChangeSignal,
    RateTable,
    SqliteStore,
    SqlQuotas,
    WriterClient,
    check_quickly,
    is_served,
    open_sqlite_store,
    require_not_lost,
    retry_while_locked,
    survive_bus_errors,
    upgrade_in_child,
)

_log: Final = logging.getLogger(__name__)


class SqliteDatabase:
    """One file, for the processes of one host."""

    look_every = 0.1

    def __init__(self, store: SqliteStore, database: Path) -> None:
        self.store = store
        self._database = database
        self._room = DiskSpaceMonitor(database.parent)

    @classmethod
    async def open(cls, database: Path) -> "SqliteDatabase":
        survive_bus_errors()
        absolute = database.absolute()
        await asyncio.to_thread(_check_at_start, absolute)
        await upgrade_in_child(absolute)
        return cls(await open_sqlite_store(absolute), absolute)

    @property
    def problem(self) -> str | None:
        return self._room.problem or self.store.writer.problem

    def alone_since(self) -> int | None:
        return self.store.engine.alone_since()

    def notices(self) -> FileChangeSignal:
        return FileChangeSignal(self._database)

    def limits(self) -> Limiter:
        return Limiter(RateTable(self._database), SqlQuotas(self.store.writer, clock=now))

    def log(
        self, shard: Callable[[], str], place: AuditOrigin, *, clock: Callable[[], int], key: ContentKey
    ) -> AuditLog:
        return AuditLog(shard, place, clock=clock, key=key)

    def start_writer_process(
        self, *, place: tuple[str, str | None, str | None, str | None], shard: str, key: ContentKey
    ) -> WriterClient:
        recording = WriterClient(self._database, place=place, shard=shard, key=key, drain=self.store.engine.drain)
        self.store.engine.writer_process = recording
        return recording

    def audit_approval_changes(self, noted: AuditHook) -> AuditHook:
        return noted

    def on_approvals_change(self, callback: Callable[[], None]) -> None: ...

    async def sizes(self) -> Mapping[str, int]:
        files = [self._database.with_name(f"{self._database.name}{suffix}") for suffix in ("", "-wal", "-shm")]
        return {"databaseBytes": sum(map(_size, files))}

    def join_cluster(self, address: str) -> None: ...

    async def close(self) -> None:
        self._room.close()
        await self.store.close()


def _check_at_start(database: Path) -> None:
    """Check the file if no other process of this host serves it. Raises `StoreUnavailable` if it is damaged."""
    try:
        require_not_lost(database)
        if not database.exists() or is_served(database):
            return
    except OSError:  # opening reports the error
        return
    if not retry_while_locked(lambda: check_quickly(database)):
        _log.info(
            "the database is large: its pages were checked for %g seconds; run gateway storage check to check all",
            QUICK_SECONDS,
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # removed meanwhile
        return 0

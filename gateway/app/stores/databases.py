"""The database and the spool of a project: where its Storage document places them, and how they are opened.

SQLite is one file, checked and upgraded when it is opened. The driver of PostgreSQL is an optional package, imported
only if a project uses it. Credentials are read when needed.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway.app.project import LoadedProject
from gateway.app.secrets import Secrets
from gateway.audit import AuditOrigin, ContentKey
from gateway.config import FileBlobsSpec, PostgresStorageSpec, S3BlobsSpec, SecretSpec
from gateway.errors import ProgramError
from gateway.model import now
from gateway.policy import Limiter, LimitStore
from gateway.storage import (
    QUICK_SECONDS,
    AuditBody,
    AuditHook,
    AuditLog,
    BucketAddress,
    BucketSpool,
    ChangeSignal,
    CopyProgress,
    DiskSpaceMonitor,
    DiskSpool,
    FileChangeSignal,
    GroupCommit,
    InlineBlobStore,
    RateTable,
    ReadPool,
    RecordStore,
    RefusalCount,
    ResultSpool,
    SqliteStore,
    SqlQuotas,
    StoredCall,
    TurnStateStore,
    WriterClient,
    check_quickly,
    copy_blobs,
    import_obstore,
    is_served,
    open_sqlite_store,
    require_not_lost,
    retry_while_locked,
    survive_bus_errors,
    upgrade_in_child,
)

if TYPE_CHECKING:
    from gateway.app.cluster.peer_router import PeerAddresses

SpoolLocation = Path | S3BlobsSpec


def locate_spool(blobs: FileBlobsSpec | S3BlobsSpec | None, *, beside: Path) -> SpoolLocation:
    """Return where results are stored; by default, in files beside the database."""
    if isinstance(blobs, S3BlobsSpec):
        return blobs
    return beside.parent / "spool" if blobs is None else Path(blobs.path)


def check_spool(place: SpoolLocation, secrets: Secrets) -> None:
    """Raise `ObjectStoreUnusable` or `SecretMissing` if the spool cannot work; nothing is connected."""
    if isinstance(place, S3BlobsSpec):
        import_obstore()
        for secret in (place.access_key, place.secret_key):
            if secret is not None:
                secrets.read(secret)


async def open_spool(place: SpoolLocation, secrets: Secrets, *, small: InlineBlobStore | None) -> ResultSpool:
    """Open the spool. Raises `ObjectStoreUnusable` if access is denied."""
    if isinstance(place, S3BlobsSpec):
        return await BucketSpool.open(locate_bucket(place, secrets), small=small)
    return await DiskSpool.open(place, small=small)


async def copy_all_results(source: SpoolLocation, target: SpoolLocation, secrets: Secrets) -> CopyProgress:
    """Copy the large results of one spool into another. Raises the errors of either."""
    async with AsyncExitStack() as closing:
        spools = []
        for place in (source, target):
            check_spool(place, secrets)
            spools.append(await open_spool(place, secrets, small=None))
            closing.push_async_callback(spools[-1].close)
        return await copy_blobs(spools[0].large, spools[1].large)


def locate_bucket(blobs: S3BlobsSpec, secrets: Secrets) -> BucketAddress:
    credentials = None
    if blobs.access_key is not None and blobs.secret_key is not None:
        access_key, secret_key = secrets.reader(blobs.access_key), secrets.reader(blobs.secret_key)

        def credentials() -> tuple[str, str]:
            return access_key(), secret_key()

    return BucketAddress(blobs.bucket, blobs.endpoint, blobs.region, blobs.prefix or "", credentials)


class DriverMissing(ProgramError):
    code = "E_ENGINE_MISSING"
    default_message = "storage of type 'postgres' needs a package that is not installed"

    def __init__(self) -> None:
        super().__init__(help="install agent-gateway[postgres]")


class StoreMissing(ProgramError):
    code = "E_NOTHING_KEPT"
    default_message = "there are no records yet"


@dataclass(frozen=True, slots=True)
class PostgresLocation:
    """A PostgreSQL database; its connection is a secret, read when it is needed."""

    connection: SecretSpec = field(repr=False)

    def __str__(self) -> str:
        return "the PostgreSQL database"


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """The connection of a PostgreSQL database. It is never shown."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "the PostgreSQL database"


class DatabaseStore(RecordStore, TurnStateStore, InlineBlobStore, Protocol):
    """A store of records with its writer, readers and audit log."""

    @property
    def writer(self) -> GroupCommit: ...

    @property
    def reader(self) -> ReadPool: ...

    def use_audit_log(
        self,
        log: AuditLog,
        *,
        abandoned: Callable[[StoredCall], AuditBody] | None = None,
        summed: Callable[[RefusalCount], AuditBody] | None = None,
    ) -> None: ...


class Database(Protocol):
    """An open store, and the limits, notices and audit log that its processes share."""

    look_every: float
    """Seconds between two polls for approvals that other processes decided."""

    @property
    def store(self) -> DatabaseStore: ...

    @property
    def problem(self) -> str | None:
        """Why nothing can be recorded now, as far as known without a write."""
        ...

    def alone_since(self) -> int | None:
        """Return a number that stays the same while no other process uses the database; `None` if one may."""
        ...

    def notices(self) -> ChangeSignal: ...

    def limits(self) -> LimitStore: ...

    def log(
        self, shard: Callable[[], str], place: AuditOrigin, *, clock: Callable[[], int], key: ContentKey
    ) -> AuditLog: ...

    def start_writer_process(
        self, *, place: tuple[str, str | None, str | None, str | None], shard: str, key: ContentKey
    ) -> WriterClient | None:
        """Start a separate process that writes calls, if the database needs one."""
        ...

    def audit_approval_changes(self, noted: AuditHook) -> AuditHook:
        """Return a hook that also signals other processes that approvals changed."""
        ...

    def on_approvals_change(self, callback: Callable[[], None]) -> None:
        """Register a callback; must be called in the event loop, where the callback runs, too."""
        ...

    async def sizes(self) -> Mapping[str, int]: ...

    def join_cluster(self, address: str) -> "PeerAddresses | None":
        """Publish the URL of this gateway, and return a function that lists the others, if there can be any."""
        ...

    async def close(self) -> None: ...


async def open_database(database: Path | PostgresLocation, secrets: Secrets) -> Database:
    """Open the database. Raises `DriverMissing`, `SecretMissing`, and the errors of opening."""
    if isinstance(database, Path):
        return await SqliteDatabase.open(database)
    engine: Any = load_postgres()
    opened: Database = await engine.PostgresDatabase.open(secrets.read(database.connection))
    return opened


def load_postgres() -> Any:
    """Import and return the PostgreSQL module. Raises `DriverMissing`."""
    try:
        from gateway.app.stores import postgres as postgres_engine
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        raise DriverMissing from error
    return postgres_engine


def require_database_file(path: Path) -> None:
    """Raise `StoreMissing` if there is no file."""
    if not path.exists():
        raise StoreMissing(
            f"there are no records in {path}",
            help="run this in the folder where the gateway runs: the path is relative to it",
        )


@dataclass(frozen=True, slots=True)
class StorageLocation:
    """Where a Storage document places records and results."""

    database: Path | PostgresLocation
    spool: SpoolLocation


def locate_storage(assembled: LoadedProject) -> StorageLocation:
    storage = assembled.storage_spec
    if isinstance(storage, PostgresStorageSpec):
        return StorageLocation(PostgresLocation(storage.connection), locate_spool(storage.blobs, beside=Path()))
    database = Path(storage.path)
    return StorageLocation(database, locate_spool(storage.blobs, beside=database))


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

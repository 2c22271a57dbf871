"""The engine below a gateway's records: what differs between SQLite and PostgreSQL, for whoever puts one together.

PostgreSQL's driver is an optional package: it is imported when a project asks for it, and not before.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway.audit.contents import ContentKey
from gateway.audit.entries import Place
from gateway.config.specs.common import Secret
from gateway.core.events import now
from gateway.errors import ProgramError
from gateway.governance.limits import Limits
from gateway.governance.outcomes import RecordStore
from gateway.governance.records import AuditBody, StoredCall, TurnMemories
from gateway.governance.refusals import RefusalCount
from gateway.limits.limiter import Limiter
from gateway.runtime.secrets import Secrets
from gateway.storage.approvals import Noted
from gateway.storage.audit_log import AuditLog
from gateway.storage.bus_errors import survive_bus_errors
from gateway.storage.group_commit import GroupCommit
from gateway.storage.integrity import QUICK_SECONDS, check_quickly
from gateway.storage.limits import SqliteQuotas
from gateway.storage.notices import Announcing, Notices
from gateway.storage.opening import is_served, refuse_lost, when_free
from gateway.storage.rates import RateTable
from gateway.storage.reading import ReadPool
from gateway.storage.recording import Recording
from gateway.storage.room import Room
from gateway.storage.spool import SmallPieces
from gateway.storage.sqlite import SqliteStore
from gateway.storage.upgrading import upgrade_apart

if TYPE_CHECKING:  # whoever only looks at records waits for no HTTP library
    from gateway.runtime.peers import Addresses

_log: Final = logging.getLogger(__name__)


class EngineMissing(ProgramError):
    code = "E_ENGINE_MISSING"
    default_message = "storage of type 'postgres' needs a package that is not installed"

    def __init__(self) -> None:
        super().__init__(help="install agent-gateway[postgres]")


@dataclass(frozen=True, slots=True)
class PostgresDatabase:
    """Where a PostgreSQL database is; that is a secret, which is read when it is needed."""

    connection: Secret = field(repr=False)

    def __str__(self) -> str:
        return "the PostgreSQL database"


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """The same, as it was read. It is never shown."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "the PostgreSQL database"


class KeptStore(RecordStore, TurnMemories, SmallPieces, Protocol):
    """A store with what else lives beside its records."""

    @property
    def writer(self) -> GroupCommit: ...

    @property
    def reader(self) -> ReadPool: ...

    def keep_audit(
        self,
        log: AuditLog,
        *,
        abandoned: Callable[[StoredCall], AuditBody] | None = None,
        summed: Callable[[RefusalCount], AuditBody] | None = None,
    ) -> None: ...


class Engine(Protocol):
    """An open store, and how its processes share what is not a record."""

    look_every: float
    """Seconds between two looks for approvals that others decided, if nobody tells of them."""

    @property
    def store(self) -> KeptStore: ...

    @property
    def problem(self) -> str | None:
        """Why nothing can be recorded at the moment, as far as that is known without trying."""
        ...

    def notices(self) -> Announcing: ...

    def limits(self) -> Limits: ...

    def log(self, shard: Callable[[], str], place: Place, *, clock: Callable[[], int], key: ContentKey) -> AuditLog: ...

    def record_apart(
        self, *, place: tuple[str, str | None, str | None, str | None], shard: str, key: ContentKey
    ) -> Recording | None:
        """A process that writes calls and does nothing else, where that is of use."""
        ...

    def noted(self, noted: Noted) -> Noted:
        """The same, and others are told that approvals have changed."""
        ...

    def when_approvals_change(self, callback: Callable[[], None]) -> None:
        """To be called in the event loop. The callback is called there, too."""
        ...

    async def sizes(self) -> Mapping[str, int]: ...

    def joined(self, address: str) -> "Addresses | None":
        """Tell other gateways how this one is reached; how they are, if there can be others."""
        ...

    async def close(self) -> None: ...


class SqliteEngine:
    """One file, for the processes of one host."""

    look_every = 0.1

    def __init__(self, store: SqliteStore, database: Path) -> None:
        self.store = store
        self._database = database
        self._room = Room(database.parent)

    @classmethod
    async def open(cls, database: Path) -> "SqliteEngine":
        survive_bus_errors()
        absolute = database.absolute()
        await asyncio.to_thread(_check_at_start, absolute)
        await upgrade_apart(absolute)
        return cls(await SqliteStore.open(absolute), absolute)

    @property
    def problem(self) -> str | None:
        return self._room.problem

    def notices(self) -> Notices:
        return Notices(self._database)

    def limits(self) -> Limiter:
        return Limiter(RateTable(self._database), SqliteQuotas(self.store.writer, clock=now))

    def log(self, shard: Callable[[], str], place: Place, *, clock: Callable[[], int], key: ContentKey) -> AuditLog:
        return AuditLog(shard, place, clock=clock, key=key)

    def record_apart(
        self, *, place: tuple[str, str | None, str | None, str | None], shard: str, key: ContentKey
    ) -> Recording:
        recording = Recording(self._database, place=place, shard=shard, key=key)
        self.store.record_through(recording)
        return recording

    def noted(self, noted: Noted) -> Noted:
        return noted

    def when_approvals_change(self, callback: Callable[[], None]) -> None: ...

    async def sizes(self) -> Mapping[str, int]:
        files = [self._database.with_name(f"{self._database.name}{suffix}") for suffix in ("", "-wal", "-shm")]
        return {"databaseBytes": sum(map(_size, files))}

    def joined(self, address: str) -> None: ...

    async def close(self) -> None:
        self._room.close()
        await self.store.close()


async def open_engine(database: Path | PostgresDatabase, secrets: Secrets) -> Engine:
    """Raises `EngineMissing`, `SecretMissing`, and whatever opening raises."""
    if isinstance(database, Path):
        return await SqliteEngine.open(database)
    engine: Any = postgres()
    opened: Engine = await engine.PostgresEngine.open(secrets.read(database.connection))
    return opened


def postgres() -> Any:
    """The module about PostgreSQL. Raises `EngineMissing`."""
    try:
        from gateway.runtime import postgres_engine
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        raise EngineMissing from error
    return postgres_engine


def _check_at_start(database: Path) -> None:
    """Of several processes of one host the first checks. Raises `StoreUnavailable` for a damaged file."""
    try:
        refuse_lost(database)
        if not database.exists() or is_served(database):
            return
    except OSError:  # opening tells what is wrong
        return
    if not when_free(lambda: check_quickly(database)):
        _log.info(
            "the database is large: pages were checked for %g seconds; gateway storage check checks all", QUICK_SECONDS
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # gone meanwhile
        return 0

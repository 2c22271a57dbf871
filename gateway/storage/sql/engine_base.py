"""Base class of the SQLite and PostgreSQL engines below `SqlStore`: connections, timeouts, process liveness.

The base class reads and writes the plain tables. Each engine overrides what differs.
"""

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from sqlalchemy import Table

from gateway.errors import RecordConflict, StoreUnavailable
from gateway.policy import TurnStateWrite
from gateway.storage.call_store import AuditBody, StoredCall, StoredTurn
from gateway.storage.sql.audit_log import AuditLog
from gateway.storage.sql.compiled_statement import CompiledStatement
from gateway.storage.sql.group_commit import GroupCommit
from gateway.storage.sql.lock_keys import state_footprint, turn_key
from gateway.storage.sql.sqlite.connection import SqliteConnection, to_store_error
from gateway.storage.sql.tables import calls

T = TypeVar("T")


class ReadPool:
    def __init__(self, connect: Callable[[], SqliteConnection], *, size: int) -> None:
        self._connect = connect
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="gateway-store-reader")
        self._idle: deque[SqliteConnection] = deque()
        self._closed = False

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, work)

    async def close(self) -> None:
        self._closed = True
        await asyncio.to_thread(self._threads.shutdown)
        while self._idle:
            self._idle.pop().close()

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        link = self._take()
        try:
            value = work(link.connection)
        except Exception as error:
            link.close()
            raise (to_store_error(error) or error) from error
        self._idle.append(link)
        return value

    def _take(self) -> SqliteConnection:
        try:
            link = self._idle.pop()
        except IndexError:
            return self._connect()
        if not link.is_lost():
            return link
        link.close()
        return self._connect()


Row = dict[str, Any]


@dataclass(slots=True)
class CallOutcomeRows:
    """The outcome of a call as rows, with the states of turns and the entries of the log that belong to it."""

    row: dict[str, Any]
    turn: dict[str, Any] | None
    pieces: Sequence[dict[str, Any]]
    audit: Sequence[AuditBody]
    states: Sequence[TurnStateWrite | None] = ()


Note = tuple[TurnStateWrite | None, Sequence[AuditBody]]


class SqlEngine(ABC):
    """A connected database. A `connection` is one of its writer or its reader, inside a transaction of theirs."""

    writer: GroupCommit
    reader: ReadPool
    audit_log: AuditLog | None = None

    integrity_error: ClassVar[type[Exception]]
    """Raised by the driver for a violated constraint."""
    start_timeout: ClassVar[float]
    """Seconds a call waits for its start to be durable."""
    call_tables: ClassVar[tuple[Table, ...]] = (calls,)
    """Tables that have the columns of `calls`."""

    @property
    @abstractmethod
    def process_id(self) -> str:
        """Id of this process in the rows of calls that it started."""

    @property
    def outcome_timeout(self) -> float | None:
        """Seconds an outcome waits to be durable. `None`: as long as it takes, because the tool has run."""
        return None

    def translate_conflict(self, message: str) -> "_Conflict":
        """Return a context manager that raises `RecordConflict` for a violated constraint."""
        return _Conflict(self.integrity_error, message)

    def append_audit(self, connection: Any, bodies: Sequence[AuditBody]) -> None:
        if self.audit_log is not None:
            self.audit_log.append(connection, bodies)

    def alone_since(self) -> int | None:
        """Return a number that stays the same while no other process uses the database; `None` if one may."""
        return None

    def require_alive(self, process_id: str) -> None:  # noqa: B027 - a hook
        """Raise `StoreUnavailable` if other processes have given up the process of that id."""

    def select(self, connection: Any, statement: CompiledStatement, wanted: Row) -> list[Row]:
        """Return the rows that a statement finds. Rows may come twice, and from several tables in any order."""
        return statement.rows(connection, wanted)

    async def find(self, statement: CompiledStatement, wanted: Row) -> list[Row]:
        """Do the same on a connection of its own."""
        return await self.reader.run(lambda connection: self.select(connection, statement, wanted))

    def expand_turn(self, connection: Any, turn_id: str) -> None:  # noqa: B027 - a hook
        """Move a turn from its single-call row to the tables of turns, calls and pieces."""

    def expand_blobs(self, connection: Any, prefix: str, end: str) -> None:  # noqa: B027 - a hook
        """Do the same for every turn that has a piece whose key is between the two, or one of them."""

    async def prune_single_calls(self, *, at: int, limit: int) -> int:
        """Delete expired single-call rows, `limit` per transaction. Return how many turns and calls they held."""
        return 0

    @abstractmethod
    async def find_dead_processes(self) -> Callable[[Any], Iterable[str]] | None:
        """Return a function that lists dead processes with running calls inside a transaction, or `None` if none do."""

    @abstractmethod
    async def write_single_call(
        self,
        call: StoredCall,
        turn: StoredTurn,
        *,
        memory: bytes | None,
        audit: Sequence[AuditBody],
        implicit: TurnStateWrite | None,
        write: Callable[[Any], None],
    ) -> None:
        """Record a call together with its turn, which no other call can know. `write` does it by itself."""

    async def write_outcome(
        self, outcome: CallOutcomeRows, write: Callable[[Any, list[CallOutcomeRows]], None]
    ) -> None:
        """Record the outcome of a call in a turn. `write` does it for several calls in one transaction."""
        await self.writer.run_merged(
            write,
            outcome,
            within=self.outcome_timeout,
            footprint=state_footprint(*outcome.states, keys=[turn_key(outcome.row["turn_id"])]),
        )

    async def write_note(
        self, state: TurnStateWrite | None, audit: Sequence[AuditBody], write: Callable[[Any, list[Note]], None]
    ) -> None:
        """Write the state of a turn and entries of the log. `write` does it for several in one transaction."""
        await self.writer.run_merged(write, (state, audit), footprint=state_footprint(state))

    @abstractmethod
    async def close(self) -> None: ...


class _Conflict:
    # A context manager made of a generator would cost 2 µs per call.

    __slots__ = ("_error", "_message")

    def __init__(self, error: type[Exception], message: str) -> None:
        self._error = error
        self._message = message

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, self._error):
            raise RecordConflict(self._message) from error

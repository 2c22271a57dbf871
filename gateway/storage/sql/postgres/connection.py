"""Connections to a PostgreSQL database, with the methods of an SQLite connection, and the errors of PostgreSQL."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from itertools import count
from socket import SHUT_RDWR, socket
from typing import Any, Final, TypeVar

import psycopg
from psycopg.pq import Escaping, TransactionStatus

from gateway.audit import SHARD_NAME, ChainRow
from gateway.errors import StoreUnavailable
from gateway.storage.sql.compiled_statement import CompiledStatement
from gateway.storage.sql.engine_base import ReadPool
from gateway.storage.sql.lock_keys import Footprint
from gateway.storage.sql.postgres.dialect import BatchStatement, compile_batch, compile_statement, replace_nul
from gateway.storage.sql.read_only_store import AuditTableReader

T = TypeVar("T")

_PATIENCE: Final = 1.0
"""Seconds."""


class PostgresReader(ReadPool):
    """A `ReadPool` with a timeout, which replaces broken connections."""

    def __init__(self, address: str, *, size: int) -> None:
        connect: Any = partial(PostgresConnection, address, patience=_PATIENCE, is_reader=True)
        super().__init__(connect, size=size)
        self._busy: set[PostgresConnection] = set()

    async def run(self, work: Callable[[Any], T]) -> T:
        try:
            async with asyncio.timeout(_PATIENCE):  # `wait_for` of Python 3.11 may lose a cancellation
                return await super().run(work)
        except TimeoutError:
            raise StoreUnavailable("the database is too slow", help="look at its load and its disk") from None

    async def close(self) -> None:
        for session in list(self._busy):  # no caller waits for them
            session.abort()
        await super().close()

    def _read(self, work: Callable[[Any], T]) -> T:
        """Replace a connection that broke while it was idle, once: that is no failure."""
        session: Any
        try:
            session, is_new = self._idle.pop(), False
        except IndexError:
            session, is_new = self._connect(), True
        while True:
            self._busy.add(session)
            try:
                value = work(session)
            except Exception:
                self._busy.discard(session)
                is_broken = session.is_lost()
                session.close()
                if is_new or not is_broken:
                    raise
                session, is_new = self._connect(), True
                continue
            self._busy.discard(session)
            self._idle.append(session)
            return value


FULL: Final = "the disk of the database is full"

_BY_STATE: Final = {
    "25006": ("the database is read-only", "point the connection at the primary server"),
    "25P03": ("the database ended the transaction of a process that stopped", "look for a gateway that was stopped"),
    "3D000": ("the database does not exist", "create it, or correct the connection of the Storage"),
    "42501": ("the gateway may not use its tables", "grant its role the right to read and write them"),
    "42P01": ("the database is not set up", "run: gateway storage migrate"),
    "42703": ("the database is not set up for this version", "run: gateway storage migrate"),
    "53100": (FULL, "make room; nothing needs to be restarted"),
    "53200": ("the database has too little memory", "give it more memory"),
    "53300": ("the database has no connection free", "raise its max_connections, or run fewer replicas"),
    "53400": ("the database has no connection free", "raise its limits, or run fewer replicas"),
    "55P03": ("another process holds the database for too long", "look for a gateway that was stopped"),
    "57014": ("the database is too slow", "look at its load and its disk"),
}
_BY_CLASS: Final = {
    "08": ("the database cannot be reached", "check that it runs, and the connection of the Storage"),
    "28": ("the database denies access to the gateway", "correct the connection of the Storage"),
    "40": ("the database is overloaded", "try again"),
    "53": ("the database is short of resources", "look at its log"),
    "57": ("the database is being stopped or started", "wait; nothing needs to be restarted"),
    "58": ("the database's machine failed", "look at its log"),
    "XX": ("the database failed", "look at its log"),
}
_NOT_THERE: Final = _BY_CLASS["08"]


def to_postgres_store_error(error: psycopg.Error) -> StoreUnavailable | None:
    """Return the error for callers if the store has failed; `None` for any other error.

    The server's message may have values, addresses and names, so only the cause has it.
    """
    state = error.sqlstate
    cause = None if state is None else _BY_STATE.get(state) or _BY_CLASS.get(state[:2])
    if cause is None and state is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        cause = _explain_refused_connection(str(error))
    return None if cause is None else StoreUnavailable(cause[0], help=cause[1], cause=error)


def is_lock_timeout(error: BaseException | None) -> bool:
    """Whether another process had the lock for longer than one attempt waits."""
    return isinstance(error, psycopg.Error) and error.sqlstate == "55P03"


def _explain_refused_connection(words: str) -> tuple[str, str]:
    """Return message and help: the error of a refused connection has no state, only a text."""
    if "too many clients" in words or "remaining connection slots" in words or "too many connections" in words:
        return _BY_STATE["53300"]
    if "authentication failed" in words or "no password supplied" in words or "pg_hba.conf" in words:
        return _BY_CLASS["28"]
    if 'database "' in words and "does not exist" in words:
        return _BY_STATE["3D000"]
    if "starting up" in words or "shutting down" in words or "recovery" in words:
        return _BY_CLASS["57"]
    return _NOT_THERE


WRITERS: Final = 0x67772E31
"""The advisory lock of transactions over all hosts: exclusive for one that may change any row, shared for one that has
locked the keys of what it changes."""

MOST_KEYS: Final = 128
"""Locks of one transaction. The memory of the server for locks is bounded: one with more keys locks everything."""

_CONNECT_SECONDS: Final = 2
_LOCK_MS: Final = 200
_IDLE_MS: Final = 2_000
"""How long a process that stops in the middle of a transaction can block the others."""

_STATES: Final = "SELECT id, memory FROM turns WHERE id IN ({})"
_SILENCE_MS: Final = 3_000
_HELD: Final = "EXISTS (SELECT 1 FROM leases WHERE id = '{}')"  # the id is ours, in hexadecimal digits


class PostgresConnection:
    """One connection. Failures of the database raise `StoreUnavailable`."""

    def __init__(
        self,
        address: str,
        *,
        patience: float | None = 1.0,
        is_reader: bool = False,
        lease: Callable[[], str] | None = None,
    ) -> None:
        """`patience` is the statement timeout in seconds, `lease` returns the id that every transaction requires."""
        self._lease = lease
        try:
            self._connection = psycopg.connect(
                address,
                autocommit=True,
                client_encoding="utf8",
                prepare_threshold=None,  # it would drop the prepared statements of this class after a rollback
                connect_timeout=_CONNECT_SECONDS,
                tcp_user_timeout=_SILENCE_MS,
                keepalives_idle=2,
                keepalives_interval=1,
                keepalives_count=2,
                application_name="agent-gateway",
            )
        except psycopg.Error as error:
            raise (to_postgres_store_error(error) or _invalid_address_error(error)) from error
        self.transaction: int | None = None
        """Number of the last transaction."""
        self.states: dict[str, tuple[bytes | None] | None] | None = None
        """The states of turns that this transaction has locked and read; turns that are not stored have none."""
        self._prepared: dict[str, bytes] = {}
        self._streams = 0
        self._deferred: list[bytes] | None = None
        try:
            self._set_up(patience, is_reader)
        except BaseException:
            self.close()
            raise

    @property
    def connection(self) -> Any:
        """Itself, as an `SqliteConnection` has one."""
        return self

    @property
    def raw(self) -> "psycopg.Connection[Any]":
        return self._connection

    @property
    def in_transaction(self) -> bool:
        return self._connection.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)

    def is_lost(self) -> bool:
        return self._connection.closed

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()

    def abort(self) -> None:
        """Break the connection, so that a thread that waits for the server gets an error."""
        with suppress(psycopg.Error, OSError), socket(fileno=os.dup(self._connection.fileno())) as wire:
            wire.shutdown(SHUT_RDWR)

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """Run a statement with `?` placeholders."""
        self._send_deferred()
        try:
            if parameters:
                return self._connection.execute(sql.replace("?", "%s"), [replace_nul(each) for each in parameters])
            return self._connection.execute(sql)
        except psycopg.Error as error:
            raise _translate(error) from error

    def stream(self, sql: str, *, at_once: int) -> Iterator[tuple[Any, ...]]:
        """Run a query with a cursor of the server: its result may be larger than memory."""
        self._send_deferred()
        self._streams += 1
        try:
            with self._connection.cursor(name=f"stream{self._streams}") as cursor:
                cursor.itersize = at_once
                yield from cursor.execute(sql)
        except psycopg.Error as error:
            raise _translate(error) from error

    def run(self, prepared: CompiledStatement, parameters: Mapping[str, Any]) -> Any:
        self._send_deferred()
        statement = compile_statement(prepared)
        try:
            return self._connection.execute(statement.sql, statement.values(parameters))
        except psycopg.Error as error:
            raise _translate(error) from error

    def run_all(self, prepared: CompiledStatement, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run a statement once for all rows."""
        batch = compile_batch(prepared)
        invocation = self._invoke(batch.sql, batch.encode(rows))
        if self._deferred is None:
            self._run_steps([invocation])
        else:
            self._deferred.append(invocation)

    def change_all(self, prepared: CompiledStatement, rows: Sequence[Mapping[str, Any]]) -> bool:
        return self.change_batch(compile_batch(prepared), rows)

    def change_batch(self, batch: BatchStatement, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Run a statement once for all rows. Return whether it changed so many.

        If it is deferred, its result is not known yet: then the transaction fails if it changes another number.
        """
        values = batch.encode(rows)
        if self._deferred is None:
            changed: int = self._run_steps([self._invoke(batch.sql, values)]).rowcount
            return changed == len(rows)
        self._deferred.append(self._invoke(batch.checked, values, len(rows)))
        return True

    def find_all(self, prepared: CompiledStatement, wanted: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
        """Run a statement once for many sets of parameters. Return what it finds for each."""
        batch = compile_batch(prepared)
        numbered = [{**row, "number": number} for number, row in enumerate(wanted)]
        found: list[list[dict[str, Any]]] = [[] for _ in wanted]
        for number, *row in self._run_steps([self._invoke(batch.sql, batch.encode(numbered))]):
            found[number].extend(prepared.to_dicts([tuple(row)]))
        return found

    @contextmanager
    def deferring(self, *, commits: bool) -> Iterator[None]:
        """Send the batches of the block at its end, all in one step, and the commit with them if it `commits`."""
        self._deferred = []
        try:
            yield
            if commits:
                self._deferred.append(b"COMMIT")
            self._send_deferred()
        finally:
            self._deferred = None

    def _send_deferred(self) -> None:
        if self._deferred:
            steps, self._deferred = self._deferred, []
            self._run_steps(steps)

    def _run_steps(self, steps: Sequence[bytes]) -> Any:
        """Run statements in one step. If one fails, the others after it do not run."""
        try:
            return self._connection.execute(b"; ".join(steps))
        except psycopg.Error as error:
            raise _translate(error) from error

    def _invoke(self, sql: str, rows: bytes, *numbers: int) -> bytes:
        """Return the invocation of a prepared statement. It is prepared when it is first used."""
        name = self._prepared.get(sql)
        if name is None:
            name = b"batch_%d" % len(self._prepared)
            types = ", ".join(["json", *["bigint"] * len(numbers)])
            self._run_steps([f"PREPARE {name.decode()} ({types}) AS {sql}".encode()])
            self._prepared[sql] = name
        values = [Escaping(self._connection.pgconn).escape_literal(rows), *map(b"%d".__mod__, numbers)]
        return b"EXECUTE %s (%s)" % (name, b", ".join(values))

    def begin(self, footprint: Footprint | None = None) -> None:
        """Begin a transaction, take its locks, and read the states of turns that it changes.

        The keys are locked in the order of their numbers, and no lock is taken later, so no two transactions wait for
        each other. Without a footprint, the transaction excludes all others that take locks. The lease is checked
        after that, in the same step, because each step is a round trip.
        """
        turns = footprint.turns if footprint is not None else ()
        held = "true" if self._lease is None else _HELD.format(self._lease())
        self.states = None
        try:
            steps = ["BEGIN", *_locks(footprint), f"SELECT txid_current(), {held}"]
            if turns:
                steps.append(_STATES.format(", ".join(self._quote(id) for id in turns)))
            cursor = self._connection.execute("; ".join(steps))
            for _ in steps[: -2 if turns else -1]:
                cursor.nextset()
            found = cursor.fetchone()
            assert found is not None  # noqa: S101 - it is one row
            self.transaction, is_held = found
            if not is_held:
                self._connection.execute("ROLLBACK")
                raise broken_connection_error()
            if turns and cursor.nextset():
                self.states = {**dict.fromkeys(turns), **{id: (memory,) for id, memory in cursor.fetchall()}}
        except psycopg.Error as error:
            if self.in_transaction:
                with suppress(psycopg.Error):
                    self._connection.execute("ROLLBACK")
            raise _translate(error) from error

    def _quote(self, text: str) -> str:
        return Escaping(self._connection.pgconn).escape_literal(replace_nul(text).encode()).decode()

    def _set_up(self, patience: float | None, is_reader: bool) -> None:
        limit = 0 if patience is None else int(patience * 1000)
        self.execute(
            f"SET statement_timeout = {limit}; SET lock_timeout = {_LOCK_MS}; "
            f"SET idle_in_transaction_session_timeout = {_IDLE_MS}; SET timezone = 'UTC'; "
            + ("SET default_transaction_read_only = on" if is_reader else "SELECT 1")
        )
        if patience is not None:  # the planner does not know how few rows a JSON text has, and would scan whole tables
            self.execute("SET enable_hashjoin = off; SET enable_mergejoin = off")
        if not is_reader:
            [durability] = self.execute("SHOW synchronous_commit").fetchone()
            if durability in ("off", "local"):  # committed work must survive a crash; stronger settings stay
                self.execute("SET synchronous_commit = on")


def _locks(footprint: Footprint | None) -> list[str]:
    """Return the statements that take the locks of a transaction."""
    if footprint is None or len(footprint.keys) > MOST_KEYS:
        return [f"SELECT pg_advisory_xact_lock({WRITERS})"]
    if not footprint.keys:
        return []
    numbers = ", ".join(map(str, sorted({_lock_number(key) for key in footprint.keys})))
    return [
        f"SELECT pg_advisory_xact_lock_shared({WRITERS})",
        f"SELECT pg_advisory_xact_lock(key) FROM unnest(ARRAY[{numbers}]::bigint[]) AS key",  # noqa: S608 - numbers
    ]


def _lock_number(key: str) -> int:
    """Return the number of a key, below zero: other locks have positive ones."""
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return -1 - (int.from_bytes(digest, "big") >> 1)


def broken_connection_error() -> StoreUnavailable:
    return StoreUnavailable(
        "this process was silent for so long that others took it for dead",
        help="try again; find out what kept it from the database",
    )


def _translate(error: psycopg.Error) -> Exception:
    return to_postgres_store_error(error) or error


def _invalid_address_error(error: psycopg.Error) -> StoreUnavailable:
    return StoreUnavailable(
        "the connection of the Storage is not valid",
        help="write postgresql://USER:PASSWORD@HOST/DATABASE, or host=… dbname=…",
        cause=error,
    )


_AT_ONCE: Final = 2000


@contextmanager
def open_read_only_session(address: str) -> Iterator[PostgresConnection]:
    """Open a read-only transaction without a timeout, which sees one moment."""
    session = PostgresConnection(address, patience=None, is_reader=True)
    try:
        session.execute("SET idle_in_transaction_session_timeout = 0")
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield session
    finally:
        session.close()


class PostgresAuditReader(AuditTableReader):
    _says_log = "position(convert_to('\"log\":{', 'UTF8') IN body) > 0"

    def __init__(self, address: str) -> None:
        """Raise `StoreUnavailable` unless the database is a store with a decision log."""
        self._readings = count()
        self._looking = open_read_only_session(address)
        self._session = self._looking.__enter__()
        try:
            [self._count] = self._session.execute("SELECT count(*) FROM audit").fetchone()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._looking.__exit__(None, None, None)

    def _select(self, statement: str) -> Iterator[tuple[Any, ...]]:
        """Use a cursor of the server: a log may be larger than memory."""
        try:
            with self._session.raw.cursor(name=f"reading{next(self._readings)}") as cursor:
                cursor.itersize = _AT_ONCE
                yield from cursor.execute(statement)
        except psycopg.Error as error:
            raise (
                to_postgres_store_error(error) or StoreUnavailable("the decision log cannot be read", cause=error)
            ) from error

    def _to_row(self, values: tuple[Any, ...]) -> ChainRow | None:
        row = ChainRow(*values)
        is_entry = SHARD_NAME.fullmatch(row.shard) and row.seq >= 1 and len(row.prev) == 32 and len(row.hash) == 32
        return row if is_entry else None

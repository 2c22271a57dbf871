"""`SqlEngine` for PostgreSQL: one database for gateways on any number of hosts.

Transactions that change the same exclude each other across all gateways. Leases show which processes live.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

import psycopg
from sqlalchemy import bindparam, literal_column
from sqlalchemy.dialects.sqlite import insert

from gateway.errors import StoreUnavailable
from gateway.model import now
from gateway.policy import TurnStateWrite
from gateway.storage.call_store import AuditBody, StoredCall, StoredTurn
from gateway.storage.sql import call_statements as statements
from gateway.storage.sql import call_transactions as transactions
from gateway.storage.sql.call_rows import blob_rows, call_to_row, turn_to_row
from gateway.storage.sql.compiled_statement import CompiledStatement
from gateway.storage.sql.engine_base import ReadPool, Row, SqlEngine
from gateway.storage.sql.lock_keys import state_footprint
from gateway.storage.sql.postgres.connection import FULL, PostgresConnection, PostgresReader
from gateway.storage.sql.postgres.database_setup import require_schema_version
from gateway.storage.sql.postgres.heartbeat import Heartbeat, Lease
from gateway.storage.sql.postgres.writer import PostgresWriter
from gateway.storage.sql.store import SqlStore
from gateway.storage.sql.tables import calls

_Waiting = list[tuple[Row, "asyncio.Future[list[Row]]"]]


class Lookups:
    """The reads of one statement in one process. At most one query of each event loop is on its way."""

    def __init__(self, reader: ReadPool, statement: CompiledStatement) -> None:
        self._reader = reader
        self._statement = statement
        self._waiting: dict[asyncio.AbstractEventLoop, _Waiting] = {}
        """Those that wait for the query that is on its way; an event loop without one is not here."""
        self._serving: set[asyncio.Task[None]] = set()

    async def find(self, wanted: Row) -> list[Row]:
        """Return the rows that the statement finds with these parameters. Raises `StoreUnavailable`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Row]] = loop.create_future()
        if (waiting := self._waiting.get(loop)) is not None:
            waiting.append((wanted, future))
        else:
            self._waiting[loop] = [(wanted, future)]
            serving = loop.create_task(self._serve(loop))
            self._serving.add(serving)
            serving.add_done_callback(self._serving.discard)
        return await future

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while waiting := self._waiting[loop]:
            self._waiting[loop] = []
            try:
                found = await self._read([wanted for wanted, _ in waiting])
            except Exception as error:
                for _, future in waiting:
                    if not future.done():
                        future.set_exception(_copy(error))
                continue
            for rows, (_, future) in zip(found, waiting, strict=True):
                if not future.done():
                    future.set_result(rows)
        del self._waiting[loop]

    async def _read(self, wanted: Sequence[Row]) -> list[list[Row]]:
        return await self._reader.run(partial(_find_all, statement=self._statement, wanted=wanted))


def _find_all(connection: Any, statement: CompiledStatement, wanted: Sequence[Row]) -> list[list[Row]]:
    found: list[list[Row]] = connection.find_all(statement, wanted)
    return found


def _copy(error: Exception) -> Exception:
    """Return an error for each caller: a traceback belongs to one raise."""
    if isinstance(error, StoreUnavailable):
        return StoreUnavailable(error.message, help=error.help, cause=error.cause)
    return error


_OUTCOME_SECONDS: Final = 6.0
"""How long an outcome waits for a server that answers: longer than a statement may take, because the tool has run."""

_SILENT_SECONDS: Final = 0.05
"""How long it waits for a server that is silent. The outcome is written when the server is back in any case."""

_INSERT_FIRST_CALL: Final = CompiledStatement(
    insert(calls).values(
        {
            each.name: literal_column("1") if each.name == "settled_as" else bindparam(each.name, type_=each.type)
            for each in calls.c
            if each.name != "number"
        }
    )
)


@dataclass(slots=True)
class _SingleCall:
    turn: Row
    call: Row
    pieces: list[Row]
    audit: Sequence[AuditBody]
    implicit: TurnStateWrite | None


class PostgresEngine(SqlEngine):
    writer: PostgresWriter
    reader: PostgresReader
    integrity_error = psycopg.IntegrityError
    start_timeout = 0.75  # so that a call is refused within a second

    def __init__(self, address: str, lease: Lease, pulse: Heartbeat, *, readers: int, waiting: int) -> None:
        self.lease = lease
        self.pulse = pulse
        self.writer = PostgresWriter(address, waiting=waiting, lease=lease)
        self.reader = PostgresReader(address, size=readers)
        looked_up = (statements.FIND_TURN, statements.SELECT_TURN_STATE)
        self._lookups = {statement: Lookups(self.reader, statement) for statement in looked_up}
        self.writer.on_full = pulse.mark_full

    @property
    def process_id(self) -> str:
        return self.lease.id

    @property
    def outcome_timeout(self) -> float:
        is_answering = self.pulse.is_trusted and not self.writer.is_slow
        return _OUTCOME_SECONDS if is_answering else _SILENT_SECONDS

    @property
    def problem(self) -> str | None:
        """Why nothing can be recorded at the moment."""
        if self.pulse.is_writable:
            return self.writer.problem
        return self.pulse.problem or (FULL if self.pulse.is_full else "the database does not answer")

    def advertise(self, address: str) -> None:
        """Publish the address of this gateway to the others."""
        self.lease.address = address
        self.pulse.renew_now()

    async def addresses(self) -> list[str]:
        """Return the addresses that live gateways have published."""
        return await self.reader.run(self.lease.addresses)

    def require_alive(self, process_id: str) -> None:
        self.lease.require_held(process_id)

    async def find(self, statement: CompiledStatement, wanted: Row) -> list[Row]:
        lookups = self._lookups.get(statement)
        return await (super().find(statement, wanted) if lookups is None else lookups.find(wanted))

    async def find_dead_processes(self) -> Callable[[Any], Iterable[str]] | None:
        has_expired_peers = await self.reader.run(self.lease.has_expired_peers)
        return self.lease.find_dead_processes if has_expired_peers else None

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
        row = call_to_row(call, status="settled", process=self.process_id)
        single = _SingleCall({**turn_to_row(turn), "memory": memory}, row, blob_rows(call), audit, implicit)
        await self.writer.run_merged(
            self._write_single_calls,
            single,
            alone=write,
            within=self.outcome_timeout,
            footprint=state_footprint(implicit),  # no other process can know the turn of the call
        )

    async def close(self) -> None:
        await self.writer.close()
        await self.reader.close()
        await asyncio.to_thread(self.pulse.close)

    def _write_single_calls(self, connection: Any, group: list[_SingleCall]) -> None:
        statements.INSERT_TURN.run_all(connection, [each.turn for each in group])
        _INSERT_FIRST_CALL.run_all(connection, [each.call for each in group])
        statements.INSERT_PIECE.run_all(connection, [piece for each in group for piece in each.pieces])
        transactions.write_turn_states(connection, [each.implicit for each in group])
        self.append_audit(connection, [body for each in group for body in each.audit])


PostgresStore = SqlStore[PostgresEngine]


async def open_postgres_store(
    address: str, *, clock: Callable[[], datetime] = now, readers: int = 4, waiting: int = 4096
) -> PostgresStore:
    """Open a database that is set up for this version.

    Raises `ForeignStore` if it has another version, `StoreUnavailable` if it cannot be read and written.
    """

    def connect() -> PostgresEngine:
        require_schema_version_at(address)
        lease = Lease()
        pulse = Heartbeat(address, lease)
        try:
            return PostgresEngine(address, lease, pulse, readers=readers, waiting=waiting)
        except BaseException:
            pulse.close()
            raise

    return SqlStore(await asyncio.to_thread(connect), clock=clock)


def require_schema_version_at(address: str) -> None:
    """Raise `ForeignStore` unless the database is set up for this version."""
    session = PostgresConnection(address, is_reader=True)
    try:
        require_schema_version(session)
    finally:
        session.close()

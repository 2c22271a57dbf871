"""PostgreSQL below the store: one database for gateways on any number of hosts.

Transactions that change shared rows exclude each other across all gateways, as they do in one SQLite file. Leases show
which processes live.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg
from sqlalchemy import bindparam, literal_column
from sqlalchemy.dialects.sqlite import insert

from gateway.model import now
from gateway.storage.call_store import AuditBody, StoredCall, StoredTurn
from gateway.storage.sql import call_statements as statements
from gateway.storage.sql.dialect import CompiledStatement
from gateway.storage.sql.engine import Row, SqlEngine
from gateway.storage.sql.postgres.connection import FULL, PostgresConnection, PostgresReader
from gateway.storage.sql.postgres.heartbeat import Heartbeat
from gateway.storage.sql.postgres.lease import Lease
from gateway.storage.sql.postgres.migration import require_schema_version
from gateway.storage.sql.postgres.writer import PostgresWriter
from gateway.storage.sql.rows import blob_rows, call_to_row, turn_to_row
from gateway.storage.sql.schema import calls
from gateway.storage.sql.store import SqlStore

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
        self.writer.free.add(self._write_single_calls)
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
            return None
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
        write: Callable[[Any], None],
    ) -> None:
        row = call_to_row(call, status="settled", process=self.process_id)
        single = _SingleCall({**turn_to_row(turn), "memory": memory}, row, blob_rows(call), audit)
        await self.writer.run_merged(write, self._write_single_calls, single, within=self.outcome_timeout)

    async def close(self) -> None:
        await self.writer.close()
        await self.reader.close()
        await asyncio.to_thread(self.pulse.close)

    def _write_single_calls(self, connection: Any, group: list[_SingleCall]) -> None:
        statements.INSERT_TURN.run_all(connection, [each.turn for each in group])
        _INSERT_FIRST_CALL.run_all(connection, [each.call for each in group])
        statements.INSERT_PIECE.run_all(connection, [piece for each in group for piece in each.pieces])
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

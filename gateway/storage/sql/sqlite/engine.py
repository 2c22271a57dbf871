"""`SqlEngine` for SQLite: one file for the processes of one host.

A turn with one call is written as a single row, and expanded when anything else is written about the turn. File locks
show which processes live.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from gateway.errors import StoreUnavailable
from gateway.model import now
from gateway.policy import TurnStateWrite
from gateway.storage.call_store import AuditBody, StoredCall, StoredTurn
from gateway.storage.process_liveness import ProcessLock
from gateway.storage.sql import call_statements as statements
from gateway.storage.sql import call_transactions as transactions
from gateway.storage.sql.compiled_statement import CompiledStatement
from gateway.storage.sql.engine_base import CallOutcomeRows, Note, ReadPool, Row, SqlEngine
from gateway.storage.sql.group_commit import GroupCommit
from gateway.storage.sql.sqlite.database_setup import connect_checked, open_database_file, retry_while_locked
from gateway.storage.sql.sqlite.single_call_conversion import (
    EXPANSION,
    SINGLE_CALL_INSERT,
    select_from_single_calls,
    to_single_call_values,
)
from gateway.storage.sql.sqlite.single_call_table import (
    AT_ONCE,
    SingleCallValues,
    delete_expired,
    drop_run,
    empty_runs,
    expand_batch,
    expand_turn,
    find_expired_blobs,
    find_turns_of_blobs,
    find_turns_of_call,
    insert_expanded,
    to_single_call_row,
)
from gateway.storage.sql.sqlite.writer_client import WriterClient
from gateway.storage.sql.sqlite.writer_process import OutcomeValues
from gateway.storage.sql.store import SqlStore
from gateway.storage.sql.tables import calls, fresh

_READ_PATIENCE: Final = 0.8
"""Seconds. Readers wait only for a process that repairs the database after a crash."""

_TURN_PARAMETERS: Final = {
    statements.FIND_TURN: "id",
    statements.SELECT_TURN_STATE: "turn",
    statements.CALLS_OF: "turn_id",
    statements.FIND_CALL: "turn_id",
}
"""Statements about one turn, and the parameter that is its id."""

_TURN_FINDERS: Final[dict[CompiledStatement, Callable[[sqlite3.Connection, Row], list[str]]]] = {
    statements.FIND_CALL: lambda connection, wanted: find_turns_of_call(
        connection, wanted["id"], wanted["owner"], at=wanted["at"]
    ),
    statements.FIND_PIECE: lambda connection, wanted: find_turns_of_blobs(connection, wanted["key"], wanted["key"]),
    statements.LAST_PIECE: lambda connection, wanted: find_turns_of_blobs(connection, **wanted),
    statements.EXPIRED_PIECES: lambda connection, wanted: find_expired_blobs(connection, **wanted),
}
"""How the other statements find the turns whose single-call rows they read."""


class SqliteEngine(SqlEngine):
    integrity_error = sqlite3.IntegrityError
    start_timeout = 1.0
    call_tables = (calls, fresh)

    def __init__(self, path: Path, process: ProcessLock, *, readers: int, waiting: int) -> None:
        self._process = process
        self.writer = retry_while_locked(lambda: GroupCommit(lambda: connect_checked(path), waiting=waiting))
        self.reader = ReadPool(lambda: connect_checked(path, read_only=True, patience=_READ_PATIENCE), size=readers)
        self.writer_process: WriterClient | None = None
        """If set, outcomes of calls are written by that process, which does nothing else."""

    @property
    def process_id(self) -> str:
        return self._process.id

    def alone_since(self) -> int | None:
        return self._process.alone_since()

    def select(self, connection: sqlite3.Connection, statement: CompiledStatement, wanted: Row) -> list[Row]:
        turn_id = wanted.get(_TURN_PARAMETERS.get(statement, ""))
        if turn_id is not None:  # the last attempt finds a turn that is expanded between the first two
            found = statement.rows(connection, wanted)
            found = found or select_from_single_calls(connection, [turn_id], statement, wanted)
            return found or statement.rows(connection, wanted)
        # Single-call rows first: a row that is expanded in between is found twice, and never missed.
        turn_ids = _TURN_FINDERS[statement](connection, wanted)
        found = select_from_single_calls(connection, turn_ids, statement, wanted) if turn_ids else []
        return found + statement.rows(connection, wanted)

    def expand_turn(self, connection: sqlite3.Connection, turn_id: str) -> None:
        expand_turn(connection, EXPANSION, turn_id)

    def expand_blobs(self, connection: sqlite3.Connection, prefix: str, end: str) -> None:
        for turn_id in find_turns_of_blobs(connection, prefix, end):
            expand_turn(connection, EXPANSION, turn_id)

    async def prune_single_calls(self, *, at: int, limit: int) -> int:
        pruned = 0
        while deleted := await self.writer.run(lambda connection: delete_expired(connection, at=at, limit=limit)):
            pruned += 2 * deleted  # a call and its turn
        for run in await self.reader.run(empty_runs):
            await self.writer.run(partial(drop_run, upto=run))
        return pruned

    async def expand_single_calls(self) -> None:
        """Expand all single-call rows, some per transaction: calls that are recorded meanwhile go in between."""
        while await self.writer.run(lambda connection: expand_batch(connection, EXPANSION)) == AT_ONCE:
            pass

    async def find_dead_processes(self) -> Callable[[Any], Iterable[str]] | None:
        # Single-call rows have an outcome, so only `calls` is read.
        rows = await self.reader.run(lambda connection: statements.RUNNING_PROCESSES.rows(connection, {}))
        dead = [row["process"] for row in rows if self._process.has_ended(row["process"])]
        await asyncio.to_thread(self._process.sweep)
        return (lambda _: dead) if dead else None

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
        values = to_single_call_values(call, turn, process=self.process_id, memory=memory)
        if values is None:
            await self.writer.run(write)
        elif self.writer_process is None or not self.writer_process.can_accept():
            await self.writer.run_merged(self._write_single_calls, (values, audit, implicit), alone=write)
        elif not await self.writer_process.write(values, audit, states=(implicit,)):
            await self.writer.run(self._unless_stored(call.turn_id, call.id, call.completed, write))

    async def write_outcome(
        self, outcome: CallOutcomeRows, write: Callable[[Any, list[CallOutcomeRows]], None]
    ) -> None:
        process = self.writer_process
        if process is None or not process.can_accept():
            await super().write_outcome(outcome, write)
            return
        values = OutcomeValues(
            outcome.row["turn_id"],
            statements.UPDATE_CALL_OUTCOME.values(outcome.row),
            None if outcome.turn is None else statements.ENSURE_TURN.values(outcome.turn),
            [statements.INSERT_PIECE.values(each) for each in outcome.pieces],
        )
        if not await process.write(None, outcome.audit, outcome=values, states=outcome.states):
            row = outcome.row
            alone = self._unless_stored(
                row["turn_id"], row["id"], row["completed_at"], lambda connection: write(connection, [outcome])
            )
            await self.writer.run(alone, within=self.outcome_timeout)

    async def write_note(
        self, state: TurnStateWrite | None, audit: Sequence[AuditBody], write: Callable[[Any, list[Note]], None]
    ) -> None:
        """Write a state by the process that writes outcomes: the states of a turn arrive in the order they were made.

        Entries of the log go another way, because a note that was not confirmed is written again.
        """
        process = self.writer_process
        if state is not None and process is not None and process.can_accept():
            state = None if await process.write(None, (), states=(state,)) else state
        if state is not None or audit:
            await super().write_note(state, audit, write)

    async def drain(self) -> None:
        """Wait until the thread has written what it was given before."""
        with suppress(StoreUnavailable):
            await self.writer.run(lambda connection: None)

    def _unless_stored(
        self, turn_id: str, id: str, completed: int | None, write: Callable[[Any], None]
    ) -> Callable[[Any], None]:
        """Return work for a call that the process did not confirm: it may have written it before it ended."""

        def write_once(connection: sqlite3.Connection) -> None:
            self.expand_turn(connection, turn_id)
            stored = statements.CALL_OF_TURN.rows(connection, {"turn_id": turn_id, "id": id})
            if not any(each["status"] == "settled" and each["completed_at"] == completed for each in stored):
                write(connection)

        return write_once

    async def close(self) -> None:
        if self.writer_process is not None:
            await self.writer_process.close()
        await self.writer.close()
        await self.reader.close()
        self._process.release()

    def _write_single_calls(
        self,
        connection: sqlite3.Connection,
        group: list[tuple[SingleCallValues, Sequence[AuditBody], TurnStateWrite | None]],
    ) -> None:
        rows = [to_single_call_row(values) for values, _, _ in group]
        insert_expanded(connection, EXPANSION, SINGLE_CALL_INSERT, rows=rows)
        transactions.write_turn_states(connection, (implicit for _, _, implicit in group))
        self.append_audit(connection, [body for _, audit, _ in group for body in audit])


SqliteStore = SqlStore[SqliteEngine]


async def open_sqlite_store(
    path: str | Path, *, clock: Callable[[], datetime] = now, readers: int = 4, waiting: int = 4096
) -> SqliteStore:
    """Open a database file, or create it, and upgrade its schema. `waiting` bounds the writes that wait for the disk.

    Raises `ForeignStore` if the file is newer than this program or another program's, `StoreUnavailable` if it cannot
    be read and written.
    """
    absolute = Path(path).absolute()
    process = await asyncio.to_thread(open_database_file, absolute)
    try:
        engine = await asyncio.to_thread(SqliteEngine, absolute, process, readers=readers, waiting=waiting)
    except BaseException:
        process.release()
        raise
    return SqlStore(engine, clock=clock)

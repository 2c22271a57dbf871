"""The process that writes the outcomes of calls: it reads them from its standard input and commits them in groups.

A thread could do the same, but because of the interpreter lock every statement would wait for the event loop, and the
event loop for it. The process ends when its standard input is closed.

The first message is the `WriterConfig`. Lists of `WriterJob` follow. The answer to a group is `(numbers that are
durable, numbers that are not, head of the log)`; the client writes the latter itself.

Messages in both directions are the length in four bytes, then the data as encoded by `marshal`.
"""

import marshal
import os
import select
import signal
import sqlite3
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Event, Thread
from time import time_ns
from typing import Any, Final, NamedTuple

from gateway.audit import AuditOrigin, ContentKey
from gateway.errors import StoreUnavailable
from gateway.policy import TurnStateWrite, merge_state_writes
from gateway.storage.sql.audit_log import AuditLog
from gateway.storage.sql.column_values import InsertStatement
from gateway.storage.sql.sqlite.connection import SqliteConnection
from gateway.storage.sql.sqlite.sigbus_recovery import survive_bus_errors
from gateway.storage.sql.sqlite.single_call_table import (
    ID_RUN_SIZE,
    Expansion,
    SingleCallValues,
    add_id_run,
    expand_turn,
    insert_single_calls,
    to_single_call_row,
)

CHECKPOINT_CALLS: Final = 1024
"""Calls between two checkpoints: about a third of the log at which SQLite does one within a commit."""


class WalCheckpointer:
    def __init__(self, database: Path) -> None:
        self._database = database
        self._link: SqliteConnection | None = None
        self._calls = 0
        self._is_due = Event()
        self._is_over = False
        self._thread = Thread(target=self._run, name="writing-back", daemon=True)
        self._thread.start()

    def on_write(self, calls: int) -> None:
        self._calls += calls
        if self._calls >= CHECKPOINT_CALLS:
            self._calls = 0
            self._is_due.set()

    def close(self) -> None:
        self._is_over = True
        self._is_due.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._is_due.wait()
            self._is_due.clear()
            if self._is_over:
                break
            self._write_back()
        self._disconnect()

    def _write_back(self) -> None:
        """Write back the pages that no reader uses. The others follow at the next checkpoint."""
        try:
            if self._link is None or self._link.is_lost():
                self._disconnect()
                self._link = SqliteConnection(self._database)
            self._link.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except (sqlite3.Error, StoreUnavailable):
            self._disconnect()

    def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


_HEAD: Final = 4


def encode_frame(message: Any) -> bytes:
    """Raises `ValueError` for values that are not plain: `marshal` accepts no subclasses."""
    body = marshal.dumps(message)
    return len(body).to_bytes(_HEAD, "big") + body


def decode_frames(received: bytearray) -> list[Any]:
    """Return the complete messages and remove them from `received`."""
    found = []
    start = 0
    while len(received) - start >= _HEAD:
        begin = start + _HEAD
        end = begin + int.from_bytes(received[start:begin], "big")
        if len(received) < end:
            break
        found.append(marshal.loads(received[begin:end]))  # noqa: S302 - from the process at the other end of the pipe
        start = end
    del received[:start]
    return found


LARGEST_GROUP: Final = 512
"""Jobs of a transaction, and of a message: the jobs of a message are written together, or none of them is."""

MOST_STORED_TURNS: Final = 10_000
_PATIENCE: Final = 0.4
_READ: Final = 1 << 20

Values = tuple[Any, ...]


class OutcomeValues(NamedTuple):
    """The outcome of a call in a turn: parameters of the `OutcomeStatements`. `turn` is `None` if it is stored."""

    turn_id: str
    call: Values
    turn: Values | None
    pieces: Sequence[Values]


class OutcomeStatements(NamedTuple):
    """Statements with the parameters of `OutcomeValues`, and those that read and write the state of a turn."""

    ensure_turn: str
    record_call: str
    insert_piece: str
    select_state: str
    update_state: str


class WriterJob(NamedTuple):
    """One call to be written: as a single-call row or as an outcome, with turn states and entries of the log."""

    number: int
    single: SingleCallValues | None
    outcome: tuple[Any, ...] | None
    states: Sequence[tuple[str, bytes, bytes | None]]
    audit: Sequence[tuple[int, bytes | tuple[Any, ...]]]


class WriterConfig(NamedTuple):
    """`place` has the fields of an `AuditOrigin`; without it entries are dropped. `key` is the content key."""

    database: str
    fresh: InsertStatement
    expansion: Expansion
    outcomes: OutcomeStatements
    place: tuple[str, str | None, str | None, str | None] | None
    shard: str
    key: str | None = None


class WriterProcess:
    def __init__(self, order: WriterConfig) -> None:
        self._order = order
        self._link: SqliteConnection | None = None
        self._log: AuditLog | None = None
        self._into = InsertStatement(*order.fresh)
        self._expansion = Expansion(*order.expansion)
        self._outcomes = OutcomeStatements(*order.outcomes)
        self._stored_turns: set[str] = set()
        """Turns that are not single-call rows, and never will be again."""
        self._since_run = ID_RUN_SIZE  # the process before it may have ended before it wrote a run
        if order.place is not None:
            key = None if order.key is None else ContentKey(order.key)
            self._log = AuditLog(self._new_shard, AuditOrigin(*order.place), clock=_clock, key=key)
        self._shards = 0
        self._writing_back = WalCheckpointer(Path(order.database))

    def write(self, group: Sequence[WriterJob]) -> bool:
        """Write a group. Return whether all of it is durable; otherwise none of it is."""
        mark = None if self._log is None else self._log.mark()
        try:
            link = self._connect()
            self._write(link.connection, group)
            if link.is_lost():
                mark = None  # the chain is in another file: the next entry begins a new shard
                raise OSError("the database was replaced")
        except Exception:  # the client writes the group again, and gets the error
            if self._log is not None:
                self._log.rewind(mark)
            self._disconnect()
            self._stored_turns.clear()
            return False
        if self._log is not None:
            self._log.on_commit()
        self._writing_back.on_write(len(group))
        return True

    @property
    def head(self) -> tuple[str, int, bytes] | None:
        """Head of the log; `None` without a log, or before its first entry."""
        mark = None if self._log is None else self._log.mark()
        return None if mark is None else (mark.shard, mark.seq, mark.hash)

    def close(self) -> None:
        self._writing_back.close()
        self._disconnect()

    def _write(self, connection: sqlite3.Connection, group: Sequence[WriterJob]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        singles = [to_single_call_row(each.single) for each in group if each.single is not None]
        if singles:
            insert_single_calls(connection, self._into, singles)
            self._since_run += len(singles)
            if self._since_run >= ID_RUN_SIZE:
                add_id_run(connection)
                self._since_run = 0
        self._write_outcomes(connection, [OutcomeValues(*each.outcome) for each in group if each.outcome is not None])
        self._write_states(connection, [TurnStateWrite(*state) for each in group for state in each.states])
        if self._log is not None:
            self._log.append(connection, [body for each in group for body in each.audit])
        connection.execute("COMMIT")

    def _write_outcomes(self, connection: sqlite3.Connection, outcomes: Sequence[OutcomeValues]) -> None:
        """Raise if one of the calls has an outcome already: the client finds out which, and why."""
        if not outcomes:
            return
        self._expand_turns(connection, [each.turn_id for each in outcomes])
        connection.executemany(self._outcomes.ensure_turn, [each.turn for each in outcomes if each.turn is not None])
        calls = [each.call for each in outcomes]
        if connection.executemany(self._outcomes.record_call, calls).rowcount != len(calls):
            raise sqlite3.IntegrityError("a call has an outcome already")
        connection.executemany(self._outcomes.insert_piece, [piece for each in outcomes for piece in each.pieces])
        if len(self._stored_turns) > MOST_STORED_TURNS:
            self._stored_turns.clear()
        self._stored_turns.update(each.turn_id for each in outcomes)  # their calls refer to them

    def _write_states(self, connection: sqlite3.Connection, writes: Sequence[TurnStateWrite]) -> None:
        turn_ids = list(dict.fromkeys(write.turn_id for write in writes))
        self._expand_turns(connection, turn_ids)
        stored: dict[str, bytes | None] = {}
        for turn_id in turn_ids:
            for (memory,) in connection.execute(self._outcomes.select_state, (turn_id,)):
                stored[turn_id] = memory
        merged = merge_state_writes(writes, stored)
        connection.executemany(self._outcomes.update_state, [(memory, turn_id) for turn_id, memory in merged.items()])

    def _expand_turns(self, connection: sqlite3.Connection, turn_ids: Iterable[str]) -> None:
        for turn_id in turn_ids:
            if turn_id not in self._stored_turns:
                expand_turn(connection, self._expansion, turn_id)

    def _connect(self) -> SqliteConnection:
        if self._link is None:
            self._link = SqliteConnection(Path(self._order.database), patience=_PATIENCE)
        return self._link

    def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()  # and roll back an open transaction

    def _new_shard(self) -> str:
        self._shards += 1
        return f"{self._order.shard}.{self._shards}"


def _clock() -> int:
    return time_ns() // 1_000


def main() -> None:
    # It ends when the client closes its standard input, not by a signal to the process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    survive_bus_errors()
    source, sink = sys.stdin.fileno(), sys.stdout.fileno()
    received = bytearray()
    recorder: WriterProcess | None = None
    waiting: deque[list[WriterJob]] = deque()
    is_over = False
    while not is_over or waiting:
        if not is_over and (not waiting or _is_readable(source)):
            chunk = os.read(source, _READ)
            is_over = not chunk
            received += chunk
        for message in decode_frames(received):
            if recorder is None:
                recorder = WriterProcess(WriterConfig(*message))
            else:
                waiting.append([WriterJob(*each) for each in message])
        if recorder is not None and waiting:
            group = waiting.popleft()
            while waiting and len(group) + len(waiting[0]) <= LARGEST_GROUP:
                group += waiting.popleft()
            numbers = [each.number for each in group]
            answer = (numbers, []) if recorder.write(group) else ([], numbers)
            _send(sink, encode_frame((*answer, recorder.head)))
    if recorder is not None:
        recorder.close()


def _is_readable(source: int) -> bool:
    return bool(select.select([source], [], [], 0)[0])


def _send(sink: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]


if __name__ == "__main__":
    main()

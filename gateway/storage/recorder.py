"""The process that writes fresh calls: it reads them from its standard input, commits them in groups, and says so.

What it does could be done by a thread, but for the interpreter's lock: every statement would wait for the event loop,
and the event loop for it. It knows rows, and nothing of what they mean. It ends when nobody can send it anything more.

First comes the `Order`, then lists of `(number, values of a row, entries of the log)`. The answer to a group is
`(numbers that are durable, numbers that are not, how far the log has come)`; whoever sent the second finds out why.
"""

import os
import select
import signal
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from time import time_ns
from typing import Any, Final, NamedTuple

from gateway.audit.contents import ContentKey
from gateway.audit.entries import Place
from gateway.storage.audit_log import AuditLog
from gateway.storage.bus_errors import survive_bus_errors
from gateway.storage.finding_fresh import A_RUN, add_run
from gateway.storage.framing import framed, unframed
from gateway.storage.fresh_rows import Values, fresh_row
from gateway.storage.inserting import Insertion
from gateway.storage.links import Link
from gateway.storage.putting_away import insert_fresh
from gateway.storage.writing_back import WritingBack

LARGEST_GROUP: Final = 512
_PATIENCE: Final = 0.4
_READ: Final = 1 << 20

Fresh = tuple[int, Values, Sequence[tuple[int, bytes | tuple[Any, ...]]]]


class Order(NamedTuple):
    """What it is to write to. `place` are the fields of the log's place; without one, entries are let go. `key` is that
    of contents.
    """

    database: str
    fresh: Insertion
    place: tuple[str, str | None, str | None, str | None] | None
    shard: str
    key: str | None = None


class Recorder:
    def __init__(self, order: Order) -> None:
        self._order = order
        self._link: Link | None = None
        self._log: AuditLog | None = None
        self._into = Insertion(*order.fresh)
        self._since_run = A_RUN  # whoever wrote before it may have ended before the next one
        if order.place is not None:
            key = None if order.key is None else ContentKey(order.key)
            self._log = AuditLog(self._new_shard, Place(*order.place), clock=_clock, key=key)
        self._shards = 0
        self._writing_back = WritingBack(Path(order.database))

    def written(self, group: Sequence[Fresh]) -> bool:
        """Whether all of it is durable; else none of it is, for whatever reason."""
        mark = None if self._log is None else self._log.mark()
        try:
            link = self._connected()
            self._write(link.connection, group)
            if link.is_lost():
                mark = None  # what is chained so far is in another file: the next entry begins a new shard
                raise OSError("the database was replaced")
        except Exception:  # whoever sent it does it again, and is told what is wrong
            if self._log is not None:
                self._log.rewind(mark)
            self._disconnect()
            return False
        if self._log is not None:
            self._log.committed()
        self._writing_back.wrote(len(group))
        return True

    @property
    def head(self) -> tuple[str, int, bytes] | None:
        """How far the log has come; `None` without one, or before its first entry."""
        mark = None if self._log is None else self._log.mark()
        return None if mark is None else (mark.shard, mark.seq, mark.hash)

    def close(self) -> None:
        self._writing_back.close()
        self._disconnect()

    def _write(self, connection: sqlite3.Connection, group: Sequence[Fresh]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        insert_fresh(connection, self._into, [fresh_row(each[1]) for each in group])
        self._since_run += len(group)
        if self._since_run >= A_RUN:
            add_run(connection)
            self._since_run = 0
        if self._log is not None:
            self._log.append(connection, [body for each in group for body in each[2]])
        connection.execute("COMMIT")

    def _connected(self) -> Link:
        if self._link is None:
            self._link = Link(Path(self._order.database), patience=_PATIENCE)
        return self._link

    def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()  # which takes an open transaction back

    def _new_shard(self) -> str:
        self._shards += 1
        return f"{self._order.shard}.{self._shards}"


def _clock() -> int:
    return time_ns() // 1_000


def main() -> None:
    # Whoever started it decides when it ends: by closing what it reads from.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    survive_bus_errors()
    source, sink = sys.stdin.fileno(), sys.stdout.fileno()
    received = bytearray()
    recorder: Recorder | None = None
    waiting: list[Fresh] = []
    is_over = False
    while not is_over or waiting:
        if not is_over and (not waiting or _is_readable(source)):
            chunk = os.read(source, _READ)
            is_over = not chunk
            received += chunk
        for message in unframed(received):
            if recorder is None:
                recorder = Recorder(Order(*message))
            else:
                waiting += message
        if recorder is not None and waiting:
            group, waiting = waiting[:LARGEST_GROUP], waiting[LARGEST_GROUP:]
            numbers = [each[0] for each in group]
            answer = (numbers, []) if recorder.written(group) else ([], numbers)
            _send(sink, framed((*answer, recorder.head)))
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

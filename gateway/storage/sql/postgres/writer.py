"""The thread that writes to PostgreSQL, in groups that are committed as one transaction.

A group takes two round trips: one to begin, to lock what its work shares with other processes and to read the states of
its turns; one for its statements and the commit. Work that has to see results of its own takes more.

A group locks the keys of its footprints, so groups of several processes only wait if they change the same. One with
work that may change any row waits for all others.

If a connection breaks during a commit, the writer asks the database later whether it succeeded, and undoes the work
then, because its caller has got an error.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from math import inf
from time import monotonic, sleep
from typing import Any, Final, cast

import psycopg

from gateway.errors import StoreUnavailable
from gateway.storage.sql.group_commit import GroupCommit, Work, _Job, _Outcome, run_merges
from gateway.storage.sql.lock_keys import Footprint, combine_footprints
from gateway.storage.sql.postgres.connection import FULL, PostgresConnection, is_lock_timeout
from gateway.storage.sql.postgres.heartbeat import Lease
from gateway.storage.sql.sqlite.connection import SqliteConnection

_RECONNECT: Final = 0.2
"""Seconds to wait after a refused connection, so that a starting database is not overrun."""

_STATEMENT_SECONDS: Final = 4.0
_MOMENT: Final = 1.0
_LONGEST: Final = 6.0
"""Seconds that callers wait for a server that neither answers nor closes the connection."""

CLOSE_SECONDS: Final = 5.0
"""How long closing waits for a server that does not answer."""


class CommitInDoubt(Exception):
    """It is not known whether the transaction of that number was committed."""

    def __init__(self, transaction: int) -> None:
        super().__init__(transaction)
        self.transaction = transaction


class PostgresWriter(GroupCommit):
    """A `GroupCommit` for PostgreSQL. Without its lease, a process writes nothing."""

    too_slow = ("the database is too slow", "look at its load and its disk")

    def __init__(self, address: str, *, waiting: int = 4096, lease: Lease | None = None) -> None:
        self._address = address
        self._leased = None if lease is None else lambda: lease.id
        self._connect_at = -inf
        self._slow_at = -inf
        self.on_full: Callable[[], None] = _unheard
        """Called when a write fails because the disk of the database is full."""
        super().__init__(
            cast("Callable[[], SqliteConnection]", self._open), waiting=waiting
        )  # it has the methods of an `SqliteConnection`

    async def _execute(self, job: _Job, *, within: float | None = None, undo: Work[None] | None = None) -> Any:
        try:
            return await super()._execute(job, within=_LONGEST if within is None else within, undo=undo)
        except StoreUnavailable as error:
            if error.message == self.too_slow[0]:
                self._slow_at = monotonic()
            if error.message == FULL:
                self.on_full()
            if undo is not None and isinstance(error.cause, CommitInDoubt):
                self._add_undo(_if_committed(error.cause.transaction, undo), job)
            raise

    @property
    def is_slow(self) -> bool:
        """Whether a caller timed out within the last second."""
        return monotonic() - self._slow_at < _MOMENT

    async def close(self) -> None:
        """Return when all accepted work is written. The connection of a silent server is aborted."""
        closing = asyncio.create_task(super().close())
        await asyncio.wait({closing}, timeout=CLOSE_SECONDS)
        while not closing.done():
            if (link := self._link) is not None:  # pragma: no branch - there is none while it connects
                cast("PostgresConnection", link).abort()
            await asyncio.wait({closing}, timeout=_RECONNECT)
        await closing

    def _open(self) -> PostgresConnection:
        """Connect; soon after a refused attempt, wait first. Every caller gets the result of an attempt of its own."""
        sleep(max(0.0, self._connect_at - monotonic()))
        try:
            return PostgresConnection(self._address, patience=_STATEMENT_SECONDS, lease=self._leased)
        except StoreUnavailable:
            self._connect_at = monotonic() + _RECONNECT
            raise

    def _write_group(self, group: list[_Job]) -> list[_Outcome]:
        outcomes = super()._write_group(group)
        if outcomes and all(isinstance(each.error, StoreUnavailable) for each in outcomes):
            self._disconnect()
        return outcomes

    def begin(self, connection: Any, group: list[_Job], *, is_apart: bool = False) -> None:
        session: PostgresConnection = connection
        footprint = combine_footprints(job.footprint for job in group)
        session.begin(Footprint(footprint.keys) if is_apart and footprint is not None else footprint)

    def is_busy(self, error: Exception) -> bool:
        return is_lock_timeout(getattr(error, "cause", None))

    def is_final(self, error: Exception) -> bool:
        return isinstance(error, StoreUnavailable) and isinstance(error.cause, psycopg.Error | CommitInDoubt)

    def write(self, connection: Any, group: list[_Job]) -> list[_Outcome]:
        session: PostgresConnection = connection
        alone = [job for job in group if job.merge is None]
        with nullcontext() if alone else self._doubting(session), session.deferring(commits=not alone):
            outcomes = [_Outcome(job) for job in run_merges(connection, group)]
        session.states = None  # other work may change them in other ways
        if alone:
            outcomes += [_Outcome(job, job.work(connection)) for job in alone]
            self.commit(connection)
        return outcomes

    def commit(self, connection: Any) -> None:
        with self._doubting(connection):
            connection.execute("COMMIT")

    @staticmethod
    @contextmanager
    def _doubting(session: PostgresConnection) -> Iterator[None]:
        """Mark an error of the database as one that does not tell whether the transaction was committed."""
        try:
            yield
        except StoreUnavailable as error:
            assert session.transaction is not None  # noqa: S101 - it was begun
            raise StoreUnavailable(error.message, help=error.help) from CommitInDoubt(session.transaction)


def _unheard() -> None: ...


def _if_committed(transaction: int, undo: Work[None]) -> Work[None]:
    def run(connection: Any) -> None:
        [status] = connection.execute("SELECT txid_status(?)", (transaction,)).fetchone()
        if status == "in progress":
            raise StoreUnavailable("a transaction has not ended yet")
        if status == "committed":
            undo(connection)

    return run

"""The one thread of a process that writes to PostgreSQL: groups of work, each committed as one transaction.

Groups of all processes come one after the other, as on one host with SQLite; those that only add what nobody else can
know of do not wait for the others. A connection that breaks while it commits leaves open whether it did: the database
is asked later, and what its caller did not learn of is taken back then.
"""

import asyncio
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any, Final, TypeVar, cast

import psycopg

from gateway.errors import StoreUnavailable
from gateway.storage.group_commit import PATIENCE, GroupCommit, Merge, Work, _failed, _Job, _Outcome
from gateway.storage.links import Link
from gateway.storage.postgres.faults import FULL, is_locked_out
from gateway.storage.postgres.leases import Lease
from gateway.storage.postgres.sessions import Session

T = TypeVar("T")

_RECONNECT: Final = 0.2
"""Seconds for which a connection that was refused is not asked for again: a database that begins is not overrun."""

_STATEMENT_SECONDS: Final = 4.0
_MOMENT: Final = 1.0
_LONGEST: Final = 6.0
"""Seconds after which nobody waits any more for a server that neither answers nor ends the connection."""

CLOSE_SECONDS: Final = 5.0
"""How long closing waits for a server that does not answer."""


class Unsure(Exception):
    """The transaction of that number was committed, or was not."""

    def __init__(self, transaction: int) -> None:
        super().__init__(transaction)
        self.transaction = transaction


class PostgresWriter(GroupCommit):
    """The same for callers as the writer of an SQLite file. Without its lease, a process writes nothing."""

    too_slow = ("the database is too slow", "look at its load and its disk")

    def __init__(self, address: str, *, waiting: int = 4096, lease: Lease | None = None) -> None:
        self._address = address
        self._leased = None if lease is None else lambda: lease.id
        self._refused: tuple[float, StoreUnavailable] | None = None
        self._slow_at = -inf
        self.on_full: Callable[[], None] = _unheard
        """Called when something was not written because the disk of the database is full."""
        self.free: set[Merge | None] = set()
        """Work that only adds what nobody else can know of: it waits for no other process."""
        super().__init__(cast("Callable[[], Link]", self._open), waiting=waiting)  # a session is what a link is

    async def run(self, work: Work[T], *, within: float | None = None, undo: Work[None] | None = None) -> T:
        job = _Job(work, None, asyncio.get_running_loop(), monotonic() + PATIENCE)
        done: T = await self._sure(job, within=within, undo=undo)
        return done

    async def run_together(
        self, work: Work[None], merge: Merge, part: Any, *, within: float | None = None, undo: Work[None] | None = None
    ) -> None:
        """As `run`, but done by `merge` together with all others of the group that have the same one."""
        loop = asyncio.get_running_loop()
        await self._sure(_Job(work, None, loop, monotonic() + PATIENCE, merge, part), within=within, undo=undo)

    async def _sure(self, job: _Job, *, within: float | None, undo: Work[None] | None) -> Any:
        try:
            return await self._done(job, within=_LONGEST if within is None else within, undo=undo)
        except StoreUnavailable as error:
            if error.message == self.too_slow[0]:
                self._slow_at = monotonic()
            if error.message == FULL:
                self.on_full()
            if undo is not None and isinstance(error.cause, Unsure):
                self._take_back(_if_committed(error.cause.transaction, undo), job.loop)
            raise

    @property
    def is_slow(self) -> bool:
        """Whether somebody gave up waiting a moment ago."""
        return monotonic() - self._slow_at < _MOMENT

    async def close(self) -> None:
        """The same; a server that is silent for too long is given up."""
        closing = asyncio.create_task(super().close())
        await asyncio.wait({closing}, timeout=CLOSE_SECONDS)
        while not closing.done():
            if (link := self._link) is not None:  # pragma: no branch - there is none while it connects
                cast("Session", link).cut()
            await asyncio.wait({closing}, timeout=_RECONNECT)
        await closing

    def _open(self) -> Session:
        if self._refused is not None and monotonic() < self._refused[0]:
            known = self._refused[1]
            raise StoreUnavailable(known.message, help=known.help, cause=known.cause)
        try:
            session = Session(self._address, patience=_STATEMENT_SECONDS, lease=self._leased)
        except StoreUnavailable as error:
            self._refused = (monotonic() + _RECONNECT, error)
            raise
        self._refused = None
        return session

    def _written(self, group: list[_Job]) -> list[_Outcome]:
        outcomes = super()._written(group)
        if outcomes and all(isinstance(each.error, StoreUnavailable) for each in outcomes):
            self._disconnect()
        return outcomes

    def _begun(self, connection: Any, group: list[_Job]) -> list[_Job]:
        session: Session = connection
        while group:
            try:
                session.begin(is_alone=any(job.merge not in self.free for job in group))
                break
            except Exception as error:  # whatever it is, those who wait must be told
                until = monotonic() if is_locked_out(getattr(error, "cause", None)) else inf
                self._release(_failed(job, error) for job in group if job.deadline <= until)
                group = [job for job in group if job.deadline > until]
                if until == inf:
                    self._disconnect()
        return group

    def is_final(self, error: Exception) -> bool:
        return isinstance(error, StoreUnavailable) and isinstance(error.cause, psycopg.Error | Unsure)

    def commit(self, connection: Any) -> None:
        session: Session = connection
        try:
            session.execute("COMMIT")
        except StoreUnavailable as error:
            assert session.transaction is not None  # noqa: S101 - it was begun
            raise StoreUnavailable(error.message, help=error.help) from Unsure(session.transaction)


def _unheard() -> None: ...


def _if_committed(transaction: int, undo: Work[None]) -> Work[None]:
    def run(connection: Any) -> None:
        [status] = connection.execute("SELECT txid_status(?)", (transaction,)).fetchone()
        if status == "in progress":
            raise StoreUnavailable("a transaction has not ended yet")
        if status == "committed":
            undo(connection)

    return run

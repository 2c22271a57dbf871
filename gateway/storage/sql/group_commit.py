"""The writer thread: all work that arrived during the last commit goes into the next transaction.

A caller continues when its transaction is durable.
"""

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from threading import Condition, Thread
from time import monotonic
from typing import Any, ClassVar, Final, Protocol, TypeVar, cast

from gateway.errors import GatewayError, StoreUnavailable
from gateway.storage.sql.lock_keys import NOTHING_SHARED, Footprint
from gateway.storage.sql.sqlite.connection import (
    SqliteConnection,
    file_replaced_error,
    is_busy,
    is_full,
    to_store_error,
)

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)


class TransactionObserver(Protocol):
    """Follows transactions, and is rewound when one is rolled back."""

    def mark(self) -> Any: ...

    def rewind(self, mark: Any) -> None: ...

    def on_commit(self) -> None: ...


class _Uncounted:
    def mark(self) -> None: ...

    def rewind(self, mark: None) -> None: ...

    def on_commit(self) -> None: ...


COMMIT_TIMEOUT: Final = 0.8
"""Seconds a caller waits for a lock, or for a place in the queue."""

_LARGEST_GROUP: Final = 512

_PROBE_EVERY: Final = 1.0
"""Seconds between attempts to write after a failed write, if no caller writes meanwhile."""

Work = Callable[[sqlite3.Connection], T]
Merge = Callable[[sqlite3.Connection, list[Any]], None]
"""Does the work of many jobs at once, given the `part` of each. Raises if it cannot do all of it."""


@dataclass(slots=True, eq=False)
class _Job:
    """`future` is `None` for undo work, for which no caller waits. `part` is the argument for `merge`."""

    work: Work[Any]
    future: asyncio.Future[Any] | None
    loop: asyncio.AbstractEventLoop
    deadline: float
    merge: Merge | None = None
    part: Any = None
    footprint: Footprint | None = None


@dataclass(slots=True)
class _Outcome:
    job: _Job
    value: Any = None
    error: Exception | None = None


class GroupCommit:
    """Runs work in transactions. Work may run twice: when a job of a group fails, all its jobs run again."""

    too_slow: ClassVar = ("the disk is too slow", "check what else uses it")

    def __init__(self, connect: Callable[[], SqliteConnection], *, waiting: int = 4096) -> None:
        self._connect = connect
        self._link: SqliteConnection | None = connect()
        self._places = asyncio.Semaphore(waiting)
        self._waiting = waiting
        self._jobs: deque[_Job] = deque()
        self._not_undone: list[_Job] = []  # undo work that failed; used by the writer thread only
        self._arrived = Condition()
        self._is_idle = False
        self._closing = False
        self.problem: str | None = None
        """Why the last write failed; `None` if it did not."""
        self.ledger: TransactionObserver = _Uncounted()
        # Every loop that writes has a job of its own; this one belongs to none, because no caller waits for it.
        loop = cast("asyncio.AbstractEventLoop", None)
        self._probe = _Job(_do_nothing, None, loop, inf, footprint=NOTHING_SHARED)
        self._thread = Thread(target=self._serve, name="gateway-store-writer", daemon=True)
        self._thread.start()

    async def run_merged(
        self,
        merge: Merge,
        part: Any,
        *,
        alone: Work[None] | None = None,
        within: float | None = None,
        undo: Work[None] | None = None,
        footprint: Footprint | None = None,
    ) -> None:
        """Write a part, by `merge` together with the parts of all jobs of the group that have the same one.

        Every statement releases and takes the interpreter lock, so a thousand small ones cost more than a large one.
        If a part of the group cannot be written, each is written by itself: by `alone`, or by `merge`.
        """
        work = alone or (lambda connection: merge(connection, [part]))
        loop = asyncio.get_running_loop()
        job = _Job(work, None, loop, monotonic() + COMMIT_TIMEOUT, merge, part, footprint)
        await self._execute(job, within=within, undo=undo)

    async def run(
        self,
        work: Work[T],
        *,
        within: float | None = None,
        undo: Work[None] | None = None,
        footprint: Footprint | None = None,
    ) -> T:
        """Return the result of `work` once it is durable. It runs even if the caller stops waiting.

        Raises `StoreUnavailable` after `within` seconds on a slow disk. In that case, or if the caller is cancelled,
        the caller does not know whether the work succeeded, and `undo` runs right after it.
        """
        loop = asyncio.get_running_loop()
        job = _Job(work, None, loop, monotonic() + COMMIT_TIMEOUT, footprint=footprint)
        done: T = await self._execute(job, within=within, undo=undo)
        return done

    async def close(self) -> None:
        """Return when all accepted work is written."""
        with self._arrived:
            self._closing = True
            self._arrived.notify()
        await asyncio.to_thread(self._thread.join)

    async def _execute(self, job: _Job, *, within: float | None = None, undo: Work[None] | None = None) -> Any:
        if self._places.locked():
            await self._wait_for_a_place()
        else:
            await self._places.acquire()
        future = job.future = job.loop.create_future()
        try:
            self._add(job)
        except StoreUnavailable:
            self._places.release()
            raise
        slow = None if within is None else job.loop.call_later(within, _give_up, future)
        try:
            return await future
        except asyncio.CancelledError:
            self._add_undo(undo, job)
            raise
        except _TooSlow:
            self._add_undo(undo, job)
            slow_store = StoreUnavailable(self.too_slow[0], help=self.too_slow[1])
            self._note(slow_store)
            raise slow_store from None
        finally:
            if slow is not None:
                slow.cancel()

    def _add_undo(self, undo: Work[None] | None, job: _Job) -> None:
        if undo is not None:
            with suppress(StoreUnavailable):  # closing: the next recovery finds the call
                self._add(_Job(undo, None, job.loop, monotonic() + COMMIT_TIMEOUT, footprint=job.footprint))

    def _add(self, job: _Job) -> None:
        if self._closing:
            raise StoreUnavailable("the store is closed")
        self._jobs.append(job)
        if self._is_idle:  # set before the writer checks for jobs a last time: it sees this one, or is woken
            with self._arrived:
                self._arrived.notify()

    async def _wait_for_a_place(self) -> None:
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT):
                await self._places.acquire()
        except TimeoutError:
            raise StoreUnavailable(
                f"{self._waiting} writes are waiting already", help="send fewer calls at once, or use a faster disk"
            ) from None

    def _serve(self) -> None:
        while group := self._next_group():
            not_undone, self._not_undone = self._not_undone, []
            self._release(self._write_group(not_undone + group))
        self._disconnect()

    def _next_group(self) -> list[_Job]:
        if not self._jobs:
            with self._arrived:
                self._is_idle = True
                while not self._jobs and not self._closing:
                    if not self._arrived.wait(None if self.problem is None else _PROBE_EVERY) and not self._jobs:
                        self._jobs.append(self._probe)
                self._is_idle = False
        group: list[_Job] = []
        while self._jobs and len(group) < _LARGEST_GROUP:
            if self._jobs[0].future is not None and group and group[-1].future is None:
                break  # merged work of a group runs first, and this work came after an undo
            group.append(self._jobs.popleft())
        return group

    def _write_group(self, group: list[_Job]) -> list[_Outcome]:
        try:
            link = self._reconnect()
        except Exception as error:  # whatever it is, the callers must get it; likewise below
            return [_to_failure(job, error) for job in group]
        group = self._begin_group(link.connection, group)
        try:
            outcomes = _run_all(link.connection, group, self) if group else []
            if link.is_lost():
                raise file_replaced_error()
        except Exception as error:
            if not is_full(error):  # a full disk needs no new connection, any other failure does
                self._disconnect()
            return [_to_failure(job, error) for job in group]
        return outcomes

    def _reconnect(self) -> SqliteConnection:
        if self._link is not None and self._link.is_lost():
            self._disconnect()
        if self._link is None:
            self._link = self._connect()
        return self._link

    def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            with suppress(sqlite3.Error):  # the connection has failed
                link.close()

    def begin(self, connection: sqlite3.Connection, group: list[_Job], *, is_apart: bool = False) -> None:
        """Begin a transaction for a group. `is_apart`: its jobs run one by one, and some may be rolled back."""
        connection.execute("BEGIN IMMEDIATE")

    def write(self, connection: sqlite3.Connection, group: list[_Job]) -> list[_Outcome]:
        """Do the work of a group in the transaction that was begun, and commit it."""
        outcomes = [_Outcome(job) for job in run_merges(connection, group)]
        outcomes += [_Outcome(job, job.work(connection)) for job in group if job.merge is None]
        self.commit(connection)
        return outcomes

    def commit(self, connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")

    def is_busy(self, error: Exception) -> bool:
        """Whether another process holds the lock that a transaction needs."""
        return is_busy(error)

    def is_final(self, error: Exception) -> bool:
        """Whether the other jobs of the group would fail for the same reason."""
        return to_store_error(error) is not None

    def _begin_group(self, connection: sqlite3.Connection, group: list[_Job]) -> list[_Job]:
        """Begin a transaction. Return the jobs whose deadline has not passed by then; the others have failed."""
        while group:
            try:
                self.begin(connection, group)
                break
            except Exception as error:
                until = monotonic() if self.is_busy(error) else inf
                self._release(_to_failure(job, error) for job in group if job.deadline <= until)
                group = [job for job in group if job.deadline > until]
                if until == inf:  # a connection from a time when the disk was read-only never writes
                    self._disconnect()
        return group

    def _release(self, outcomes: Iterable[_Outcome]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
        for outcome in outcomes:
            self._note(outcome.error)
            if outcome.job.future is not None:
                by_loop.setdefault(outcome.job.loop, []).append(outcome)
            elif outcome.error is not None and outcome.job is not self._probe:
                self._not_undone.append(outcome.job)
        for loop, released in by_loop.items():
            with suppress(RuntimeError):  # the loop is closed: no caller waits
                loop.call_soon_threadsafe(self._resolve, released)

    def _note(self, error: Exception | None) -> None:
        """Remember whether the store can be written: a conflict with stored records shows that it can.

        An unexpected error shows neither.
        """
        if error is not None and not isinstance(error, GatewayError):
            return
        problem = f"calls cannot be recorded: {error.message}" if isinstance(error, StoreUnavailable) else None
        if problem is not None and self.problem is None:
            _log.error(problem)
        elif problem is None and self.problem is not None:
            _log.warning("the database can be written again")
        self.problem = problem

    def _resolve(self, outcomes: list[_Outcome]) -> None:
        for outcome in outcomes:
            self._places.release()
            future = outcome.job.future
            if future is None or future.done():  # its caller does not wait any more
                continue
            if outcome.error is not None:
                future.set_exception(outcome.error)
            else:
                future.set_result(outcome.value)


def _do_nothing(connection: sqlite3.Connection) -> None:
    """An empty transaction: shows whether the database can be written."""


class _TooSlow(Exception):
    """It is not known yet whether the work is written."""


def _give_up(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(_TooSlow())


def _run_all(connection: sqlite3.Connection, group: list[_Job], writer: GroupCommit) -> list[_Outcome]:
    """Run and commit a group. Savepoints cost time, so only a group with a failed job uses them, on a second run."""
    ledger = writer.ledger
    mark = ledger.mark()
    try:
        outcomes = writer.write(connection, group)
        ledger.on_commit()
        return outcomes
    except Exception as error:
        _roll_back(connection)
        ledger.rewind(mark)
        if writer.is_final(error):
            raise
        if len(group) == 1 and group[0].merge is None:
            return [_to_failure(group[0], error)]
    try:
        writer.begin(connection, group, is_apart=True)
        outcomes = [_run_apart(connection, job, writer) for job in group]
        writer.commit(connection)
        ledger.on_commit()
        return outcomes
    except Exception:
        _roll_back(connection)
        ledger.rewind(mark)
        raise


def run_merges(connection: sqlite3.Connection, group: list[_Job]) -> list[_Job]:
    """Do the merged work, one kind after the other. Return its jobs."""
    merged: dict[Merge, list[_Job]] = {}
    for job in group:
        if job.merge is not None:
            merged.setdefault(job.merge, []).append(job)
    for merge, jobs in merged.items():
        merge(connection, [job.part for job in jobs])
    return [job for jobs in merged.values() for job in jobs]


def _run_apart(connection: sqlite3.Connection, job: _Job, writer: GroupCommit) -> _Outcome:
    connection.execute("SAVEPOINT job")
    ledger = writer.ledger
    mark = ledger.mark()
    try:
        value = job.work(connection)
        outcome = _Outcome(job, value)
    except Exception as error:
        if writer.is_final(error):  # the caller rolls everything back
            raise
        connection.execute("ROLLBACK TO job")
        ledger.rewind(mark)
        outcome = _to_failure(job, error)
    connection.execute("RELEASE job")
    return outcome


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:  # SQLite itself rolls back when the disk is full
        connection.execute("ROLLBACK")


def _to_failure(job: _Job, error: Exception) -> _Outcome:
    """Give each caller its own error object, because a traceback belongs to one raise."""
    if isinstance(error, StoreUnavailable):
        return _Outcome(job, error=StoreUnavailable(error.message, help=error.help, cause=error.cause))
    return _Outcome(job, error=to_store_error(error) or error)

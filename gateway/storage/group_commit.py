"""One thread that writes: whatever arrived while the last commit ran goes into the next transaction.

A caller is released when its transaction is on the disk. The thread knows SQLite, and nothing of records.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from threading import Condition, Thread
from time import monotonic
from typing import Any, ClassVar, Final, Protocol, TypeVar

from gateway.errors import StoreUnavailable
from gateway.storage.links import Link, is_busy, is_full, lost, unavailable

T = TypeVar("T")


class Ledger(Protocol):
    """What is counted along with transactions: it goes back when one of them does."""

    def mark(self) -> Any: ...

    def rewind(self, mark: Any) -> None: ...

    def committed(self) -> None: ...


class _Uncounted:
    def mark(self) -> None: ...

    def rewind(self, mark: None) -> None: ...

    def committed(self) -> None: ...


PATIENCE: Final = 0.8
"""Seconds a caller waits for a lock, or for a place in the queue."""

_LARGEST_GROUP: Final = 512

Work = Callable[[sqlite3.Connection], T]
Merge = Callable[[sqlite3.Connection, list[Any]], None]
"""Does the work of many jobs at once, given what each of them brought along; it raises if it cannot do all of it."""


@dataclass(slots=True, eq=False)
class _Job:
    """`future` is `None` where nobody waits. With a `merge`, `part` is what it needs to do the work with others'."""

    work: Work[Any]
    future: asyncio.Future[Any] | None
    loop: asyncio.AbstractEventLoop
    deadline: float
    merge: Merge | None = None
    part: Any = None


@dataclass(slots=True)
class _Outcome:
    job: _Job
    value: Any = None
    error: Exception | None = None


class GroupCommit:
    """Runs work in transactions. Work may run twice: when another job of its group fails, all are run again."""

    too_slow: ClassVar = ("the disk is too slow", "check what else uses it")

    def __init__(self, connect: Callable[[], Link], *, waiting: int = 4096) -> None:
        self._connect = connect
        self._link: Link | None = connect()
        self._places = asyncio.Semaphore(waiting)
        self._waiting = waiting
        self._jobs: deque[_Job] = deque()
        self._not_undone: list[_Job] = []  # the writer's own: what could not be taken back yet
        self._arrived = Condition()
        self._is_idle = False
        self._closing = False
        self.ledger: Ledger = _Uncounted()
        self._thread = Thread(target=self._serve, name="gateway-store-writer", daemon=True)
        self._thread.start()

    async def run_merged(self, work: Work[None], merge: Merge, part: Any) -> None:
        """The same as `work` alone, but done by `merge` together with all others of the group that have the same one.

        Every statement hands the interpreter over and back, so a thousand small ones cost more than one large one.
        """
        await self._done(_Job(work, None, asyncio.get_running_loop(), monotonic() + PATIENCE, merge, part))

    async def run(self, work: Work[T], *, within: float | None = None, undo: Work[None] | None = None) -> T:
        """What `work` gives, once it is durable. It runs even if the caller stops waiting.

        After `within` seconds on a slow disk the caller is told that the store is unavailable. `undo` runs right after
        work whose caller was told so, or was cancelled, and therefore does not know that it succeeded.
        """
        loop = asyncio.get_running_loop()
        done: T = await self._done(_Job(work, None, loop, monotonic() + PATIENCE), within=within, undo=undo)
        return done

    async def close(self) -> None:
        """Return when everything that was taken on is written."""
        with self._arrived:
            self._closing = True
            self._arrived.notify()
        await asyncio.to_thread(self._thread.join)

    async def _done(self, job: _Job, *, within: float | None = None, undo: Work[None] | None = None) -> Any:
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
            self._take_back(undo, job.loop)
            raise
        except _TooSlow:
            self._take_back(undo, job.loop)
            raise StoreUnavailable(self.too_slow[0], help=self.too_slow[1]) from None
        finally:
            if slow is not None:
                slow.cancel()

    def _take_back(self, undo: Work[None] | None, loop: asyncio.AbstractEventLoop) -> None:
        if undo is not None:
            with suppress(StoreUnavailable):  # closing: whoever recovers next finds out
                self._add(_Job(undo, None, loop, monotonic() + PATIENCE))

    def _add(self, job: _Job) -> None:
        if self._closing:
            raise StoreUnavailable("the store is closed")
        self._jobs.append(job)
        if self._is_idle:  # set before the writer looks for jobs one last time: it sees this one, or is woken
            with self._arrived:
                self._arrived.notify()

    async def _wait_for_a_place(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._places.acquire()
        except TimeoutError:
            raise StoreUnavailable(
                f"{self._waiting} writes are waiting already", help="send fewer calls at once, or use a faster disk"
            ) from None

    def _serve(self) -> None:
        while group := self._next_group():
            not_undone, self._not_undone = self._not_undone, []
            self._release(self._written(not_undone + group))
        self._disconnect()

    def _next_group(self) -> list[_Job]:
        if not self._jobs:
            with self._arrived:
                self._is_idle = True
                while not self._jobs and not self._closing:
                    self._arrived.wait()
                self._is_idle = False
        return [self._jobs.popleft() for _ in range(min(len(self._jobs), _LARGEST_GROUP))]

    def _written(self, group: list[_Job]) -> list[_Outcome]:
        try:
            link = self._connected()
        except Exception as error:  # whatever it is, those who wait must be told; likewise below
            return [_failed(job, error) for job in group]
        group = self._begun(link.connection, group)
        try:
            outcomes = _run_all(link.connection, group, self) if group else []
            if link.is_lost():
                raise lost()
        except Exception as error:
            if not is_full(error):  # room is all that needs; after anything else, begin afresh
                self._disconnect()
            return [_failed(job, error) for job in group]
        return outcomes

    def _connected(self) -> Link:
        if self._link is not None and self._link.is_lost():
            self._disconnect()
        if self._link is None:
            self._link = self._connect()
        return self._link

    def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            with suppress(sqlite3.Error):  # it is what failed
                link.close()

    def commit(self, connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")

    def is_final(self, error: Exception) -> bool:
        """Whether the others of the group would fail for the same reason."""
        return unavailable(error) is not None

    def _begun(self, connection: sqlite3.Connection, group: list[_Job]) -> list[_Job]:
        """Begin a transaction; who is left of the group when that succeeded. The others have been told."""
        while group:
            try:
                connection.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.Error as error:
                until = monotonic() if is_busy(error) else inf
                self._release(_failed(job, error) for job in group if job.deadline <= until)
                group = [job for job in group if job.deadline > until]
                if until == inf:  # a connection that was opened while nothing could be written never writes
                    self._disconnect()
        return group

    def _release(self, outcomes: Iterable[_Outcome]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
        for outcome in outcomes:
            if outcome.job.future is not None:
                by_loop.setdefault(outcome.job.loop, []).append(outcome)
            elif outcome.error is not None:
                self._not_undone.append(outcome.job)
        for loop, released in by_loop.items():
            with suppress(RuntimeError):  # a loop that is closed has nobody left who waits
                loop.call_soon_threadsafe(self._tell, released)

    def _tell(self, outcomes: list[_Outcome]) -> None:
        for outcome in outcomes:
            self._places.release()
            future = outcome.job.future
            if future is None or future.done():  # its caller does not wait any more
                continue
            if outcome.error is not None:
                future.set_exception(outcome.error)
            else:
                future.set_result(outcome.value)


class _TooSlow(Exception):
    """Nobody knows yet whether it is written."""


def _give_up(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(_TooSlow())


def _run_all(connection: sqlite3.Connection, group: list[_Job], writer: GroupCommit) -> list[_Outcome]:
    """Run and commit a group. Savepoints would cost every job something, so they are kept for groups with a bad one."""
    ledger = writer.ledger
    mark = ledger.mark()
    try:
        outcomes = [_Outcome(job) for job in _run_merged(connection, group)]
        outcomes += [_Outcome(job, job.work(connection)) for job in group if job.merge is None]
        writer.commit(connection)
        ledger.committed()
        return outcomes
    except Exception as error:
        _roll_back(connection)
        ledger.rewind(mark)
        if writer.is_final(error):
            raise
        if len(group) == 1 and group[0].merge is None:
            return [_failed(group[0], error)]
    try:
        connection.execute("BEGIN IMMEDIATE")
        outcomes = [_run_apart(connection, job, writer) for job in group]
        writer.commit(connection)
        ledger.committed()
        return outcomes
    except Exception:
        _roll_back(connection)
        ledger.rewind(mark)
        raise


def _run_merged(connection: sqlite3.Connection, group: list[_Job]) -> list[_Job]:
    """Do what can be done at once, one kind of work after the other; the jobs that are done with that."""
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
        if writer.is_final(error):  # then everything is rolled back
            raise
        connection.execute("ROLLBACK TO job")
        ledger.rewind(mark)
        outcome = _failed(job, error)
    connection.execute("RELEASE job")
    return outcome


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:  # SQLite itself rolls back when the disk is full
        connection.execute("ROLLBACK")


def _failed(job: _Job, error: Exception) -> _Outcome:
    """Each caller gets an error of its own where many share one cause: a traceback belongs to one raise."""
    if isinstance(error, StoreUnavailable):
        told: Exception = StoreUnavailable(error.message, help=error.help, cause=error.cause)
    else:
        told = unavailable(error) or error
    return _Outcome(job, error=told)

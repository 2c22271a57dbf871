"""Opening an SQLite file: making it, so that nobody else may read it, and bringing it up to date."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import Final, TypeVar

from gateway.errors import StoreUnavailable
from gateway.storage.links import ATTEMPT, Link, is_busy, unavailable
from gateway.storage.migrating import APPLICATION_ID, migrate, version_of, versions
from gateway.storage.processes import ProcessLock

T = TypeVar("T")

_OPENING_SECONDS: Final = 10
"""How long opening waits for another process that holds the same file."""


def prepare(path: Path) -> ProcessLock:
    """The place of this process among those that have the file open."""
    try:
        processes = _processes_of(path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        processes.mkdir(mode=0o700, exist_ok=True)
        refuse_lost(path)
        if not path.exists():
            _make_new(path, processes)
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fchmod(file, 0o600)  # SQLite's other files take after this one
        finally:
            os.close(file)
        when_free(lambda: _upgrade(path, processes))
        return ProcessLock(processes)
    except OSError as error:
        raise StoreUnavailable(
            f"the database cannot be opened: {error.strerror}", help="check the folder and who may write to it"
        ) from error


def refuse_lost(path: Path) -> None:
    """Raises `StoreUnavailable` where a database was: an empty one must not take its place silently."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        if _size(Path(f"{path}-wal")):
            raise StoreUnavailable(
                f"the database {path.name} is gone, but its log {path.name}-wal is there",
                help="put the database back beside its log, or remove the log to begin with a new database",
            ) from None
        return
    if not size:
        raise StoreUnavailable(
            f"the database {path.name} is an empty file: what it held is lost, or it was never written",
            help="restore a backup, or remove the file to begin with a new database",
        )


def own_link(path: Path, *, read_only: bool = False, patience: float = ATTEMPT) -> Link:
    """A connection to a database of the gateway's own schema: the file may have been replaced since the start."""
    with suppress(OSError):  # opening tells what is wrong
        refuse_lost(path)
    link = Link(path, read_only=read_only, patience=patience)
    try:
        _refuse_replaced(link.connection)
    except BaseException as error:
        link.close()
        if isinstance(error, sqlite3.Error):
            raise (unavailable(error) or error) from error
        raise
    return link


def is_served(path: Path) -> bool:
    """Whether another process has the database open."""
    processes = _processes_of(path)
    return processes.is_dir() and _is_served(processes)


def when_free(work: Callable[[], T]) -> T:
    """What `work` gives. As long as other processes that start, end or upgrade hold the file, it is tried again."""
    deadline = monotonic() + _OPENING_SECONDS
    while True:
        try:
            return work()
        except StoreUnavailable as error:
            if not is_busy(error.cause) or monotonic() > deadline:
                raise
        sleep(ATTEMPT)  # SQLite itself does not wait for everything


def _make_new(path: Path, processes: Path) -> None:
    """Make a database that has its header already when it gets its name, so that an empty file is always a loss."""
    folder = os.open(processes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(folder)
        if path.exists():  # another process was faster
            return
        new = path.with_name(f"{path.name}-new")
        new.unlink(missing_ok=True)  # of a process that died here
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            with closing(sqlite3.connect(new, isolation_level=None)) as connection:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        except sqlite3.Error as error:
            new.unlink()
            raise (unavailable(error) or error) from error
        new.rename(path)
    finally:
        os.close(folder)


def _lock(folder: int) -> None:
    deadline = monotonic() + _OPENING_SECONDS
    while True:
        try:
            return flock(folder, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            if monotonic() > deadline:
                raise
        sleep(ATTEMPT)


def _upgrade(path: Path, processes: Path) -> None:
    link = Link(path, patience=_OPENING_SECONDS)
    try:
        migrate(link.connection, is_served=lambda: _is_served(processes))
    except sqlite3.Error as error:
        raise (unavailable(error) or error) from error
    finally:
        link.close()


def _refuse_replaced(connection: sqlite3.Connection) -> None:
    [application] = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID or version_of(connection) != _newest():
        raise StoreUnavailable(
            "the database file was replaced by one of another program or version",
            help="put it back with its -wal file, or restart the gateway",
        )


@cache
def _newest() -> str:
    return versions()[-1]


def _processes_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-processes")


def _is_served(processes: Path) -> bool:
    mine = ProcessLock(processes)
    try:
        return not mine.is_alone()
    finally:
        mine.release()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0

"""Creation of SQLite files, readable by their owner only, and upgrades of their schema, all steps or none.

`migrations.runner` runs the steps. It is imported only if there are any.

A gateway that finds no file, or one of an earlier version, runs this module as a child process, because Alembic would
stay in memory as long as the gateway serves. If the child fails, the gateway tries again and reports the error.
"""

import asyncio
import os
import re
import sqlite3
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Callable
from contextlib import closing, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import cache
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import Final, TypeVar
from urllib.parse import quote

from sqlalchemy.exc import DBAPIError

from gateway.errors import ForeignStore, GatewayError, StoreUnavailable
from gateway.storage.process_liveness import ProcessLock
from gateway.storage.sql.sqlite.connection import ATTEMPT, SqliteConnection, is_busy, to_store_error

APPLICATION_ID: Final = 0x67772E31
"""In the header of every database of the gateway; `file` and SQLite show it."""

VERSION_TABLE: Final = "schema_version"

SCRIPTS: Final = Path(__file__).parents[1] / "migrations"
MIGRATION_LOCK: Final = Lock()  # Alembic's `op` is one per process

_REVISION: Final = re.compile(r'^revision = "(\w+)"$', re.MULTILINE)


def migrate_sqlite(
    connection: sqlite3.Connection, *, to: str | None = None, is_served: Callable[[], bool] = bool
) -> None:
    """Upgrade a database without an open transaction, or take it to another version.

    Raises `ForeignStore` if it is another program's or newer, and `StoreUnavailable` if a gateway of an earlier version
    serves from it, whose writes this one could not read.
    """
    with MIGRATION_LOCK:
        connection.execute("BEGIN IMMEDIATE")
        try:
            _refuse_foreign(connection)
            if read_schema_version(connection) != (to or list_schema_versions()[-1]):
                _take_steps(connection, to, is_served)
            if _application_of(connection) != APPLICATION_ID:  # otherwise write nothing: the disk may be full
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("COMMIT")
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if isinstance(error, DBAPIError) and error.orig is not None:
                raise error.orig from error
            raise


def list_schema_versions(scripts: Path = SCRIPTS) -> list[str]:
    """Return the schema versions that this program knows, the newest last."""
    files = sorted((scripts / "versions").glob("v*.py"))
    return [_REVISION.findall(file.read_text(encoding="utf-8"))[0] for file in files]


def read_schema_version(connection: sqlite3.Connection) -> str | None:
    """Return `None` for a database that is not set up."""
    [is_set_up] = connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = ?", (VERSION_TABLE,)).fetchone()
    if not is_set_up:
        return None
    found = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()  # noqa: S608 - our own name
    return None if found is None else str(found[0])


def _take_steps(connection: sqlite3.Connection, to: str | None, is_served: Callable[[], bool]) -> None:
    # Alembic and its imports take 11 MB, and most starts have nothing to upgrade.
    from gateway.storage.sql.migrations.runner import run_sqlite_steps

    if read_schema_version(connection) in list_schema_versions()[:-1] and is_served():
        raise StoreUnavailable(
            "the database has to be upgraded, and a gateway of an earlier version runs on it",
            help="stop that one, then start this one again",
        )
    run_sqlite_steps(connection, to or "head")


def _refuse_foreign(connection: sqlite3.Connection) -> None:
    [tables] = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and _application_of(connection) != APPLICATION_ID:
        raise ForeignStore(
            "the file is a database of another program",
            help="name a file of the gateway's own, or one that does not exist yet",
        )


def _application_of(connection: sqlite3.Connection) -> int:
    [id] = connection.execute("PRAGMA application_id").fetchone()
    return int(id)


T = TypeVar("T")

_OPENING_SECONDS: Final = 10
"""How long opening waits for another process that holds the same file."""


def open_database_file(path: Path) -> ProcessLock:
    """Create or upgrade a file. Return the lock of this process among those that have it open."""
    try:
        processes = _processes_of(path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        processes.mkdir(mode=0o700, exist_ok=True)
        require_not_lost(path)
        if not path.exists():
            _make_new(path, processes)
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fchmod(file, 0o600)  # SQLite's other files take after this one
        finally:
            os.close(file)
        retry_while_locked(lambda: _upgrade(path, processes))
        return ProcessLock(processes)
    except OSError as error:
        raise StoreUnavailable(
            f"the database cannot be opened: {error.strerror}", help="check the folder and who may write to it"
        ) from error


def require_not_lost(path: Path) -> None:
    """Raise `StoreUnavailable` if a database was lost: an empty one must not silently replace it."""
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


def connect_checked(path: Path, *, read_only: bool = False, patience: float = ATTEMPT) -> SqliteConnection:
    """Connect to a database, and check its schema: the file may have been replaced since the start."""
    with suppress(OSError):  # opening it raises the error
        require_not_lost(path)
    link = SqliteConnection(path, read_only=read_only, patience=patience)
    try:
        _refuse_replaced(link.connection)
    except BaseException as error:
        link.close()
        if isinstance(error, sqlite3.Error):
            raise (to_store_error(error) or error) from error
        raise
    return link


def is_served(path: Path) -> bool:
    """Whether another process has the database open."""
    processes = _processes_of(path)
    return processes.is_dir() and _is_served(processes)


def retry_while_locked(work: Callable[[], T]) -> T:
    """Return the result of `work`. It is tried again while other processes that start, end or upgrade hold the file."""
    deadline = monotonic() + _OPENING_SECONDS
    while True:
        try:
            return work()
        except StoreUnavailable as error:
            if not is_busy(error.cause) or monotonic() > deadline:
                raise
        sleep(ATTEMPT)  # SQLite itself does not wait in every case


def _make_new(path: Path, processes: Path) -> None:
    """Create a database that has its header before it gets its name, so that an empty file is always a loss."""
    folder = os.open(processes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(folder)
        if path.exists():  # another process was faster
            return
        new = path.with_name(f"{path.name}-new")
        new.unlink(missing_ok=True)  # left by a process that died here
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            with closing(sqlite3.connect(new, isolation_level=None)) as connection:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        except sqlite3.Error as error:
            new.unlink()
            raise (to_store_error(error) or error) from error
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
    link = SqliteConnection(path, patience=_OPENING_SECONDS)
    try:
        migrate_sqlite(link.connection, is_served=lambda: _is_served(processes))
    except sqlite3.Error as error:
        raise (to_store_error(error) or error) from error
    finally:
        link.close()


def _refuse_replaced(connection: sqlite3.Connection) -> None:
    [application] = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID or read_schema_version(connection) != _newest():
        raise StoreUnavailable(
            "the database file was replaced by one of another program or version",
            help="put it back with its -wal file, or restart the gateway",
        )


@cache
def _newest() -> str:
    return list_schema_versions()[-1]


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


async def upgrade_in_child(path: Path) -> None:
    if "alembic" in sys.modules or await asyncio.to_thread(_is_current, path):
        return
    command = (sys.executable, "-m", "gateway.storage.sql.sqlite.database_setup", str(path))
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    except OSError:  # no process can be started: this one does it
        return
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _is_current(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as connection:
            return read_schema_version(connection) == list_schema_versions()[-1]
    except sqlite3.Error:
        return False


def main() -> None:
    try:
        open_database_file(Path(sys.argv[1])).release()
    except GatewayError:
        sys.exit(1)


if __name__ == "__main__":
    main()

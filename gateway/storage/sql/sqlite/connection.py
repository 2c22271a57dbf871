"""Connections to an SQLite file, the errors of SQLite, and checkpoints of its write-ahead log.

A thread does the checkpoints, so that the writer does not wait for the disk. If the log grows all the same, SQLite does
one within a commit, as always; little is left to do then.
"""

import errno
import logging
import os
import sqlite3
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event, Thread
from typing import Final
from urllib.parse import quote

from gateway.errors import StoreUnavailable
from gateway.storage.sql.sqlite.sigbus_recovery import add_connection, fault_count, remove_connection

ATTEMPT: Final = 0.05
"""Seconds that one attempt waits for another process; the writer tries again until the deadline of its callers."""

_CHECKPOINT_PAGES: Final = 4_000
"""16 MB of log before a checkpoint: pages that change with every call are then written once for many calls."""
_CACHE_KIB: Final = 16_384
_STATEMENTS: Final = 512
"""Compiled statements that a connection caches: statements that insert many rows differ by the number of rows."""

_CAUSES: Final = {
    sqlite3.SQLITE_BUSY: (
        "the database is locked by another process",
        "end that process, such as a backup",
    ),
    sqlite3.SQLITE_LOCKED: ("the database is locked", "end the process that holds it"),
    sqlite3.SQLITE_FULL: ("the disk is full", "make room; nothing needs to be restarted"),
    sqlite3.SQLITE_READONLY: ("the database is read-only", "make the file and its folder writable for the gateway"),
    sqlite3.SQLITE_CANTOPEN: ("the database file cannot be opened", "check that it exists and who may read it"),
    sqlite3.SQLITE_PERM: ("the database file cannot be opened", "check that it exists and who may read it"),
    sqlite3.SQLITE_IOERR: ("the disk failed while reading or writing", "check the disk and the room on it"),
    sqlite3.SQLITE_PROTOCOL: ("the database is locked by another process", "end the process that holds it"),
    sqlite3.SQLITE_NOMEM: ("there is too little memory", "give the gateway more memory"),
    sqlite3.SQLITE_CORRUPT: ("the database is damaged", "restore a backup"),
    sqlite3.SQLITE_NOTADB: ("the file is not an SQLite database", "name another file, or restore a backup"),
}


def to_store_error(error: Exception) -> StoreUnavailable | None:
    """Return the error for callers if the store has failed; `None` for any other error."""
    code = _code(error)
    cause = None if code is None else _CAUSES.get(code)
    if code == sqlite3.SQLITE_CANTOPEN and (problem := descriptor_problem()) is not None:
        cause = (problem, "nothing needs to be restarted")
    return None if cause is None else StoreUnavailable(cause[0], help=cause[1], cause=error)


def is_busy(error: BaseException | None) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL)


def is_full(error: BaseException | None) -> bool:
    return _code(error) == sqlite3.SQLITE_FULL


def _code(error: BaseException | None) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)  # errors of the driver itself have none
    return code & 0xFF if isinstance(code, int) else None


class SqliteConnection:
    """An open connection that detects whether its file was deleted or replaced: writes would be lost."""

    def __init__(self, path: Path, *, read_only: bool = False, patience: float = ATTEMPT) -> None:
        self._paths = (str(path), f"{path}-wal")
        faults = add_connection()
        if faults is None:
            raise StoreUnavailable("the disk of the database failed", help="check the disk and the room on it")
        self._faults = faults
        self._is_open = True
        try:
            self._connect(path, read_only, patience)
        except BaseException:
            self._forget()
            raise

    def _connect(self, path: Path, read_only: bool, patience: float) -> None:
        mode = "ro" if read_only else "rw"  # never creates: an empty database must not stand in for a lost one
        try:
            self.connection = sqlite3.connect(
                f"file:{quote(str(path))}?mode={mode}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                timeout=patience,
                cached_statements=_STATEMENTS,
            )
        except sqlite3.Error as error:
            raise _translate(error) from error
        try:
            self._set_up(read_only)
            self._identity = self._files()
        except (sqlite3.Error, OSError) as error:
            self.connection.close()
            raise _translate(error) from error

    def _set_up(self, read_only: bool) -> None:
        run = self.connection.execute
        run("PRAGMA foreign_keys = ON")
        run("PRAGMA trusted_schema = OFF")
        if read_only:
            run("PRAGMA query_only = ON")
        else:
            run("PRAGMA synchronous = FULL")
            run(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
            run(f"PRAGMA cache_size = -{_CACHE_KIB}")
            [mode] = run("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise StoreUnavailable(
                    "the database cannot have a write-ahead log on this file system", help="keep it on a local disk"
                )
        run("SELECT count(*) FROM sqlite_schema").fetchone()  # now both files are open

    def is_lost(self) -> bool:
        try:
            return fault_count() != self._faults or self._files() != self._identity
        except OSError:
            return True

    def close(self) -> None:
        try:
            self.connection.close()
        finally:
            self._forget()

    def _forget(self) -> None:
        if self._is_open:
            self._is_open = False
            remove_connection(self._faults)

    def _files(self) -> list[tuple[int, int]]:
        return [(status.st_dev, status.st_ino) for status in map(os.stat, self._paths)]


def file_replaced_error() -> StoreUnavailable:
    return StoreUnavailable(
        "the database file was removed or replaced, or its disk failed",
        help="put it back with its -wal file, or restart the gateway",
    )


def _translate(error: Exception) -> Exception:
    if isinstance(error, OSError):
        return file_replaced_error()
    return to_store_error(error) or error


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


_EVERY: Final = 1.0
_PROBE: Final = bytes(256 << 10)
"""More than a call takes with its record and its entries."""

_DESCRIPTORS: Final = {
    errno.EMFILE: "no file descriptors are left: raise the limit of the process (ulimit -n) or serve fewer clients",
    errno.ENFILE: "no file descriptors are left on this machine: raise fs.file-max, or end other processes",
}
_WORDS: Final = {
    **_DESCRIPTORS,
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full: a quota is used up",
    errno.EFBIG: "files may not grow any more",
    errno.EROFS: "the disk is read-only",
}
_log: Final = logging.getLogger(__name__)


class DiskSpaceMonitor:
    """Checks in its own thread, because a disk that hangs would block the event loop."""

    def __init__(self, folder: Path, *, every: float = _EVERY) -> None:
        self._folder = folder
        self._every = every
        self._closing = Event()
        self.problem: str | None = None
        self._thread = Thread(target=self._serve, name="gateway-store-room", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()

    def _serve(self) -> None:
        while not self._closing.wait(self._every):
            self._update(check_disk_space(self._folder))

    def _update(self, problem: str | None) -> None:
        if problem is not None and self.problem is None:
            _log.error("nothing can be recorded: %s", problem)
        elif problem is None and self.problem is not None:
            _log.warning("calls can be recorded again")
        self.problem = problem


def check_disk_space(folder: Path) -> str | None:
    """Return why nothing can be written there, `None` if it can."""
    try:
        with TemporaryFile(dir=folder, buffering=0) as file:
            if file.write(_PROBE) < len(_PROBE):
                return _WORDS[errno.ENOSPC]
    except OSError as error:
        return _WORDS.get(error.errno or 0, "its folder cannot be written to")
    return None


def descriptor_problem() -> str | None:
    """Return why no file or connection can be opened at all, `None` if they can."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return _DESCRIPTORS.get(error.errno or 0)
    return None

"""Connections to an SQLite file, the errors of SQLite, and checkpoints of its write-ahead log.

A thread does the checkpoints, so that the writer does not wait for the disk. If the log grows all the same, SQLite does
one within a commit, as always; little is left to do then.
"""

import os
import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import quote

from gateway.errors import StoreUnavailable
from gateway.storage.sql.sqlite.disk_space import descriptor_problem
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

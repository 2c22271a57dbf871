"""Values cached in memory, and the signals between processes that invalidate them.

After a change is committed, a new random number is written into a small file beside the database. Processes look at the
number before they use a cached value. Besides, every process reads the value again every few seconds.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Final, Generic, Protocol, TypeVar

from gateway.errors import GatewayError, StoreUnavailable
from gateway.storage.shared_file import RECHECK_INTERVAL, SharedFile, unreadable_file_error
from gateway.storage.sql.sqlite.connection import ATTEMPT, SqliteConnection, to_store_error

T = TypeVar("T")

REFRESH_INTERVAL: Final = 5.0
"""Seconds after which a cached value is read again in any case."""

STOP_RETENTION: Final = timedelta(days=30)
"""Expired stops are retained for a while: a clock that runs ahead must not delete stops that are still needed."""

TRUST_SECONDS: Final = RECHECK_INTERVAL / 10
"""Seconds for which the number is not read again. `publish` takes longer, so no process decides by an older value."""

_NUMBER: Final = 8


class CachedValue(Protocol[T]):
    """A small value that is cached in memory until a change is published."""

    last: T

    @property
    def problem(self) -> str | None: ...

    def current(self) -> T: ...

    def close(self) -> None: ...


class ChangeSignal(Protocol):
    """Publishes changes to all processes that share a database."""

    def cache(self, read: Callable[[Any], T], *, at_first: T) -> CachedValue[T]: ...

    async def publish(self) -> None: ...

    def close(self) -> None: ...


class FileChangeSignal:
    """The file with the number of the last change. Each process has one object for each database."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self._path = database.with_name(f"{database.name}-notices")
        self._file = SharedFile(self._path, self._set_up, beside=database)

    def number(self) -> bytes:
        """Return the change number, which differs after every change. Raises `StoreUnavailable`."""
        self._file.reopen_if_replaced()
        try:
            number = os.pread(self._file.last, _NUMBER, 0)
        except OSError as error:
            raise unreadable_file_error(self._path, error) from error
        if len(number) < _NUMBER:
            raise unreadable_file_error(self._path)
        return number

    def is_still(self, number: bytes) -> bool:
        """Whether the file that was open last has that number; `False` if it cannot be read."""
        try:
            return os.pread(self._file.last, _NUMBER, 0) == number
        except OSError:
            return False

    def cache(self, read: Callable[[sqlite3.Connection], T], *, at_first: T) -> "FileCachedValue[T]":
        return FileCachedValue(self, read, at_first=at_first)

    async def publish(self) -> None:
        """Return when no process can use a value from before the change, which must be committed already."""
        try:
            self._file.reopen_if_replaced()
            os.pwrite(self._file.last, os.urandom(_NUMBER), 0)
        except (StoreUnavailable, OSError) as error:
            raise StoreUnavailable(
                f"the change is stored, but {self._path.name} beside the database cannot be written",
                help=f"remove it; gateways notice the change within {REFRESH_INTERVAL:.0f} s, or refuse until they do",
                cause=error,
            ) from error
        # Processes that have a replaced file open look at the name again meanwhile.
        await asyncio.sleep(2 * RECHECK_INTERVAL)

    def close(self) -> None:
        self._file.close()

    def _set_up(self, file: int) -> None:
        if os.fstat(file).st_size < _NUMBER:
            os.pwrite(file, os.urandom(_NUMBER), 0)


class FileCachedValue(Generic[T]):
    """A small value that is read from the database again after every published change.

    `last` is the value that was read last, and `problem` why it may be out of date.
    """

    def __init__(
        self,
        notices: FileChangeSignal,
        read: Callable[[sqlite3.Connection], T],
        *,
        at_first: T,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._notices = notices
        self._clock = clock
        self._read = read
        self._link: SqliteConnection | None = None
        self._number = b""
        self._trusted_until = 0.0
        self._look_at = 0.0
        self._reread_at = 0.0
        self._reading = Lock()
        self.last = at_first
        self.problem: str | None = None

    def current(self) -> T:
        """Raises `StoreUnavailable` if the value cannot be known."""
        # Every call comes here, and each file access hands the interpreter over to another waiting thread.
        now = self._clock()
        if now < self._trusted_until:
            return self.last
        if now < self._look_at and self._notices.is_still(self._number):
            self._trusted_until = now + TRUST_SECONDS
            return self.last
        try:
            self._look()
        except StoreUnavailable as error:
            self.problem = error.message
            raise
        return self.last

    def close(self) -> None:
        self._disconnect()

    def _look(self) -> None:
        now = self._clock()
        number = self._notices.number()
        if number != self._number or now >= self._reread_at:
            self._reread(number)
        self._look_at = now + RECHECK_INTERVAL
        self._trusted_until = now + TRUST_SECONDS
        self.problem = None

    def _reread(self, number: bytes) -> None:
        """`number` was read before the value: a change in between is read twice rather than not at all."""
        with self._reading:
            try:
                self.last = self._read(self._connect().connection)
            except StoreUnavailable:
                self._disconnect()
                raise
            except (sqlite3.Error, GatewayError) as error:
                self._disconnect()
                raise (to_store_error(error) or _unreadable_error()) from error
            self._number = number
            self._reread_at = self._clock() + REFRESH_INTERVAL

    def _connect(self) -> SqliteConnection:
        if self._link is not None and self._link.is_lost():
            self._disconnect()
        if self._link is None:
            self._link = SqliteConnection(self._notices.database, read_only=True, patience=ATTEMPT)
        return self._link

    def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


def _unreadable_error() -> StoreUnavailable:
    return StoreUnavailable(
        "the database holds what this version cannot read", help="run the version of the gateway that serves it"
    )

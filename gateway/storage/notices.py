"""How a process learns at once that another one changed something that is read from memory.

Whoever commits such a change writes a new random number into a small file beside the database; whoever decides looks at
the number first. Beyond that, everybody reads again every few seconds, whatever the number says.
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
from gateway.storage.host_files import RECHECK, HostFile, unreadable
from gateway.storage.links import ATTEMPT, Link, unavailable

T = TypeVar("T")

REREAD: Final = 5.0
"""Seconds after which what is remembered is read again unasked."""

KEPT_AFTER_END: Final = timedelta(days=30)
"""What is past its end is kept for a while: a clock that runs ahead must not remove what counts again later."""

TRUSTED: Final = RECHECK / 10
"""Seconds for which nobody looks again. An announcement returns later, so nobody decides by what was before it."""

_NUMBER: Final = 8


class Reading(Protocol[T]):
    """Something small that is in memory for as long as nobody announces a change of it."""

    last: T

    @property
    def problem(self) -> str | None: ...

    def current(self) -> T: ...

    def close(self) -> None: ...


class Announcing(Protocol):
    """How processes tell each other of changes, whatever engine they share."""

    def noticed(self, read: Callable[[Any], T], *, at_first: T) -> Reading[T]: ...

    async def announce(self) -> None: ...

    def close(self) -> None: ...


class Notices:
    """The number of the last change. One for each process and database."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self._path = database.with_name(f"{database.name}-notices")
        self._file = HostFile(self._path, self._set_up, beside=database)

    def number(self) -> bytes:
        """Another one than before if anything was announced since. Raises `StoreUnavailable`."""
        self._file.look()
        try:
            number = os.pread(self._file.last, _NUMBER, 0)
        except OSError as error:
            raise unreadable(self._path, error) from error
        if len(number) < _NUMBER:
            raise unreadable(self._path)
        return number

    def is_still(self, number: bytes) -> bool:
        """Whether that is the number in the file that was open last; `False` if it cannot be read."""
        try:
            return os.pread(self._file.last, _NUMBER, 0) == number
        except OSError:
            return False

    def noticed(self, read: Callable[[sqlite3.Connection], T], *, at_first: T) -> "Noticed[T]":
        return Noticed(self, read, at_first=at_first)

    async def announce(self) -> None:
        """Returns when no process can decide any more by what it read before. What changed is committed already."""
        try:
            self._file.look()
            os.pwrite(self._file.last, os.urandom(_NUMBER), 0)
        except (StoreUnavailable, OSError) as error:
            raise StoreUnavailable(
                f"the change is stored, but {self._path.name} beside the database cannot be written",
                help=f"remove it; gateways notice the change within {REREAD:.0f} s, or refuse until they do",
                cause=error,
            ) from error
        # Whoever still has a file open that another one replaced looks at the name again meanwhile.
        await asyncio.sleep(2 * RECHECK)

    def close(self) -> None:
        self._file.close()

    def _set_up(self, file: int) -> None:
        if os.fstat(file).st_size < _NUMBER:
            os.pwrite(file, os.urandom(_NUMBER), 0)


class Noticed(Generic[T]):
    """Something small that is read from the database again whenever a change was announced.

    `last` is what was read last, and `problem` why that may be out of date.
    """

    def __init__(
        self,
        notices: Notices,
        read: Callable[[sqlite3.Connection], T],
        *,
        at_first: T,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._notices = notices
        self._clock = clock
        self._read = read
        self._link: Link | None = None
        self._number = b""
        self._trusted_until = 0.0
        self._look_at = 0.0
        self._reread_at = 0.0
        self._reading = Lock()
        self.last = at_first
        self.problem: str | None = None

    def current(self) -> T:
        """Raises `StoreUnavailable` if it cannot be known."""
        # This is on the way of every call, and each look at a file hands the interpreter over to whoever waits for it.
        now = self._clock()
        if now < self._trusted_until:
            return self.last
        if now < self._look_at and self._notices.is_still(self._number):
            self._trusted_until = now + TRUSTED
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
        self._look_at = now + RECHECK
        self._trusted_until = now + TRUSTED
        self.problem = None

    def _reread(self, number: bytes) -> None:
        """`number` was looked at before: a change that comes between is read twice rather than not at all."""
        with self._reading:
            try:
                self.last = self._read(self._connected().connection)
            except StoreUnavailable:
                self._disconnect()
                raise
            except (sqlite3.Error, GatewayError) as error:
                self._disconnect()
                raise (unavailable(error) or _not_understood()) from error
            self._number = number
            self._reread_at = self._clock() + REREAD

    def _connected(self) -> Link:
        if self._link is not None and self._link.is_lost():
            self._disconnect()
        if self._link is None:
            self._link = Link(self._notices.database, read_only=True, patience=ATTEMPT)
        return self._link

    def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


def _not_understood() -> StoreUnavailable:
    return StoreUnavailable(
        "the database holds what this version cannot read", help="run the version of the gateway that serves it"
    )

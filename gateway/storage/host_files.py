"""Small files beside a database, through which the processes of one host see each other's writes at once.

They are read and written with plain system calls, not mapped: a file that is cut short is then an error that callers
can refuse by, where a mapped one would end the process. What is in them is nobody's record: a new one may replace it.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import Final

from gateway.errors import StoreUnavailable

RECHECK: Final = 0.02
"""Seconds after which a process looks whether the file is still the one of its name; asking each time costs 1.5 µs."""

_PATIENCE: Final = 0.25
"""Seconds to wait for a lock that others hold for microseconds."""

_OPENING_PATIENCE: Final = 10.0
"""The same while it is opened: whoever makes a new file holds the lock for longer, most of all on a busy machine."""

_PAUSE: Final = 50e-6


class HostFile:
    """An open file of a fixed layout; `set_up` makes a new one usable, and refuses one of another layout.

    It belongs to the process that opened it: to be opened after forking, not before.
    """

    def __init__(self, path: Path, set_up: Callable[[int], None], *, beside: Path) -> None:
        self._path = path
        self._set_up = set_up
        self._beside = beside
        self._threads = Lock()
        self.last = -1  # the descriptor of the file that was open last
        self._closed = False
        self._look_at = -1.0  # it was never open
        self.look()

    def current(self) -> int:
        """The descriptor of the file that has the name. Raises `StoreUnavailable`."""
        if monotonic() >= self._look_at:
            self.look()
        return self.last

    def look(self) -> None:
        """Open the file that has the name now, if it is another one."""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        try:
            if self.last < 0 or not self._has_name():
                self._reopen()
        except OSError as error:
            raise unreadable(self._path, error) from error
        self._look_at = monotonic() + RECHECK

    def __enter__(self) -> int:
        """The descriptor, locked against other processes and threads. A process that dies lets go of it."""
        self._threads.acquire()
        try:
            file = self.current()
            _lock(file, self._path, _PATIENCE)
        except BaseException:
            self._threads.release()
            raise
        return file

    def __exit__(self, *_: object) -> None:
        flock(self.last, LOCK_UN)
        self._threads.release()

    def close(self) -> None:
        self._closed = True
        self._forget()

    def _has_name(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self.last), os.stat(self._path, follow_symlinks=False))
        except FileNotFoundError:
            return False

    def _reopen(self) -> None:
        is_first = self._look_at < 0
        self._forget()
        self.last = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _lock(self.last, self._path, _OPENING_PATIENCE if is_first else _PATIENCE)
            self._share()
            self._set_up(self.last)
            flock(self.last, LOCK_UN)
        except BaseException:
            self._forget()
            raise

    def _share(self) -> None:
        """Give it to the database's owner: whoever runs a command as root must not lock the gateway out."""
        owner = os.stat(self._beside)
        with suppress(PermissionError):  # whoever is not root may only keep it
            os.fchown(self.last, owner.st_uid, owner.st_gid)

    def _forget(self) -> None:
        file, self.last = self.last, -1
        self._look_at = 0.0
        if file >= 0:
            os.close(file)


def unreadable(path: Path, error: OSError | None = None) -> StoreUnavailable:
    because = "it is cut short" if error is None else error.strerror
    return StoreUnavailable(
        f"{path.name} beside the database cannot be used: {because}", help="remove it; a new one is made", cause=error
    )


def _lock(file: int, path: Path, patience: float) -> None:
    """Never waits for ever: a process may be stopped while it holds the lock."""
    deadline = monotonic() + patience
    while True:
        try:
            return flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            if monotonic() >= deadline:
                raise StoreUnavailable(
                    f"{path.name} beside the database is locked by a process that does not go on",
                    help="look for a gateway process that was stopped",
                ) from None
        sleep(_PAUSE)

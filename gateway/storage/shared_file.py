"""Small files beside a database, through which the processes of one host see each other's writes at once.

They are read and written with plain system calls, not mapped: a truncated file is then an error that refuses a call,
where a mapped file would end the process. They hold no records: a new file may replace a lost one.
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

RECHECK_INTERVAL: Final = 0.02
"""Seconds after which a process checks whether the file was replaced; checking each time would cost 1.5 µs."""

_PATIENCE: Final = 0.25
"""Seconds to wait for a lock that other processes hold for microseconds."""

_OPENING_PATIENCE: Final = 10.0
"""The same on opening: the process that creates the file holds the lock for longer, most of all on a busy machine."""

_PAUSE: Final = 50e-6


class SharedFile:
    """An open file of a fixed layout. `set_up` initialises a new file, and refuses one of another layout.

    It belongs to the process that opened it: open it after forking, not before.
    """

    def __init__(self, path: Path, set_up: Callable[[int], None], *, beside: Path) -> None:
        self._path = path
        self._set_up = set_up
        self._beside = beside
        self._threads = Lock()
        self.last = -1  # the descriptor of the file that was open last
        self._closed = False
        self._look_at = -1.0  # it was never open
        self.reopen_if_replaced()

    def current(self) -> int:
        """Return the descriptor of the file that has the name. Raises `StoreUnavailable`."""
        if monotonic() >= self._look_at:
            self.reopen_if_replaced()
        return self.last

    def reopen_if_replaced(self) -> None:
        """Open the file that has the name now, if it is a different one."""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        try:
            if self.last < 0 or not self._has_name():
                self._reopen()
        except OSError as error:
            raise unreadable_file_error(self._path, error) from error
        self._look_at = monotonic() + RECHECK_INTERVAL

    def __enter__(self) -> int:
        """Return the descriptor, locked against other processes and threads. A dying process unlocks it."""
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
        """Give it to the database's owner: a command that runs as root must not lock the gateway out."""
        owner = os.stat(self._beside)
        with suppress(PermissionError):  # only root may change the owner
            os.fchown(self.last, owner.st_uid, owner.st_gid)

    def _forget(self) -> None:
        file, self.last = self.last, -1
        self._look_at = 0.0
        if file >= 0:
            os.close(file)


def unreadable_file_error(path: Path, error: OSError | None = None) -> StoreUnavailable:
    because = "it is cut short" if error is None else error.strerror
    return StoreUnavailable(
        f"{path.name} beside the database cannot be used: {because}", help="remove it; a new one is made", cause=error
    )


def _lock(file: int, path: Path, patience: float) -> None:
    """Lock with a timeout: a process may be stopped while it holds the lock. Raises `StoreUnavailable`."""
    deadline = monotonic() + patience
    while True:
        try:
            return flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            if monotonic() >= deadline:
                raise StoreUnavailable(
                    f"{path.name} beside the database is locked by a process that does not continue",
                    help="look for a gateway process that was stopped",
                ) from None
        sleep(_PAUSE)

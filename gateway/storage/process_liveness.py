"""Liveness of processes by locked files: the kernel releases a lock when its process ends, however it ends.

There is no heartbeat, so there is no clock, no grace period, and a slow process is never taken for dead. File locks
work on one host; stores that several hosts share need leases.
"""

import errno
import fcntl
import os
import re
from pathlib import Path
from time import time_ns
from typing import Final
from uuid import uuid4

_ID: Final = re.compile(r"[0-9a-f]{32}")
_SAME_TIME: Final = 2_000_000_000
"""Nanoseconds: the clocks of file systems are coarse."""


class ProcessLock:
    """The lock of this process (more exactly: of this opening of a store), under a random id that is never reused."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._folder_name: Final = str(folder)
        self._alone_since: int | None = None
        while not self._take():
            continue

    def sweep(self) -> None:
        """Remove the files of processes that have ended."""
        for name in os.listdir(self._folder):
            self.has_ended(name)

    def has_ended(self, id: str) -> bool:
        """Whether another process has ended. If so, its file is removed."""
        if id == self.id:
            return False
        if _ID.fullmatch(id) is None:
            return True
        path = self._folder / id
        try:
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                return True
            raise
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            return False
        finally:
            os.close(file)
        return True

    def is_alone(self) -> bool:
        """Whether every other process has ended."""
        return all(self.has_ended(each) for each in os.listdir(self._folder) if each != self.id)

    def alone_since(self) -> int | None:
        """Return a number that changes whenever another process comes or goes; `None` while there is another one.

        Each of them changes the folder. Its time is read before its names, so that nothing in between is missed. Names
        are read again as long as another change could still get the same time.
        """
        try:
            changed = os.stat(self._folder_name).st_mtime_ns
            if changed == self._alone_since:
                return changed
            if os.listdir(self._folder_name) != [self.id] and not self.is_alone():
                return None
        except OSError:
            return None
        if time_ns() - changed > _SAME_TIME:
            self._alone_since = changed
        return changed

    def _take(self) -> bool:
        """Lock a file of a new id. Return `False` if another process swept the file away before it was locked."""
        self.id = uuid4().hex
        path = self._folder / self.id
        # Child programs do not inherit it: they may outlive this process.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(self._file), path.stat()):
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(self._file)
        return False

    def release(self) -> None:
        if self._file < 0:
            return
        (self._folder / self.id).unlink(missing_ok=True)
        os.close(self._file)
        self._file = -1

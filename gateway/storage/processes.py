"""Which processes are alive, told by locked files: the kernel lets go of a lock when its process ends, however it ends.

No heartbeat, so no clock, no grace period and no process that is slow and taken for dead. It holds on one host; stores
that several hosts share need leases instead.
"""

import errno
import fcntl
import os
import re
from pathlib import Path
from typing import Final
from uuid import uuid4

_ID: Final = re.compile(r"[0-9a-f]{32}")


class ProcessLock:
    """This process (more exactly: this opening of a store), with a random name that never comes back."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        while not self._is_taken():
            continue

    def sweep(self) -> None:
        """Remove the files of processes that have ended."""
        for name in os.listdir(self._folder):
            self.is_gone(name)

    def is_gone(self, id: str) -> bool:
        """Whether another process has ended. Its file is removed on the way."""
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
        return all(self.is_gone(each) for each in os.listdir(self._folder) if each != self.id)

    def _is_taken(self) -> bool:
        """Take a new name. Whoever sweeps between the creation of the file and its lock takes it for a dead one's."""
        self.id = uuid4().hex
        path = self._folder / self.id
        # Not inherited by programs that are started: they may outlive us.
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

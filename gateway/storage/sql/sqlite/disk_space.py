"""Watches the space on the disk of the database, and the file descriptors of the process."""

import errno
import logging
import os
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event, Thread
from typing import Final

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

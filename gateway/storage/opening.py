"""Opening an SQLite file: making it, so that nobody else may read it, and bringing it up to date."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Final, TypeVar

from gateway.errors import StoreUnavailable
from gateway.storage.links import ATTEMPT, Link, is_busy, unavailable
from gateway.storage.migrating import migrate
from gateway.storage.processes import ProcessLock

T = TypeVar("T")

_OPENING_SECONDS: Final = 10
"""How long opening waits for another process that holds the same file."""


def prepare(path: Path) -> ProcessLock:
    """The place of this process among those that have the file open."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Before SQLite does, whose files are as readable as the umask lets them be; its others take after this one.
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(file, 0o600)
        finally:
            os.close(file)
        processes = path.with_name(f"{path.name}-processes")
        when_free(lambda: _upgrade(path, processes))
        return ProcessLock(processes)
    except OSError as error:
        raise StoreUnavailable(
            f"the database cannot be opened: {error.strerror}", help="check the folder and who may write to it"
        ) from error


def when_free(work: Callable[[], T]) -> T:
    """What `work` gives. As long as other processes that start, end or upgrade hold the file, it is tried again."""
    deadline = monotonic() + _OPENING_SECONDS
    while True:
        try:
            return work()
        except StoreUnavailable as error:
            if not is_busy(error.cause) or monotonic() > deadline:
                raise
        sleep(ATTEMPT)  # SQLite itself does not wait for everything


def _upgrade(path: Path, processes: Path) -> None:
    link = Link(path, patience=_OPENING_SECONDS)
    try:
        migrate(link.connection, is_served=lambda: _is_served(processes))
    except sqlite3.Error as error:
        raise (unavailable(error) or error) from error
    finally:
        link.close()


def _is_served(processes: Path) -> bool:
    mine = ProcessLock(processes)
    try:
        return not mine.is_alone()
    finally:
        mine.release()

"""Writing the log of a database back into its file, beside whoever writes: a thread waits for the disk instead.

Whoever writes does it itself if the log grows all the same, as SQLite does everywhere; there is little left to do then.
"""

import sqlite3
from pathlib import Path
from threading import Event, Thread
from typing import Final

from gateway.errors import StoreUnavailable
from gateway.storage.links import Link

AFTER_CALLS: Final = 1024
"""Written since the last time: about a third of the log that makes a writer do it itself."""


class WritingBack:
    def __init__(self, database: Path) -> None:
        self._database = database
        self._link: Link | None = None
        self._calls = 0
        self._is_due = Event()
        self._is_over = False
        self._thread = Thread(target=self._run, name="writing-back", daemon=True)
        self._thread.start()

    def wrote(self, calls: int) -> None:
        self._calls += calls
        if self._calls >= AFTER_CALLS:
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
        """As much as nobody reads; what is in the way now is not, the next time."""
        try:
            if self._link is None or self._link.is_lost():
                self._disconnect()
                self._link = Link(self._database)
            self._link.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except (sqlite3.Error, StoreUnavailable):
            self._disconnect()

    def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

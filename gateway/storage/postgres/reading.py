"""A few threads that read from PostgreSQL, each with a connection of its own. Nobody waits for a silent server."""

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from gateway.errors import StoreUnavailable
from gateway.storage.postgres.sessions import Session
from gateway.storage.reading import ReadPool

T = TypeVar("T")

_PATIENCE: Final = 1.0
"""Seconds."""


class PostgresReader(ReadPool):
    """The same for callers as the readers of an SQLite file."""

    def __init__(self, address: str, *, size: int) -> None:
        super().__init__(Path(), size=size)
        self._address = address
        self._resting: deque[Session] = deque()
        self._busy: set[Session] = set()

    async def run(self, work: Callable[[Any], T]) -> T:
        try:
            async with asyncio.timeout(_PATIENCE):  # `wait_for` of Python 3.11 may lose a cancellation
                return await super().run(work)
        except TimeoutError:
            raise StoreUnavailable("the database is too slow", help="look at its load and its disk") from None

    async def close(self) -> None:
        for session in list(self._busy):  # nobody waits for what they read
            session.cut()
        await super().close()
        while self._resting:
            self._resting.pop().close()

    def _read(self, work: Callable[[Any], T]) -> T:
        """A connection that broke while nobody used it is no failure: another one is made, once."""
        try:
            session, is_new = self._resting.pop(), False
        except IndexError:
            session, is_new = self._connect(), True
        while True:
            self._busy.add(session)
            try:
                value = work(session)
            except Exception:
                self._busy.discard(session)
                is_broken = session.is_lost()
                session.close()
                if is_new or not is_broken:
                    raise
                session, is_new = self._connect(), True
                continue
            self._busy.discard(session)
            self._resting.append(session)
            return value

    def _connect(self) -> Session:
        return Session(self._address, patience=_PATIENCE, is_reader=True)

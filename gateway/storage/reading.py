"""A few threads that read, each with a read-only connection: no reader waits for the writer."""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from gateway.errors import StoreUnavailable
from gateway.storage.links import Link, unavailable
from gateway.storage.opening import own_link

T = TypeVar("T")

_PATIENCE: Final = 0.8
"""Seconds. Readers wait for nobody but a process that repairs the database after a crash."""


class ReadPool:
    def __init__(self, path: Path, *, size: int) -> None:
        self._path = path
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="gateway-store-reader")
        self._idle: deque[Link] = deque()
        self._closed = False

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, work)

    async def close(self) -> None:
        self._closed = True
        await asyncio.to_thread(self._threads.shutdown)
        while self._idle:
            self._idle.pop().close()

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        link = self._taken()
        try:
            value = work(link.connection)
        except Exception as error:
            link.close()
            told = unavailable(error)
            if told is None:
                raise
            raise told from error
        self._idle.append(link)
        return value

    def _taken(self) -> Link:
        try:
            link = self._idle.pop()
        except IndexError:
            return own_link(self._path, read_only=True, patience=_PATIENCE)
        if not link.is_lost():
            return link
        link.close()
        return own_link(self._path, read_only=True, patience=_PATIENCE)

"""Waiting for approvals to change: a future for each call that waits, and one task that looks for all of them.

What this process changes itself wakes the waiting at once. What other processes change is found by asking the store for
changes a few times a second, as long as anybody waits; nothing is kept for approvals that nobody waits for.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from gateway.errors import StorageError

Changes = Callable[[int], Awaitable[tuple[list[str], int]]]
"""The ids that changed after a number, and up to which number that is told."""

_log: Final = logging.getLogger(__name__)


class Watch:
    """Must be used in one event loop."""

    def __init__(self, changes: Changes, *, every: float = 0.1) -> None:
        self._changes = changes
        self._every = every
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._seen = 0
        self._looking: asyncio.Task[None] | None = None

    @property
    def is_looking(self) -> bool:
        return self._looking is not None

    async def changed(self, ids: Iterable[str], *, since: int, within: float) -> bool:
        """Wait until one of them has changed after `since`; whether that was so before the time was up."""
        named = list(ids)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for id in named:
            self._waiting.setdefault(id, set()).add(future)
        self._look_from(since)
        try:
            done, _ = await asyncio.wait([future], timeout=within)
        finally:
            self._forget(named, future)
        return bool(done)

    def wake(self, ids: Iterable[str]) -> None:
        """Tell those who wait for these that something has changed."""
        for id in ids:
            for future in self._waiting.get(id, ()):
                if not future.done():
                    future.set_result(None)

    async def close(self) -> None:
        """Stop looking. Whoever still waits does so until their time is up."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.wait([looking])

    def _look_from(self, since: int) -> None:
        """What changed between the caller's last look and now is found, too: looking goes back to there."""
        if self._looking is None:
            self._seen = since
            self._looking = asyncio.create_task(self._look(), name="gateway-approvals-watch")
        else:
            self._seen = min(self._seen, since)

    def _forget(self, ids: Iterable[str], future: asyncio.Future[None]) -> None:
        for id in ids:
            waiting = self._waiting.get(id, set())
            waiting.discard(future)
            if not waiting:
                self._waiting.pop(id, None)

    async def _look(self) -> None:
        try:
            while self._waiting:
                await self._look_once()
                await asyncio.sleep(self._every)
        finally:
            self._looking = None

    async def _look_once(self) -> None:
        since = self._seen
        try:
            ids, until = await self._changes(since)
        except StorageError:  # whoever waits is told when they look themselves
            _log.warning("changes of approvals cannot be read at present")
            return
        if self._seen == since:  # else somebody came meanwhile who wants to look from further back
            self._seen = until
        self.wake(ids)

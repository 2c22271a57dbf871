"""Waiting for approvals to change: a future for each call that waits, and one task that looks for all of them.

What this process changes itself wakes the waiting at once. What other processes change is found by asking the store for
changes from time to time, and when it is nudged, as long as anybody waits; nothing is kept for approvals that nobody
waits for.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

from gateway.errors import StorageError

Changes = Callable[[int], Awaitable[list[tuple[str, int]]]]
"""The ids that changed after a number, each with the number of its last change, in the order of those numbers."""

_log: Final = logging.getLogger(__name__)


class Watch:
    """Must be used in one event loop."""

    def __init__(self, changes: Changes, *, every: float = 0.1) -> None:
        self._changes = changes
        self._every = every
        self._waiting: dict[str, dict[asyncio.Future[None], int]] = {}
        self._seen = 0
        self._looking: asyncio.Task[None] | None = None
        self._nudged = asyncio.Event()

    @property
    def is_looking(self) -> bool:
        return self._looking is not None

    @property
    def waited_for(self) -> int:
        return len(self._waiting)

    async def changed(self, ids: Iterable[str], *, since: int, within: float) -> bool:
        """Wait until one of them has changed after `since`; whether that was so before the time was up.

        `since` is the newest change of any approval when the caller looked, so that nothing in between is missed.
        """
        named = list(ids)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for id in named:
            self._waiting.setdefault(id, {})[future] = since
        self._look_from(since)
        try:
            done, _ = await asyncio.wait([future], timeout=within)
        finally:
            self._forget(named, future)
        return bool(done)

    def wake(self, ids: Iterable[str]) -> None:
        """Tell those who wait for these that something has changed just now."""
        for id in ids:
            for future in self._waiting.get(id, ()):
                _wake(future)

    def nudge(self) -> None:
        """Somebody elsewhere has changed something: look at once, if anybody waits."""
        self._nudged.set()

    async def close(self) -> None:
        """Stop looking. Whoever still waits does so until their time is up."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.wait([looking])

    def _look_from(self, since: int) -> None:
        if self._looking is None:
            self._seen = since
            self._looking = asyncio.create_task(self._look(), name="gateway-approvals-watch")
        else:
            self._seen = min(self._seen, since)

    def _forget(self, ids: Iterable[str], future: asyncio.Future[None]) -> None:
        for id in ids:
            waiting = self._waiting[id]
            del waiting[future]
            if not waiting:
                del self._waiting[id]

    async def _look(self) -> None:
        try:
            while self._waiting:
                self._nudged.clear()
                await self._look_once()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._every):
                        await self._nudged.wait()
        finally:
            self._looking = None

    async def _look_once(self) -> None:
        since = self._seen
        try:
            changes = await self._changes(since)
        except StorageError:  # whoever waits is told when they look themselves
            _log.warning("changes of approvals cannot be read at present")
            return
        if changes and self._seen == since:  # else somebody came meanwhile who has to be served from further back
            self._seen = changes[-1][1]
        for id, number in changes:
            for future, known in self._waiting.get(id, {}).items():
                if known < number:
                    _wake(future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

"""Waiting for approvals to change: a future for each waiting call, and one task that polls for all of them.

Changes by this process wake the waiting calls at once. While any call waits, the task asks the store for changes by
other processes from time to time, and at once after `poll_now`. Nothing is stored for approvals that no call waits for.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

from gateway.errors import StorageError

Changes = Callable[[int], Awaitable[list[tuple[str, int]]]]
"""Returns the ids that changed after a number, each with the number of its last change, ordered by that number."""

_log: Final = logging.getLogger(__name__)


class ApprovalWatcher:
    """Must be used in one event loop."""

    def __init__(self, changes: Changes, *, every: float = 0.1) -> None:
        self._changes = changes
        self._every = every
        self._waiting: dict[str, dict[asyncio.Future[None], int]] = {}
        self._seen = 0
        self._polling: asyncio.Task[None] | None = None
        self._poll_requested = asyncio.Event()

    @property
    def is_polling(self) -> bool:
        return self._polling is not None

    @property
    def waited_for(self) -> int:
        return len(self._waiting)

    async def wait_for_change(self, ids: Iterable[str], *, since: int, within: float) -> bool:
        """Wait until one of the approvals has changed after `since`; return `False` if the time is up first.

        `since` is the newest change of any approval when the caller read them, so that no change in between is missed.
        """
        named = list(ids)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for id in named:
            self._waiting.setdefault(id, {})[future] = since
        self._start_polling(since)
        try:
            done, _ = await asyncio.wait([future], timeout=within)
        finally:
            self._forget(named, future)
        return bool(done)

    def wake(self, ids: Iterable[str]) -> None:
        """Wake the calls that wait for these approvals: they have just changed."""
        for id in ids:
            for future in self._waiting.get(id, ()):
                _wake(future)

    def poll_now(self) -> None:
        """Poll at once if any call waits: another process has changed an approval."""
        self._poll_requested.set()

    async def close(self) -> None:
        """Stop polling. Calls that still wait do so until their time is up."""
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
            await asyncio.wait([polling])

    def _start_polling(self, since: int) -> None:
        if self._polling is None:
            self._seen = since
            self._polling = asyncio.create_task(self._poll(), name="gateway-approvals-watch")
        else:
            self._seen = min(self._seen, since)

    def _forget(self, ids: Iterable[str], future: asyncio.Future[None]) -> None:
        for id in ids:
            waiting = self._waiting[id]
            del waiting[future]
            if not waiting:
                del self._waiting[id]

    async def _poll(self) -> None:
        try:
            while self._waiting:
                self._poll_requested.clear()
                await self._poll_once()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._every):
                        await self._poll_requested.wait()
        finally:
            self._polling = None

    async def _poll_once(self) -> None:
        since = self._seen
        try:
            changes = await self._changes(since)
        except StorageError:  # waiting calls get this error when they read the store themselves
            _log.warning("changes of approvals cannot be read right now")
            return
        if changes and self._seen == since:  # else a new waiter needs older changes
            self._seen = changes[-1][1]
        for id, number in changes:
            for future, known in self._waiting.get(id, {}).items():
                if known < number:
                    _wake(future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

"""The decision log is kept for as long as a Storage says: older entries go, after the log has said which.

Where anchors are kept, one of them has to confirm that first: whoever verifies believes nothing else. As long as none
can be written, nothing goes.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from random import uniform
from typing import Final

from gateway.audit.retention import OldBeginning
from gateway.core.moments import clock, microseconds_in
from gateway.errors import StoreUnavailable
from gateway.runtime.auditing import Anchoring
from gateway.runtime.engines import KeptStore
from gateway.serving.auditing import Auditor
from gateway.storage.audit_log import all_shards
from gateway.storage.audit_shortening import MOST, delete_step, may_delete, old_beginnings

_EVERY: Final = 3600.0
_AGAIN: Final = 5.0
"""Seconds until the next pass, where one has found more than it takes."""

_AT_ONCE: Final = 50
_NOT_ALLOWED: Final = (
    "retain.audit is not applied: the role of the database may not delete from the table audit; grant it, or remove "
    "old entries yourself"
)

_log: Final = logging.getLogger(__name__)


class Shortening:
    """One per process; whatever another process did, this one finds done."""

    def __init__(
        self,
        store: KeptStore,
        auditor: Auditor,
        anchoring: Anchoring | None,
        *,
        retain: timedelta,
        now: Callable[[], int] = clock,
        most: int = MOST,
    ) -> None:
        """`anchoring` is that of the shard which the store notes entries in, if anchors are kept."""
        self._store = store
        self._auditor = auditor
        self._anchoring = anchoring
        self._retain = microseconds_in(retain)
        self._now = now
        self._most = most
        self.problem: str | None = None
        """Why nothing goes, if nothing can."""

    async def run(self) -> None:
        """From time to time, and not at the same moment as other processes; never ends."""
        seconds = uniform(_AGAIN, _EVERY)  # noqa: S311 - no secret depends on it
        while True:
            await asyncio.sleep(seconds)
            seconds = _EVERY * uniform(0.8, 1.2)  # noqa: S311 - likewise
            try:
                if await self.shorten():
                    seconds = _AGAIN
            except StoreUnavailable as error:
                _log.warning("the decision log was not shortened: %s", error.message)
            except Exception:
                _log.exception("the decision log was not shortened")

    async def shorten(self) -> bool:
        """One pass; whether there is more to do at once."""
        if not await self._store.reader.run(may_delete):
            self._tell(_NOT_ALLOWED)
            return False
        self.problem = None
        beginnings = await self._old_beginnings(before=self._now() - self._retain)
        if not beginnings:
            return False
        await self._store.note(self._auditor.farewells(beginnings))
        if self._anchoring is not None and not await self._anchoring.confirm():
            return False  # which it has told itself
        for each in beginnings:
            await self._delete(each)
        gone = sum(each.last.seq - each.first + 1 for each in beginnings)
        _log.info("%d entries of the decision log that are past retain.audit were removed", gone)
        return any(each.last.seq - each.first + 1 >= self._most for each in beginnings)

    async def _old_beginnings(self, *, before: int) -> list[OldBeginning]:
        """A few shards at a time: readers have others to serve, and each start of a process adds a shard."""
        shards = await self._store.reader.run(all_shards)
        found = []
        for index in range(0, len(shards), _AT_ONCE):
            some = shards[index : index + _AT_ONCE]
            found += await self._store.reader.run(partial(old_beginnings, shards=some, before=before, most=self._most))
        return found

    async def _delete(self, beginning: OldBeginning) -> None:
        """In small steps: calls that settle meanwhile go in between."""
        step = 0
        while await self._store.writer.run(partial(delete_step, beginning=beginning, step=step)):
            step += 1

    def _tell(self, problem: str) -> None:
        """Once."""
        if self.problem is None:
            _log.warning("%s", problem)
        self.problem = problem

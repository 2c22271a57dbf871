"""Retention of the decision log: entries older than the Storage document allows are deleted.

The log first records which entries go. Where anchors are configured, an anchor confirms that before the deletion:
`verify` accepts nothing else. As long as no anchor can be written, nothing is deleted.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from random import uniform
from typing import Final

from gateway.app.jobs.audit_anchors import AnchorWriter
from gateway.app.stores.databases import DatabaseStore
from gateway.audit import ExpiredPrefix
from gateway.engine import Auditor
from gateway.errors import StoreUnavailable
from gateway.model import duration_microseconds, now_microseconds
from gateway.storage import MAX_PRUNED_ENTRIES, can_prune_audit, delete_audit_batch, find_expired_prefixes, list_shards

_log: Final = logging.getLogger(__name__)
_EVERY: Final = 3600.0
_AGAIN: Final = 5.0
"""Seconds until the next pass if one has found more than it deletes."""

_AT_ONCE: Final = 50
_NOT_ALLOWED: Final = (
    "retain.audit is not applied: the role of the database may not delete from the table audit; grant it, or remove "
    "old entries yourself"
)


class AuditRetention:
    """Deletes expired entries of the decision log. Every process runs one; it skips what another has deleted."""

    def __init__(
        self,
        store: DatabaseStore,
        auditor: Auditor,
        anchoring: AnchorWriter | None,
        *,
        retain: timedelta,
        now: Callable[[], int] = now_microseconds,
        most: int = MAX_PRUNED_ENTRIES,
    ) -> None:
        """`anchoring` is the writer for the shard of the store, if anchors are configured."""
        self._store = store
        self._auditor = auditor
        self._anchoring = anchoring
        self._retain = duration_microseconds(retain)
        self._now = now
        self._most = most
        self.problem: str | None = None
        """Why nothing can be deleted, if so."""

    async def run(self) -> None:
        """Delete at random intervals, so that processes do not run at the same moment; never ends."""
        seconds = uniform(_AGAIN, _EVERY)  # noqa: S311 - no secret depends on it
        while True:
            await asyncio.sleep(seconds)
            seconds = _EVERY * uniform(0.8, 1.2)  # noqa: S311 - likewise
            try:
                if await self.delete_expired():
                    seconds = _AGAIN
            except StoreUnavailable as error:
                _log.warning("the decision log was not shortened: %s", error.message)
            except Exception:
                _log.exception("the decision log was not shortened")

    async def delete_expired(self) -> bool:
        """Run one pass; return whether there is more to delete at once."""
        if not await self._store.reader.run(can_prune_audit):
            self._report(_NOT_ALLOWED)
            return False
        self.problem = None
        beginnings = await self._find_expired(before=self._now() - self._retain)
        if not beginnings:
            return False
        await self._store.note(self._auditor.retention_entries(beginnings))
        if self._anchoring is not None and not await self._anchoring.confirm():
            return False  # the writer has reported it
        for each in beginnings:
            await self._delete(each)
        gone = sum(each.last.seq - each.first + 1 for each in beginnings)
        _log.info("%d entries of the decision log that are past retain.audit were removed", gone)
        return any(each.last.seq - each.first + 1 >= self._most for each in beginnings)

    async def _find_expired(self, *, before: int) -> list[ExpiredPrefix]:
        """Find the expired entries, a few shards at a time: each start adds a shard, and other reads must not wait."""
        shards = await self._store.reader.run(list_shards)
        found = []
        for index in range(0, len(shards), _AT_ONCE):
            some = shards[index : index + _AT_ONCE]
            found += await self._store.reader.run(
                partial(find_expired_prefixes, shards=some, before=before, most=self._most)
            )
        return found

    async def _delete(self, beginning: ExpiredPrefix) -> None:
        """Delete in small steps, so that calls can be recorded in between."""
        step = 0
        while await self._store.writer.run(partial(delete_audit_batch, beginning=beginning, step=step)):
            step += 1

    def _report(self, problem: str) -> None:
        """Log the problem once."""
        if self.problem is None:
            _log.warning("%s", problem)
        self.problem = problem

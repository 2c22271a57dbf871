"""Retention of records: what has expired is deleted, and calls of processes that died get the outcome `unknown`.

Every process of a host does this, each at its own moments. A process skips what another one has done.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import uniform
from typing import Final, Protocol

from gateway.errors import StoreUnavailable
from gateway.model import now, to_microseconds
from gateway.storage import Known, RecordStore

_log: Final = logging.getLogger(__name__)


FILES_PER_PASS: Final = 100
AT_ONCE: Final = 10
"""Files that are deleted in parallel: each may be on another machine."""

ORPHAN_AGE: Final = timedelta(days=1)
"""Age at which a file without a record is deleted: longer than any call runs."""


@dataclass(frozen=True, slots=True)
class SweepSchedule:
    """The interval of each kind of sweep."""

    recover: timedelta = timedelta(seconds=2)
    expire: timedelta = timedelta(minutes=1)
    strays: timedelta = timedelta(hours=6)


class ResultFiles(Protocol):
    """The storage of large results."""

    async def delete(self, key: str) -> bool: ...

    async def delete_orphans(self, known: Known, *, before: datetime) -> int: ...


class RecordSweeper:
    """Sweeps in the background. `run` never ends; a failed pass is logged, and the next one tries again."""

    def __init__(
        self,
        store: RecordStore,
        files: ResultFiles,
        *,
        rhythm: SweepSchedule = SweepSchedule(),  # noqa: B008 - immutable
        clock: Callable[[], datetime] = now,
        report: Callable[[int], None] = lambda calls: None,
    ) -> None:
        """`report` is called with the number of calls whose outcome has become unknown."""
        self._store = store
        self._files = files
        self._rhythm = rhythm
        self._clock = clock
        self._report = report

    async def run(self) -> None:
        """Run each kind at its own interval, so that a slow file store does not delay the others."""
        async with asyncio.TaskGroup() as kinds:
            kinds.create_task(self._recover_forever())
            kinds.create_task(self._expire_forever())
            kinds.create_task(self._tidy_forever())

    async def _recover_forever(self) -> None:
        while True:
            await asyncio.sleep(self._rhythm.recover.total_seconds())
            async with _log_errors():
                at = self._clock()
                self._report(await self._store.close_interrupted_calls(at))
                await self._store.audit_refusal_counts(to_microseconds(at))

    async def _expire_forever(self) -> None:
        is_more = False
        while True:
            await asyncio.sleep(self._rhythm.recover.total_seconds() if is_more else _jitter(self._rhythm.expire))
            is_more = False
            async with _log_errors():
                is_more = not await self.expire()

    async def _tidy_forever(self) -> None:
        while True:
            await asyncio.sleep(_jitter(self._rhythm.strays))
            async with _log_errors():
                await self._files.delete_orphans(self._store.filter_known_results, before=self._clock() - ORPHAN_AGE)

    async def expire(self) -> bool:
        """Delete expired results, files before their rows; return whether nothing is left."""
        at = self._clock()
        pieces = await self._store.list_expired_results(at, limit=FILES_PER_PASS)
        keys = [piece.key for piece in pieces if piece.key is not None]
        for start in range(0, len(keys), AT_ONCE):
            await asyncio.gather(*(self._files.delete(key) for key in keys[start : start + AT_ONCE]))
        if keys:
            await self._store.delete_results(keys)
        await self._store.prune(at)
        return len(pieces) < FILES_PER_PASS


@asynccontextmanager
async def _log_errors() -> AsyncIterator[None]:
    """Log the error of a pass, which is tried again when it is due."""
    try:
        yield
    except StoreUnavailable as error:
        _log.warning("sweeping waits: %s", error.message)
    except Exception:
        _log.exception("a pass of the sweeper failed")


def _jitter(every: timedelta) -> float:
    """Return the interval in seconds with a random part, so that processes do not run at the same moment."""
    return every.total_seconds() * uniform(0.8, 1.2)  # noqa: S311 - no secret depends on it

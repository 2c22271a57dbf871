"""Sweeping: what is past its end of life goes, and calls of processes that died get the outcome that is left to them.

Every process of a host does it, each at its own moments; what one of them did, the others find done.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import uniform
from typing import Final, Protocol

from gateway.core.events import now
from gateway.core.moments import microseconds
from gateway.errors import StoreUnavailable
from gateway.governance.outcomes import RecordStore
from gateway.storage.spool import Known

FILES_PER_PASS: Final = 100
AT_ONCE: Final = 10
"""Files that are deleted at the same time: another machine may have them."""

STRAYS_AFTER: Final = timedelta(days=1)
"""Age of a file that no record names: longer than any call runs."""

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often each kind of sweeping is done."""

    recover: timedelta = timedelta(seconds=2)
    expire: timedelta = timedelta(minutes=1)
    strays: timedelta = timedelta(hours=6)


class Files(Protocol):
    """Where the bytes of large results are."""

    async def delete(self, key: str) -> bool: ...

    async def remove_strays(self, known: Known, *, before: datetime) -> int: ...


class Sweeper:
    """`run` never ends; one failed pass is logged, and the next one tries again."""

    def __init__(
        self,
        store: RecordStore,
        files: Files,
        *,
        rhythm: Rhythm = Rhythm(),  # noqa: B008 - immutable
        clock: Callable[[], datetime] = now,
    ) -> None:
        self._store = store
        self._files = files
        self._rhythm = rhythm
        self._clock = clock

    async def run(self) -> None:
        """Each kind at its own pace: calls of dead processes do not wait for a store of files that is slow."""
        async with asyncio.TaskGroup() as kinds:
            kinds.create_task(self._recovering())
            kinds.create_task(self._expiring())
            kinds.create_task(self._tidying())

    async def _recovering(self) -> None:
        while True:
            await asyncio.sleep(self._rhythm.recover.total_seconds())
            async with _logged():
                at = self._clock()
                await self._store.recover(at)
                await self._store.tell_refusals(microseconds(at))

    async def _expiring(self) -> None:
        is_more = False
        while True:
            await asyncio.sleep(self._rhythm.recover.total_seconds() if is_more else _about(self._rhythm.expire))
            is_more = False
            async with _logged():
                is_more = not await self.expire()

    async def _tidying(self) -> None:
        while True:
            await asyncio.sleep(_about(self._rhythm.strays))
            async with _logged():
                await self._files.remove_strays(self._store.known_results, before=self._clock() - STRAYS_AFTER)

    async def expire(self) -> bool:
        """One pass over what is past its end; whether nothing is left. Files go before the rows that name them."""
        at = self._clock()
        pieces = await self._store.expired_results(at, limit=FILES_PER_PASS)
        keys = [piece.key for piece in pieces if piece.key is not None]
        for start in range(0, len(keys), AT_ONCE):
            await asyncio.gather(*(self._files.delete(key) for key in keys[start : start + AT_ONCE]))
        if keys:
            await self._store.forget_results(keys)
        await self._store.prune(at)
        return len(pieces) < FILES_PER_PASS


@asynccontextmanager
async def _logged() -> AsyncIterator[None]:
    """A pass that fails is tried again when it is due."""
    try:
        yield
    except StoreUnavailable as error:
        _log.warning("sweeping waits: %s", error.message)
    except Exception:
        _log.exception("a pass of the sweeper failed")


def _about(every: timedelta) -> float:
    """Seconds; not at the same moment as the other processes."""
    return every.total_seconds() * uniform(0.8, 1.2)  # noqa: S311 - no secret depends on it

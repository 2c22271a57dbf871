"""Keeping an issuer's keys: fresh in the background, once more for a key nobody has seen, the last good ones meanwhile.

No caller makes it read more than once per pause, and any number of callers wait for one and the same reading.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final

from gateway.identity.key_sets import KeySet, KeysUnavailable, PublicKey, key_set
from gateway.identity.key_sources import KeyDocument, KeySource

PAUSE: Final = timedelta(seconds=10)
"""Between two readings that callers bring about."""

RETRY: Final = timedelta(seconds=30)
KEPT: Final = timedelta(hours=6)
"""How long keys outlive their issuer's answers: longer than its tokens live, shorter than a stolen key is worth."""

Clock = Callable[[], datetime]
Sleep = Callable[[float], Awaitable[None]]

_log: Final = logging.getLogger(__name__)


class Keys:
    """The keys of one issuer. `on_change` is called when a different set was read."""

    def __init__(
        self,
        issuer: str,
        source: KeySource,
        *,
        algorithms: Collection[str],
        clock: Clock,
        sleep: Sleep,
        on_change: Callable[[], None],
    ) -> None:
        self._issuer = issuer
        self._source = source
        self._algorithms = algorithms
        self._clock = clock
        self._sleep = sleep
        self._on_change = on_change
        self._found: KeySet = {}
        self._digest = b""
        self._read_at: datetime | None = None
        self._tried_at: datetime | None = None
        self._delay = RETRY
        self._problem: KeysUnavailable | None = None
        self._reading: asyncio.Task[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def are_usable(self) -> bool:
        return bool(self._current())

    async def start(self) -> None:
        """Read, and go on reading. Raises where a file of this machine is wrong; an issuer may be out for a while."""
        await self.refresh()
        if self._problem is not None and self._source.is_local:
            help = self._problem.help or "give a JWKS document with the issuer's public keys"
            raise KeysUnavailable(f"keys of {self._issuer}: {self._problem.message}", help=help) from self._problem
        self._timer = asyncio.create_task(self._keep_fresh())

    async def close(self) -> None:
        self._is_closed = True
        tasks = [task for task in (self._timer, self._reading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._source.close()

    async def find(self, kid: str) -> PublicKey | None:
        """The key of that name. One that is not known may be new, so the issuer is asked, now and then."""
        key = self._current().get(kid)
        if key is None and self._may_ask():
            await self.refresh()
            key = self._current().get(kid)
        return key

    async def refresh(self) -> None:
        """Read now, or wait for the reading under way. Never raises: the last good keys are kept."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(self._done)
        # Not awaited itself: a caller who gives up must not end the reading for all the others.
        await asyncio.wait({self._reading})

    async def _read(self) -> None:
        self._tried_at = self._clock()
        try:
            self._accept(await self._source.read())
        except KeysUnavailable as problem:
            self._keep_last(problem)

    def _done(self, _task: asyncio.Task[None]) -> None:
        self._reading = None

    def _accept(self, document: KeyDocument) -> None:
        digest = sha256(document.body).digest()
        if digest != self._digest:
            self._found = key_set(document.body, self._algorithms)
            self._digest = digest
            self._on_change()
        if self._problem is not None:
            _log.info("the keys of issuer %s can be read again", self._issuer)
        self._problem = None
        self._read_at = self._clock()
        self._delay = document.fresh_for

    def _keep_last(self, problem: KeysUnavailable) -> None:
        if self._problem is None or self._problem.message != problem.message:
            _log.warning("the keys of issuer %s are not renewed: %s", self._issuer, problem.message)
        self._problem = problem
        self._delay = RETRY

    async def _keep_fresh(self) -> None:
        while True:
            await self._sleep(self._delay.total_seconds())
            await self.refresh()

    def _current(self) -> KeySet:
        is_kept = self._read_at is not None and self._clock() - self._read_at <= KEPT
        return self._found if is_kept else {}

    def _may_ask(self) -> bool:
        if self._is_closed:
            return False
        if self._reading is not None or self._tried_at is None:
            return True
        # A clock that was set back leaves a time in the future behind, which holds nobody up.
        return not timedelta(0) <= self._clock() - self._tried_at < PAUSE

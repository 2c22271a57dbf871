"""Cache of an issuer's keys: refreshed in the background, and on demand for an unknown key id.

Callers cause at most one read per `MIN_REFRESH_INTERVAL`, and concurrent callers wait for the same read. If a read
fails, the last valid keys stay in use. Key sets are read from a file or over HTTP.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, Final, Protocol

import aiohttp

from gateway.http_client import HttpPolicy, HttpSession, ResponseTooLarge
from gateway.identity.key_sets import IssuerKey, KeySet, KeysUnavailable, parse_key_set
from gateway.identity.provider_settings import FileKeySettings, UrlKeySettings

MAX_DOCUMENT: Final = 1 << 20
FILE_TTL: Final = timedelta(seconds=5)
MIN_TTL: Final = timedelta(minutes=1)
DEFAULT_TTL: Final = timedelta(minutes=10)
MAX_TTL: Final = timedelta(hours=1)

_POLICY: Final = HttpPolicy(
    total=5.0,
    max_body=MAX_DOCUMENT,
    headers={
        "User-Agent": "agent-gateway",
        "Accept": "application/jwk-set+json, application/json",
        "Accept-Encoding": "identity",  # so that the limit applies to the bytes in memory
    },
)
_MAX_AGE: Final = re.compile(r"(?:^|[\s,])max-age=\"?([0-9]{1,9})", re.IGNORECASE)
_UNCACHED: Final = re.compile(r"(?:^|[\s,])no-(?:store|cache)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class KeyDocument:
    """A key set as read, and how long it is fresh."""

    body: bytes
    fresh_for: timedelta


class KeySource(Protocol):
    is_local: ClassVar[bool]
    """Whether a failure is a local mistake, reported at start, and not an outage of another service."""

    async def read(self) -> KeyDocument:
        """Raise `KeysUnavailable`."""
        ...

    async def close(self) -> None: ...


def open_key_source(keys: FileKeySettings | UrlKeySettings) -> KeySource:
    return FileKeySource(keys.path) if isinstance(keys, FileKeySettings) else UrlKeySource(keys.url)


class FileKeySource:
    is_local: ClassVar[bool] = True

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self) -> KeyDocument:
        try:
            body = await asyncio.to_thread(self._read_file)
        except OSError as error:
            raise KeysUnavailable(f"the key file cannot be read: {error.strerror}", help=str(self._path)) from error
        if len(body) > MAX_DOCUMENT:
            raise _too_large()
        return KeyDocument(body, FILE_TTL)

    async def close(self) -> None:
        pass

    def _read_file(self) -> bytes:
        with self._path.open("rb") as file:
            return file.read(MAX_DOCUMENT + 1)


class UrlKeySource:
    is_local: ClassVar[bool] = False

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: HttpSession | None = None

    async def read(self) -> KeyDocument:
        if self._session is None:
            self._session = HttpSession(_POLICY)
        try:
            return await self._fetch(self._session)
        except ResponseTooLarge as error:
            raise _too_large() from error
        except (aiohttp.ClientError, OSError) as error:
            raise KeysUnavailable(f"the key address does not answer: {type(error).__name__}") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _fetch(self, session: HttpSession) -> KeyDocument:
        # A redirect, which is not followed, would let the responding server choose where keys come from.
        async with await session.send("GET", self._url) as response:
            if response.status != 200:
                raise KeysUnavailable(f"the key address answers with status {response.status}")
            return KeyDocument(await session.read(response), _get_ttl(response.headers.get("Cache-Control", "")))


def _too_large() -> KeysUnavailable:
    return KeysUnavailable(f"the key set is larger than {MAX_DOCUMENT} bytes")


def _get_ttl(cache_control: str) -> timedelta:
    if _UNCACHED.search(cache_control):
        return MIN_TTL
    age = _MAX_AGE.search(cache_control)
    ttl = timedelta(seconds=int(age[1])) if age else DEFAULT_TTL
    return min(max(ttl, MIN_TTL), MAX_TTL)


MIN_REFRESH_INTERVAL: Final = timedelta(seconds=10)
"""Minimum time between two reads that callers cause."""

RETRY_INTERVAL: Final = timedelta(seconds=30)
MAX_STALE_AGE: Final = timedelta(hours=6)
"""Maximum age of keys during an issuer's outage: longer than tokens live, shorter than a stolen key is useful."""

MonotonicClock = Callable[[], datetime]
Sleep = Callable[[float], Awaitable[None]]

_log: Final = logging.getLogger(__name__)


class KeyCache:
    """The keys of one issuer. `on_change` is called when a different set was read."""

    def __init__(
        self,
        issuer: str,
        source: KeySource,
        *,
        algorithms: Collection[str],
        clock: MonotonicClock,
        sleep: Sleep,
        on_change: Callable[[], None],
    ) -> None:
        self._issuer = issuer
        self._source = source
        self._algorithms = algorithms
        self._clock = clock
        self._sleep = sleep
        self._on_change = on_change
        self._keys: KeySet = {}
        self._digest = b""
        self._read_at: datetime | None = None
        self._tried_at: datetime | None = None
        self._delay = RETRY_INTERVAL
        self._problem: KeysUnavailable | None = None
        self._reading: asyncio.Task[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def are_usable(self) -> bool:
        return bool(self._current())

    async def start(self) -> None:
        """Read the keys and start refreshing. Raise `KeysUnavailable` for a local file; an issuer may be down."""
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

    async def find(self, kid: str) -> IssuerKey | None:
        """Return the key with this id. An unknown id may be new, so the issuer is read again, rate-limited."""
        key = self._current().get(kid)
        if key is None and self._may_refresh():
            await self.refresh()
            key = self._current().get(kid)
        return key

    async def refresh(self) -> None:
        """Read now, or wait for the current read. Never raises: the last valid keys stay in use."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(self._forget_read)
        # `wait` does not cancel the read: a cancelled caller must not end it for the others.
        await asyncio.wait({self._reading})

    async def _read(self) -> None:
        self._tried_at = self._clock()
        try:
            self._accept(await self._source.read())
        except KeysUnavailable as problem:
            self._keep_last(problem)

    def _forget_read(self, _task: asyncio.Task[None]) -> None:
        self._reading = None

    def _accept(self, document: KeyDocument) -> None:
        digest = sha256(document.body).digest()
        if digest != self._digest:
            self._keys = parse_key_set(document.body, self._algorithms)
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
        self._delay = RETRY_INTERVAL

    async def _keep_fresh(self) -> None:
        while True:
            await self._sleep(self._delay.total_seconds())
            await self.refresh()

    def _current(self) -> KeySet:
        is_kept = self._read_at is not None and self._clock() - self._read_at <= MAX_STALE_AGE
        return self._keys if is_kept else {}

    def _may_refresh(self) -> bool:
        if self._is_closed:
            return False
        if self._reading is not None or self._tried_at is None:
            return True
        # After the clock was set back, the last attempt is in the future; it must not block reads.
        return not timedelta(0) <= self._clock() - self._tried_at < MIN_REFRESH_INTERVAL

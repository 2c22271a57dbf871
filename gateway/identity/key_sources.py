"""Where key sets are read: a file, or an address that is asked over HTTP.

Reads one document per call and remembers nothing of it; when to read is decided by whoever keeps the keys.
"""

import asyncio
import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Final, Protocol

import aiohttp

from gateway.identity.key_sets import KeysUnavailable
from gateway.identity.providers import KeysFromFile, KeysFromUrl

MAX_DOCUMENT: Final = 1 << 20
FILE_FRESH: Final = timedelta(seconds=5)
SHORTEST_FRESH: Final = timedelta(minutes=1)
USUAL_FRESH: Final = timedelta(minutes=10)
LONGEST_FRESH: Final = timedelta(hours=1)

_TIMEOUT: Final = aiohttp.ClientTimeout(total=5)
_MAX_AGE: Final = re.compile(r"(?:^|[\s,])max-age=\"?([0-9]{1,9})", re.IGNORECASE)
_UNCACHED: Final = re.compile(r"(?:^|[\s,])no-(?:store|cache)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class KeyDocument:
    """A key set as it was read, and how long that is good for."""

    body: bytes
    fresh_for: timedelta


class KeySource(Protocol):
    is_local: ClassVar[bool]
    """Whether a failure is a mistake on this machine, to be told at once, and not somebody else's outage."""

    async def read(self) -> KeyDocument:
        """Raises `KeysUnavailable`."""
        ...

    async def close(self) -> None: ...


def source_of(keys: KeysFromFile | KeysFromUrl) -> KeySource:
    return FileKeys(keys.path) if isinstance(keys, KeysFromFile) else UrlKeys(keys.url)


class FileKeys:
    is_local: ClassVar[bool] = True

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self) -> KeyDocument:
        try:
            body = await asyncio.to_thread(self._content)
        except OSError as error:
            raise KeysUnavailable(f"the key file cannot be read: {error.strerror}", help=str(self._path)) from error
        _check_size(len(body))
        return KeyDocument(body, FILE_FRESH)

    async def close(self) -> None:
        pass

    def _content(self) -> bytes:
        with self._path.open("rb") as file:
            return file.read(MAX_DOCUMENT + 1)


class UrlKeys:
    is_local: ClassVar[bool] = False

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def read(self) -> KeyDocument:
        if self._session is None:
            # Compressed bodies are not asked for and not unpacked: the limit counts what is kept in memory.
            self._session = aiohttp.ClientSession(
                timeout=_TIMEOUT,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept": "application/jwk-set+json, application/json", "Accept-Encoding": "identity"},
            )
        try:
            return await self._fetched(self._session)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KeysUnavailable(f"the key address does not answer: {type(error).__name__}") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _fetched(self, session: aiohttp.ClientSession) -> KeyDocument:
        # A redirect would let whoever answers choose where keys come from.
        async with session.get(self._url, allow_redirects=False) as response:
            if response.status != 200:
                raise KeysUnavailable(f"the key address answers with status {response.status}")
            body = bytearray()
            async for chunk in response.content.iter_chunked(1 << 16):
                body += chunk
                _check_size(len(body))
            return KeyDocument(bytes(body), _fresh_for(response.headers.get("Cache-Control", "")))


def _check_size(size: int) -> None:
    if size > MAX_DOCUMENT:
        raise KeysUnavailable(f"the key set is larger than {MAX_DOCUMENT} bytes")


def _fresh_for(cache_control: str) -> timedelta:
    if _UNCACHED.search(cache_control):
        return SHORTEST_FRESH
    age = _MAX_AGE.search(cache_control)
    told = timedelta(seconds=int(age[1])) if age else USUAL_FRESH
    return min(max(told, SHORTEST_FRESH), LONGEST_FRESH)

"""Key sets of issuers (RFC 7517), their cache, and verification of signatures with them.

Only this module uses the JWT library, which is imported with the first key set: with the library below it, it takes
7 MB. The header of a token never chooses how a key is used. JSON is parsed strictly, so that it is unambiguous: no
duplicate members, no NaN, no invalid UTF-8.

`KeyCache` refreshes the keys of an issuer in the background, and on demand for an unknown key id. Callers cause at most
one read per `MIN_REFRESH_INTERVAL`, and concurrent callers wait for the same read. If a read fails, the last valid keys
stay in use. Key sets are read from a file or over HTTP.
"""

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Protocol

import aiohttp

from gateway.errors import GatewayError
from gateway.http_client import HttpPolicy, HttpSession, ResponseTooLarge
from gateway.identity.provider_settings import ALGORITHMS, FileKeySettings, UrlKeySettings

if TYPE_CHECKING:
    from jwt import PyJWK, PyJWS


def parse_strict_object(data: bytes) -> dict[str, Any] | None:
    """Return the object in the bytes; `None` for anything else, so that no error quotes the text."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_refuse_duplicates, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse_duplicates(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        raise ValueError("duplicate member")
    return found


def _refuse(_constant: str) -> NoReturn:
    raise ValueError("not a JSON number")


MAX_KEYS: Final = 200
MIN_RSA_BITS: Final = 2048
MAX_RSA_BITS: Final = 8192
"""Verification with a larger key would cost the gateway more than the caller."""

_KINDS: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""Key types by the prefix of their algorithms; shared secrets (`HS`, `oct`) are not supported."""
_CURVES: Final = {
    "ES256": ("P-256",),
    "ES384": ("P-384",),
    "ES512": ("P-521",),
    "EdDSA": ("Ed25519", "Ed448"),
}
_MEMBERS: Final = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
_MAX_MEMBER: Final = 2048
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth"})


class KeysUnavailable(GatewayError):
    """The keys of an issuer are not available. The message is for operators and does not quote keys."""

    code = "E_KEYS_UNAVAILABLE"
    status = 503
    default_message = "the keys cannot be read"


@cache
def _jws() -> "PyJWS":
    from jwt import PyJWS

    return PyJWS(sorted(ALGORITHMS), {"verify_signature": True, "enforce_minimum_key_length": True})


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """A key, bound to each algorithm that it may be used with."""

    algorithms: Mapping[str, "PyJWK"]

    def verify(self, token: bytes, algorithm: str) -> bool:
        from jwt.exceptions import PyJWTError

        try:
            _jws().decode(token, self.algorithms[algorithm], algorithms=[algorithm])
        except PyJWTError:
            return False
        return True


KeySet = Mapping[str, IssuerKey]
"""Keys by `kid`."""


def parse_key_set(document: bytes, algorithms: Iterable[str]) -> KeySet:
    """Return the keys that fit the algorithms; skip others. Raise `KeysUnavailable` if none fits or one is private."""
    content = parse_strict_object(document)
    listed = content.get("keys") if content is not None else None
    if not isinstance(listed, list):
        raise KeysUnavailable("the key set is not a JSON object with a list of keys")
    if len(listed) > MAX_KEYS:
        raise KeysUnavailable(f"the key set has more than {MAX_KEYS} keys")
    jwks = [jwk for jwk in listed if isinstance(jwk, dict)]
    if any(_PRIVATE & jwk.keys() for jwk in jwks):
        raise KeysUnavailable("the key set has a private key", help="publish public keys only, and replace this one")
    allowed = sorted(algorithms)
    found: dict[str, IssuerKey] = {}
    for jwk in jwks:
        kid = jwk.get("kid")
        by_algorithm = _bind_algorithms(jwk, allowed)
        if isinstance(kid, str) and kid and by_algorithm:
            found.setdefault(kid, IssuerKey(by_algorithm))
    if not found:
        raise KeysUnavailable("the key set has no key that fits", help="compare its kid, kty and alg with the provider")
    return found


def _bind_algorithms(jwk: Mapping[str, Any], algorithms: Iterable[str]) -> dict[str, "PyJWK"]:
    keys = ((name, _build_key(jwk, name)) for name in algorithms if _is_usable(jwk, name))
    return {name: key for name, key in keys if key is not None}


def _is_usable(jwk: Mapping[str, Any], algorithm: str) -> bool:
    operations = jwk.get("key_ops", ["verify"])
    return (
        jwk.get("alg", algorithm) == algorithm
        and jwk.get("use", "sig") == "sig"
        and isinstance(operations, list)
        and "verify" in operations
        and jwk.get("kty") == _KINDS[algorithm[:2]]
        and jwk.get("crv") in _CURVES.get(algorithm, (None,))
    )


def _build_key(jwk: Mapping[str, Any], algorithm: str) -> "PyJWK | None":
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    kind = _KINDS[algorithm[:2]]
    members = {name: jwk.get(name) for name in _MEMBERS[kind]}
    if not all(isinstance(value, str) and len(value) <= _MAX_MEMBER for value in members.values()):
        return None
    try:
        key = PyJWK({"kty": kind, **members}, algorithm)
    except PyJWTError:
        return None
    is_sound = kind != "RSA" or MIN_RSA_BITS <= key.key.key_size <= MAX_RSA_BITS
    return key if is_sound else None


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

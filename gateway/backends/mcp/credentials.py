"""Credentials of the gateway at an upstream server: a fixed secret, or tokens of an authorisation server.

A caller's own token is never forwarded. If a server must know the caller, the gateway signs a short-lived JWT that
names the caller and exchanges it for a token of the server (RFC 8693). Such tokens are cached per caller.
"""

import asyncio
import re
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from secrets import token_urlsafe
from time import monotonic
from typing import Any, Final, Literal, Protocol
from urllib.parse import quote_plus, urlencode

from gateway.backends.http.credentials import Auth, Secret, reveal_secret
from gateway.backends.http.url_template import parse_url_template
from gateway.http_client import HttpConnections, Network
from gateway.mcp import decode_now
from gateway.model import BackendError, Principal

Algorithm = Literal["RS256", "ES256", "EdDSA", "HS256"]

ASSERTION_LIFETIME: Final = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class AssertionSigner:
    """Signs assertions that name the caller. `audience` identifies the authorisation server."""

    issuer: str
    audience: str
    algorithm: Algorithm
    key: Secret = field(repr=False)
    clock: Callable[[], datetime] = field(default=lambda: datetime.now(UTC), repr=False)

    def __post_init__(self) -> None:
        import jwt  # noqa: F401 - loaded now, as the first signature would stop the event loop; most gateways need none

    def sign(self, principal: Principal) -> str:
        import jwt

        now = self.clock()
        claims = {
            "iss": self.issuer,
            "sub": principal.subject,
            "aud": self.audience,
            "iat": now,
            "exp": now + ASSERTION_LIFETIME,
            "jti": token_urlsafe(16),
        }
        if principal.tenant is not None:
            claims["tenant"] = principal.tenant
        try:
            return jwt.encode(claims, self.key(), algorithm=self.algorithm)
        except Exception as error:  # an unsuitable key, or a secret store that fails in any way
            raise BackendError("unavailable", "the gateway cannot sign an assertion for the caller") from error


MAX_CACHED_TOKENS: Final = 10_000
DEFAULT_TOKEN_LIFETIME: Final = 300.0
_EARLY: Final = 30.0
"""Seconds before its expiry at which a token is no longer used."""
_ANSWER_SECONDS: Final = 10
_MAX_ANSWER: Final = 64 << 10
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_ERROR: Final = re.compile(r"[a-z_]{1,64}")

_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_JWT: Final = "urn:ietf:params:oauth:token-type:jwt"
_ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - the name of a kind of token


class UpstreamCredentials(Protocol):
    """Credentials that requests to an upstream server carry."""

    @property
    def needed(self) -> bool: ...

    def owner(self, principal: Principal | None) -> str:
        """Return the owner of the credentials for a caller; empty for the gateway's own."""
        ...

    def renew(self, principal: Principal | None) -> bool:
        """Discard refused credentials; return whether new ones may be available."""
        ...

    async def headers(self, principal: Principal | None, pool: HttpConnections) -> Mapping[str, str]: ...


class StaticCredentials:
    """A secret of the document, read at each request."""

    def __init__(self, auth: Auth | None) -> None:
        self._auth = auth

    @property
    def needed(self) -> bool:
        return self._auth is not None

    def owner(self, principal: Principal | None) -> str:
        return ""

    def renew(self, principal: Principal | None) -> bool:
        return False

    async def headers(self, principal: Principal | None, pool: HttpConnections) -> Mapping[str, str]:
        if self._auth is None:
            return {}
        name, value, _ = self._auth.header()
        return {name.lower(): value}


NO_CREDENTIALS: Final = StaticCredentials(None)


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """Where tokens come from. With `assert_caller` they are issued for a caller whom the gateway's JWT names."""

    token_url: str
    client_id: str
    client_secret: Secret = field(repr=False)
    sent_as: Literal["basic", "post"] = "basic"
    scopes: tuple[str, ...] = ()
    audience: str | None = None
    resource: str | None = None
    networks: tuple[Network, ...] = ()
    assert_caller: Callable[[Principal], str] | None = field(default=None, repr=False)


@dataclass(slots=True)
class _Token:
    value: str = field(repr=False)
    until: float


class OAuthCredentials:
    """Tokens, cached until shortly before they expire; concurrent requests for the same token wait for one fetch."""

    needed = True

    def __init__(self, grant: TokenGrant, *, clock: Callable[[], float] = monotonic) -> None:
        self._grant = grant
        self._clock = clock
        self._url = parse_url_template(grant.token_url)
        self._tokens: OrderedDict[str, _Token] = OrderedDict()
        self._fetching: dict[str, asyncio.Lock] = {}

    def owner(self, principal: Principal | None) -> str:
        if principal is None or self._grant.assert_caller is None:
            return ""
        return f"{principal.tenant or ''}\n{principal.subject}"

    def renew(self, principal: Principal | None) -> bool:
        return self._tokens.pop(self.owner(principal), None) is not None

    async def headers(self, principal: Principal | None, pool: HttpConnections) -> Mapping[str, str]:
        owner = self.owner(principal)
        token = self._tokens.get(owner)
        if token is None or token.until <= self._clock():
            token = await self._fetch_token(owner, principal, pool)
        return {"authorization": f"Bearer {token.value}"}

    async def _fetch_token(self, owner: str, principal: Principal | None, pool: HttpConnections) -> _Token:
        async with self._fetching.setdefault(owner, asyncio.Lock()):
            found = self._tokens.get(owner)
            if found is not None and found.until > self._clock():
                return found
            try:
                token = await self._request_token(principal if owner else None, pool)
            finally:
                self._fetching.pop(owner, None)
            self._tokens[owner] = token
            self._tokens.move_to_end(owner)
            if len(self._tokens) > MAX_CACHED_TOKENS:
                self._tokens.popitem(last=False)
            return token

    async def _request_token(self, principal: Principal | None, pool: HttpConnections) -> _Token:
        form, headers = self._build_request(principal)
        service = pool.pool(self._url.origin, self._grant.networks)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await service.send("POST", self._url.target({}, query=()), headers, form)
                with closing(answer):
                    body = await answer.read(limit=_MAX_ANSWER)
        except TimeoutError as error:
            raise _no_token("the service did not answer in time") from error
        except BackendError as error:
            raise _no_token(error.message) from error
        return self._parse_token(answer.status, body)

    def _build_request(self, principal: Principal | None) -> tuple[bytes, dict[str, str]]:
        grant = self._grant
        form: dict[str, str] = {"grant_type": "client_credentials"}
        if principal is not None and grant.assert_caller is not None:
            form = {
                "grant_type": _EXCHANGE,
                "subject_token": grant.assert_caller(principal),
                "subject_token_type": _JWT,
                "requested_token_type": _ACCESS_TOKEN,
            }
        optional = {"scope": " ".join(grant.scopes), "audience": grant.audience, "resource": grant.resource}
        form |= {name: value for name, value in optional.items() if value}
        headers = {
            "content-type": "application/x-www-form-urlencoded",
            "accept": "application/json",
            "accept-encoding": "identity",
        }
        secret = reveal_secret(grant.client_secret)
        if grant.sent_as == "post":
            form |= {"client_id": grant.client_id, "client_secret": secret}
        else:
            pair = f"{quote_plus(grant.client_id)}:{quote_plus(secret)}".encode()
            headers["authorization"] = f"Basic {b64encode(pair).decode('ascii')}"
        return urlencode(form).encode(), headers

    def _parse_token(self, status: int, body: bytes) -> _Token:
        """Parse the response. Raise `BackendError` that quotes only the standard error code."""
        found: Any = None
        with suppress(BackendError):
            found = decode_now(body)
        found = found if isinstance(found, dict) else {}
        if status != 200:
            code = found.get("error")
            reason = f": {code}" if isinstance(code, str) and _ERROR.fullmatch(code) else ""
            word: Literal["unavailable", "not-permitted"] = "not-permitted" if 400 <= status < 429 else "unavailable"
            raise BackendError(word, f"the authorisation server grants no token for the upstream server{reason}")
        token, kind = found.get("access_token"), found.get("token_type", "bearer")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token) or str(kind).lower() != "bearer":
            raise BackendError("failed", "the authorisation server did not answer with a bearer token")
        raw = found.get("expires_in")
        life = float(raw) if isinstance(raw, int | float) and not isinstance(raw, bool) else DEFAULT_TOKEN_LIFETIME
        return _Token(token, self._clock() + max(life - _EARLY, life / 2))


def _no_token(why: str) -> BackendError:
    return BackendError("unavailable", f"no token for the upstream server: {why}")

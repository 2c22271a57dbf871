"""Who the gateway is to an upstream server: a fixed secret, or tokens that an authorisation server grants.

A caller's own token never comes this far. Where a server is to know the caller, the gateway says in its own name who
that is, and has that exchanged for a token of the server's (RFC 8693); such tokens are kept apart per caller.
"""

import asyncio
import re
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Literal, Protocol
from urllib.parse import quote_plus, urlencode

import aiohttp
from yarl import URL

from gateway.backends.addresses import Network
from gateway.backends.connections import Connections, told
from gateway.backends.credentials import Auth, Secret, revealed
from gateway.backends.urls import parsed
from gateway.governance.ports import BackendFailed
from gateway.governance.principals import Principal
from gateway.upstreams.messages import read_now

MOST_TOKENS: Final = 10_000
ASSUMED_LIFE: Final = 300.0
_EARLY: Final = 30.0
"""Seconds before its end at which a token is not used any more."""
_ANSWER_SECONDS: Final = 10
_MOST_BYTES: Final = 64 << 10
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_ERROR: Final = re.compile(r"[a-z_]{1,64}")

_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_JWT: Final = "urn:ietf:params:oauth:token-type:jwt"
_ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - the name of a kind of token


class Credentials(Protocol):
    """What a request carries to prove who asks."""

    @property
    def needed(self) -> bool: ...

    def owner(self, principal: Principal | None) -> str:
        """Whose credentials a caller's requests carry: empty for those that are the gateway's own."""
        ...

    def renew(self, principal: Principal | None) -> bool:
        """They were refused: whether there may be others now."""
        ...

    async def headers(self, principal: Principal | None, pool: Connections) -> Mapping[str, str]: ...


class FixedCredentials:
    """A secret of the document, read at every request."""

    def __init__(self, auth: Auth | None) -> None:
        self._auth = auth

    @property
    def needed(self) -> bool:
        return self._auth is not None

    def owner(self, principal: Principal | None) -> str:
        return ""

    def renew(self, principal: Principal | None) -> bool:
        return False

    async def headers(self, principal: Principal | None, pool: Connections) -> Mapping[str, str]:
        if self._auth is None:
            return {}
        name, value, _ = self._auth.header()
        return {name.lower(): value}


NO_CREDENTIALS: Final = FixedCredentials(None)


@dataclass(frozen=True, slots=True)
class Grant:
    """Where tokens come from. With `assert_caller` they are for a caller, which is said under the gateway's seal."""

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


class GrantedCredentials:
    """Tokens, kept until shortly before they end; whoever needs one while it is fetched waits for that one."""

    needed = True

    def __init__(self, grant: Grant, *, clock: Callable[[], float] = monotonic) -> None:
        self._grant = grant
        self._clock = clock
        self._url = parsed(grant.token_url)
        self._tokens: OrderedDict[str, _Token] = OrderedDict()
        self._fetching: dict[str, asyncio.Lock] = {}

    def owner(self, principal: Principal | None) -> str:
        if principal is None or self._grant.assert_caller is None:
            return ""
        return f"{principal.tenant or ''}\n{principal.subject}"

    def renew(self, principal: Principal | None) -> bool:
        return self._tokens.pop(self.owner(principal), None) is not None

    async def headers(self, principal: Principal | None, pool: Connections) -> Mapping[str, str]:
        owner = self.owner(principal)
        token = self._tokens.get(owner)
        if token is None or token.until <= self._clock():
            token = await self._fetched(owner, principal, pool)
        return {"authorization": f"Bearer {token.value}"}

    async def _fetched(self, owner: str, principal: Principal | None, pool: Connections) -> _Token:
        async with self._fetching.setdefault(owner, asyncio.Lock()):
            found = self._tokens.get(owner)
            if found is not None and found.until > self._clock():
                return found
            try:
                token = await self._granted(principal if owner else None, pool)
            finally:
                self._fetching.pop(owner, None)
            self._tokens[owner] = token
            self._tokens.move_to_end(owner)
            if len(self._tokens) > MOST_TOKENS:
                self._tokens.popitem(last=False)
            return token

    async def _granted(self, principal: Principal | None, pool: Connections) -> _Token:
        form, headers = self._request(principal)
        url = URL(f"{self._url.origin}{self._url.target({}, query=())}", encoded=True)
        session = pool.session(self._url.origin, self._grant.networks)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                async with session.post(url, data=form, headers=headers, allow_redirects=False) as answer:
                    status, body = answer.status, await answer.content.read(_MOST_BYTES)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise BackendFailed("unavailable", f"no token for the upstream server: {told(error).message}") from error
        return self._token(status, body)

    def _request(self, principal: Principal | None) -> tuple[bytes, dict[str, str]]:
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
        secret = revealed(grant.client_secret)
        if grant.sent_as == "post":
            form |= {"client_id": grant.client_id, "client_secret": secret}
        else:
            pair = f"{quote_plus(grant.client_id)}:{quote_plus(secret)}".encode()
            headers["authorization"] = f"Basic {b64encode(pair).decode('ascii')}"
        return urlencode(form).encode(), headers

    def _token(self, status: int, body: bytes) -> _Token:
        """Raises `BackendFailed` with nothing of the answer but the word that the standard has for what is wrong."""
        found: Any = None
        with suppress(BackendFailed):
            found = read_now(body)
        found = found if isinstance(found, dict) else {}
        if status != 200:
            told = found.get("error")
            reason = f": {told}" if isinstance(told, str) and _ERROR.fullmatch(told) else ""
            word: Literal["unavailable", "not-permitted"] = "not-permitted" if 400 <= status < 429 else "unavailable"
            raise BackendFailed(word, f"the authorisation server grants no token for the upstream server{reason}")
        token, kind = found.get("access_token"), found.get("token_type", "bearer")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token) or str(kind).lower() != "bearer":
            raise BackendFailed("failed", "the authorisation server answered something else than a bearer token")
        given = found.get("expires_in")
        life = float(given) if isinstance(given, int | float) and not isinstance(given, bool) else ASSUMED_LIFE
        return _Token(token, self._clock() + max(life - _EARLY, life / 2))

"""What is declared about callers: issuers that are trusted, tokens that are known, and who is meant by nobody.

Plain data. What no document can know, because a secret or an address was filled in late, is checked here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gateway.errors import InvalidIdentityProvider

ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
"""Signatures by a private key only: with a shared secret, whoever can verify a token can write one."""

MAX_CLOCK_SKEW: Final = timedelta(seconds=60)

_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class KeysFromFile:
    """The public keys of an issuer, in a JWKS file that is read again when it changes."""

    path: Path


@dataclass(frozen=True, slots=True)
class KeysFromUrl:
    """The public keys of an issuer, at its JWKS address."""

    url: str

    def __post_init__(self) -> None:
        if not _is_safe(self.url):
            raise InvalidIdentityProvider(
                "keys are fetched over https, or from this machine",
                help="write an https URL without a user name or password",
            )


@dataclass(frozen=True, slots=True)
class JwtProvider:
    """An issuer whose signed tokens are accepted. Groups that `roles` does not list grant nothing."""

    issuer: str
    audience: frozenset[str]
    algorithms: frozenset[str]
    keys: KeysFromFile | KeysFromUrl
    subject_claim: str = "sub"
    subject_prefix: str = "user:"
    role_claim: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    tenant_claim: str | None = None
    clock_skew: timedelta = timedelta(seconds=30)
    joins_traces: bool = False
    """Whether its callers' calls go on in the trace that they name; likewise below."""

    def __post_init__(self) -> None:
        if not self.audience:
            raise InvalidIdentityProvider("an issuer needs an audience", help="name who its tokens are meant for")
        if not self.algorithms or not self.algorithms <= ALGORITHMS:
            raise InvalidIdentityProvider(
                "an issuer needs algorithms with a public key", help=f"choose from {', '.join(sorted(ALGORITHMS))}"
            )
        if not timedelta(0) <= self.clock_skew <= MAX_CLOCK_SKEW:
            raise InvalidIdentityProvider(
                "the clock skew is more than a minute", help="write at most 60s, and set the clocks"
            )


@dataclass(frozen=True, slots=True)
class ApiToken:
    """One long-lived credential, known by its digest. `expires` is the last day on which it counts, in UTC.

    `provider` is the name of the list that it stands in.
    """

    sha256: str = field(repr=False)
    subject: str
    expires: date
    roles: frozenset[str] = frozenset()
    tenant: str | None = None
    joins_traces: bool = False
    provider: str | None = None

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.sha256):
            raise InvalidIdentityProvider(
                f"the digest of the token of {self.subject!r} is not 64 hexadecimal digits",
                help="give the SHA-256 of the token, not the token",
            )


@dataclass(frozen=True, slots=True)
class TokenProvider:
    """A list of callers with a token each."""

    tokens: tuple[ApiToken, ...]


@dataclass(frozen=True, slots=True)
class NobodyProvider:
    """Who calls without any credential, where the gateway listens to its own machine only."""

    subject: str
    roles: frozenset[str] = frozenset()
    joins_traces: bool = True
    provider: str | None = None


Provider = JwtProvider | TokenProvider | NobodyProvider


def _is_safe(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or port == 0 or "@" in parts.netloc:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False

"""Identity providers as plain data: trusted issuers, known tokens, and the principal of anonymous callers.

Values that a document cannot contain, such as secrets and addresses that are filled in late, are checked here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gateway.errors import InvalidIdentityProvider
from gateway.http_client import is_loopback

ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
"""Only asymmetric signatures: with a shared secret, every verifier could also issue tokens."""

MAX_CLOCK_SKEW: Final = timedelta(seconds=60)

_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class FileKeySettings:
    """The public keys of an issuer in a JWKS file, which is read again when it changes."""

    path: Path


@dataclass(frozen=True, slots=True)
class UrlKeySettings:
    """The public keys of an issuer at its JWKS URL."""

    url: str

    def __post_init__(self) -> None:
        if not _is_safe(self.url):
            raise InvalidIdentityProvider(
                "keys must be fetched over https, or from this machine",
                help="write an https URL without a user name or password",
            )


@dataclass(frozen=True, slots=True)
class JwtProvider:
    """An issuer whose signed tokens are accepted. Groups that `roles` does not list grant nothing."""

    issuer: str
    audience: frozenset[str]
    algorithms: frozenset[str]
    keys: FileKeySettings | UrlKeySettings
    subject_claim: str = "sub"
    subject_prefix: str = "user:"
    role_claim: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    tenant_claim: str | None = None
    clock_skew: timedelta = timedelta(seconds=30)
    joins_traces: bool = False
    """Whether calls continue the trace that the caller sends."""

    def __post_init__(self) -> None:
        if not self.audience:
            raise InvalidIdentityProvider("an issuer needs an audience", help="name the audience of its tokens")
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
    """A long-lived credential, stored as a digest. `expires` is its last valid day, in UTC.

    `provider` is the name of its list.
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
    """A list of callers with one token each."""

    tokens: tuple[ApiToken, ...]


@dataclass(frozen=True, slots=True)
class AnonymousProvider:
    """The principal of callers without a credential, for a gateway that listens on loopback only."""

    subject: str
    roles: frozenset[str] = frozenset()
    joins_traces: bool = True
    provider: str | None = None


IdentityProvider = JwtProvider | TokenProvider | AnonymousProvider


def _is_safe(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or port == 0 or "@" in parts.netloc:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))

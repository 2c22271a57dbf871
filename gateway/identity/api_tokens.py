"""API tokens: long random texts, of which only the digests are known here."""

import hmac
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, time
from hashlib import sha256
from typing import Final

from gateway.errors import InvalidIdentityProvider
from gateway.governance.principals import Credential, Principal
from gateway.identity.admissions import Admission
from gateway.identity.providers import ApiToken
from gateway.identity.refusals import refused

TOKEN_PREFIX: Final = "agw_"  # noqa: S105 - lets scanners of repositories find a token; it is no secret


def new_token() -> tuple[str, str]:
    """A fresh token of 256 random bits, to be shown once, and the digest to be kept in its place."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    return token, sha256(token.encode()).hexdigest()


class ApiTokens:
    """The tokens of all lists, found by their digest."""

    def __init__(self, tokens: Iterable[ApiToken]) -> None:
        self._by_digest: dict[str, ApiToken] = {}
        for token in tokens:
            digest = token.sha256.lower()
            if digest in self._by_digest:
                raise InvalidIdentityProvider(
                    f"{self._by_digest[digest].subject!r} and {token.subject!r} have one and the same token",
                    help="give every caller a token of its own",
                )
            self._by_digest[digest] = token

    def admit(self, credential: bytes, *, now: datetime) -> Admission | None:
        """The bearer, or `None` if the credential is not listed. Raises `Unauthenticated` past its last day."""
        digest = sha256(credential).hexdigest()
        token = self._by_digest.get(digest)
        # Looked up by a digest, whose digits nobody can choose one by one; compared in constant time all the same.
        if token is None or not hmac.compare_digest(token.sha256.lower(), digest):
            return None
        end = datetime.combine(token.expires, time.max, tzinfo=UTC)
        if now > end:
            raise refused("expired")
        known = Credential("token", token.provider, digest)
        principal = Principal(token.subject, token.roles, token.tenant, token.joins_traces, known)
        return Admission(principal, end, frozenset([digest]))

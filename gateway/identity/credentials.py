"""Parsing, caching and revocation of credentials, and the reasons for refusing one.

Verified credentials are cached by their digest for at most a minute, and never past their expiry, so that a credential
sent with every request is verified once. The cache is per process; revocations of other processes are looked up. The
Authorization header must contain exactly one bearer credential. Reasons are for operators; callers do not get them.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from gateway.errors import CredentialUnknown, StoreUnavailable, Unauthenticated
from gateway.model import Principal
from gateway.policy import RevocationList

CACHE_TTL: Final = timedelta(seconds=60)
CAPACITY: Final = 10_000


@dataclass(frozen=True, slots=True, repr=False)
class VerifiedCredential:
    """A verified credential: its principal, its expiry, and the ids by which it can be revoked."""

    principal: Principal
    until: datetime
    token_ids: frozenset[str]


@dataclass(frozen=True, slots=True, repr=False)
class _Entry:
    credential: VerifiedCredential
    since: datetime
    until: datetime


class CredentialCache:
    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._entries: dict[bytes, _Entry] = {}
        self._revoked_tokens: set[str] = set()
        self._revoked_subjects: set[str] = set()
        self._revocations: RevocationList | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, digest: bytes, now: datetime) -> Principal | None:
        entry = self._entries.get(digest)
        # An entry from the future means that the clock was set back: verify again.
        if entry is None or not entry.since <= now < entry.until:
            return None
        if self._is_in_revocations(entry.credential):
            return None
        return entry.credential.principal

    def put(self, digest: bytes, credential: VerifiedCredential, *, now: datetime) -> None:
        self._entries.pop(digest, None)
        if len(self._entries) >= self._capacity:
            # The first entry is the oldest: new ones go to the end, and all live equally long.
            del self._entries[next(iter(self._entries))]
        until = min(credential.until, now + CACHE_TTL)
        self._entries[digest] = _Entry(credential, now, until)

    def set_revocations(self, revoked: RevocationList) -> None:
        self._revocations = revoked

    def clear(self) -> None:
        self._entries.clear()

    def revoke(self, *, token: str | None = None, subject: str | None = None) -> None:
        if token is not None:
            # A digest may be in upper case; revoking one token too many is better than one too few.
            self._revoked_tokens |= {token, token.lower()}
        if subject is not None:
            self._revoked_subjects.add(subject)
        self._entries = {key: entry for key, entry in self._entries.items() if not self.is_revoked(entry.credential)}

    def is_revoked(self, credential: VerifiedCredential) -> bool:
        is_listed = not self._revoked_tokens.isdisjoint(credential.token_ids)
        is_listed = is_listed or credential.principal.subject in self._revoked_subjects
        return is_listed or self._is_in_revocations(credential)

    def can_check_revocations(self) -> bool:
        try:
            return self._revocations is None or not self._revocations.has_revoked(frozenset())
        except StoreUnavailable:
            return False

    def _is_in_revocations(self, credential: VerifiedCredential) -> bool:
        if self._revocations is None:
            return False
        try:
            return self._revocations.has_revoked(credential.token_ids)
        except StoreUnavailable as error:
            raise CredentialUnknown(help="try again in a moment") from error


MAX_CREDENTIAL: Final = 16 * 1024

# RFC 6750, section 2.1: one scheme, one b64token. A comma or a second word is a second credential.
_BEARER: Final = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] {1,8}([A-Za-z0-9._~+/-]+=*)")
_MAX_HEADER: Final = MAX_CREDENTIAL + len("Bearer ")


def check_credential_size(authorization: bytes) -> None:
    """Raise `Unauthenticated` for a header that is too long."""
    if len(authorization) > _MAX_HEADER:
        raise _header_error()


def parse_bearer_header(authorization: bytes) -> bytes:
    """Return the credential of the header's value. Raise `Unauthenticated` for anything else."""
    found = _BEARER.fullmatch(authorization)
    if found is None:
        raise _header_error()
    return found[1]


def _header_error() -> Unauthenticated:
    return Unauthenticated("invalid_request", reason="authorization-header")


RefusalReason = Literal[
    "unknown-token",  # neither listed nor signed
    "unreadable",  # looks signed, but does not contain strict JSON
    "unknown-issuer",
    "algorithm",
    "header",  # a header parameter that is not accepted, or has the wrong type
    "unknown-key",
    "key-type",
    "signature",
    "audience",
    "expired",
    "not-yet-valid",
    "times",  # exp is missing, or a time is not a number
    "subject",
    "tenant",
    "revoked",
]


def refuse_credential(reason: RefusalReason) -> Unauthenticated:
    """Return the error for a credential that was read and refused."""
    return Unauthenticated("invalid_token", reason=reason)

"""Credentials: API tokens, of which only digests are stored, and signed tokens (RFC 7519, RFC 9068).

A signed token is parsed strictly and verified with a key of its issuer. Its claims become a subject, a tenant and roles
only as the provider defines. A group that is not text or not in the provider's map grants nothing.

Verified credentials are cached by their digest for at most a minute, and never past their expiry, so that a credential
sent with every request is verified once. The cache is per process; revocations of other processes are looked up. The
Authorization header must contain exactly one bearer credential. Reasons are for operators; callers do not get them.
"""

import base64
import binascii
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from hashlib import sha256
from typing import Any, Final, Literal

from gateway.errors import CredentialUnknown, InvalidIdentityProvider, StoreUnavailable, Unauthenticated
from gateway.identity.key_sets import KeyCache, MonotonicClock, parse_strict_object
from gateway.identity.provider_settings import ApiToken, JwtProvider
from gateway.model import NAME_REGEX, SUBJECT_KINDS, SUBJECT_NAME_REGEX, Credential, Principal
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
        if self.is_revoked(entry.credential):
            raise refuse_credential("revoked")
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


TOKEN_PREFIX: Final = "agw_"  # noqa: S105 - not a secret: secret scanners find tokens by it


def new_api_token() -> tuple[str, str]:
    """Return a new token of 256 random bits, to be shown once, and the digest to store."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    return token, sha256(token.encode()).hexdigest()


class ApiTokens:
    """The tokens of all lists, looked up by digest."""

    def __init__(self, tokens: Iterable[ApiToken]) -> None:
        self._by_digest: dict[str, ApiToken] = {}
        for token in tokens:
            digest = token.sha256.lower()
            if digest in self._by_digest:
                raise InvalidIdentityProvider(
                    f"{self._by_digest[digest].subject!r} and {token.subject!r} have the same token",
                    help="give every caller a token of its own",
                )
            self._by_digest[digest] = token

    def verify(self, credential: bytes, *, now: datetime) -> VerifiedCredential | None:
        """Return the bearer, or `None` if the token is not listed. Raise `Unauthenticated` after its last day."""
        digest = sha256(credential).hexdigest()
        token = self._by_digest.get(digest)
        # The lookup uses a digest that a caller cannot choose digit by digit; compared in constant time nevertheless.
        if token is None or not hmac.compare_digest(token.sha256.lower(), digest):
            return None
        end = datetime.combine(token.expires, time.max, tzinfo=UTC)
        if now > end:
            raise refuse_credential("expired")
        known = Credential("token", token.provider, digest)
        principal = Principal(token.subject, token.roles, token.tenant, token.joins_traces, known)
        return VerifiedCredential(principal, end, frozenset([digest]))


_CALLERS: Final = "|".join(kind for kind in SUBJECT_KINDS if kind != "role")
_SUBJECT: Final = re.compile(rf"(?:{_CALLERS}):{SUBJECT_NAME_REGEX}")
_TENANT: Final = re.compile(NAME_REGEX)
_MAX_TIME: Final = 1 << 53


def principal_from_claims(
    claims: Mapping[str, Any], provider: JwtProvider, *, now: datetime, digest: str
) -> VerifiedCredential:
    """Return the bearer of verified claims. Raise `Unauthenticated` for another issuer or audience, or an invalid time.

    `digest` is the token's digest; it identifies a token without a `jti`.
    """
    if claims.get("iss") != provider.issuer:
        raise refuse_credential("unknown-issuer")
    if provider.audience.isdisjoint(_get_audience(claims.get("aud"))):
        raise refuse_credential("audience")
    until = _check_times(claims, now, provider.clock_skew)
    token_id = claims.get("jti")
    ids = frozenset([token_id] if isinstance(token_id, str) else [])
    credential = Credential("jwt", provider.issuer, next(iter(ids), digest))
    subject, roles, tenant = _get_subject(claims, provider), _get_roles(claims, provider), _get_tenant(claims, provider)
    return VerifiedCredential(Principal(subject, roles, tenant, provider.joins_traces, credential), until, ids)


def _get_audience(value: object) -> list[str]:
    listed = value if isinstance(value, list) else [value]
    texts = [entry for entry in listed if isinstance(entry, str)]
    # One invalid entry invalidates the claim: readers might disagree about the rest.
    return texts if len(texts) == len(listed) else []


def _check_times(claims: Mapping[str, Any], now: datetime, skew: timedelta) -> datetime:
    seconds, tolerance = now.timestamp(), skew.total_seconds()
    expires = _get_time(claims, "exp")
    if expires is None:
        raise refuse_credential("times")
    if seconds >= expires + tolerance:
        raise refuse_credential("expired")
    for name in ("nbf", "iat"):
        begins = _get_time(claims, name)
        if begins is not None and seconds < begins - tolerance:
            raise refuse_credential("not-yet-valid")
    return now + timedelta(seconds=min(expires - seconds, CACHE_TTL.total_seconds()))


def _get_time(claims: Mapping[str, Any], name: str) -> float | None:
    if name not in claims:
        return None
    value = claims[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _MAX_TIME:
        raise refuse_credential("times")
    return float(value)


def _get_subject(claims: Mapping[str, Any], provider: JwtProvider) -> str:
    value = claims.get(provider.subject_claim)
    subject = f"{provider.subject_prefix}{value}" if isinstance(value, str) else ""
    if not _SUBJECT.fullmatch(subject):
        raise refuse_credential("subject")
    return subject


def _get_roles(claims: Mapping[str, Any], provider: JwtProvider) -> frozenset[str]:
    value = claims.get(provider.role_claim) if provider.role_claim is not None else None
    groups = value if isinstance(value, list) else [value]
    return frozenset(provider.roles[group] for group in groups if isinstance(group, str) and group in provider.roles)


def _get_tenant(claims: Mapping[str, Any], provider: JwtProvider) -> str | None:
    if provider.tenant_claim is None:
        return None
    value = claims.get(provider.tenant_claim)
    # A caller without a tenant would be outside all tenants, which is never intended.
    if not isinstance(value, str) or not _TENANT.fullmatch(value):
        raise refuse_credential("tenant")
    return value


_TYPES: Final = frozenset({"jwt", "at+jwt"})
_SEGMENT: Final = re.compile(rb"[A-Za-z0-9_-]+")
_REFUSED_PARAMETERS: Final = frozenset({"crit", "b64", "jwk", "jku", "x5u", "x5c"})
"""Parameters that bring a key or change how the token is read: such a token is refused."""


@dataclass(frozen=True, slots=True, repr=False)
class JwtToken:
    """A parsed token that is not verified yet."""

    text: bytes
    header: Mapping[str, Any]
    claims: Mapping[str, Any]

    @property
    def issuer(self) -> object:
        return self.claims.get("iss")


class JwtVerifier:
    """A provider and its keys."""

    def __init__(self, provider: JwtProvider, keys: KeyCache, *, clock: MonotonicClock) -> None:
        self.provider = provider
        self.keys = keys
        self._clock = clock

    async def verify(self, token: JwtToken) -> VerifiedCredential:
        algorithm, kid = _parse_header(token.header, self.provider.algorithms)
        key = await self.keys.find(kid)
        if key is None:
            raise refuse_credential("unknown-key")
        if algorithm not in key.algorithms:
            raise refuse_credential("key-type")
        if not key.verify(token.text, algorithm):
            raise refuse_credential("signature")
        digest = sha256(token.text).hexdigest()
        return principal_from_claims(token.claims, self.provider, now=self._clock(), digest=digest)


def parse_jwt(credential: bytes) -> JwtToken:
    """Parse a credential. Raise `Unauthenticated` if it is not a token, or is ambiguous."""
    segments = credential.split(b".")
    if len(segments) != 3:
        raise refuse_credential("unknown-token")
    header, claims = (_decode_object(segment) for segment in segments[:2])
    if header is None or claims is None:
        raise refuse_credential("unreadable")
    return JwtToken(credential, header, claims)


def _decode_object(segment: bytes) -> dict[str, Any] | None:
    if not _SEGMENT.fullmatch(segment):
        return None
    try:
        decoded = base64.urlsafe_b64decode(segment + b"=" * (-len(segment) % 4))
    except binascii.Error:
        return None
    return parse_strict_object(decoded)


def _parse_header(header: Mapping[str, Any], algorithms: frozenset[str]) -> tuple[str, str]:
    """Return the algorithm and the key id of the header, both validated."""
    algorithm, kid, type = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise refuse_credential("algorithm")
    is_known_type = isinstance(type, str) and type.lower().removeprefix("application/") in _TYPES
    if not is_known_type or not isinstance(kid, str) or _REFUSED_PARAMETERS & header.keys():
        raise refuse_credential("header")
    return algorithm, kid

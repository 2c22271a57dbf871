"""What the claims of a verified token say about its bearer.

Claims become a subject, a tenant and roles only where the provider says so. A group is looked up in the provider's
map as it stands: whatever is no text, or not listed, grants nothing.
"""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from gateway.governance.names import NAME, SUBJECT_KINDS, SUBJECT_NAME
from gateway.governance.principals import Credential, Principal
from gateway.identity.admissions import REMEMBERED_FOR, Admission
from gateway.identity.providers import JwtProvider
from gateway.identity.refusals import refused

_CALLERS: Final = "|".join(kind for kind in SUBJECT_KINDS if kind != "role")
_SUBJECT: Final = re.compile(rf"(?:{_CALLERS}):{SUBJECT_NAME}")
_TENANT: Final = re.compile(NAME)
_LAST_MOMENT: Final = 1 << 53


def admission(claims: Mapping[str, Any], provider: JwtProvider, *, now: datetime, digest: str) -> Admission:
    """The bearer, as verified claims tell it. Raises `Unauthenticated` for a token that is not meant for us, now.

    `digest` is of the token as it was sent; it names one that has no name of its own.
    """
    if claims.get("iss") != provider.issuer:
        raise refused("unknown-issuer")
    if provider.audience.isdisjoint(_audience(claims.get("aud"))):
        raise refused("audience")
    until = _end(claims, now, provider.clock_skew)
    token_id = claims.get("jti")
    ids = frozenset([token_id] if isinstance(token_id, str) else [])
    credential = Credential("jwt", provider.issuer, next(iter(ids), digest))
    subject, roles, tenant = _subject(claims, provider), _roles(claims, provider), _tenant(claims, provider)
    return Admission(Principal(subject, roles, tenant, provider.joins_traces, credential), until, ids)


def _audience(value: object) -> list[str]:
    listed = value if isinstance(value, list) else [value]
    texts = [entry for entry in listed if isinstance(entry, str)]
    # One odd entry makes the whole claim odd: two readers might take different parts of it.
    return texts if len(texts) == len(listed) else []


def _end(claims: Mapping[str, Any], now: datetime, skew: timedelta) -> datetime:
    seconds, forgiven = now.timestamp(), skew.total_seconds()
    expires = _moment(claims, "exp")
    if expires is None:
        raise refused("times")
    if seconds >= expires + forgiven:
        raise refused("expired")
    for name in ("nbf", "iat"):
        begins = _moment(claims, name)
        if begins is not None and seconds < begins - forgiven:
            raise refused("not-yet-valid")
    return now + timedelta(seconds=min(expires - seconds, REMEMBERED_FOR.total_seconds()))


def _moment(claims: Mapping[str, Any], name: str) -> float | None:
    if name not in claims:
        return None
    value = claims[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _LAST_MOMENT:
        raise refused("times")
    return float(value)


def _subject(claims: Mapping[str, Any], provider: JwtProvider) -> str:
    value = claims.get(provider.subject_claim)
    subject = f"{provider.subject_prefix}{value}" if isinstance(value, str) else ""
    if not _SUBJECT.fullmatch(subject):
        raise refused("subject")
    return subject


def _roles(claims: Mapping[str, Any], provider: JwtProvider) -> frozenset[str]:
    value = claims.get(provider.role_claim) if provider.role_claim is not None else None
    groups = value if isinstance(value, list) else [value]
    return frozenset(provider.roles[group] for group in groups if isinstance(group, str) and group in provider.roles)


def _tenant(claims: Mapping[str, Any], provider: JwtProvider) -> str | None:
    if provider.tenant_claim is None:
        return None
    value = claims.get(provider.tenant_claim)
    # Without a tenant a caller would stand outside all of them, and nobody meant that.
    if not isinstance(value, str) or not _TENANT.fullmatch(value):
        raise refused("tenant")
    return value

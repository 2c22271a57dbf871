"""Signed tokens (RFC 7519, RFC 9068): read strictly, verified with a key of the issuer, then asked who it is."""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from gateway.identity.admissions import Admission
from gateway.identity.claims import admission
from gateway.identity.key_keeping import Clock, Keys
from gateway.identity.providers import JwtProvider
from gateway.identity.refusals import refused
from gateway.identity.strict_json import strict_object

_TYPES: Final = frozenset({"jwt", "at+jwt"})
_SEGMENT: Final = re.compile(rb"[A-Za-z0-9_-]+")
_REFUSED_PARAMETERS: Final = frozenset({"crit", "b64", "jwk", "jku", "x5u", "x5c"})
"""A token that brings its own key, or rules for reading it, is refused rather than half understood."""


@dataclass(frozen=True, slots=True, repr=False)
class SignedToken:
    """A token whose parts can be read; nothing in it is believed yet."""

    text: bytes
    header: Mapping[str, Any]
    claims: Mapping[str, Any]

    @property
    def issuer(self) -> object:
        return self.claims.get("iss")


class Issuer:
    """One provider with its keys."""

    def __init__(self, provider: JwtProvider, keys: Keys, *, clock: Clock) -> None:
        self.provider = provider
        self.keys = keys
        self._clock = clock

    async def admit(self, token: SignedToken) -> Admission:
        algorithm, kid = _named_key(token.header, self.provider.algorithms)
        key = await self.keys.find(kid)
        if key is None:
            raise refused("unknown-key")
        if algorithm not in key.algorithms:
            raise refused("key-type")
        if not key.verifies(token.text, algorithm):
            raise refused("signature")
        digest = sha256(token.text).hexdigest()
        return admission(token.claims, self.provider, now=self._clock(), digest=digest)


def read_signed(credential: bytes) -> SignedToken:
    """The token in a credential. Raises `Unauthenticated` for what is none, or means different things to readers."""
    segments = credential.split(b".")
    if len(segments) != 3:
        raise refused("unknown-token")
    header, claims = (_object(segment) for segment in segments[:2])
    if header is None or claims is None:
        raise refused("unreadable")
    return SignedToken(credential, header, claims)


def _object(segment: bytes) -> dict[str, Any] | None:
    if not _SEGMENT.fullmatch(segment):
        return None
    try:
        decoded = base64.urlsafe_b64decode(segment + b"=" * (-len(segment) % 4))
    except binascii.Error:
        return None
    return strict_object(decoded)


def _named_key(header: Mapping[str, Any], algorithms: frozenset[str]) -> tuple[str, str]:
    """The algorithm and the key's name, each one that we chose or can look up."""
    algorithm, kid, type = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise refused("algorithm")
    is_known_type = isinstance(type, str) and type.lower().removeprefix("application/") in _TYPES
    if not is_known_type or not isinstance(kid, str) or _REFUSED_PARAMETERS & header.keys():
        raise refused("header")
    return algorithm, kid

"""Key sets of issuers (RFC 7517): which public keys there are, and whether one of them signed a token.

The one module that knows the JWT library; it never lets a token's header choose how a key is used.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jwt import PyJWK, PyJWS
from jwt.exceptions import PyJWTError

from gateway.errors import GatewayError
from gateway.identity.providers import ALGORITHMS
from gateway.identity.strict_json import strict_object

MAX_KEYS: Final = 200
MIN_RSA_BITS: Final = 2048
MAX_RSA_BITS: Final = 8192
"""Verifying with a larger key would cost the gateway more than the caller."""

_KINDS: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""Key types by how the names of their algorithms begin; a shared secret (`HS`, `oct`) has no place here."""
_CURVES: Final = {
    "ES256": ("P-256",),
    "ES384": ("P-384",),
    "ES512": ("P-521",),
    "EdDSA": ("Ed25519", "Ed448"),
}
_MEMBERS: Final = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
_LONGEST_MEMBER: Final = 2048
_JWS: Final = PyJWS(sorted(ALGORITHMS), {"verify_signature": True, "enforce_minimum_key_length": True})
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth"})


class KeysUnavailable(GatewayError):
    """The keys of an issuer cannot be had. The message is for operators and holds nothing of the keys."""

    code = "E_KEYS_UNAVAILABLE"
    status = 503
    default_message = "the keys cannot be read"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """One key, bound to each algorithm it may be used with."""

    algorithms: Mapping[str, PyJWK]

    def verifies(self, token: bytes, algorithm: str) -> bool:
        try:
            _JWS.decode(token, self.algorithms[algorithm], algorithms=[algorithm])
        except PyJWTError:
            return False
        return True


KeySet = Mapping[str, PublicKey]
"""Keys by their `kid`."""


def key_set(document: bytes, algorithms: Iterable[str]) -> KeySet:
    """The keys that fit the algorithms. Others are left out; a set without any, or with a secret in it, is refused."""
    content = strict_object(document)
    listed = content.get("keys") if content is not None else None
    if not isinstance(listed, list):
        raise KeysUnavailable("the key set is not a JSON object with a list of keys")
    if len(listed) > MAX_KEYS:
        raise KeysUnavailable(f"the key set has more than {MAX_KEYS} keys")
    jwks = [jwk for jwk in listed if isinstance(jwk, dict)]
    if any(_PRIVATE & jwk.keys() for jwk in jwks):
        raise KeysUnavailable("the key set holds a private key", help="publish public keys only, and replace this one")
    allowed = sorted(algorithms)
    found: dict[str, PublicKey] = {}
    for jwk in jwks:
        kid = jwk.get("kid")
        bound = _bound(jwk, allowed)
        if isinstance(kid, str) and kid and bound:
            found.setdefault(kid, PublicKey(bound))
    if not found:
        raise KeysUnavailable("the key set has no key that fits", help="compare its kid, kty and alg with the provider")
    return found


def _bound(jwk: Mapping[str, Any], algorithms: Iterable[str]) -> dict[str, PyJWK]:
    keys = ((name, _key(jwk, name)) for name in algorithms if _fits(jwk, name))
    return {name: key for name, key in keys if key is not None}


def _fits(jwk: Mapping[str, Any], algorithm: str) -> bool:
    operations = jwk.get("key_ops", ["verify"])
    return (
        jwk.get("alg", algorithm) == algorithm
        and jwk.get("use", "sig") == "sig"
        and isinstance(operations, list)
        and "verify" in operations
        and jwk.get("kty") == _KINDS[algorithm[:2]]
        and jwk.get("crv") in _CURVES.get(algorithm, (None,))
    )


def _key(jwk: Mapping[str, Any], algorithm: str) -> PyJWK | None:
    kind = _KINDS[algorithm[:2]]
    members = {name: jwk.get(name) for name in _MEMBERS[kind]}
    if not all(isinstance(value, str) and len(value) <= _LONGEST_MEMBER for value in members.values()):
        return None
    try:
        key = PyJWK({"kty": kind, **members}, algorithm)
    except PyJWTError:
        return None
    is_sound = kind != "RSA" or MIN_RSA_BITS <= key.key.key_size <= MAX_RSA_BITS
    return key if is_sound else None

"""Key sets of issuers (RFC 7517), and verification of signatures with them.

Only this module uses the JWT library, which is imported with the first key set: with the library below it, it takes
7 MB. The header of a token never chooses how a key is used. JSON is parsed strictly, so that it is unambiguous: no
duplicate members, no NaN, no invalid UTF-8.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

from gateway.errors import GatewayError
from gateway.identity.provider_settings import ALGORITHMS

if TYPE_CHECKING:
    from jwt import PyJWK, PyJWS


def parse_strict_object(data: bytes) -> dict[str, Any] | None:
    """Return the object in the bytes; `None` for anything else, so that no error quotes the text."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_refuse_duplicates, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse_duplicates(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        raise ValueError("duplicate member")
    return found


def _refuse(_constant: str) -> NoReturn:
    raise ValueError("not a JSON number")


MAX_KEYS: Final = 200
MIN_RSA_BITS: Final = 2048
MAX_RSA_BITS: Final = 8192
"""Verification with a larger key would cost the gateway more than the caller."""

_KINDS: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""Key types by the prefix of their algorithms; shared secrets (`HS`, `oct`) are not supported."""
_CURVES: Final = {
    "ES256": ("P-256",),
    "ES384": ("P-384",),
    "ES512": ("P-521",),
    "EdDSA": ("Ed25519", "Ed448"),
}
_MEMBERS: Final = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
_MAX_MEMBER: Final = 2048
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth"})


class KeysUnavailable(GatewayError):
    """The keys of an issuer are not available. The message is for operators and does not quote keys."""

    code = "E_KEYS_UNAVAILABLE"
    status = 503
    default_message = "the keys cannot be read"


@cache
def _jws() -> "PyJWS":
    from jwt import PyJWS

    return PyJWS(sorted(ALGORITHMS), {"verify_signature": True, "enforce_minimum_key_length": True})


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """A key, bound to each algorithm that it may be used with."""

    algorithms: Mapping[str, "PyJWK"]

    def verify(self, token: bytes, algorithm: str) -> bool:
        from jwt.exceptions import PyJWTError

        try:
            _jws().decode(token, self.algorithms[algorithm], algorithms=[algorithm])
        except PyJWTError:
            return False
        return True


KeySet = Mapping[str, IssuerKey]
"""Keys by `kid`."""


def parse_key_set(document: bytes, algorithms: Iterable[str]) -> KeySet:
    """Return the keys that fit the algorithms; skip others. Raise `KeysUnavailable` if none fits or one is private."""
    content = parse_strict_object(document)
    listed = content.get("keys") if content is not None else None
    if not isinstance(listed, list):
        raise KeysUnavailable("the key set is not a JSON object with a list of keys")
    if len(listed) > MAX_KEYS:
        raise KeysUnavailable(f"the key set has more than {MAX_KEYS} keys")
    jwks = [jwk for jwk in listed if isinstance(jwk, dict)]
    if any(_PRIVATE & jwk.keys() for jwk in jwks):
        raise KeysUnavailable("the key set has a private key", help="publish public keys only, and replace this one")
    allowed = sorted(algorithms)
    found: dict[str, IssuerKey] = {}
    for jwk in jwks:
        kid = jwk.get("kid")
        by_algorithm = _bind_algorithms(jwk, allowed)
        if isinstance(kid, str) and kid and by_algorithm:
            found.setdefault(kid, IssuerKey(by_algorithm))
    if not found:
        raise KeysUnavailable("the key set has no key that fits", help="compare its kid, kty and alg with the provider")
    return found


def _bind_algorithms(jwk: Mapping[str, Any], algorithms: Iterable[str]) -> dict[str, "PyJWK"]:
    keys = ((name, _build_key(jwk, name)) for name in algorithms if _is_usable(jwk, name))
    return {name: key for name, key in keys if key is not None}


def _is_usable(jwk: Mapping[str, Any], algorithm: str) -> bool:
    operations = jwk.get("key_ops", ["verify"])
    return (
        jwk.get("alg", algorithm) == algorithm
        and jwk.get("use", "sig") == "sig"
        and isinstance(operations, list)
        and "verify" in operations
        and jwk.get("kty") == _KINDS[algorithm[:2]]
        and jwk.get("crv") in _CURVES.get(algorithm, (None,))
    )


def _build_key(jwk: Mapping[str, Any], algorithm: str) -> "PyJWK | None":
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    kind = _KINDS[algorithm[:2]]
    members = {name: jwk.get(name) for name in _MEMBERS[kind]}
    if not all(isinstance(value, str) and len(value) <= _MAX_MEMBER for value in members.values()):
        return None
    try:
        key = PyJWK({"kty": kind, **members}, algorithm)
    except PyJWTError:
        return None
    is_sound = kind != "RSA" or MIN_RSA_BITS <= key.key.key_size <= MAX_RSA_BITS
    return key if is_sound else None

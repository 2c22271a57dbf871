"""Key sets: which of an issuer's published keys are accepted."""

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from gateway.identity.key_sets import MAX_KEYS, KeysUnavailable, parse_key_set
from gateway.identity.provider_settings import ALGORITHMS
from tests.identity.token_samples import ED25519, OTHER_RSA, P256, P384, P521, RSA, jwk, jwks

GOOD = jwk(RSA, "good")
SMALL_RSA = rsa.generate_private_key(public_exponent=65537, key_size=1024)
K256 = ec.generate_private_key(ec.SECP256K1())
ED448 = ed448.Ed448PrivateKey.generate()


def algorithms_of(*keys: Any, allowed: frozenset[str] = ALGORITHMS) -> dict[str, set[str]]:
    return {kid: set(key.algorithms) for kid, key in parse_key_set(jwks(*keys), allowed).items()}


def test_key_is_bound_to_the_algorithms_of_its_type() -> None:
    keys = [jwk(RSA, "rsa"), jwk(P256, "p256"), jwk(P384, "p384"), jwk(P521, "p521"), jwk(ED25519, "ed")]
    ed448_key = {**OKPAlgorithm.to_jwk(ED448.public_key(), as_dict=True), "kid": "ed448"}

    assert algorithms_of(*keys, ed448_key) == {
        "rsa": {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"},
        "p256": {"ES256"},
        "p384": {"ES384"},
        "p521": {"ES512"},
        "ed": {"EdDSA"},
        "ed448": {"EdDSA"},
    }


def test_key_that_names_its_algorithm_is_used_with_no_other() -> None:
    assert algorithms_of(jwk(RSA, "k1", alg="PS256")) == {"k1": {"PS256"}}


def test_only_pinned_algorithms_are_bound() -> None:
    assert algorithms_of(jwk(RSA, "k1"), jwk(P256, "k2"), allowed=frozenset({"RS256"})) == {"k1": {"RS256"}}


def test_first_of_two_keys_of_one_name_is_taken() -> None:
    [key] = parse_key_set(jwks(jwk(RSA, "k1"), jwk(OTHER_RSA, "k1")), {"RS256"}).values()

    assert key.algorithms["RS256"].key.public_numbers() == RSA.public_key().public_numbers()


UNUSABLE: dict[str, Any] = {
    "not an object": "k1",
    "no kid": {name: value for name, value in jwk(RSA, "k1").items() if name != "kid"},
    "empty kid": jwk(RSA, ""),
    "kid is a number": {**jwk(RSA, "k1"), "kid": 1},
    "for encryption": jwk(RSA, "k1", use="enc"),
    "for other operations": jwk(RSA, "k1", key_ops=["wrapKey"]),
    "operations are text": jwk(RSA, "k1", key_ops="verify"),
    "other algorithm": jwk(RSA, "k1", alg="RSA-OAEP"),
    "algorithm is a list": jwk(RSA, "k1", alg=["RS256"]),
    "shared secret": {"kty": "oct", "kid": "k1", "k": "AAAA"},
    "unknown type": {"kty": "XYZ", "kid": "k1"},
    "type is a list": jwk(RSA, "k1", kty=["RSA"]),
    "no modulus": {"kty": "RSA", "kid": "k1", "e": "AQAB"},
    "modulus is a number": jwk(RSA, "k1", n=65537),
    "modulus is no base64": jwk(RSA, "k1", n="ä"),
    "modulus is nothing": jwk(RSA, "k1", n=""),
    "modulus without end": jwk(RSA, "k1", n="A" * 3000),
    "exponent is even": jwk(RSA, "k1", e="AA"),
    "RSA key too small": {**RSAAlgorithm.to_jwk(SMALL_RSA.public_key(), as_dict=True), "kid": "k1"},
    "other curve": {**ECAlgorithm.to_jwk(K256.public_key(), as_dict=True), "kid": "k1"},
    "curve of another key": jwk(P256, "k1", crv="P-384"),
    "point is not on the curve": jwk(P256, "k1", x=jwk(P256, "k1")["y"]),
    "type of another key": jwk(P256, "k1", kty="OKP"),
    "point too short": jwk(ED25519, "k1", x="AAAA"),
}


@pytest.mark.parametrize("unusable", UNUSABLE.values(), ids=UNUSABLE)
def test_key_that_cannot_be_used_is_left_out(unusable: Any) -> None:
    assert list(algorithms_of(unusable, GOOD)) == ["good"]


REFUSED = {
    "not JSON": (b"<html>", "is not a JSON object"),
    "nothing": (b"", "is not a JSON object"),
    "not UTF-8": (b"\xff", "is not a JSON object"),
    "a list": (b"[]", "is not a JSON object"),
    "no keys": (b"{}", "is not a JSON object"),
    "keys is an object": (b'{"keys":{}}', "is not a JSON object"),
    "a member twice": (jwks(GOOD)[:-1] + b', "keys": []}', "is not a JSON object"),
    "nested without end": (b'{"keys":' + b"[" * 200_000, "is not a JSON object"),
    "empty list": (b'{"keys":[]}', "no key that fits"),
    "shared secrets only": (jwks({"kty": "oct", "kid": "k1", "k": "AAAA"}), "no key that fits"),
    "too many": (jwks(*[GOOD] * (MAX_KEYS + 1)), "more than 200 keys"),
    "private RSA key": (jwks({**RSAAlgorithm.to_jwk(RSA, as_dict=True), "kid": "k1"}), "has a private key"),
    "private key beside a good one": (jwks(GOOD, jwk(P256, "k2", d="AAAA")), "has a private key"),
}


@pytest.mark.parametrize(("document", "message"), REFUSED.values(), ids=REFUSED)
def test_key_set_that_is_none_is_refused(document: bytes, message: str) -> None:
    with pytest.raises(KeysUnavailable, match=message):
        parse_key_set(document, ALGORITHMS)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
odd_keys = st.fixed_dictionaries(
    {},
    optional={
        "kty": st.sampled_from(["RSA", "EC", "OKP", "oct"]) | json_values,
        "crv": st.sampled_from(["P-256", "P-384", "P-521", "Ed25519", "Ed448"]) | json_values,
        **{name: st.sampled_from([GOOD["n"], "AQAB", "AAAA"]) | json_values for name in ("n", "e", "x", "y")},
        **dict.fromkeys(("kid", "use", "alg", "key_ops"), json_values),
    },
)


PRIVATE_PARTS = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth"})


def has_no_private_part(key: Any) -> bool:
    return not (isinstance(key, dict) and PRIVATE_PARTS & key.keys())


@given(st.lists((odd_keys | json_values).filter(has_no_private_part), max_size=4))
def test_whatever_stands_beside_a_good_key_does_no_harm(others: list[Any]) -> None:
    document = json.dumps({"keys": [GOOD, *others]}).encode()

    assert "good" in parse_key_set(document, ALGORITHMS)

"""Anchor keys: Ed25519 in the usual spellings only."""

import base64

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.audit.content_hash import WeakKey
from gateway.audit.signing_keys import SMALL_ORDER, SigningKey, VerifyKey
from tests.audit.sample_logs import KEY, OTHER_KEY

RAW = bytes(range(200, 232))
PRIME = 2**255 - 19
D = -121665 * pow(121666, -1, PRIME) % PRIME


def pem_of(
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | Ed25519PrivateKey, password: bytes | None = None
) -> bytes:
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(RAW, id="raw"),
        pytest.param(RAW.hex(), id="hexadecimal"),
        pytest.param(base64.b64encode(RAW).decode() + "\n", id="base64"),
        pytest.param(KEY.pem(), id="pem"),
        pytest.param(KEY.pem().decode(), id="pem-as-text"),
    ],
)
def test_private_key_is_read_from_the_usual_spellings(written: str | bytes) -> None:
    assert SigningKey.load(written).id == KEY.id


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(KEY.public.raw, id="raw"),
        pytest.param(KEY.public.raw.hex(), id="hexadecimal"),
        pytest.param(KEY.public.pem(), id="pem"),
    ],
)
def test_public_key_is_read_from_the_usual_spellings(written: str | bytes) -> None:
    assert VerifyKey.load(written) == KEY.public


def test_generated_keys_are_different_and_usable() -> None:
    one, other = SigningKey.generate(), SigningKey.generate()

    assert one.id != other.id
    assert SigningKey.load(one.pem()).id == one.id
    assert one.public.has_signed(b"message", one.sign(b"message"))
    assert not other.public.has_signed(b"message", one.sign(b"message"))


EC = ec.generate_private_key(ec.SECP256R1())
EC_PUBLIC = EC.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        pytest.param("", "there is no key", id="absent"),
        pytest.param(" \n", "there is no key", id="blank"),
        pytest.param("hunter2", "has 5 bytes, but needs at least 32", id="a-word"),
        pytest.param("correct horse battery staple, yes", "is a text", id="words"),
        pytest.param("ab" * 16, "has 16 bytes", id="half-a-key"),
        pytest.param(bytes(range(64)).hex(), "neither PEM nor 32 bytes", id="two-keys"),
        pytest.param("é" * 40, "repeats a few bytes", id="not-ascii"),
        pytest.param(b"\x00" * 32, "repeats a few bytes", id="zeros"),
        pytest.param("61" * 32, "repeats a few bytes", id="one-byte-repeated"),
        pytest.param(pem_of(EC), "not an Ed25519 key", id="another-curve"),
        pytest.param(pem_of(Ed25519PrivateKey.generate(), b"pw"), "needs a passphrase", id="passphrase"),
        pytest.param(KEY.public.pem(), "cannot be read", id="public"),
        pytest.param("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "cannot be read", id="broken"),
    ],
)
def test_other_private_keys_are_refused_with_help(written: str | bytes, message: str) -> None:
    with pytest.raises(WeakKey, match=message) as refused:
        SigningKey.load(written)

    assert "gateway audit keygen" in (refused.value.help or "")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        pytest.param(KEY.pem(), "this is a private key", id="private"),
        pytest.param(EC_PUBLIC, "not an Ed25519 key", id="another-curve"),
        pytest.param("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "cannot be read", id="broken"),
        pytest.param("hunter2", "neither PEM nor 32 bytes", id="a-word"),
        pytest.param("two words", "neither PEM nor 32 bytes", id="words"),
        *(pytest.param(point, "can be forged", id=f"small-{point.hex()[:4]}") for point in sorted(SMALL_ORDER)),
    ],
)
def test_other_public_keys_are_refused(written: str | bytes, message: str) -> None:
    with pytest.raises(WeakKey, match=message):
        VerifyKey.load(written)


def plus(p: tuple[int, int], q: tuple[int, int]) -> tuple[int, int]:
    """Addition on the curve -x² + y² = 1 + dx²y²."""
    (x1, y1), (x2, y2) = p, q
    product = D * x1 * x2 * y1 * y2 % PRIME
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, PRIME) % PRIME
    y = (y1 * y2 + x1 * x2) * pow(1 - product, -1, PRIME) % PRIME
    return x, y


def decoded(point: bytes) -> tuple[int, int]:
    """A point with that height; its mirror image has the same order."""
    y = (int.from_bytes(point, "little") & (2**255 - 1)) % PRIME
    square = (y * y - 1) * pow(D * y * y + 1, -1, PRIME) % PRIME
    root = pow(square, (PRIME + 3) // 8, PRIME)
    x = root if root * root % PRIME == square else root * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    assert x * x % PRIME == square
    return x, y


@pytest.mark.parametrize("point", sorted(SMALL_ORDER), ids=bytes.hex)
def test_listed_point_has_small_order(point: bytes) -> None:
    found = decoded(point)
    for _ in range(3):
        found = plus(found, found)

    assert found == (0, 1)


def test_signature_of_anything_but_an_anchor_is_none() -> None:
    endorsement = base64.b64decode(KEY.endorse(OTHER_KEY.public).endorsement)

    assert not KEY.public.has_signed(OTHER_KEY.public.raw, endorsement)
    assert not KEY.public.has_signed(b"message", b"short")


def test_key_vouches_for_the_next() -> None:
    part = KEY.endorse(OTHER_KEY.public)

    assert KEY.public.endorses(part) == OTHER_KEY.public
    assert OTHER_KEY.public.endorses(part) is None


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"after": "0" * 16}, id="another-name"),
        pytest.param({"public": base64.b64encode(RAW).decode()}, id="another-key"),
        pytest.param({"public": "no base64!"}, id="no-key"),
        pytest.param({"endorsement": "é"}, id="no-signature"),
    ],
)
def test_changed_endorsement_is_none(change: dict[str, str]) -> None:
    part = KEY.endorse(OTHER_KEY.public)._replace(**change)

    assert KEY.public.endorses(part) is None


def test_weak_key_is_not_accepted_even_if_vouched_for() -> None:
    weak = min(SMALL_ORDER)
    signature = Ed25519PrivateKey.from_private_bytes(RAW).sign(b"gateway-audit-key/1\n" + weak)
    part = KEY.endorse(OTHER_KEY.public)._replace(
        public=base64.b64encode(weak).decode(), endorsement=base64.b64encode(signature).decode()
    )

    assert KEY.public.endorses(part) is None


def test_private_key_is_not_shown() -> None:
    assert RAW.hex() not in repr(KEY)
    assert "PrivateKey" not in repr(KEY)

"""The keys that sign anchors and bundles: Ed25519 alone. Reading, making, naming; one vouching for the next."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gateway.audit.entries import KeyPart
from gateway.audit.secret_bytes import WeakKey, decoded, secret_bytes

Purpose = Literal["anchor", "bundle"]
_PURPOSES: Final[Mapping[Purpose, bytes]] = {
    "anchor": b"gateway-audit-anchor/1\n",
    "bundle": b"gateway-bundle-manifest/1\n",
}
"""What is signed begins with what it is for, so that no signature can be taken for one of another kind."""
_ENDORSED: Final = b"gateway-audit-key/1\n"
_RAW: Final = 32
_MAKE_ONE: Final = "make a pair with: gateway audit keygen FILE"

SMALL_ORDER: Final = frozenset(
    bytes.fromhex(point)
    for point in (
        "0100000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000080",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000080",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    )
)
"""Public keys under which anybody can sign: the points whose order divides eight, in every spelling."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """Checks signatures. `id` names it in anchors."""

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != _RAW or self.raw in SMALL_ORDER:
            raise WeakKey("the public key is one under which anybody can sign", help=_MAKE_ONE)

    @classmethod
    def load(cls, text: str | bytes) -> "PublicKey":
        """From PEM, 32 raw bytes, hexadecimal or base64. Raises `WeakKey`, also for a private key: keep that one."""
        written = text.encode() if isinstance(text, str) else text
        if b"PRIVATE KEY" in written:
            raise WeakKey("this is a private key", help="verify with the public one, the file that ends in .pub")
        if b"-----BEGIN" not in written:
            raw = decoded(written)
            if raw is None or len(raw) != _RAW:
                raise WeakKey("the public key is neither PEM nor 32 bytes", help=_MAKE_ONE)
            return cls(raw)
        try:
            key = serialization.load_pem_public_key(written)
        except (ValueError, UnsupportedAlgorithm):
            raise WeakKey("the public key cannot be read", help=_MAKE_ONE) from None
        if not isinstance(key, Ed25519PublicKey):
            raise WeakKey("the public key is not an Ed25519 key", help=_MAKE_ONE)
        return cls(key.public_bytes_raw())

    @property
    def id(self) -> str:
        return sha256(self.raw).hexdigest()[:16]

    def pem(self) -> bytes:
        return Ed25519PublicKey.from_public_bytes(self.raw).public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def has_signed(self, message: bytes, signature: bytes, *, purpose: Purpose = "anchor") -> bool:
        """Whether an anchor, or something else, of these bytes was signed with this key."""
        return self._is_valid(_PURPOSES[purpose] + message, signature)

    def endorses(self, part: KeyPart) -> "PublicKey | None":
        """The key that this one vouched for, `None` if it did not."""
        raw, signature = _bytes(part.public), _bytes(part.endorsement)
        if part.before != self.id or raw is None or signature is None or not self._is_valid(_ENDORSED + raw, signature):
            return None
        try:
            after = PublicKey(raw)
        except WeakKey:
            return None
        return after if after.id == part.after else None

    def _is_valid(self, message: bytes, signature: bytes) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class SigningKey:
    """Signs anchors. What it is made of is never shown."""

    _key: Ed25519PrivateKey = field(repr=False)
    public: PublicKey

    @classmethod
    def load(cls, secret: str | bytes) -> "SigningKey":
        """From PEM without a passphrase, 32 raw bytes, hexadecimal or base64. Raises `WeakKey`."""
        written = secret.encode() if isinstance(secret, str) else secret
        if not written.strip():
            raise WeakKey("there is no key to sign anchors with", help=_MAKE_ONE)
        if b"-----BEGIN" not in written:
            raw = secret_bytes(written, "the key of anchors", least=_RAW, help=_MAKE_ONE)
            if len(raw) != _RAW:
                raise WeakKey("the key of anchors is neither PEM nor 32 bytes", help=_MAKE_ONE)
            return cls._of(Ed25519PrivateKey.from_private_bytes(raw))
        try:
            key = serialization.load_pem_private_key(written, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise WeakKey(
                "the private key cannot be read, or needs a passphrase",
                help=f"{_MAKE_ONE}; it is guarded by the mode of its file",
            ) from None
        if not isinstance(key, Ed25519PrivateKey):
            raise WeakKey("the private key is not an Ed25519 key", help=_MAKE_ONE)
        return cls._of(key)

    @classmethod
    def generate(cls) -> "SigningKey":
        return cls._of(Ed25519PrivateKey.generate())

    @classmethod
    def _of(cls, key: Ed25519PrivateKey) -> "SigningKey":
        return cls(key, PublicKey(key.public_key().public_bytes_raw()))

    @property
    def id(self) -> str:
        return self.public.id

    def sign(self, message: bytes, *, purpose: Purpose = "anchor") -> bytes:
        return self._key.sign(_PURPOSES[purpose] + message)

    def endorse(self, after: PublicKey) -> KeyPart:
        """What a `key-rotated` entry says: this key vouches for the next."""
        signature = self._key.sign(_ENDORSED + after.raw)
        return KeyPart(self.id, after.id, base64.b64encode(after.raw).decode(), base64.b64encode(signature).decode())

    def pem(self) -> bytes:
        """For writing to a file that only its owner can read."""
        return self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def _bytes(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None

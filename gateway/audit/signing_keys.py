"""The Ed25519 keys that sign anchors, bundles and review reports: loading, generating, naming, endorsing the next one.

Functions import the library when they run: it takes 7 MB, and most gateways have no such key.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal

from gateway.audit.content_hash import WeakKey, decode_secret, load_secret
from gateway.audit.entries import AuditKeyRotation

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Purpose = Literal["anchor", "bundle", "review"]
_PURPOSES: Final[Mapping[Purpose, bytes]] = {
    "anchor": b"gateway-audit-anchor/1\n",
    "bundle": b"gateway-bundle-manifest/1\n",
    "review": b"gateway-review-report/1\n",
}
"""Prefix of the signed bytes for each purpose, so that a signature is not valid for another purpose."""
_ENDORSED: Final = b"gateway-audit-key/1\n"
_RAW: Final = 32
_KEYGEN_HELP: Final = "make a pair with: gateway audit keygen FILE"

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
"""Public keys that accept forged signatures: the points whose order divides eight, in every encoding."""


@dataclass(frozen=True, slots=True)
class VerifyKey:
    """Checks signatures. `id` names it in anchors."""

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != _RAW or self.raw in SMALL_ORDER:
            raise WeakKey("the public key is one under which any signature can be forged", help=_KEYGEN_HELP)

    @classmethod
    def load(cls, text: str | bytes) -> "VerifyKey":
        """Load PEM, 32 raw bytes, hexadecimal or base64. Raise `WeakKey`, also for a private key."""
        data = text.encode() if isinstance(text, str) else text
        if b"PRIVATE KEY" in data:
            raise WeakKey("this is a private key", help="verify with the public one, the file that ends in .pub")
        if b"-----BEGIN" not in data:
            raw = decode_secret(data)
            if raw is None or len(raw) != _RAW:
                raise WeakKey("the public key is neither PEM nor 32 bytes", help=_KEYGEN_HELP)
            return cls(raw)
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            key = load_pem_public_key(data)
        except (ValueError, UnsupportedAlgorithm):
            raise WeakKey("the public key cannot be read", help=_KEYGEN_HELP) from None
        if not isinstance(key, Ed25519PublicKey):
            raise WeakKey("the public key is not an Ed25519 key", help=_KEYGEN_HELP)
        return cls(key.public_bytes_raw())

    @property
    def id(self) -> str:
        return sha256(self.raw).hexdigest()[:16]

    def pem(self) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        key = Ed25519PublicKey.from_public_bytes(self.raw)
        return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def has_signed(self, message: bytes, signature: bytes, *, purpose: Purpose = "anchor") -> bool:
        """Whether this key signed the message for this purpose."""
        return self._is_valid(_PURPOSES[purpose] + message, signature)

    def endorses(self, part: AuditKeyRotation) -> "VerifyKey | None":
        """Return the key that this one endorses; `None` if the endorsement is not valid."""
        raw, signature = _decode(part.public), _decode(part.endorsement)
        if part.before != self.id or raw is None or signature is None or not self._is_valid(_ENDORSED + raw, signature):
            return None
        try:
            after = VerifyKey(raw)
        except WeakKey:
            return None
        return after if after.id == part.after else None

    def _is_valid(self, message: bytes, signature: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class SigningKey:
    """Signs anchors, bundles and review reports. The private key is never shown."""

    _key: "Ed25519PrivateKey" = field(repr=False)
    public: VerifyKey

    @classmethod
    def load(cls, secret: str | bytes) -> "SigningKey":
        """Load PEM without a passphrase, 32 raw bytes, hexadecimal or base64. Raise `WeakKey`."""
        data = secret.encode() if isinstance(secret, str) else secret
        if not data.strip():
            raise WeakKey("there is no key to sign anchors with", help=_KEYGEN_HELP)
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        if b"-----BEGIN" not in data:
            raw = load_secret(data, "the anchor key", least=_RAW, help=_KEYGEN_HELP)
            if len(raw) != _RAW:
                raise WeakKey("the anchor key is neither PEM nor 32 bytes", help=_KEYGEN_HELP)
            return cls._from_key(Ed25519PrivateKey.from_private_bytes(raw))
        try:
            key = load_pem_private_key(data, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise WeakKey(
                "the private key cannot be read, or needs a passphrase",
                help=f"{_KEYGEN_HELP}; the file mode protects it",
            ) from None
        if not isinstance(key, Ed25519PrivateKey):
            raise WeakKey("the private key is not an Ed25519 key", help=_KEYGEN_HELP)
        return cls._from_key(key)

    @classmethod
    def generate(cls) -> "SigningKey":
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls._from_key(Ed25519PrivateKey.generate())

    @classmethod
    def _from_key(cls, key: "Ed25519PrivateKey") -> "SigningKey":
        return cls(key, VerifyKey(key.public_key().public_bytes_raw()))

    @property
    def id(self) -> str:
        return self.public.id

    def sign(self, message: bytes, *, purpose: Purpose = "anchor") -> bytes:
        return self._key.sign(_PURPOSES[purpose] + message)

    def endorse(self, after: VerifyKey) -> AuditKeyRotation:
        """Return the content of a `key-rotated` entry: this key endorses the next."""
        signature = self._key.sign(_ENDORSED + after.raw)
        return AuditKeyRotation(
            self.id, after.id, base64.b64encode(after.raw).decode(), base64.b64encode(signature).decode()
        )

    def pem(self) -> bytes:
        """Return PEM, for a file that only its owner can read."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None

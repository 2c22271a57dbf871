"""Keyed hashes of arguments and results in the log: they show whether two contents are equal, and nothing else.

Without the key, likely contents cannot be tried out; with the key and a content, one can prove what a call contained.
Secrets are raw bytes, hexadecimal or base64; human-made passwords are refused.
"""

import base64
import binascii
import hmac
import re
from hashlib import sha256
from typing import Final

from gateway.errors import ProgramError

_HEX: Final = re.compile(rb"(?:[0-9A-Fa-f]{2})+")
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/_-]+={0,2}")
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_MIN_DISTINCT: Final = 16
"""32 random bytes contain 30 different ones on average; fewer than 16 do not occur by chance."""


class WeakKey(ProgramError):
    code = "E_WEAK_KEY"
    default_message = "the key cannot be used"


def load_secret(secret: str | bytes, what: str, *, least: int, help: str) -> bytes:
    """Return the bytes of a secret. Raise `WeakKey`; neither message nor help quotes the secret."""
    found = decode_secret(secret.encode() if isinstance(secret, str) else secret)
    if found is None:
        raise WeakKey(f"{what} is a text, neither hexadecimal nor base64", help=help)
    if len(found) < least:
        raise WeakKey(f"{what} has {len(found)} bytes, but needs at least {least}", help=help)
    if len(set(found)) < _MIN_DISTINCT:
        raise WeakKey(f"{what} repeats a few bytes, so it can be guessed", help=help)
    return found


def decode_secret(text: bytes) -> bytes | None:
    """Decode the bytes; return `None` for printable text, which random bytes never are."""
    stripped = text.strip()
    if _HEX.fullmatch(stripped):
        return binascii.unhexlify(stripped)
    if _BASE64.fullmatch(stripped):
        try:
            return base64.b64decode(stripped.translate(_URL_SAFE) + b"==")
        except binascii.Error:
            return None
    is_text = stripped.isascii() and stripped.decode().isprintable()
    return None if stripped and is_text else text


MIN_BYTES: Final = 32

_KEYGEN_HELP: Final = "make one with: gateway audit keygen --for contents FILE"
_ARGUMENTS: Final = b"arguments\n"
_RESULT: Final = b"result\n"
_NAME: Final = b"name\n"
_TOKEN: Final = b"token\n"
_BLOCK: Final = 64
_INNER: Final = bytes(value ^ 0x36 for value in range(256))
_OUTER: Final = bytes(value ^ 0x5C for value in range(256))


class _KeyedHash:
    """HMAC-SHA256 (RFC 2104) of a label and a content. The key is hashed once instead of with every content: a call has
    two contents, and the objects of `hmac` take twice as long.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes, label: bytes) -> None:
        block = (key if len(key) <= _BLOCK else sha256(key).digest()).ljust(_BLOCK, b"\0")
        self._inner: Final = sha256(block.translate(_INNER) + label)
        self._outer: Final = sha256(block.translate(_OUTER))

    def hash(self, content: bytes) -> str:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        return outer.hexdigest()


class ContentKey:
    """Hashes contents. The key itself is never shown; `id` names it in entries, so that it can be rotated."""

    __slots__ = ("_arguments", "_key", "_name", "_result", "_token", "id")

    def __init__(self, secret: str | bytes) -> None:
        """Raise `WeakKey` for a secret that could be guessed."""
        key = load_secret(secret, "the content key", least=MIN_BYTES, help=_KEYGEN_HELP)
        self.id: Final = hmac.digest(key, b"id\n", "sha256").hex()[:16]
        self._key: Final = key
        self._arguments: Final = _KeyedHash(key, _ARGUMENTS)
        self._result: Final = _KeyedHash(key, _RESULT)
        self._name: Final = _KeyedHash(key, _NAME)
        self._token: Final = _KeyedHash(key, _TOKEN)

    def arguments(self, fingerprint: bytes) -> str:
        """Hash the exact digest of a call, which covers its arguments: only equal calls have equal hashes."""
        return self._arguments.hash(fingerprint)

    def result(self, content: bytes) -> str:
        return self._result.hash(content)

    def name(self, text: str) -> str:
        """Hash the name of a principal for places where names must not appear; short, because it proves nothing."""
        return self._name.hash(text.encode("utf-8", "surrogatepass"))[:32]

    def token(self, id: str) -> str:
        """Hash the id of a credential: a reader who knows the id can find its uses, others do not learn it."""
        return self._token.hash(id.encode("utf-8", "surrogatepass"))

    def export_secret(self) -> str:
        """Return the key itself, for a writer process that the gateway starts, over its own pipe."""
        return self._key.hex()

    def __reduce__(self) -> str:
        raise TypeError("a key cannot be copied or pickled")

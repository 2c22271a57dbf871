"""Secrets as bytes: raw, hexadecimal or base64, and none that a person made up."""

import base64
import binascii
import re
from typing import Final

from gateway.errors import ProgramError

_HEX: Final = re.compile(rb"(?:[0-9A-Fa-f]{2})+")
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/_-]+={0,2}")
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_FEWEST_DIFFERENT: Final = 16
"""Of 32 random bytes 30 are different on average; fewer than 16 do not happen by chance."""


class WeakKey(ProgramError):
    code = "E_WEAK_KEY"
    default_message = "the key cannot be used"


def secret_bytes(secret: str | bytes, what: str, *, least: int, help: str) -> bytes:
    """The bytes that a secret stands for. Raises `WeakKey`; neither message nor help shows any of it."""
    found = decoded(secret.encode() if isinstance(secret, str) else secret)
    if found is None:
        raise WeakKey(f"{what} is a text, neither hexadecimal nor base64", help=help)
    if len(found) < least:
        raise WeakKey(f"{what} has {len(found)} bytes, and {least} are the least", help=help)
    if len(set(found)) < _FEWEST_DIFFERENT:
        raise WeakKey(f"{what} repeats a few bytes, so it can be guessed", help=help)
    return found


def decoded(written: bytes) -> bytes | None:
    """The bytes that are written there; `None` for words, which random bytes never look like."""
    stripped = written.strip()
    if _HEX.fullmatch(stripped):
        return binascii.unhexlify(stripped)
    if _BASE64.fullmatch(stripped):
        try:
            return base64.b64decode(stripped.translate(_URL_SAFE) + b"==")
        except binascii.Error:
            return None
    is_text = stripped.isascii() and stripped.decode().isprintable()
    return None if stripped and is_text else written

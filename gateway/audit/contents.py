"""Arguments and results in the log: as keyed hashes, which tell that two are equal and nothing else.

Without the key nobody can try likely contents one after the other; whoever has both can prove what a call was about.
"""

import hmac
from hashlib import sha256
from typing import Final

from gateway.audit.secret_bytes import secret_bytes

MIN_BYTES: Final = 32

_MAKE_ONE: Final = "make one with: gateway audit keygen --for contents FILE"
_ARGUMENTS: Final = b"arguments\n"
_RESULT: Final = b"result\n"
_NAME: Final = b"name\n"
_TOKEN: Final = b"token\n"
_BLOCK: Final = 64
_INNER: Final = bytes(value ^ 0x36 for value in range(256))
_OUTER: Final = bytes(value ^ 0x5C for value in range(256))


class _Keyed:
    """HMAC-SHA256 (RFC 2104) of a label and what follows it. The key is hashed in once, not with every content: a call
    has two of them, and the library's own objects take twice as long.
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
        """Raises `WeakKey` for one that could be guessed."""
        key = secret_bytes(secret, "the key of contents", least=MIN_BYTES, help=_MAKE_ONE)
        self.id: Final = hmac.digest(key, b"id\n", "sha256").hex()[:16]
        self._key: Final = key
        self._arguments: Final = _Keyed(key, _ARGUMENTS)
        self._result: Final = _Keyed(key, _RESULT)
        self._name: Final = _Keyed(key, _NAME)
        self._token: Final = _Keyed(key, _TOKEN)

    def arguments(self, fingerprint: bytes) -> str:
        """By the exact digest of the call, which covers them: equal calls have equal hashes, however they were written,
        and other calls have others.
        """
        return self._arguments.hash(fingerprint)

    def result(self, content: bytes) -> str:
        return self._result.hash(content)

    def name(self, text: str) -> str:
        """Of who somebody is, for where names must not go: short, because nobody has to prove anything by it."""
        return self._name.hash(text.encode("utf-8", "surrogatepass"))[:32]

    def token(self, id: str) -> str:
        """A credential by its id: who knows the id finds what was done with it, and nobody else learns the id."""
        return self._token.hash(id.encode("utf-8", "surrogatepass"))

    def for_our_own_process(self) -> str:
        """The key itself, as this class takes it: for a process that we start to write entries, over its own pipe."""
        return self._key.hex()

    def __reduce__(self) -> str:
        raise TypeError("a key is not copied or written down")

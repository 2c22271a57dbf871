"""Arguments and results in the log: as keyed hashes, which tell that two are equal and nothing else.

Without the key nobody can try likely contents one after the other; whoever has both can prove what a call was about.
"""

import hmac
from typing import Final

from gateway.audit.secret_bytes import secret_bytes

MIN_BYTES: Final = 32

_MAKE_ONE: Final = "make one with: gateway audit keygen --for contents FILE"
_ARGUMENTS: Final = b"arguments\n"
_RESULT: Final = b"result\n"
_NAME: Final = b"name\n"
_TOKEN: Final = b"token\n"


class ContentKey:
    """Hashes contents. The key itself is never shown; `id` names it in entries, so that it can be rotated."""

    __slots__ = ("_arguments", "_name", "_result", "_token", "id")

    def __init__(self, secret: str | bytes) -> None:
        """Raises `WeakKey` for one that could be guessed."""
        key = secret_bytes(secret, "the key of contents", least=MIN_BYTES, help=_MAKE_ONE)
        self.id: Final = hmac.digest(key, b"id\n", "sha256").hex()[:16]
        self._arguments: Final = hmac.new(key, _ARGUMENTS, "sha256")
        self._result: Final = hmac.new(key, _RESULT, "sha256")
        self._name: Final = hmac.new(key, _NAME, "sha256")
        self._token: Final = hmac.new(key, _TOKEN, "sha256")

    def arguments(self, checksum: bytes) -> str:
        """By the checksum of the call, which covers them: equal calls have equal hashes, however they were written."""
        running = self._arguments.copy()
        running.update(checksum)
        return running.hexdigest()

    def result(self, content: bytes) -> str:
        running = self._result.copy()
        running.update(content)
        return running.hexdigest()

    def name(self, text: str) -> str:
        """Of who somebody is, for where names must not go: short, because nobody has to prove anything by it."""
        running = self._name.copy()
        running.update(text.encode("utf-8", "surrogatepass"))
        return running.hexdigest()[:32]

    def token(self, id: str) -> str:
        """A credential by its id: who knows the id finds what was done with it, and nobody else learns the id."""
        running = self._token.copy()
        running.update(id.encode("utf-8", "surrogatepass"))
        return running.hexdigest()

    def __reduce__(self) -> str:
        raise TypeError("a key is not copied or written down")

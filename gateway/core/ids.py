"""Ids and secrets nobody can guess, cut from random bytes that are fetched many at a time.

Asking the kernel for each id costs more than everything else a call does with it.
"""

import os
from binascii import b2a_base64
from threading import Lock
from time import time_ns
from typing import Final

_AT_ONCE: Final = 8_192
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_VARIANTS: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


class _Pool:
    """Bytes of the kernel's generator, each given out once. A forked child starts with none of its parent's."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._bytes = b""
        self._next = 0
        os.register_at_fork(after_in_child=self._forget)

    def take(self, size: int) -> bytes:
        with self._lock:
            start = self._next
            self._next = end = start + size
            if end > len(self._bytes):
                self._bytes = os.urandom(max(_AT_ONCE, size))
                start, self._next = 0, size
                end = size
            return self._bytes[start:end]

    def _forget(self) -> None:
        self._lock = Lock()
        self._bytes = b""
        self._next = 0


_POOL: Final = _Pool()


def random_bytes(size: int) -> bytes:
    return _POOL.take(size)


def new_id() -> str:
    """A UUID of version 4."""
    text = _POOL.take(16).hex()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{_VARIANTS[text[16]]}{text[17:20]}-{text[20:]}"


def new_token(size: int) -> str:
    """That many random bytes as text that is safe in URLs and headers.

    The moment it was made at stands before them: what is made together lies together in every index.
    """
    text = b2a_base64(_POOL.take(size), newline=False).translate(_URL_SAFE).rstrip(b"=")
    return f"{time_ns() // 1_000_000:012x}{text.decode('ascii')}"

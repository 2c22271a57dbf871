"""Ids and secrets nobody can guess, cut from random bytes that are fetched many at a time.

Asking the kernel for each id costs more than everything else a call does with it.
"""

import os
from binascii import b2a_base64
from time import time_ns
from typing import Final

_AT_ONCE: Final = 256
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_VARIANTS: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


class _Pool:
    """Pieces of the kernel's random bytes, each given out once. A forked child starts with none of its parent's."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pieces: list[bytes] = []
        os.register_at_fork(after_in_child=self._pieces.clear)

    def take(self) -> bytes:
        while True:
            try:
                return self._pieces.pop()  # in one step: no two threads are given the same
            except IndexError:
                self._fetch()

    def _fetch(self) -> None:
        fetched, size = os.urandom(_AT_ONCE * self._size), self._size
        self._pieces.extend([fetched[start : start + size] for start in range(0, len(fetched), size)])


_POOLS: Final = {size: _Pool(size) for size in (8, 16, 24, 32)}
"""Of the sizes that every call asks for."""


def random_bytes(size: int) -> bytes:
    pool = _POOLS.get(size)
    return os.urandom(size) if pool is None else pool.take()


def new_id() -> str:
    """A UUID of version 4."""
    text = _POOLS[16].take().hex()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{_VARIANTS[text[16]]}{text[17:20]}-{text[20:]}"


def new_token(size: int) -> str:
    """That many random bytes as text that is safe in URLs and headers.

    The moment it was made at stands before them: what is made together lies together in every index.
    """
    text = b2a_base64(random_bytes(size), newline=False).translate(_URL_SAFE).rstrip(b"=").decode("ascii")
    return (time_ns() // 1_000_000).to_bytes(6).hex() + text

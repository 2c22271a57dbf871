"""Random ids and secrets.

Random bytes are fetched from the kernel, and formatted as text, for many ids at a time: doing it for each id would cost
more than everything else a call does with the id.
"""

import os
from binascii import b2a_base64
from collections.abc import Callable
from functools import partial
from time import time_ns
from typing import AnyStr, Final, Generic

_AT_ONCE: Final = 256
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")

_UUID: Final = b"********-****-4***-****-************"
_DIGITS: Final = [place for place, sign in enumerate(_UUID) if sign == ord("*")]
_VARIANT: Final = 19
"""Position of the hex digit that holds the two variant bits."""
_VARIANTS: Final = bytes.maketrans(b"0123456789abcdef", b"89ab89ab89ab89ab")


class _Pool(Generic[AnyStr]):
    """A pool of random pieces; each is taken once. A forked child starts with an empty pool."""

    def __init__(self, fetch: Callable[[], list[AnyStr]]) -> None:
        self._fetch: Callable[[], list[AnyStr]] = fetch
        self._pieces: list[AnyStr] = []
        os.register_at_fork(after_in_child=self._pieces.clear)

    def take(self) -> AnyStr:
        while True:
            try:
                return self._pieces.pop()  # atomic: no two threads take the same piece
            except IndexError:
                self._pieces.extend(self._fetch())


def _cut(fetched: AnyStr, size: int) -> list[AnyStr]:
    return [fetched[start : start + size] for start in range(0, len(fetched), size)]


def _pieces(size: int) -> list[bytes]:
    return _cut(os.urandom(_AT_ONCE * size), size)


def _uuids() -> list[str]:
    """Return many UUIDs, formatted at once, column by column."""
    random = os.urandom(_AT_ONCE * 16).hex().encode()
    texts, width = bytearray(_UUID * _AT_ONCE), len(_UUID)
    for column, place in enumerate(_DIGITS):
        texts[place::width] = random[column::32]
    texts[_VARIANT::width] = texts[_VARIANT::width].translate(_VARIANTS)
    return _cut(texts.decode(), width)


def _url_safe(random: bytes) -> str:
    return b2a_base64(random, newline=False).translate(_URL_SAFE).rstrip(b"=").decode("ascii")


_HANDLE: Final = 24
"""Bytes of the tokens that every call needs. Three bytes are four characters, so many tokens are encoded at once."""

_POOLS: Final = {size: _Pool(partial(_pieces, size)) for size in (8, 16, 32)}
"""Pools for the most frequent sizes."""
_TOKENS: Final = _Pool(lambda: _cut(_url_safe(os.urandom(_AT_ONCE * _HANDLE)), _HANDLE * 4 // 3))

new_id: Final = _Pool(_uuids).take
"""Return a UUID of version 4."""

new_secret: Final = _POOLS[32].take
"""Return 256 random bits."""

new_random_128: Final = _POOLS[16].take
"""Return 128 random bits, as bytes."""

new_random_64: Final = _POOLS[8].take
"""Return 64 random bits, to distinguish items that are created at the same time."""


def random_bytes(size: int) -> bytes:
    pool = _POOLS.get(size)
    return os.urandom(size) if pool is None else pool.take()


def new_token(size: int) -> str:
    """Return a token that is safe in URLs and headers: a timestamp, then `size` random bytes.

    The timestamp comes first, so that tokens of the same time are adjacent in every index.
    """
    text = _TOKENS.take() if size == _HANDLE else _url_safe(random_bytes(size))
    return (time_ns() // 1_000_000).to_bytes(6).hex() + text

"""Ids and secrets nobody can guess, cut from random bytes that are fetched many at a time.

Asking the kernel for each id costs more than everything else a call does with it, and so does writing each of them as
text by itself.
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
"""Where the digit stands that has two bits of its own."""
_VARIANTS: Final = bytes.maketrans(b"0123456789abcdef", b"89ab89ab89ab89ab")


class _Pool(Generic[AnyStr]):
    """Pieces of the kernel's random bytes, each given out once. A forked child starts with none of its parent's."""

    def __init__(self, fetch: Callable[[], list[AnyStr]]) -> None:
        self._fetch: Callable[[], list[AnyStr]] = fetch
        self._pieces: list[AnyStr] = []
        os.register_at_fork(after_in_child=self._pieces.clear)

    def take(self) -> AnyStr:
        while True:
            try:
                return self._pieces.pop()  # in one step: no two threads are given the same
            except IndexError:
                self._pieces.extend(self._fetch())


def _cut(fetched: AnyStr, size: int) -> list[AnyStr]:
    return [fetched[start : start + size] for start in range(0, len(fetched), size)]


def _pieces(size: int) -> list[bytes]:
    return _cut(os.urandom(_AT_ONCE * size), size)


def _uuids() -> list[str]:
    """Written column by column, all of them at once."""
    random = os.urandom(_AT_ONCE * 16).hex().encode()
    texts, width = bytearray(_UUID * _AT_ONCE), len(_UUID)
    for column, place in enumerate(_DIGITS):
        texts[place::width] = random[column::32]
    texts[_VARIANT::width] = texts[_VARIANT::width].translate(_VARIANTS)
    return _cut(texts.decode(), width)


def _url_safe(random: bytes) -> str:
    return b2a_base64(random, newline=False).translate(_URL_SAFE).rstrip(b"=").decode("ascii")


_HANDLE: Final = 24
"""Bytes of the tokens that every call asks for: three of them are four characters, so many can be written at once."""

_POOLS: Final = {size: _Pool(partial(_pieces, size)) for size in (8, 16, 32)}
"""Of the sizes that are asked for most."""
_TOKENS: Final = _Pool(lambda: _cut(_url_safe(os.urandom(_AT_ONCE * _HANDLE)), _HANDLE * 4 // 3))

new_id: Final = _Pool(_uuids).take
"""A UUID of version 4."""

new_secret: Final = _POOLS[32].take
"""256 random bits."""

new_number: Final = _POOLS[16].take
"""128 of them."""

new_salt: Final = _POOLS[8].take
"""64 of them, to tell apart what is made in one moment."""


def random_bytes(size: int) -> bytes:
    pool = _POOLS.get(size)
    return os.urandom(size) if pool is None else pool.take()


def new_token(size: int) -> str:
    """That many random bytes as text that is safe in URLs and headers.

    The moment it was made at stands before them: what is made together lies together in every index.
    """
    text = _TOKENS.take() if size == _HANDLE else _url_safe(random_bytes(size))
    return (time_ns() // 1_000_000).to_bytes(6).hex() + text

"""Compressed answers, decoded piece by piece: no more in memory than one piece, no more out than is believable."""

import zlib
from collections.abc import AsyncGenerator, AsyncIterable, Iterator
from typing import Any, Final

from gateway.governance.ports import BackendFailed

ACCEPTED: Final = "gzip, deflate"

_PIECE: Final = 1 << 16
_MAX_RATIO: Final = 200
_FREE: Final = 16 << 20
"""Up to here any ratio is believed: what is short may well compress to nothing."""

_GZIP: Final = 16 + zlib.MAX_WBITS


async def decoded(chunks: AsyncIterable[bytes], encoding: str, *, limit: int) -> AsyncGenerator[bytes, None]:
    """The content behind a `Content-Encoding`. Raises `BackendFailed` for a bomb, a broken or an unknown one."""
    encoding = encoding.strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise BackendFailed("failed", "the service answered in an encoding that was not asked for")
    taken = given = 0
    inflater = None if encoding in ("", "identity") else _Inflater(encoding)
    async for chunk in chunks:
        taken += len(chunk)
        for piece in [chunk] if inflater is None else inflater.pieces(chunk):
            given += len(piece)
            if given > limit:
                raise BackendFailed("failed", f"the answer has more than {limit} bytes")
            if given > _FREE and given > taken * _MAX_RATIO:
                raise BackendFailed("failed", "the answer grows out of proportion when it is decompressed")
            yield piece
    if inflater is not None and taken and not inflater.is_complete:
        raise BackendFailed("unavailable", "the answer ended early")


class _Inflater:
    """One gzip or deflate stream; gzip may have several members, deflate may lack its header."""

    def __init__(self, encoding: str) -> None:
        self._is_gzip = encoding != "deflate"
        self._inflate: Any = zlib.decompressobj(_GZIP if self._is_gzip else zlib.MAX_WBITS)
        self._begun = False

    @property
    def is_complete(self) -> bool:
        return bool(self._inflate.eof)

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        is_full = False  # then more may wait inside, even if nothing is left to read
        while chunk or is_full:
            piece, chunk = self._step(chunk)
            is_full = len(piece) == _PIECE
            if piece:
                yield piece

    def _step(self, data: bytes) -> tuple[bytes, bytes]:
        """Up to one piece, and what is still to be read."""
        if self._inflate.eof:
            if not self._is_gzip or not data.strip(b"\x00"):
                return b"", b""  # padding
            self._inflate = zlib.decompressobj(_GZIP)
        try:
            piece = self._inflate.decompress(data, _PIECE)
        except zlib.error as error:
            if self._is_gzip or self._begun:
                raise BackendFailed("failed", "the answer is not what its encoding says") from error
            self._begun = True
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
            return b"", data
        self._begun = True
        return piece, self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail

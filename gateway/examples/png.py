"""A small picture of rectangles, written as PNG with the standard library."""

import struct
import zlib
from typing import Final

Colour = tuple[int, int, int]

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_TRUE_COLOUR: Final = 2


class Canvas:
    """Pixels, row by row from the top. What is drawn outside is cut off."""

    def __init__(self, width: int, height: int, paper: Colour) -> None:
        self._width = width
        self._height = height
        self._rows = [bytearray(bytes(paper) * width) for _ in range(height)]

    def fill(self, left: int, top: int, *, width: int, height: int, colour: Colour) -> None:
        first, last = max(left, 0), min(left + width, self._width)
        if first < last:
            for row in self._rows[max(top, 0) : max(top + height, 0)]:
                row[first * 3 : last * 3] = bytes(colour) * (last - first)

    def png(self) -> bytes:
        header = struct.pack(">IIBBBBB", self._width, self._height, 8, _TRUE_COLOUR, 0, 0, 0)
        unfiltered = b"".join(b"\x00" + row for row in self._rows)
        return b"".join(
            (_SIGNATURE, _chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(unfiltered, 9)), _chunk(b"IEND", b""))
        )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

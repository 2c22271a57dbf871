"""Copying the large pieces of one spool into another: from files into a bucket, or back. Keys stay what they are.

Records name pieces by their keys alone, so they need not be changed. What is there already is not copied again: a copy
that was interrupted goes on where it stopped. Nothing counts as copied that was not read back.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from gateway.errors import StorageError
from gateway.storage.keys import Key, parsed
from gateway.storage.spool import LargePieces, LargeReader

_CHUNK: Final = 1 << 20
_EVERYTHING: Final = datetime(9999, 1, 1, tzinfo=UTC)


class NotCopied(StorageError):
    code = "E_NOT_COPIED"
    default_message = "the copy is not what was copied"


@dataclass(slots=True)
class Copied:
    """How far a copy is."""

    pieces: int = 0
    bytes: int = 0
    already_there: int = 0


async def copy_pieces(
    source: LargePieces, target: LargePieces, *, told: Callable[[Copied], None] = lambda copied: None
) -> Copied:
    """Copy everything that can be found; `told` hears of every piece. Nothing is deleted, on neither side.

    Raises `NotCopied` for a piece that reads otherwise than it was read, and what readers and stores raise.
    """
    copied = Copied()
    async for key in _keys(source):
        reader = await source.open(key)
        if reader is None:  # half written, or deleted meanwhile
            continue
        there = await target.open(key)
        if there is None:
            there = await _put(reader, key, target)
            copied.pieces += 1
            copied.bytes += reader.byte_length()
        else:
            copied.already_there += 1
        if await _digest(there) != await _digest(reader):
            raise NotCopied(
                f"the copy of {key} is not what was copied",
                help="delete it from where it was copied to, and copy again",
            )
        told(copied)
    return copied


async def _keys(source: LargePieces) -> AsyncIterator[Key]:
    last = None
    async for some in source.older(_EVERYTHING):
        for key in map(parsed, some):
            if key is not None and key != last:  # a list may break off between two objects of one piece
                yield key
            last = key


async def _put(reader: LargeReader, key: Key, target: LargePieces) -> LargeReader:
    writing = await target.begin(key)
    try:
        async for chunk in _chunks(reader):
            await writing.append(chunk)
        return await writing.published()
    except BaseException:
        await writing.discard()
        raise


async def _digest(reader: LargeReader) -> bytes:
    digest = sha256()
    async for chunk in _chunks(reader):
        digest.update(chunk)
    return digest.digest()


async def _chunks(reader: LargeReader) -> AsyncIterator[bytes]:
    for offset in range(0, reader.byte_length(), _CHUNK):
        yield await asyncio.to_thread(reader.read_range, offset, _CHUNK)

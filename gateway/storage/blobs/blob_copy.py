"""Copy large results from one spool to another, between files and a bucket. Keys stay the same.

Records name pieces by their keys alone, so they need not be changed. Pieces that are there already are not copied
again: an interrupted copy continues where it stopped. A piece counts as copied when it was read back.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from gateway.errors import StorageError
from gateway.storage.blobs.blob_store import BlobKey, BlobReader, BlobStore, parse_key

_CHUNK: Final = 1 << 20
_EVERYTHING: Final = datetime(9999, 1, 1, tzinfo=UTC)


class CopyFailed(StorageError):
    code = "E_NOT_COPIED"
    default_message = "the copy is not what was copied"


@dataclass(slots=True)
class CopyProgress:
    """How far a copy is."""

    pieces: int = 0
    bytes: int = 0
    already_there: int = 0


async def copy_blobs(
    source: BlobStore, target: BlobStore, *, told: Callable[[CopyProgress], None] = lambda copied: None
) -> CopyProgress:
    """Copy all pieces; `told` is called after each. Nothing is deleted on either side.

    Raises `CopyFailed` for a piece that differs when it is read back, and what readers and stores raise.
    """
    copied = CopyProgress()
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
            raise CopyFailed(
                f"the copy of {key} is not what was copied",
                help="delete it from where it was copied to, and copy again",
            )
        told(copied)
    return copied


async def _keys(source: BlobStore) -> AsyncIterator[BlobKey]:
    last = None
    async for some in source.list_older(_EVERYTHING):
        for key in map(parse_key, some):
            if key is not None and key != last:  # a page of the list may end between two objects of one piece
                yield key
            last = key


async def _put(reader: BlobReader, key: BlobKey, target: BlobStore) -> BlobReader:
    writing = await target.start_write(key)
    try:
        async for chunk in _chunks(reader):
            await writing.append(chunk)
        return await writing.publish()
    except BaseException:
        await writing.discard()
        raise


async def _digest(reader: BlobReader) -> bytes:
    digest = sha256()
    async for chunk in _chunks(reader):
        digest.update(chunk)
    return digest.digest()


async def _chunks(reader: BlobReader) -> AsyncIterator[bytes]:
    for offset in range(0, reader.byte_length(), _CHUNK):
        yield await asyncio.to_thread(reader.read_range, offset, _CHUNK)

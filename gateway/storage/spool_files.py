"""Large pieces as files: whole, synced and in place before anybody gets a reader of one."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Final, Self

from gateway.core.lines import LineIndex
from gateway.errors import ArtifactGone
from gateway.storage.keys import Key
from gateway.storage.spool import LargeReader, PieceSpool, SmallPieces
from gateway.storage.spool_folder import SpoolFolder, reported

_CHUNK: Final = 1 << 20


class FileSpool(PieceSpool):
    """A spool whose large pieces are files."""

    @classmethod
    async def open(
        cls,
        root: str | Path,
        *,
        small: SmallPieces | None = None,
        max_output: int | None = None,
        quota: int | None = None,
    ) -> Self:
        """Open or create a spool; what processes that are gone left half written is removed."""
        folder = await asyncio.to_thread(SpoolFolder, Path(root).absolute())
        return cls(FilePieces(folder), small=small, max_output=max_output, quota=quota)


class FileReader(LargeReader):
    """A result in a file; no descriptor stays open between two reads."""

    def __init__(self, folder: SpoolFolder, key: Key, index: LineIndex) -> None:
        super().__init__(key, index)
        self._folder = folder
        self._key = key

    def read_range(self, offset: int, length: int) -> bytes:
        return self._folder.read(self._key, offset=offset, length=length)


class FilePieces:
    """Implements `LargePieces`."""

    def __init__(self, folder: SpoolFolder) -> None:
        self._folder = folder

    @property
    def trouble(self) -> str | None:
        """Only whoever writes to a disk learns how it is."""
        return None

    async def begin(self, key: Key) -> "_Part":
        return _Part(self._folder, key)

    async def open(self, key: Key) -> FileReader | None:
        try:
            return await asyncio.to_thread(lambda: FileReader(self._folder, key, _index_of(self._folder, key)))
        except ArtifactGone:
            return None

    async def delete(self, key: Key) -> int | None:
        return await asyncio.to_thread(self._folder.delete, key)

    async def names(self, tenant: str, turn: str, slot: str) -> list[str]:
        names = await asyncio.to_thread(self._folder.names, tenant, turn)
        return [name for name in names if name.startswith(f"{slot}.")]

    async def used(self, tenant: str) -> int:
        return await asyncio.to_thread(self._used, tenant)

    async def older(self, before: datetime) -> AsyncIterator[list[str]]:
        for tenant in await asyncio.to_thread(self._folder.tenants):
            for turn in await asyncio.to_thread(self._folder.turns, tenant):
                yield await asyncio.to_thread(self._folder.older, tenant, turn, before=before.timestamp())

    async def close(self) -> None:
        await asyncio.to_thread(self._folder.close)

    def _used(self, tenant: str) -> int:
        sizes = 0
        for turn in self._folder.turns(tenant):
            for name in self._folder.names(tenant, turn):
                try:
                    sizes += self._folder.status(Key("f", tenant, turn, name)).st_size
                except ArtifactGone:  # deleted meanwhile
                    continue
        return sizes


class _Part:
    """A file on its way."""

    def __init__(self, folder: SpoolFolder, key: Key) -> None:
        self._file, self._name = folder.create_part()
        self._folder = folder
        self._key = key
        self._index = LineIndex()
        self._is_published = False

    async def append(self, chunk: bytes) -> None:
        if len(chunk) < _CHUNK:  # a thread hop costs more than writing this
            self._append(chunk)
        else:
            await _to_the_end(lambda: self._append(chunk))

    async def published(self) -> FileReader:
        await _to_the_end(self._publish)
        return FileReader(self._folder, self._key, self._index)

    async def discard(self) -> None:
        self._file.close()
        if not self._is_published:
            self._folder.discard_part(self._name)
        else:  # its caller stopped waiting in the last moment, and nobody will know the key
            self._folder.delete(self._key)

    def _append(self, chunk: bytes) -> None:
        with reported():
            unwritten = memoryview(chunk)
            while unwritten:
                unwritten = unwritten[self._file.write(unwritten) :]
        self._index.feed(chunk)

    def _publish(self) -> None:
        with reported(), self._file:
            os.fsync(self._file.fileno())
        self._folder.publish(self._name, self._key, index=self._index)
        self._is_published = True


async def _to_the_end(work: Callable[[], None]) -> None:
    """Run work in a thread. If its caller is cancelled, that counts when the work is done: the file is in use."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _index_of(folder: SpoolFolder, key: Key) -> LineIndex:
    size = folder.status(key).st_size
    try:
        stored = folder.read(key, offset=0, length=LineIndex.stored_size(size) + 1, suffix=".lines")
    except ArtifactGone:
        stored = b""
    index = LineIndex.from_bytes(stored, size)
    if index is None:
        index = LineIndex()
        while chunk := folder.read(key, offset=index.size, length=_CHUNK):
            index.feed(chunk)
    return index

"""The spool of a served gateway: large results are files, small ones go into the transaction of their record.

A small result costs no file and no sync of its own: its bytes wait in its reader, which hands them to the record. So
there is no moment at which one is durable without the other, and nothing is left behind by a call that never settles.
A large one is whole, synced and in place before anybody gets its reader.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol, Self
from weakref import ref

from gateway.core.lines import IndexedReader, LineIndex
from gateway.core.spool import Content, InMemoryReader, Stream, chunks_of
from gateway.errors import ArtifactGone, OutputTooLarge, SpoolQuotaExceeded
from gateway.storage.keys import Key, hashed, hashed_turn, next_generation, parsed
from gateway.storage.spool_folder import SpoolFolder, reported

SMALL: Final = 64 * 1024
"""The largest result that is kept with its record."""

_CHUNK: Final = 1 << 20


Known = Callable[[Sequence[str]], Awaitable[set[str]]]
"""Which of these keys a record names."""


class SmallPieces(Protocol):
    """Who keeps small pieces once their record has settled."""

    async def find_piece(self, key: str) -> bytes | None: ...

    async def last_piece(self, prefix: str) -> tuple[str, bytes] | None: ...

    async def delete_pieces(self, prefix: str) -> bool: ...


class SmallReader(InMemoryReader):
    """A result in memory. Whoever writes the record of its call puts `content` into it, beside the key."""

    def __init__(self, key: str, content: bytes) -> None:
        super().__init__(content)
        self.key = key

    @property
    def content(self) -> bytes:
        return self._content

    def describe(self) -> dict[str, Any]:
        return {"tag": "spool", "locator": self.key}


class LargeReader(IndexedReader):
    """A result in a file, read range by range; no descriptor stays open between two reads."""

    content: None = None

    def __init__(self, folder: SpoolFolder, key: Key, index: LineIndex) -> None:
        super().__init__(index)
        self._folder = folder
        self._key = key
        self.key = str(key)

    def read_range(self, offset: int, length: int) -> bytes:
        return self._folder.read(self._key, offset=offset, length=length)

    def describe(self) -> dict[str, Any]:
        return {"tag": "spool", "locator": self.key}


Reader = SmallReader | LargeReader


class FileSpool:
    """Results of all turns. `max_output` bounds one write, `quota` the files of one tenant; both are bytes.

    The quota is counted per process from what is on the disk when a tenant first writes; small results do not count.
    """

    def __init__(
        self, folder: SpoolFolder, *, small: SmallPieces | None, max_output: int | None, quota: int | None
    ) -> None:
        self.folder = folder
        self.small = small
        self.max_output = max_output
        self.usage = _Usage(folder, quota)

    @classmethod
    async def open(
        cls,
        root: str | Path,
        *,
        small: SmallPieces | None = None,
        max_output: int | None = None,
        quota: int | None = None,
    ) -> Self:
        """Open or create a spool; what processes that are gone left half written is removed.

        Without `small`, small results are files, too.
        """
        folder = await asyncio.to_thread(SpoolFolder, Path(root).absolute())
        return cls(folder, small=small, max_output=max_output, quota=quota)

    def scoped(self, turn_id: str, *, tenant: str | None = None) -> "TurnSpool":
        """The results of one turn, as a `ByteStore`."""
        return TurnSpool(self, tenant=_hashed_tenant(tenant), turn=hashed_turn(turn_id))

    async def find(self, key: str, *, tenant: str | None) -> Reader | None:
        """What reads the piece of a record; `None` if it is gone, another tenant's, or the key is none."""
        parts = parsed(key)
        if parts is None or parts.tenant != hashed(tenant):
            return None
        if parts.kind == "f":
            return await self.large(parts)
        content = None if self.small is None else await self.small.find_piece(key)
        return None if content is None else SmallReader(key, content)

    async def delete(self, key: str) -> bool:
        """Delete the file of a record that is past its end of life. Small pieces go with their record."""
        parts = parsed(key)
        if parts is None or parts.kind != "f":
            return False
        size = await asyncio.to_thread(self.folder.delete, parts)
        if size is not None:
            self.usage.give_back(parts.tenant, size)
        return size is not None

    async def remove_strays(self, known: Known, *, before: datetime) -> int:
        """Delete files written before a moment that no record names; how many there were.

        They are left by processes that ended between spooling a result and settling its call, so the moment has to
        lie further back than any call runs.
        """
        removed = 0
        for tenant in await asyncio.to_thread(self.folder.tenants):
            for turn in await asyncio.to_thread(self.folder.turns, tenant):
                keys = await asyncio.to_thread(self.folder.older, tenant, turn, before=before.timestamp())
                strays = set(keys) - await known(keys) if keys else set()
                removed += sum([await self.delete(key) for key in sorted(strays)])
        return removed

    async def large(self, key: Key) -> LargeReader | None:
        try:
            return await asyncio.to_thread(lambda: LargeReader(self.folder, key, _index_of(self.folder, key)))
        except ArtifactGone:
            return None

    async def close(self) -> None:
        await asyncio.to_thread(self.folder.close)


_hashed_tenant: Final = lru_cache(maxsize=1024)(hashed)


class TurnSpool:
    """The results of one turn. An id may be any text: it is hashed, and never a name on the disk."""

    def __init__(self, spool: FileSpool, *, tenant: str, turn: str) -> None:
        self._spool = spool
        self._tenant = tenant
        self._turn = turn
        # As long as anybody has the reader, which is until the call settled; from then on the record has the bytes.
        self._unsettled: dict[str, ref[SmallReader]] = {}

    async def write(self, id: str, content: Content | Stream, *, limit: int | None = None) -> Reader:
        """Keep a result of at most `limit` bytes (or the spool's own limit, if that is less).

        Raises `OutputTooLarge` or `SpoolQuotaExceeded` as soon as it is too much, and leaves nothing behind.
        """
        bound = self._spool.max_output if limit is None else min(limit, self._spool.max_output or limit)
        slot = hashed(id)
        name = f"{slot}.{next_generation()}"
        # Most results, at half the cost of the way below.
        if self._spool.small is not None and type(content) is bytes and len(content) <= SMALL:
            _refuse_more_than(bound, len(content))
            return self._small(slot, name, content)
        held = _Held(bound, largest=SMALL if self._spool.small is not None else -1)
        part: _Part | None = None
        try:
            async for chunk in chunks_of(content):
                if part is None and not held.takes(chunk):
                    part = await self._part(held)
                if part is not None:
                    await part.append(chunk)
            if part is None and self._spool.small is None:
                part = await self._part(held)
            if part is None:
                return self._small(slot, name, b"".join(held.chunks))
            return await part.published(Key("f", self._tenant, self._turn, name))
        except BaseException:
            if part is not None:
                part.discard()
            raise

    async def read(self, id: str) -> Reader | None:
        slot = hashed(id)
        found: list[Reader] = []
        if slot in self._unsettled and (unsettled := self._unsettled[slot]()) is not None:
            found.append(unsettled)
        elif self._spool.small is not None and (last := await self._spool.small.last_piece(self._prefix("s", slot))):
            found.append(SmallReader(*last))
        names = await asyncio.to_thread(self._names, slot)
        if names and (large := await self._spool.large(Key("f", self._tenant, self._turn, names[-1]))):
            found.append(large)
        return max(found, key=lambda reader: reader.key.rpartition(".")[2], default=None)

    async def delete(self, id: str) -> bool:
        slot = hashed(id)
        deleted = self._unsettled.pop(slot, None) is not None
        if self._spool.small is not None:
            deleted |= await self._spool.small.delete_pieces(self._prefix("s", slot))
        for name in await asyncio.to_thread(self._names, slot):
            deleted |= await self._spool.delete(str(Key("f", self._tenant, self._turn, name)))
        return deleted

    def _small(self, slot: str, name: str, content: bytes) -> SmallReader:
        reader = SmallReader(f"s.{self._tenant}.{self._turn}.{name}", content)
        unsettled = self._unsettled

        def forget(dead: ref[SmallReader]) -> None:
            if unsettled.get(slot) is dead:
                del unsettled[slot]

        unsettled[slot] = ref(reader, forget)
        return reader

    async def _part(self, held: "_Held") -> "_Part":
        part = _Part(self._spool, self._tenant, held.bound)
        try:
            await self._spool.usage.know(self._tenant)
            for chunk in held.chunks:
                await part.append(chunk)
        except BaseException:
            part.discard()
            raise
        return part

    def _prefix(self, kind: str, slot: str) -> str:
        return f"{kind}.{self._tenant}.{self._turn}.{slot}."

    def _names(self, slot: str) -> list[str]:
        return [name for name in self._spool.folder.names(self._tenant, self._turn) if name.startswith(f"{slot}.")]


class _Held:
    """The beginning of a result, in memory as long as it may turn out to be a small one."""

    def __init__(self, bound: int | None, *, largest: int) -> None:
        self.bound = bound
        self.chunks: list[bytes] = []
        self._largest = largest
        self._size = 0

    def takes(self, chunk: bytes) -> bool:
        if self._size + len(chunk) > self._largest:
            return False
        _refuse_more_than(self.bound, self._size + len(chunk))
        self._size += len(chunk)
        self.chunks.append(chunk)
        return True


class _Part:
    """A file on its way. It is either published or discarded."""

    def __init__(self, spool: FileSpool, tenant: str, bound: int | None) -> None:
        self._file, self._name = spool.folder.create_part()
        self._spool = spool
        self._tenant = tenant
        self._bound = bound
        self._index = LineIndex()
        self._taken = 0
        self._published: Key | None = None

    async def append(self, chunk: bytes) -> None:
        _refuse_more_than(self._bound, self._taken + len(chunk))
        self._spool.usage.take(self._tenant, len(chunk))
        self._taken += len(chunk)
        if len(chunk) < _CHUNK:  # a thread hop costs more than writing this
            self._append(chunk)
        else:
            await _to_the_end(lambda: self._append(chunk))

    async def published(self, key: Key) -> LargeReader:
        await _to_the_end(lambda: self._publish(key))
        return LargeReader(self._spool.folder, key, self._index)

    def discard(self) -> None:
        self._file.close()
        self._spool.usage.give_back(self._tenant, self._taken)
        if self._published is None:
            self._spool.folder.discard_part(self._name)
        else:  # its caller stopped waiting in the last moment, and nobody will know the key
            self._spool.folder.delete(self._published)

    def _append(self, chunk: bytes) -> None:
        with reported():
            unwritten = memoryview(chunk)
            while unwritten:
                unwritten = unwritten[self._file.write(unwritten) :]
        self._index.feed(chunk)

    def _publish(self, key: Key) -> None:
        with reported(), self._file:
            os.fsync(self._file.fileno())
        self._spool.folder.publish(self._name, key, index=self._index)
        self._published = key


class _Usage:
    """Bytes in files, per tenant; nothing is counted where there is no quota."""

    def __init__(self, folder: SpoolFolder, quota: int | None) -> None:
        self._folder = folder
        self._quota = quota
        self._bytes: dict[str, int] = {}

    async def know(self, tenant: str) -> None:
        if self._quota is None or tenant in self._bytes:
            return
        counted = await asyncio.to_thread(self._count, tenant)
        self._bytes.setdefault(tenant, counted)

    def take(self, tenant: str, size: int) -> None:
        if self._quota is None:
            return
        used = self._bytes[tenant] + size
        if used > self._quota:
            raise SpoolQuotaExceeded(
                f"the tenant's results would be larger than {self._quota} bytes together",
                help="end turns whose results are no longer needed, or raise the quota",
            )
        self._bytes[tenant] = used

    def give_back(self, tenant: str, size: int) -> None:
        if tenant in self._bytes:
            self._bytes[tenant] -= size

    def _count(self, tenant: str) -> int:
        sizes = 0
        for turn in self._folder.turns(tenant):
            for name in self._folder.names(tenant, turn):
                try:
                    sizes += self._folder.status(Key("f", tenant, turn, name)).st_size
                except ArtifactGone:  # deleted meanwhile
                    continue
        return sizes


async def _to_the_end(work: Callable[[], None]) -> None:
    """Run work in a thread. If its caller is cancelled, that counts when the work is done: the file is in use."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _refuse_more_than(bound: int | None, size: int) -> None:
    if bound is not None and size > bound:
        raise OutputTooLarge(
            f"the output is larger than {bound} bytes", help="ask for less at once, or raise the tool's maxOutput"
        )


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

"""Large pieces in a bucket: parts that nobody finds, and a manifest that makes a piece of them once all are there.

    <tenant>/<turn>/<id>.<generation>.index      its manifest, put there last, and only where none is
    <tenant>/<turn>/<id>.<generation>/00000      its first part, and so on

Each part is an object of its own. An upload in parts as S3 has it is invisible until it is completed or aborted, and a
process that is killed does neither; these can be listed, so that whatever is left behind is swept away like any stray.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine
from datetime import datetime
from threading import Lock
from typing import Any, Final, Self

from gateway.core.abandoning import step
from gateway.core.lines import LineIndex
from gateway.errors import GatewayError
from gateway.storage.buckets import Bucket, Listed, Place
from gateway.storage.keys import Key, parsed
from gateway.storage.manifests import BLOCK, LARGEST, PART, Manifest, damaged, digests_of
from gateway.storage.spool import LargeReader, PieceSpool, SmallPieces

AT_ONCE: Final = 2
"""Parts of one piece that are under way while the next one fills: what a result costs in memory, whatever its size."""

UNDER_WAY: Final = 8
"""Parts that are under way over all pieces; whoever has another one to send waits."""

AHEAD: Final = 4
"""Blocks that are fetched together once somebody reads on where they stopped."""

HELD_BLOCKS: Final = 32
"""Blocks that are kept in memory for whoever reads next to where they just read, over all results."""

_CHUNK: Final = 1 << 20
_INDEX: Final = ".index"

_log: Final = logging.getLogger(__name__)


class S3Spool(PieceSpool):
    """A spool whose large pieces are in a bucket."""

    def __init__(
        self, pieces: "S3Pieces", *, small: SmallPieces | None, max_output: int | None, quota: int | None
    ) -> None:
        super().__init__(pieces, small=small, max_output=max_output, quota=quota)
        self._pieces = pieces

    @classmethod
    async def open(
        cls,
        place: Place,
        *,
        small: SmallPieces | None = None,
        max_output: int | None = None,
        quota: int | None = None,
    ) -> Self:
        """Raises `ObjectStoreUnusable` where nobody is let in; a store that is down may come back."""
        return cls(S3Pieces(await Bucket.open(place)), small=small, max_output=max_output, quota=quota)


class S3Reader(LargeReader):
    """A result in a bucket. Every block that is given was checked."""

    is_remote = True

    def __init__(self, pieces: "S3Pieces", key: Key, manifest: Manifest) -> None:
        super().__init__(key, manifest.index)
        self._pieces = pieces
        self._path = _path(key)
        self._manifest = manifest
        self._next: tuple[int, ...] = ()

    def read_range(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self._manifest.size)
        if offset >= end:
            return b""
        first, last = offset // BLOCK, (end - 1) // BLOCK
        ahead = last + 1 if first not in self._next else max(last + 1, first + AHEAD)
        found: list[bytes] = []
        while first + len(found) <= last:
            found += self._blocks(first + len(found), last + 1, ahead=ahead)
        self._next = (last, last + 1)
        whole, skipped = b"".join(found), offset - first * BLOCK
        return whole if len(whole) == end - offset else whole[skipped : skipped + end - offset]

    def _blocks(self, first: int, end: int, *, ahead: int) -> list[bytes]:
        """The next blocks: one that is still held, or as many of one part as are wanted."""
        held = self._pieces.held.get(self.key, first)
        if held is not None:
            return [held]
        step()
        part, start = divmod(first * BLOCK, PART)
        size = min(PART, self._manifest.size - part * PART)
        length = min(ahead * BLOCK - first * BLOCK, size - start)
        content = self._pieces.bucket.read(f"{self._path}/{part:05}", start=start, length=length)
        blocks = [content[at : at + BLOCK] for at in range(0, len(content), BLOCK)]
        if len(content) != length:
            raise damaged(f"{len(content)} bytes came where {length} were kept")
        if not all(self._manifest.vouches_for(first + number, block) for number, block in enumerate(blocks)):
            raise damaged("other bytes came than were kept")
        self._pieces.held.put(self.key, first, blocks)
        return blocks[: end - first]


class S3Pieces:
    """Implements `LargePieces`."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.held = _HeldBlocks()
        self.ways = asyncio.Semaphore(UNDER_WAY)
        self._cleaning: set[asyncio.Task[None]] = set()

    @property
    def trouble(self) -> str | None:
        return self.bucket.trouble

    async def begin(self, key: Key) -> "_Parts":
        self.bucket.require()
        return _Parts(self, key)

    async def open(self, key: Key) -> S3Reader | None:
        stored = await self.bucket.whole(f"{_path(key)}{_INDEX}", limit=LARGEST)
        return None if stored is None else S3Reader(self, key, Manifest.from_bytes(stored, key))

    async def delete(self, key: Key) -> int | None:
        """The manifest goes first: whoever looks from now on finds nothing."""
        path = _path(key)
        found = [each async for some in self.bucket.listed(path) for each in some]
        is_there = await self.bucket.has(f"{path}{_INDEX}")
        if not found and not is_there:
            return None
        await self.bucket.delete([f"{path}{_INDEX}"])
        self.held.drop(str(key))
        await self.bucket.delete([each.path for each in found])
        return sum(each.size for each in found)

    async def names(self, tenant: str, turn: str, slot: str) -> list[str]:
        paths = [each.path async for some in self.bucket.listed(f"{tenant}/{turn}") for each in some]
        names = [path.rpartition("/")[2].removesuffix(_INDEX) for path in paths if path.endswith(_INDEX)]
        return sorted(name for name in names if name.startswith(f"{slot}."))

    async def used(self, tenant: str) -> int:
        found = [each async for some in self.bucket.listed(tenant) for each in some]
        return sum(each.size for each in found if not each.path.endswith(_INDEX))

    async def older(self, before: datetime) -> AsyncIterator[list[str]]:
        async for some in self.bucket.listed(""):
            keys = {_key(each): None for each in some if each.written_at < before}
            yield [str(key) for key in keys if key is not None]

    async def close(self) -> None:
        await self.cleaned()
        await self.bucket.close()

    async def cleaned(self) -> None:
        """Wait until what was discarded is gone."""
        while self._cleaning:
            await asyncio.wait(self._cleaning)

    def clean(self, work: Coroutine[Any, Any, None]) -> None:
        """Nobody who was refused waits for what is left to do; what cannot be done now is swept away later."""
        task = asyncio.create_task(work)
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)


class _Parts:
    """A piece on its way: one part fills while others are sent."""

    def __init__(self, pieces: S3Pieces, key: Key) -> None:
        self._pieces = pieces
        self._bucket = pieces.bucket
        self._key = key
        self._path = _path(key)
        self._index = LineIndex()
        self._filling = bytearray()
        self._sent: list[asyncio.Task[bytes]] = []
        self._naming: asyncio.Task[None] | None = None
        self._awaited = 0

    async def append(self, chunk: bytes) -> None:
        if len(chunk) < _CHUNK:  # a thread hop costs more than counting its lines
            self._index.feed(chunk)
        else:
            await asyncio.to_thread(self._index.feed, chunk)
        view = memoryview(chunk)
        while view:
            room = PART - len(self._filling)
            self._filling += view[:room]
            view = view[room:]
            if len(self._filling) == PART:
                await self._send()

    async def published(self) -> S3Reader:
        if self._filling:
            await self._send()
        digests = b"".join([await asyncio.shield(task) for task in self._sent])
        manifest = Manifest(self._index, digests)
        self._naming = asyncio.create_task(self._bucket.create(f"{self._path}{_INDEX}", manifest.to_bytes(self._key)))
        await asyncio.shield(self._naming)
        return S3Reader(self._pieces, self._key, manifest)

    async def discard(self) -> None:
        self._filling = bytearray()
        self._pieces.clean(self._cleaned())

    async def _send(self) -> None:
        part, self._filling = self._filling, bytearray()
        if len(self._sent) - self._awaited == AT_ONCE:
            await asyncio.shield(self._sent[self._awaited])
            self._awaited += 1
        await self._pieces.ways.acquire()
        sending = asyncio.create_task(self._put(len(self._sent), part))
        sending.add_done_callback(lambda _: self._pieces.ways.release())
        self._sent.append(sending)

    async def _put(self, number: int, part: bytearray) -> bytes:
        digests = await asyncio.to_thread(digests_of, part)
        await self._bucket.put(f"{self._path}/{number:05}", part)
        return digests

    async def _cleaned(self) -> None:
        # What arrives later would stay: a request is under way to its end, whoever stopped waiting for it.
        await asyncio.gather(*self._sent, *(() if self._naming is None else (self._naming,)), return_exceptions=True)
        paths = [f"{self._path}/{number:05}" for number in range(len(self._sent))]
        try:
            await self._bucket.delete([f"{self._path}{_INDEX}"])
            await self._bucket.delete(paths)
        except GatewayError as error:
            _log.info("parts of a result that was given up are left to the sweeper: %s", error.message)


class _HeldBlocks:
    """The blocks that were read last. Threads read at the same time."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, key: str, block: int) -> bytes | None:
        with self._lock:
            found = self._blocks.get((key, block))
            if found is not None:
                self._blocks.move_to_end((key, block))
            return found

    def put(self, key: str, first: int, blocks: list[bytes]) -> None:
        with self._lock:
            for number, block in list(enumerate(blocks, first))[-HELD_BLOCKS:]:
                self._blocks[key, number] = block
                self._blocks.move_to_end((key, number))
            while len(self._blocks) > HELD_BLOCKS:
                self._blocks.popitem(last=False)

    def drop(self, key: str) -> None:
        with self._lock:
            for each in [each for each in self._blocks if each[0] == key]:
                del self._blocks[each]


def _path(key: Key) -> str:
    return f"{key.tenant}/{key.turn}/{key.name}"


def _key(listed: Listed) -> Key | None:
    """The key of which a manifest or a part is there; `None` for what is not ours."""
    tenant, turn, name, *_ = (*listed.path.removesuffix(_INDEX).split("/"), "", "", "")
    return parsed(f"f.{tenant}.{turn}.{name}")

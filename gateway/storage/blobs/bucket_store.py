"""Store large results in a bucket: as parts, and a manifest that is written when all parts are there.

    <tenant>/<turn>/<id>.<generation>.index      its manifest, written last, and only if there is none
    <tenant>/<turn>/<id>.<generation>/00000      its first part, and so on

Each part is an object. A multipart upload of S3 is invisible until it is completed or aborted, and a process that is
killed does neither; objects can be listed, so leftovers are deleted like other orphans.

The manifest has the line index and a digest of every block: the store, or a proxy before it, may return other bytes
than were written, so every block is checked. A digest at the end of the manifest protects the manifest itself.
"""

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from threading import Lock
from typing import Any, Final, Self

from gateway.artifacts import LineIndex
from gateway.errors import ArtifactDamaged, GatewayError
from gateway.model import check_cancelled
from gateway.storage.blobs.blob_store import BlobKey, BlobReader, InlineBlobStore, parse_key
from gateway.storage.blobs.result_spool import ResultSpool
from gateway.storage.blobs.s3_client import BucketAddress, ObjectPage, ObjectStoreClient

BLOCK: Final = 256 << 10
"""Bytes of one digest: the least that is read from the store."""

PART: Final = 16 * BLOCK
"""Bytes of one object of a large piece. The last one is shorter."""

LARGEST: Final = 64 << 20
"""Largest size of a manifest in bytes: enough for a piece of 300 GB."""

_DIGEST: Final = 16
_SEAL: Final = 32


@dataclass(frozen=True, slots=True)
class BlobManifest:
    index: LineIndex
    digests: bytes
    """One after the other, in the order of the blocks."""

    @property
    def size(self) -> int:
        return self.index.size

    @property
    def parts(self) -> int:
        return -(-self.size // PART)

    def verify_block(self, block: int, content: bytes | memoryview) -> bool:
        start = block * _DIGEST
        is_whole = len(content) == min(BLOCK, self.size - block * BLOCK)
        return is_whole and self.digests[start : start + _DIGEST] == _digest(content)

    def to_bytes(self, key: BlobKey) -> bytes:
        head = json.dumps({"key": str(key), "size": self.size, "block": BLOCK, "part": PART})
        unsealed = head.encode() + b"\n" + self.index.to_bytes() + self.digests
        return unsealed + sha256(unsealed).digest()

    @classmethod
    def from_bytes(cls, data: bytes, key: BlobKey) -> "BlobManifest":
        """Raise `ArtifactDamaged` for anything that was not written as the manifest of this key."""
        unsealed = data[:-_SEAL]
        if sha256(unsealed).digest() != data[-_SEAL:]:
            raise damaged_blob_error("its index is damaged")
        head, _, rest = unsealed.partition(b"\n")
        about = json.loads(head)
        if about["key"] != str(key):
            raise damaged_blob_error("its index is that of another result")
        if (about["block"], about["part"]) != (BLOCK, PART):
            raise damaged_blob_error("its index was written by another version of this program")
        length = LineIndex.stored_size(about["size"])
        index = LineIndex.from_bytes(rest[:length], about["size"])
        digests = rest[length:]
        if index is None or len(digests) != -(-about["size"] // BLOCK) * _DIGEST:
            raise damaged_blob_error("its index is damaged")
        return cls(index, digests)


def hash_blocks(part: bytes | bytearray) -> bytes:
    """Return the digests of the blocks of one part."""
    view = memoryview(part)
    return b"".join(_digest(view[start : start + BLOCK]) for start in range(0, len(part), BLOCK))


def damaged_blob_error(because: str) -> ArtifactDamaged:
    return ArtifactDamaged(
        f"the object store does not return what was stored: {because}",
        help="look at the bucket and at who else writes to it; the call has to be made again",
    )


def _digest(content: bytes | memoryview) -> bytes:
    return sha256(content).digest()[:_DIGEST]


PARALLEL_UPLOADS: Final = 2
"""Parts of one piece that are uploaded while the next one fills. They bound the memory of a result of any size."""

UNDER_WAY: Final = 8
"""Parts of all pieces that are uploaded at once; further uploads wait."""

READ_AHEAD_BLOCKS: Final = 4
"""Blocks that are fetched together when a reader continues where it stopped."""

HELD_BLOCKS: Final = 32
"""Blocks of all results that are cached in memory for the next read nearby."""

_CHUNK: Final = 1 << 20
_INDEX: Final = ".index"

_log: Final = logging.getLogger(__name__)


class BucketSpool(ResultSpool):
    """A spool whose large pieces are in a bucket."""

    def __init__(
        self, pieces: "BucketBlobStore", *, small: InlineBlobStore | None, max_output: int | None, quota: int | None
    ) -> None:
        super().__init__(pieces, small=small, max_output=max_output, quota=quota)
        self._pieces = pieces

    @classmethod
    async def open(
        cls,
        place: BucketAddress,
        *,
        small: InlineBlobStore | None = None,
        max_output: int | None = None,
        quota: int | None = None,
    ) -> Self:
        """Raise `InvalidObjectStore` if access is denied. A store that is down is accepted: it may come back."""
        return cls(
            BucketBlobStore(await ObjectStoreClient.open(place)), small=small, max_output=max_output, quota=quota
        )


class BucketBlobReader(BlobReader):
    """A result in a bucket. Every block is checked before it is returned."""

    is_remote = True

    def __init__(self, pieces: "BucketBlobStore", key: BlobKey, manifest: BlobManifest) -> None:
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
        ahead = last + 1 if first not in self._next else max(last + 1, first + READ_AHEAD_BLOCKS)
        found: list[bytes] = []
        while first + len(found) <= last:
            found += self._blocks(first + len(found), last + 1, ahead=ahead)
        self._next = (last, last + 1)
        whole, skipped = b"".join(found), offset - first * BLOCK
        return whole if len(whole) == end - offset else whole[skipped : skipped + end - offset]

    def _blocks(self, first: int, end: int, *, ahead: int) -> list[bytes]:
        """Return the next blocks: a cached one, or as many of one part as are wanted."""
        held = self._pieces.held.get(self.key, first)
        if held is not None:
            return [held]
        check_cancelled()
        part, start = divmod(first * BLOCK, PART)
        size = min(PART, self._manifest.size - part * PART)
        length = min(ahead * BLOCK - first * BLOCK, size - start)
        content = self._pieces.bucket.read(f"{self._path}/{part:05}", start=start, length=length)
        blocks = [content[at : at + BLOCK] for at in range(0, len(content), BLOCK)]
        if len(content) != length:
            raise damaged_blob_error(f"it returned {len(content)} bytes instead of {length}")
        if not all(self._manifest.verify_block(first + number, block) for number, block in enumerate(blocks)):
            raise damaged_blob_error("it returned other bytes")
        self._pieces.held.put(self.key, first, blocks)
        return blocks[: end - first]


class BucketBlobStore:
    """Implements `BlobStore`."""

    def __init__(self, bucket: ObjectStoreClient) -> None:
        self.bucket = bucket
        self.held = _HeldBlocks()
        self.ways = asyncio.Semaphore(UNDER_WAY)
        self._cleaning: set[asyncio.Task[None]] = set()

    @property
    def trouble(self) -> str | None:
        return self.bucket.problem

    async def start_write(self, key: BlobKey) -> "_UploadParts":
        self.bucket.require()
        return _UploadParts(self, key)

    async def open(self, key: BlobKey) -> BucketBlobReader | None:
        stored = await self.bucket.read_object(f"{_path(key)}{_INDEX}", limit=LARGEST)
        return None if stored is None else BucketBlobReader(self, key, BlobManifest.from_bytes(stored, key))

    async def delete(self, key: BlobKey) -> int | None:
        """Delete the manifest first: from then on no reader finds the piece."""
        path = _path(key)
        found = [each async for some in self.bucket.list_objects(path) for each in some]
        is_there = await self.bucket.has(f"{path}{_INDEX}")
        if not found and not is_there:
            return None
        await self.bucket.delete([f"{path}{_INDEX}"])
        self.held.drop(str(key))
        await self.bucket.delete([each.path for each in found])
        return sum(each.size for each in found)

    async def names(self, tenant: str, turn: str, slot: str) -> list[str]:
        paths = [each.path async for some in self.bucket.list_objects(f"{tenant}/{turn}") for each in some]
        names = [path.rpartition("/")[2].removesuffix(_INDEX) for path in paths if path.endswith(_INDEX)]
        return sorted(name for name in names if name.startswith(f"{slot}."))

    async def count_bytes(self, tenant: str) -> int:
        found = [each async for some in self.bucket.list_objects(tenant) for each in some]
        return sum(each.size for each in found if not each.path.endswith(_INDEX))

    async def list_older(self, before: datetime) -> AsyncIterator[list[str]]:
        async for some in self.bucket.list_objects(""):
            keys = {_key(each): None for each in some if each.written_at < before}
            yield [str(key) for key in keys if key is not None]

    async def close(self) -> None:
        await self.wait_until_clean()
        await self.bucket.close()

    async def wait_until_clean(self) -> None:
        """Wait until all discarded pieces are deleted."""
        while self._cleaning:
            await asyncio.wait(self._cleaning)

    def clean(self, work: Coroutine[Any, Any, None]) -> None:
        """Run cleaning work in the background: a refused caller does not wait. The orphan sweep does the rest."""
        task = asyncio.create_task(work)
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)


class _UploadParts:
    """A piece that is being written: one part fills while others are uploaded."""

    def __init__(self, pieces: BucketBlobStore, key: BlobKey) -> None:
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

    async def publish(self) -> BucketBlobReader:
        if self._filling:
            await self._send()
        digests = b"".join([await asyncio.shield(task) for task in self._sent])
        manifest = BlobManifest(self._index, digests)
        self._naming = asyncio.create_task(self._bucket.create(f"{self._path}{_INDEX}", manifest.to_bytes(self._key)))
        await asyncio.shield(self._naming)
        return BucketBlobReader(self._pieces, self._key, manifest)

    async def discard(self) -> None:
        self._filling = bytearray()
        self._pieces.clean(self._clean())

    async def _send(self) -> None:
        part, self._filling = self._filling, bytearray()
        if len(self._sent) - self._awaited == PARALLEL_UPLOADS:
            await asyncio.shield(self._sent[self._awaited])
            self._awaited += 1
        await self._pieces.ways.acquire()
        sending = asyncio.create_task(self._put(len(self._sent), part))
        sending.add_done_callback(lambda _: self._pieces.ways.release())
        self._sent.append(sending)

    async def _put(self, number: int, part: bytearray) -> bytes:
        digests = await asyncio.to_thread(hash_blocks, part)
        await self._bucket.put(f"{self._path}/{number:05}", part)
        return digests

    async def _clean(self) -> None:
        # Requests go on after their caller stopped waiting, and an object that arrives later would stay.
        await asyncio.gather(*self._sent, *(() if self._naming is None else (self._naming,)), return_exceptions=True)
        paths = [f"{self._path}/{number:05}" for number in range(len(self._sent))]
        try:
            await self._bucket.delete([f"{self._path}{_INDEX}"])
            await self._bucket.delete(paths)
        except GatewayError as error:
            _log.info("parts of a discarded result are left to the sweeper: %s", error.message)


class _HeldBlocks:
    """Cache of the blocks that were read last, used by several threads."""

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


def _path(key: BlobKey) -> str:
    return f"{key.tenant}/{key.turn}/{key.name}"


def _key(listed: ObjectPage) -> BlobKey | None:
    """Return the key of a manifest or a part; `None` for other objects."""
    tenant, turn, name, *_ = (*listed.path.removesuffix(_INDEX).split("/"), "", "", "")
    return parse_key(f"f.{tenant}.{turn}.{name}")

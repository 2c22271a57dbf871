"""The two stores of large results, for tests."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from gateway.storage.blobs.blob_store import InlineBlobStore
from gateway.storage.blobs.bucket_store import BucketBlobStore, BucketSpool
from gateway.storage.blobs.disk_store import DiskSpool
from gateway.storage.blobs.result_spool import ResultSpool
from tests.support.servers.object_store import ObjectStore


class Spools(Protocol):
    """A place in which spools can be opened, one after the other or at the same time."""

    async def open(
        self, *, small: InlineBlobStore | None = None, max_output: int | None = None, quota: int | None = None
    ) -> ResultSpool: ...

    async def kept(self) -> Sequence[str]:
        """The stored objects: `index` and `bytes` of every single-part result, and `part` for unreachable parts."""
        ...


@dataclass
class Folder:
    root: Path

    async def open(
        self, *, small: InlineBlobStore | None = None, max_output: int | None = None, quota: int | None = None
    ) -> ResultSpool:
        return await DiskSpool.open(self.root, small=small, max_output=max_output, quota=quota)

    async def kept(self) -> Sequence[str]:
        found = [path for path in self.root.rglob("*") if path.is_file() and "processes" not in path.parts]
        return sorted({".bytes": "bytes", ".lines": "index"}.get(path.suffix, "part") for path in found)


class Bucket:
    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.prefix = f"spool-{uuid4().hex}"
        self._cleaned: list[Callable[[], Awaitable[None]]] = []

    async def open(
        self, *, small: InlineBlobStore | None = None, max_output: int | None = None, quota: int | None = None
    ) -> ResultSpool:
        place = self.store.place(self.prefix)
        spool = await BucketSpool.open(place, small=small, max_output=max_output, quota=quota)
        assert isinstance(spool.large, BucketBlobStore)
        self._cleaned.append(spool.large.wait_until_clean)
        return spool

    async def kept(self) -> Sequence[str]:
        for cleaned in self._cleaned:
            await cleaned()
        paths = await asyncio.to_thread(self.store.paths, self.prefix)
        published = {path.removesuffix(".index") for path in paths if path.endswith(".index")}
        return sorted(
            "index" if path.endswith(".index") else "bytes" if path.rpartition("/")[0] in published else "part"
            for path in paths
        )

"""The two places where large results are put, as tests see them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from seaweed import ObjectStore

from gateway.storage.spool import PieceSpool, SmallPieces
from gateway.storage.spool_files import FileSpool
from gateway.storage.spool_s3 import S3Pieces, S3Spool


class Spools(Protocol):
    """A place in which spools can be opened, one after the other or at the same time."""

    async def open(
        self, *, small: SmallPieces | None = None, max_output: int | None = None, quota: int | None = None
    ) -> PieceSpool: ...

    async def kept(self) -> Sequence[str]:
        """What is there: `index` and `bytes` of every result of one part, and `part` for what nobody can find."""
        ...


@dataclass
class Folder:
    root: Path

    async def open(
        self, *, small: SmallPieces | None = None, max_output: int | None = None, quota: int | None = None
    ) -> PieceSpool:
        return await FileSpool.open(self.root, small=small, max_output=max_output, quota=quota)

    async def kept(self) -> Sequence[str]:
        found = [path for path in self.root.rglob("*") if path.is_file() and "processes" not in path.parts]
        return sorted({".bytes": "bytes", ".lines": "index"}.get(path.suffix, "part") for path in found)


class Bucket:
    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.prefix = f"spool-{uuid4().hex}"
        self._cleaned: list[Callable[[], Awaitable[None]]] = []

    async def open(
        self, *, small: SmallPieces | None = None, max_output: int | None = None, quota: int | None = None
    ) -> PieceSpool:
        place = self.store.place(self.prefix)
        spool = await S3Spool.open(place, small=small, max_output=max_output, quota=quota)
        assert isinstance(spool.large, S3Pieces)
        self._cleaned.append(spool.large.cleaned)
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

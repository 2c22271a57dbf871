"""The spool of a gateway: large results are stored as files or objects, small ones with the record of their call.

A small result costs no file and no request of its own: its reader holds the bytes until the record is written. So
neither is durable without the other, and a call without an outcome leaves nothing behind. A large result is complete
and durable before its reader is returned. A `BlobStore` stores the large ones.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final
from weakref import ref

from gateway.artifacts import iter_chunks
from gateway.errors import OutputTooLarge, SpoolQuotaExceeded
from gateway.model import ContentStream, SpoolContent
from gateway.storage.blobs.blob_store import (
    BlobKey,
    BlobReader,
    BlobStore,
    BlobWriter,
    InlineBlobReader,
    InlineBlobStore,
    Reader,
    hash_id,
    hash_turn_id,
    next_generation,
    parse_key,
)

INLINE_LIMIT: Final = 64 * 1024
"""The largest result that is stored with its record."""

_MANY: Final = 256
"""References to readers that a turn holds before it removes those of readers that are gone."""

Known = Callable[[Sequence[str]], Awaitable[set[str]]]
"""Returns which of these keys a record names."""


class ResultSpool:
    """Results of all turns. `max_output` bounds one write, `quota` the large pieces of one tenant; both are bytes.

    Without `small`, small results are stored like large ones. Each process counts the quota from what is stored when a
    tenant first writes; small results do not count.
    """

    def __init__(
        self,
        large: BlobStore,
        *,
        small: InlineBlobStore | None = None,
        max_output: int | None = None,
        quota: int | None = None,
    ) -> None:
        self.large = large
        self.small = small
        self.max_output = max_output
        self.usage = _Usage(large, quota)

    @property
    def problem(self) -> str | None:
        return self.large.trouble

    def for_turn(self, turn_id: str, *, tenant: str | None = None) -> "TurnSpool":
        """Return the results of one turn, as a `ByteStore`."""
        return TurnSpool(self, _hashed_tenant(tenant), hash_turn_id(turn_id))

    async def find(self, key: str, *, tenant: str | None) -> Reader | None:
        """Return a reader of a record's piece; `None` if it is gone, another tenant's, or the key is invalid."""
        parts = parse_key(key)
        if parts is None or parts.tenant != hash_id(tenant):
            return None
        if parts.kind == "f":
            return await self.large.open(parts)
        content = None if self.small is None else await self.small.find_blob(key)
        return None if content is None else InlineBlobReader(key, content)

    async def delete(self, key: str) -> bool:
        """Delete the large piece of an expired record. Small pieces are deleted with their record."""
        parts = parse_key(key)
        if parts is None or parts.kind != "f":
            return False
        size = await self.large.delete(parts)
        if size is not None:
            self.usage.give_back(parts.tenant, size)
        return size is not None

    async def delete_orphans(self, known: Known, *, before: datetime) -> int:
        """Delete large pieces written before a time that no record names. Return how many there were.

        Processes leave them that end after a result is spooled and before its call is recorded, so the time has to be
        further back than any call runs.
        """
        removed = 0
        async for keys in self.large.list_older(before):
            strays = set(keys) - await known(keys) if keys else set()
            removed += sum([await self.delete(key) for key in sorted(strays)])
        return removed

    async def close(self) -> None:
        await self.large.close()


_hashed_tenant: Final = lru_cache(maxsize=1024)(hash_id)


class TurnSpool:
    """The results of one turn. An id may be any text: it is hashed, and never part of a path."""

    def __init__(self, spool: ResultSpool, tenant: str, turn: str) -> None:
        self._spool = spool
        self._tenant = tenant
        self._turn = turn
        # Readers live until the call is recorded; from then on the record has the bytes.
        self._unsettled: dict[str, ref[InlineBlobReader]] = {}

    async def write(self, id: str, content: SpoolContent | ContentStream, *, limit: int | None = None) -> Reader:
        """Store a result of at most `limit` bytes (or the spool's own limit, if that is less).

        Raises `OutputTooLarge` or `SpoolQuotaExceeded` as soon as it is too large, and stores nothing then.
        """
        if type(content) is bytes and (reader := self.write_inline(id, content, limit=limit)) is not None:
            return reader
        bound = self._limit_output(limit)
        slot = hash_id(id)
        name = f"{slot}.{next_generation()}"
        held = _Held(bound, largest=INLINE_LIMIT if self._spool.small is not None else -1)
        part: _Counted | None = None
        try:
            async for chunk in iter_chunks(content):
                if part is None and not held.takes(chunk):
                    part = await self._part(name, held)
                if part is not None:
                    await part.append(chunk)
            if part is None and self._spool.small is None:
                part = await self._part(name, held)
            if part is None:
                return self._small(slot, name, b"".join(held.chunks))
            return await part.publish()
        except BaseException:
            if part is not None:
                await part.discard()
            raise

    def write_inline(self, id: str, content: bytes, *, limit: int | None = None) -> InlineBlobReader | None:
        """Do the same for a small result. Return `None` if it is large, or small ones are not stored with records."""
        size = len(content)
        if self._spool.small is None or size > INLINE_LIMIT:
            return None
        _refuse_more_than(self._limit_output(limit), size)
        slot = hash_id(id)
        return self._small(slot, f"{slot}.{next_generation()}", content)

    def _limit_output(self, limit: int | None) -> int | None:
        return self._spool.max_output if limit is None else min(limit, self._spool.max_output or limit)

    async def read(self, id: str) -> Reader | None:
        slot = hash_id(id)
        found: list[Reader] = []
        if slot in self._unsettled and (unsettled := self._unsettled[slot]()) is not None:
            found.append(unsettled)
        elif self._spool.small is not None and (
            last := await self._spool.small.find_last_blob(self._prefix("s", slot))
        ):
            found.append(InlineBlobReader(*last))
        names = await self._spool.large.names(self._tenant, self._turn, slot)
        if names and (large := await self._spool.large.open(BlobKey("f", self._tenant, self._turn, names[-1]))):
            found.append(large)
        return max(found, key=lambda reader: reader.key.rpartition(".")[2], default=None)

    async def delete(self, id: str) -> bool:
        slot = hash_id(id)
        unsettled = self._unsettled.pop(slot, None)
        deleted = unsettled is not None and unsettled() is not None
        if self._spool.small is not None:
            deleted |= await self._spool.small.delete_blobs(self._prefix("s", slot))
        for name in await self._spool.large.names(self._tenant, self._turn, slot):
            deleted |= await self._spool.delete(str(BlobKey("f", self._tenant, self._turn, name)))
        return deleted

    def _small(self, slot: str, name: str, content: bytes) -> InlineBlobReader:
        reader = InlineBlobReader(f"s.{self._tenant}.{self._turn}.{name}", content)
        if len(self._unsettled) >= _MANY:
            self._unsettled = {each: known for each, known in self._unsettled.items() if known() is not None}
        self._unsettled[slot] = ref(reader)
        return reader

    async def _part(self, name: str, held: "_Held") -> "_Counted":
        await self._spool.usage.know(self._tenant)
        key = BlobKey("f", self._tenant, self._turn, name)
        part = _Counted(await self._spool.large.start_write(key), self._spool.usage, self._tenant, bound=held.bound)
        try:
            for chunk in held.chunks:
                await part.append(chunk)
        except BaseException:
            await part.discard()
            raise
        return part

    def _prefix(self, kind: str, slot: str) -> str:
        return f"{kind}.{self._tenant}.{self._turn}.{slot}."


class _Held:
    """The beginning of a result, in memory until it is known to be large."""

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


class _Counted:
    """A large piece that is being written, checked against its limits."""

    def __init__(self, writing: BlobWriter, usage: "_Usage", tenant: str, *, bound: int | None) -> None:
        self._writing = writing
        self._usage = usage
        self._tenant = tenant
        self._bound = bound
        self._taken = 0

    async def append(self, chunk: bytes) -> None:
        _refuse_more_than(self._bound, self._taken + len(chunk))
        self._usage.take(self._tenant, len(chunk))
        self._taken += len(chunk)
        await self._writing.append(chunk)

    async def publish(self) -> BlobReader:
        return await self._writing.publish()

    async def discard(self) -> None:
        self._usage.give_back(self._tenant, self._taken)
        await self._writing.discard()


class _Usage:
    """Bytes of large pieces per tenant. Without a quota nothing is counted."""

    def __init__(self, large: BlobStore, quota: int | None) -> None:
        self._large = large
        self._quota = quota
        self._bytes: dict[str, int] = {}

    async def know(self, tenant: str) -> None:
        if self._quota is None or tenant in self._bytes:
            return
        counted = await self._large.count_bytes(tenant)
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


def _refuse_more_than(bound: int | None, size: int) -> None:
    if bound is not None and size > bound:
        raise OutputTooLarge(
            f"the output is larger than {bound} bytes", help="ask for less at once, or raise the tool's maxOutput"
        )

"""The spool of a served gateway: large results are put away by themselves, small ones go with their record.

A small result costs no file and no request of its own: its bytes wait in its reader, which hands them to the record.
So there is no moment at which one is durable without the other, and nothing is left behind by a call that never
settles. A large one is whole and durable before anybody gets its reader. Where large ones go is not known here.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Protocol
from weakref import ref

from gateway.core.lines import IndexedReader, LineIndex
from gateway.core.spool import Content, InMemoryReader, Stream, chunks_of
from gateway.errors import OutputTooLarge, SpoolQuotaExceeded
from gateway.storage.keys import Key, hashed, hashed_turn, next_generation, parsed

SMALL: Final = 64 * 1024
"""The largest result that is kept with its record."""

_MANY: Final = 256
"""Results that a turn may have lost sight of before it forgets them."""

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
        self._content = self.content = content
        self.key = key

    def describe(self) -> dict[str, Any]:
        return {"tag": "spool", "locator": self.key}


class LargeReader(IndexedReader):
    """A result that is read range by range from where it was put; nothing stays open between two reads."""

    content: None = None

    def __init__(self, key: Key, index: LineIndex) -> None:
        super().__init__(index)
        self.key = str(key)

    def describe(self) -> dict[str, Any]:
        return {"tag": "spool", "locator": self.key}


Reader = SmallReader | LargeReader


class Writing(Protocol):
    """A large piece on its way. It is either published or discarded; nobody can read it before it is published."""

    async def append(self, chunk: bytes) -> None: ...

    async def published(self) -> LargeReader: ...

    async def discard(self) -> None:
        """Leave nothing behind, also of what was published in the last moment."""
        ...


class LargePieces(Protocol):
    """Where large pieces are put. Whatever cannot be read or written raises `StoreUnavailable`."""

    @property
    def trouble(self) -> str | None:
        """Why nothing can be read or written at present, as far as that is known."""
        ...

    async def begin(self, key: Key) -> Writing: ...

    async def open(self, key: Key) -> LargeReader | None: ...

    async def delete(self, key: Key) -> int | None:
        """How many bytes went; `None` if there were none to go."""
        ...

    async def names(self, tenant: str, turn: str, slot: str) -> list[str]:
        """Generations of one id, in order."""
        ...

    async def used(self, tenant: str) -> int:
        """Bytes of a tenant."""
        ...

    def older(self, before: datetime) -> AsyncIterator[list[str]]:
        """Keys of what was written before a moment, some at a time."""
        ...

    async def close(self) -> None: ...


class PieceSpool:
    """Results of all turns. `max_output` bounds one write, `quota` the large pieces of one tenant; both are bytes.

    Without `small`, small results are put with the large ones. The quota is counted per process from what is there when
    a tenant first writes; small results do not count.
    """

    def __init__(
        self,
        large: LargePieces,
        *,
        small: SmallPieces | None = None,
        max_output: int | None = None,
        quota: int | None = None,
    ) -> None:
        self.large = large
        self.small = small
        self.max_output = max_output
        self.usage = _Usage(large, quota)

    @property
    def trouble(self) -> str | None:
        return self.large.trouble

    def scoped(self, turn_id: str, *, tenant: str | None = None) -> "TurnSpool":
        """The results of one turn, as a `ByteStore`."""
        return TurnSpool(self, _hashed_tenant(tenant), hashed_turn(turn_id))

    async def find(self, key: str, *, tenant: str | None) -> Reader | None:
        """What reads the piece of a record; `None` if it is gone, another tenant's, or the key is none."""
        parts = parsed(key)
        if parts is None or parts.tenant != hashed(tenant):
            return None
        if parts.kind == "f":
            return await self.large.open(parts)
        content = None if self.small is None else await self.small.find_piece(key)
        return None if content is None else SmallReader(key, content)

    async def delete(self, key: str) -> bool:
        """Delete the large piece of a record that is past its end of life. Small pieces go with their record."""
        parts = parsed(key)
        if parts is None or parts.kind != "f":
            return False
        size = await self.large.delete(parts)
        if size is not None:
            self.usage.give_back(parts.tenant, size)
        return size is not None

    async def remove_strays(self, known: Known, *, before: datetime) -> int:
        """Delete large pieces written before a moment that no record names; how many there were.

        They are left by processes that ended between spooling a result and settling its call, so the moment has to
        lie further back than any call runs.
        """
        removed = 0
        async for keys in self.large.older(before):
            strays = set(keys) - await known(keys) if keys else set()
            removed += sum([await self.delete(key) for key in sorted(strays)])
        return removed

    async def close(self) -> None:
        await self.large.close()


_hashed_tenant: Final = lru_cache(maxsize=1024)(hashed)


class TurnSpool:
    """The results of one turn. An id may be any text: it is hashed, and never part of a path."""

    def __init__(self, spool: PieceSpool, tenant: str, turn: str) -> None:
        self._spool = spool
        self._tenant = tenant
        self._turn = turn
        # As long as anybody has the reader, which is until the call settled; from then on the record has the bytes.
        self._unsettled: dict[str, ref[SmallReader]] = {}

    async def write(self, id: str, content: Content | Stream, *, limit: int | None = None) -> Reader:
        """Keep a result of at most `limit` bytes (or the spool's own limit, if that is less).

        Raises `OutputTooLarge` or `SpoolQuotaExceeded` as soon as it is too much, and leaves nothing behind.
        """
        if type(content) is bytes and (reader := self.hold(id, content, limit=limit)) is not None:
            return reader
        bound = self._bound(limit)
        slot = hashed(id)
        name = f"{slot}.{next_generation()}"
        held = _Held(bound, largest=SMALL if self._spool.small is not None else -1)
        part: _Counted | None = None
        try:
            async for chunk in chunks_of(content):
                if part is None and not held.takes(chunk):
                    part = await self._part(name, held)
                if part is not None:
                    await part.append(chunk)
            if part is None and self._spool.small is None:
                part = await self._part(name, held)
            if part is None:
                return self._small(slot, name, b"".join(held.chunks))
            return await part.published()
        except BaseException:
            if part is not None:
                await part.discard()
            raise

    def hold(self, id: str, content: bytes, *, limit: int | None = None) -> SmallReader | None:
        """The same for a small result, which most are; `None` for one that is not, or that cannot go with a record."""
        size = len(content)
        if self._spool.small is None or size > SMALL:
            return None
        _refuse_more_than(self._bound(limit), size)
        slot = hashed(id)
        return self._small(slot, f"{slot}.{next_generation()}", content)

    def _bound(self, limit: int | None) -> int | None:
        return self._spool.max_output if limit is None else min(limit, self._spool.max_output or limit)

    async def read(self, id: str) -> Reader | None:
        slot = hashed(id)
        found: list[Reader] = []
        if slot in self._unsettled and (unsettled := self._unsettled[slot]()) is not None:
            found.append(unsettled)
        elif self._spool.small is not None and (last := await self._spool.small.last_piece(self._prefix("s", slot))):
            found.append(SmallReader(*last))
        names = await self._spool.large.names(self._tenant, self._turn, slot)
        if names and (large := await self._spool.large.open(Key("f", self._tenant, self._turn, names[-1]))):
            found.append(large)
        return max(found, key=lambda reader: reader.key.rpartition(".")[2], default=None)

    async def delete(self, id: str) -> bool:
        slot = hashed(id)
        unsettled = self._unsettled.pop(slot, None)
        deleted = unsettled is not None and unsettled() is not None
        if self._spool.small is not None:
            deleted |= await self._spool.small.delete_pieces(self._prefix("s", slot))
        for name in await self._spool.large.names(self._tenant, self._turn, slot):
            deleted |= await self._spool.delete(str(Key("f", self._tenant, self._turn, name)))
        return deleted

    def _small(self, slot: str, name: str, content: bytes) -> SmallReader:
        reader = SmallReader(f"s.{self._tenant}.{self._turn}.{name}", content)
        if len(self._unsettled) >= _MANY:
            self._unsettled = {each: known for each, known in self._unsettled.items() if known() is not None}
        self._unsettled[slot] = ref(reader)
        return reader

    async def _part(self, name: str, held: "_Held") -> "_Counted":
        await self._spool.usage.know(self._tenant)
        key = Key("f", self._tenant, self._turn, name)
        part = _Counted(await self._spool.large.begin(key), self._spool.usage, self._tenant, bound=held.bound)
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


class _Counted:
    """A large piece on its way, held to its limits."""

    def __init__(self, writing: Writing, usage: "_Usage", tenant: str, *, bound: int | None) -> None:
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

    async def published(self) -> LargeReader:
        return await self._writing.published()

    async def discard(self) -> None:
        self._usage.give_back(self._tenant, self._taken)
        await self._writing.discard()


class _Usage:
    """Bytes of large pieces, per tenant; nothing is counted where there is no quota."""

    def __init__(self, large: LargePieces, quota: int | None) -> None:
        self._large = large
        self._quota = quota
        self._bytes: dict[str, int] = {}

    async def know(self, tenant: str) -> None:
        if self._quota is None or tenant in self._bytes:
            return
        counted = await self._large.used(tenant)
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

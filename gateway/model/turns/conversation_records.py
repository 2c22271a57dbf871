"""The records of a turn, and the callbacks that persist them.

- A record is checked, then persisted, then added to the context: if persisting fails, nothing has changed. Nothing is
  loaded automatically, and results of `fetch_` methods are not added to the context.
- Messages, memories, thoughts and retrieved records are plain data: only their id, order and trust matter here.
- Callbacks persist and fetch records. All of them are required; a no-op is fine. Each may be sync or async. Its
  arguments are the context, then the record, the id, or the id and its bytes. If a `store_`, `mutate_` or `delete_`
  callback raises, the records of the context do not change.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, Self

from gateway.errors import InvalidInitialToolCallValue, NotASpoolReader, ValidationException, problem
from gateway.model.media import Chunk, Media, MediaReader, TrustTier, require_media_reader
from gateway.model.primitives.json_fingerprint import fingerprint_of
from gateway.model.tools.artifact import SpoolReader, is_spool_reader
from gateway.model.tools.tool import Tool
from gateway.model.tools.tool_call import ToolCall
from gateway.model.turns.events import now

RecordKind = Literal["message", "memory", "retrievable", "thought", "tool_call"]
RECORD_KINDS: Final[tuple[RecordKind, ...]] = ("message", "memory", "retrievable", "thought", "tool_call")


@dataclass(frozen=True, slots=True)
class Message:
    id: str
    role: Literal["user", "assistant", "peer"]
    content: Any
    created_at: datetime = field(default_factory=now)
    sender: str | None = None
    attachments: tuple[Media, ...] = ()


@dataclass(frozen=True, slots=True)
class Thought:
    id: str
    content: Any
    created_at: datetime = field(default_factory=now)
    kind: str = "reasoning"
    sender: str | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    id: str
    content: Any
    created_at: datetime = field(default_factory=now)


@dataclass(frozen=True, slots=True)
class Retrievable:
    """A record fetched from a corpus. An artifact that is not `inline` can be queried like a tool's artifact."""

    id: str
    content: Any
    trust_tier: TrustTier
    source: str = "corpus"
    inline: bool = True
    created_at: datetime = field(default_factory=now)


class RecordSet:
    """An ordered set of records, addressed by `id`. Until it is replaced, an id may occur more than once."""

    def __init__(self, records: Iterable[Any] = ()) -> None:
        self._records: list[Any] = []
        self._by_id: dict[str, Any] = {}
        for record in records:
            self.add(record)

    def __iter__(self) -> Iterator[Any]:
        return iter(tuple(self._records))

    def __len__(self) -> int:
        return len(self._records)

    def copy(self) -> Self:
        """Return an independent set of the same records."""
        return type(self)(self._records)

    def find(self, id: str) -> Any:
        """Return the first record with that id, or `None`."""
        return self._by_id.get(id)

    def has(self, id: str) -> bool:
        return id in self._by_id

    def add(self, record: Any) -> None:
        self._insert(len(self._records), record)

    def replace(self, record: Any) -> None:
        """Replace the first record with the same id and drop the others; add the record if there is none."""
        position = self._position(record.id)
        self.remove(record.id)
        self._insert(position, record)

    def remove(self, id: str) -> list[Any]:
        """Remove every record with that id; return the removed ones."""
        if self._by_id.pop(id, None) is None:
            return []
        removed = [record for record in self._records if record.id == id]
        self._records = [record for record in self._records if record.id != id]
        return removed

    def _insert(self, position: int, record: Any) -> None:
        self._records.insert(position, record)
        self._by_id.setdefault(record.id, record)

    def _position(self, id: str) -> int:
        """Return the position of the first record with that id; the end if there is none."""
        if id not in self._by_id:
            return len(self._records)
        return next(index for index, record in enumerate(self._records) if record.id == id)


@dataclass(slots=True)
class CallTotals:
    """Counts of calls by tool, of those with an error by tool, and the bytes of their results."""

    calls: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    byte_length: int = 0


class ToolCallSet(RecordSet):
    """A set of tool calls that counts how often each checksum occurs."""

    older: CallTotals | None = None
    """The calls of the turn that the set no longer has, if it is bounded."""

    def __init__(self, records: Iterable[Any] = ()) -> None:
        self._counts: Counter[str] = Counter()
        super().__init__(records)

    def count(self, checksum: str) -> int:
        return self._counts[checksum]

    def count_exactly(self, fingerprint: str) -> int:
        """Return how many calls have that fingerprint. Rarely needed, so it is computed on each call."""
        return sum(fingerprint_of(each.tool, each.args) == fingerprint for each in self)

    def remove(self, id: str) -> list[Any]:
        removed = super().remove(id)
        self._counts.subtract(record.checksum for record in removed)
        return removed

    def _insert(self, position: int, record: Any) -> None:
        super()._insert(position, record)
        self._counts[record.checksum] += 1


class TurnRecordSets:
    """One set per kind of record, created on first use: most turns have one kind or none."""

    __slots__ = ("_sets",)

    def __init__(self, sets: dict[RecordKind, RecordSet] | None = None) -> None:
        self._sets: dict[RecordKind, RecordSet] = {} if sets is None else sets

    def __getitem__(self, kind: RecordKind) -> RecordSet:
        found = self._sets.get(kind)
        if found is None:
            found = self._sets[kind] = ToolCallSet() if kind == "tool_call" else RecordSet()
        return found

    @property
    def has_records(self) -> bool:
        return any(self._sets.values())

    @property
    def tool_calls(self) -> "ToolCallSet":
        found = self["tool_call"]
        assert isinstance(found, ToolCallSet)  # noqa: S101 - the only kind of set made for them
        return found

    def copy(self) -> "TurnRecordSets":
        """Return independent sets of the same records."""
        return TurnRecordSets({kind: records.copy() for kind, records in self._sets.items()} if self._sets else None)


def record_kind_plural(kind: RecordKind) -> str:
    return "memories" if kind == "memory" else f"{kind}s"


Callback = Callable[..., Any]

CALLBACKS: Final = (
    *(f"{verb}_{kind}" for kind in RECORD_KINDS for verb in ("store", "mutate", "delete")),
    *(f"fetch_{record_kind_plural(kind)}" for kind in RECORD_KINDS),
    "fetch_tools",
    "store_media_bytes",
    "store_retrievable_bytes",
)
"""`store_`, `mutate_` and `delete_` of each record kind, `fetch_` of records and tools, and two for bytes."""


async def call_callback(callback: Callback, *args: Any) -> Any:
    """Call a callback; await the result if it is async."""
    answer = callback(*args)
    return await answer if inspect.isawaitable(answer) else answer


Delta = Callable[[TurnRecordSets], object]


class TurnRecords:
    """The part of a context that holds messages, memories, retrieved records, thoughts and tool calls."""

    def __init__(self, records: TurnRecordSets, callbacks: Mapping[str, Callback]) -> None:
        self._records = records
        self._callbacks = callbacks
        self._ids_being_stored: set[str] = set()

    @property
    def has_records(self) -> bool:
        return self._records.has_records

    @property
    def turn_messages(self) -> list[Any]:
        return list(self._records["message"])

    @property
    def turn_memories(self) -> list[Any]:
        return list(self._records["memory"])

    @property
    def turn_retrievables(self) -> list[Any]:
        return list(self._records["retrievable"])

    @property
    def turn_thoughts(self) -> list[Any]:
        return list(self._records["thought"])

    @property
    def turn_tool_calls(self) -> list[ToolCall]:
        return list(self._records["tool_call"])

    def tool_call_count(self, checksum: str) -> int:
        """Return how many stored calls have that checksum, including earlier calls of the turn."""
        return self._records.tool_calls.count(checksum)

    def equal_call_count(self, fingerprint: str) -> int:
        """Return how many stored calls have that fingerprint, in which no number is rounded."""
        return self._records.tool_calls.count_exactly(fingerprint)

    def has_tool_call(self, id: str) -> bool:
        """Whether a call with that id is stored in this turn."""
        return self._records["tool_call"].has(id)

    @property
    def older_calls(self) -> CallTotals | None:
        """Totals of the calls that are stored and no longer in memory; `None` if all are in `turn_tool_calls`."""
        return self._records.tool_calls.older

    async def fetch_messages(self) -> list[Any]:
        return await self._fetch("fetch_messages")

    async def fetch_memories(self) -> list[Any]:
        return await self._fetch("fetch_memories")

    async def fetch_retrievables(self) -> list[Any]:
        return await self._fetch("fetch_retrievables")

    async def fetch_thoughts(self) -> list[Any]:
        return await self._fetch("fetch_thoughts")

    async def fetch_tool_calls(self) -> list[ToolCall]:
        return await self._fetch("fetch_tool_calls")

    async def fetch_tools(self) -> list[Tool]:
        """Fetch tools from the dynamic source. Never called automatically: middleware registers the result."""
        return await self._fetch("fetch_tools")

    async def store_media_bytes(self, id: str, content: Chunk) -> MediaReader:
        """Persist bytes and return a reader for them; adds nothing to the turn."""
        return require_media_reader(await self._store_bytes("store_media_bytes", id, content))

    async def store_retrievable_bytes(self, id: str, content: Chunk) -> SpoolReader:
        """Persist bytes and return a reader for them; adds nothing to the turn."""
        reader = await self._store_bytes("store_retrievable_bytes", id, content)
        if not is_spool_reader(reader):
            raise NotASpoolReader()
        return reader

    async def store_message(self, record: Any) -> None:
        await self._store("message", record)

    async def mutate_message(self, record: Any) -> None:
        await self._mutate("message", record)

    async def delete_message(self, id: str) -> None:
        await self._delete("message", id)

    async def store_memory(self, record: Any) -> None:
        await self._store("memory", record)

    async def mutate_memory(self, record: Any) -> None:
        await self._mutate("memory", record)

    async def delete_memory(self, id: str) -> None:
        await self._delete("memory", id)

    async def store_retrievable(self, record: Any) -> None:
        await self._store("retrievable", record)

    async def mutate_retrievable(self, record: Any) -> None:
        await self._mutate("retrievable", record)

    async def delete_retrievable(self, id: str) -> None:
        await self._delete("retrievable", id)

    async def store_thought(self, record: Any) -> None:
        await self._store("thought", record)

    async def mutate_thought(self, record: Any) -> None:
        await self._mutate("thought", record)

    async def delete_thought(self, id: str) -> None:
        await self._delete("thought", id)

    async def store_tool_call(self, record: ToolCall) -> None:
        """Store a completed call. An id that was used in this turn is refused: it names another artifact."""
        _require_tool_call(record)
        if record.id in self._ids_being_stored or self.has_tool_call(record.id):
            found = problem(f"the id {record.id!r} is already used in this turn", ["id"], "unique")
            raise InvalidInitialToolCallValue(cause=ValidationException([found]))
        _require_id(record.id, "a tool_call has")
        self._ids_being_stored.add(record.id)  # another call may store the same id while this one waits
        try:
            answer = self._callbacks["store_tool_call"](self, record)
            if inspect.isawaitable(answer):
                await answer
        finally:
            self._ids_being_stored.discard(record.id)
        self._change(lambda records: records["tool_call"].add(record))

    def add_stored_call(self, record: ToolCall) -> None:
        """Add a record that is stored already, such as one of an earlier turn, without persisting it."""
        _require_tool_call(record)
        self._change(lambda records: records["tool_call"].add(record))

    async def mutate_tool_call(self, record: ToolCall) -> None:
        _require_tool_call(record)
        await self._mutate("tool_call", record)

    async def delete_tool_call(self, id: str) -> None:
        await self._delete("tool_call", id)

    async def _fetch(self, name: str) -> list[Any]:
        return list(await call_callback(self._callbacks[name], self))

    async def _store_bytes(self, name: str, id: str, content: Chunk) -> Any:
        _require_id(id, "the bytes are stored under")
        if not isinstance(content, Chunk):
            raise TypeError(f"{name}() needs bytes, not {type(content).__name__}")
        return await call_callback(self._callbacks[name], self, id, bytes(content))

    async def _store(self, kind: RecordKind, record: Any) -> None:
        _require_id(getattr(record, "id", None), f"a {kind} has")
        await call_callback(self._callbacks[f"store_{kind}"], self, record)
        self._change(lambda records: records[kind].add(record))

    async def _mutate(self, kind: RecordKind, record: Any) -> None:
        _require_id(getattr(record, "id", None), f"a {kind} has")
        await call_callback(self._callbacks[f"mutate_{kind}"], self, record)
        self._change(lambda records: records[kind].replace(record))

    async def _delete(self, kind: RecordKind, id: str) -> None:
        _require_id(id, f"a {kind} is deleted by")
        await call_callback(self._callbacks[f"delete_{kind}"], self, id)
        self._change(lambda records: records[kind].remove(id))

    def _change(self, delta: Delta) -> None:
        delta(self._records)


def _require_id(id: Any, what: str) -> None:
    if not isinstance(id, str) or not id:
        raise TypeError(f"{what} an id, a non-empty string")


def _require_tool_call(record: Any) -> None:
    if not ToolCall.is_tool_call(record):
        found = problem(f"a stored call must be a ToolCall, not {type(record).__name__}", type="type")
        raise InvalidInitialToolCallValue(cause=ValidationException([found]))

"""The records a turn works on besides tool calls, and the ordered sets that hold them.

Messages, memories, thoughts and retrieved records are plain data here: what matters to the core
is their id, their order and how far their content is trusted.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, Self

from gateway.core.events import now
from gateway.core.exact_json import fingerprint_of
from gateway.core.media import Media, TrustTier

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
    """A record fetched from a corpus. An artifact that is not `inline` can be queried like a tool's."""

    id: str
    content: Any
    trust_tier: TrustTier
    source: str = "corpus"
    inline: bool = True
    created_at: datetime = field(default_factory=now)


class RecordSet:
    """Records in order, addressed by their `id`. An id may occur more than once until it is replaced."""

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
        """The same records, free to change on its own."""
        return type(self)(self._records)

    def find(self, id: str) -> Any:
        """The first record with that id, or `None`."""
        return self._by_id.get(id)

    def add(self, record: Any) -> None:
        self._insert(len(self._records), record)

    def replace(self, record: Any) -> None:
        """Put `record` where the first one with its id stands and drop the others; unknown ids are added."""
        position = self._position(record.id)
        self.remove(record.id)
        self._insert(position, record)

    def remove(self, id: str) -> list[Any]:
        """Drop every record with that id; answers what was dropped."""
        if self._by_id.pop(id, None) is None:
            return []
        removed = [record for record in self._records if record.id == id]
        self._records = [record for record in self._records if record.id != id]
        return removed

    def _insert(self, position: int, record: Any) -> None:
        self._records.insert(position, record)
        self._by_id.setdefault(record.id, record)

    def _position(self, id: str) -> int:
        """Where the first record with that id stands; the end if there is none."""
        if id not in self._by_id:
            return len(self._records)
        return next(index for index, record in enumerate(self._records) if record.id == id)


class ToolCallSet(RecordSet):
    """Tool calls, and how often each checksum occurs among them."""

    def __init__(self, records: Iterable[Any] = ()) -> None:
        self._counts: Counter[str] = Counter()
        super().__init__(records)

    def count(self, checksum: str) -> int:
        return self._counts[checksum]

    def count_exactly(self, fingerprint: str) -> int:
        """How many of the calls have that exact digest. Few ask, so it is counted when somebody does."""
        return sum(fingerprint_of(each.tool, each.args) == fingerprint for each in self)

    def remove(self, id: str) -> list[Any]:
        removed = super().remove(id)
        self._counts.subtract(record.checksum for record in removed)
        return removed

    def _insert(self, position: int, record: Any) -> None:
        super()._insert(position, record)
        self._counts[record.checksum] += 1


class RecordSets:
    """One set per kind of record, made when it is first asked for: most turns have one kind or none."""

    __slots__ = ("_sets",)

    def __init__(self, sets: dict[RecordKind, RecordSet] | None = None) -> None:
        self._sets: dict[RecordKind, RecordSet] = {} if sets is None else sets

    def __getitem__(self, kind: RecordKind) -> RecordSet:
        found = self._sets.get(kind)
        if found is None:
            found = self._sets[kind] = ToolCallSet() if kind == "tool_call" else RecordSet()
        return found

    @property
    def are_any(self) -> bool:
        return any(self._sets.values())

    @property
    def tool_calls(self) -> "ToolCallSet":
        found = self["tool_call"]
        assert isinstance(found, ToolCallSet)  # noqa: S101 - the only kind of set made for them
        return found

    def copy(self) -> "RecordSets":
        """The same records, free to change on their own."""
        return RecordSets({kind: records.copy() for kind, records in self._sets.items()} if self._sets else None)


def plural(kind: RecordKind) -> str:
    return "memories" if kind == "memory" else f"{kind}s"

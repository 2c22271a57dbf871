"""The records a turn works on besides tool calls, and the ordered sets that hold them.

Messages, memories, thoughts and retrieved records are plain data here: what matters to the core
is their id, their order and how far their content is trusted.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from gateway.core.events import now
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
    """Records in order, addressed by their `id`."""

    def __init__(self, records: Iterable[Any] = ()) -> None:
        self._records: list[Any] = list(records)
        self._by_id = {record.id: record for record in reversed(self._records)}

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._records))

    def __len__(self) -> int:
        return len(self._records)

    def find(self, id: str) -> Any:
        """The first record with that id, or `None`."""
        return self._by_id.get(id)

    def add(self, record: Any) -> None:
        self._records.append(record)
        self._by_id.setdefault(record.id, record)

    def replace(self, record: Any) -> None:
        """Put `record` where the first one with its id stands and drop the others; unknown ids are added."""
        first = self._by_id.get(record.id)
        if first is None:
            self.add(record)
            return
        self._records[self._records.index(first)] = record
        self._records = [known for known in self._records if known is record or known.id != record.id]
        self._by_id[record.id] = record

    def remove(self, id: str) -> None:
        if self._by_id.pop(id, None) is not None:
            self._records = [record for record in self._records if record.id != id]

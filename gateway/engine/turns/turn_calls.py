"""The calls of a served turn: the newest records, and of older ones only what later calls depend on.

The store has every record. A turn keeps the ids of its calls, so that no id is used twice and query tools can name
their artifacts, how often each call was made, and totals. So the thousandth call of a turn costs what the first did.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, Generic, NamedTuple, TypeVar

from gateway.artifacts import encode_utf8
from gateway.model import (
    CallTotals,
    Media,
    RecordSet,
    Tokenizable,
    ToolCall,
    ToolCallSet,
    candidate_call_ids,
    is_artifact,
)

NEWEST_RECORDS: Final = 64
"""Records of a turn that stay in memory."""

KNOWN_CALLS: Final = 10_000
"""Calls of a turn whose ids and repetitions are known at least, without reading the store."""

_KEY: Final = 32
"""Characters of a fingerprint that identify a call. Calls that share them count as one, which can only refuse more."""

V = TypeVar("V")


class OlderCall(NamedTuple):
    """A call whose record is only in the store; its results are placeholders of the same classes."""

    id: str
    results: Any
    from_artifact_tool: bool = False


class RecentDict(Generic[V]):
    """The last `most` keys that were set, and up to as many before them. Dropping old keys costs nothing per key."""

    __slots__ = ("_most", "_new", "_old")

    def __init__(self, most: int) -> None:
        self._most = most
        self._new: dict[str, V] = {}
        self._old: dict[str, V] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def __contains__(self, key: str) -> bool:
        return key in self._new or key in self._old

    def __setitem__(self, key: str, value: V) -> None:
        self._old.pop(key, None)
        self._new[key] = value
        if len(self._new) >= self._most:
            self._old, self._new = self._new, {}

    def get(self, key: str) -> V | None:
        return self._new[key] if key in self._new else self._old.get(key)

    def discard(self, key: str) -> None:
        self._new.pop(key, None)
        self._old.pop(key, None)

    def items(self) -> Iterator[tuple[str, V]]:
        yield from self._old.items()
        yield from self._new.items()


class TurnCalls(ToolCallSet):
    """The calls of one turn. A copy has the same newest records, and asks the original about older ones."""

    def __init__(
        self,
        records: Iterable[Any] = (),
        *,
        copy_of: "TurnCalls | None" = None,
        newest: int | None = NEWEST_RECORDS,
    ) -> None:
        """`newest`: that many records stay in memory; `None` for all of them."""
        self._copy_of = copy_of
        self._newest = newest
        self._known: RecentDict[_Known] = RecentDict(KNOWN_CALLS)
        self.readings: set[tuple[str | None, str | None]] = set()
        """Whose results the turn has: names of query tools, `None` for whole results, with the tool that made them."""
        self._times: RecentDict[int] = RecentDict(KNOWN_CALLS)
        """How often each call was made, by its fingerprint. In a copy, how often it was added to the copy."""
        self._media: RecentDict[ToolCall] = RecentDict(NEWEST_RECORDS)
        """Records with media, whose bytes may have to be fetched by the turn."""
        self._shared: dict[tuple[str, type], _Known] = {}
        super().__init__()
        for record in records:
            self._insert(len(self._records), record)

    def copy(self) -> "TurnCalls":
        return TurnCalls(self._records, copy_of=self)

    @property
    def has_forgotten(self) -> bool:
        """Whether ids of its oldest calls may be known to the store only."""
        return len(self._known) >= KNOWN_CALLS

    def has(self, id: str) -> bool:
        return id in self._by_id or id in self._known or (self._copy_of is not None and self._copy_of.has(id))

    def find_media(self, id: str) -> ToolCall | None:
        """Return the record of a call whose result is media."""
        return self._media.get(id)

    def find_source(self, id: str) -> ToolCall | None:
        """Return the record in memory whose result has that id: its own id, or that of one of its pieces."""
        return next((self._by_id[each] for each in candidate_call_ids(id) if each in self._by_id), None)

    def find_tool(self, id: str) -> str | None:
        """Return the tool that made the artifact with that id; `None` if the turn does not know it."""
        known = (self._known.get(each) for each in candidate_call_ids(id))
        return next((each.tool for each in known if each is not None), None)

    def has_source(self, id: str) -> bool:
        """Whether a call of this turn may have the artifact with that id; its record may be only in the store."""
        return any(map(self.has, candidate_call_ids(id)))

    def add(self, record: Any, fingerprint: str | None = None) -> None:
        """Add a call. `fingerprint` is its exact digest, if that is known; a call that is added again counts once."""
        if record.id not in self._known:
            key = (fingerprint or record.checksum)[:_KEY]
            self._times[key] = (self._times.get(key) or 0) + 1
        super().add(record)

    def count(self, checksum: str) -> int:
        times = self._times.get(checksum[:_KEY]) or 0
        return times if self._copy_of is None else times + self._copy_of.count(checksum)

    def count_exactly(self, fingerprint: str) -> int:
        """Return how often the call was made in this turn."""
        return self.count(fingerprint)

    def iter_artifacts(self) -> Iterator[OlderCall | ToolCall]:
        """Return every known call with artifacts, oldest first."""
        for id, known in self._known.items():
            if id in self._by_id:
                yield self._by_id[id]
            elif known.results is not None:
                yield OlderCall(id, known.results)

    def remove(self, id: str) -> list[Any]:
        self._known.discard(id)
        return RecordSet.remove(self, id)

    def _insert(self, position: int, record: Any) -> None:
        RecordSet._insert(self, position, record)
        if self._copy_of is not None:
            return
        self._known[record.id] = self._describe(record)
        if not record.is_error:
            is_query = record.from_artifact_tool
            maker = self.find_tool(str(record.args.get("callId"))) if is_query else record.tool
            self.readings.add((record.tool if is_query else None, maker))
        if _has_media(record.results):
            self._media[record.id] = record
        if self._newest is not None and len(self._records) > self._newest:
            self._forget(self._records.pop(0))

    def _forget(self, record: Any) -> None:
        """Drop a record that the store has."""
        self._by_id.pop(record.id, None)
        older = self.older = self.older or CallTotals()
        older.calls[record.tool] += 1
        older.errors[record.tool] += record.is_error
        older.byte_length += _size_of(record.results)

    def _describe(self, record: Any) -> "_Known":
        """Return what stays known of a call; calls of one tool with one result of the same class share it."""
        tool, results = record.tool, record.results
        if record.from_artifact_tool:
            return _Known(tool)
        if isinstance(results, list):
            return _Known(tool, [_placeholder(each) for each in results])
        key = (tool, type(results))
        known = self._shared.get(key)
        if known is None:
            known = self._shared[key] = _Known(tool, _placeholder(results))
        return known


class _Known(NamedTuple):
    """What stays known of a call: its tool, and placeholders of its artifacts."""

    tool: str
    results: Any = None


def _placeholder(result: Any) -> Any:
    return object.__new__(type(result)) if is_artifact(result) else None


def _has_media(results: Any) -> bool:
    return isinstance(results[0] if isinstance(results, list) and results else results, Media)


def _size_of(results: Any) -> int:
    """Return the bytes of results as far as they are known without reading them."""
    if isinstance(results, list):
        return sum(map(_size_of, results))
    if isinstance(results, Tokenizable):
        return 0 if results.is_dynamic else len(encode_utf8(results.render()))
    size = getattr(getattr(results, "reader", None), "byte_length", lambda: 0)()
    return size if isinstance(size, int) else 0

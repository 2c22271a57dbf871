"""What one turn remembers: the flags, tiers and classes it has seen, how often each call was made, the newest calls.

What was seen and the totals are never forgotten; the history is bounded. Nothing here decides, and nothing here knows
where a memory is kept between calls: it becomes JSON and is made of it again, and JSON that is not one is refused.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import lru_cache
from time import time_ns
from typing import Any, Final, Literal, NamedTuple

import orjson

VERSION: Final = 1
NEWEST: Final = 128
"""Calls that conditions can look at, one by one; what is older still counts in everything that was seen."""

DIFFERENT: Final = 256
"""Different calls whose repetitions are counted: those that were made last."""

MAX_JSON: Final = 256 << 10
_MAX_NAMES: Final = 1_024
_MAX_NAME: Final = 256
_MAX_COUNT: Final = 2**53 - 1
_KEY: Final = 16
"""Characters of a fingerprint that tell calls apart. Two that share them count as one: that can only refuse more."""

Made = Literal["allow", "hold", "deny"]


class MemoryUnreadable(ValueError):
    """What should be the memory of a turn is not. Nothing may be allowed by what it does not say."""


class Brought(NamedTuple):
    """What a tool brings into a turn that calls it, or reads what it left: its flags, its tier, the class it yields."""

    tool: str
    flags: tuple[str, ...]
    tier: str
    artifact: str | None = None


class RememberedCall(NamedTuple):
    """One call of the history; `at` counts milliseconds since 1970."""

    tool: str
    flags: tuple[str, ...]
    tier: str
    decision: Made
    at: int

    def age(self, now: datetime) -> timedelta:
        """Never negative: a clock that was put back makes nothing younger than it can be."""
        return timedelta(milliseconds=max(0, _milliseconds(now) - self.at))


class Bounds(NamedTuple):
    """How often one call may be made in a turn, and how many calls the turn may make; `None` is no bound."""

    same: int | None = None
    calls: int | None = None


class _Seen:
    """What there is to look at in a memory: what was seen, the newest calls, and how often each call was made."""

    __slots__ = ("classes", "flags", "newest", "same", "tiers")

    def __init__(self) -> None:
        self.flags: set[str] = set()
        self.tiers: set[str] = set()
        self.classes: set[str] = set()
        self.newest: list[RememberedCall] = []
        self.same: dict[str, int] = {}


class TurnMemory:
    """One turn's memory, changed by its turn alone. A call is reserved, noted when it runs, and receives its bytes.

    `calls` and `bytes` are the totals of the turn. `known` is the memory as it was last read or written where all
    processes find it: what was counted since then is not there yet. Most turns make one call, and nobody looks at what
    they have seen: that is spread out when somebody first does.
    """

    __slots__ = ("_at", "_brought", "_key", "_seen", "bytes", "calls", "known", "output_ran")

    def __init__(self) -> None:
        self.known: bytes | None = None
        self.output_ran = False
        """Whether the output stages of the turn have run, or run after the call that began it."""
        self.calls = 0
        self.bytes = 0
        self._seen: _Seen | None = None
        self._key: str | None = None
        """Of the only call that was reserved, as long as nothing is spread out."""
        self._brought: Brought | None = None
        """What that call brought when it ran."""
        self._at = 0

    @property
    def flags(self) -> set[str]:
        return self._spread_out().flags

    @property
    def tiers(self) -> set[str]:
        return self._spread_out().tiers

    @property
    def classes(self) -> set[str]:
        return self._spread_out().classes

    @property
    def newest(self) -> list[RememberedCall]:
        return self._spread_out().newest

    def _spread_out(self) -> _Seen:
        if self._seen is None:
            self._seen = seen = _Seen()
            if self._key is not None:
                seen.same[self._key] = 1
            if self._brought is not None:
                seen.newest.append(_remembered(self._brought, "allow", self._at))
                self.reads(self._brought)
            self._key = self._brought = None
        return self._seen

    def times(self, fingerprint: str) -> int:
        """How often the same call was made; calls that were refused were not."""
        return self._spread_out().same.get(fingerprint[:_KEY], 0)

    def reserves(self, fingerprint: str) -> None:
        """Count a call that is about to be made, before anything is waited for: others may be judged meanwhile."""
        key = fingerprint[:_KEY]
        self.calls += 1
        if self._key is None and self._seen is None:
            self._key = key
            return
        same = self._spread_out().same
        same[key] = same.pop(key, 0) + 1  # moved to the end: made last
        if len(same) > DIFFERENT:
            del same[next(iter(same))]

    def releases(self, fingerprint: str) -> None:
        """Take a reservation back: the call was not made after all."""
        key, same = fingerprint[:_KEY], self._spread_out().same
        times = same.get(key, 0)
        if times > 1:
            same[key] = times - 1
        elif times == 1:
            del same[key]
        self.calls = max(0, self.calls - 1)

    def notes(self, brought: Brought, decision: Made, *, at: datetime | None = None) -> None:
        """A call and what was decided about it, now if nothing else is said.

        One that runs brings what it brings, whatever becomes of it.
        """
        moment = time_ns() // 1_000_000 if at is None else _milliseconds(at)
        if self._key is not None and self._brought is None and decision == "allow":
            self._brought, self._at = brought, moment
            return
        newest = self.newest
        newest.append(_remembered(brought, decision, moment))
        if len(newest) > NEWEST:
            del newest[0]
        if decision == "allow":
            self.reads(brought)

    def reads(self, brought: Brought) -> None:
        """The turn is shown what a tool yielded: its own result, or an artifact of whichever turn."""
        seen = self._spread_out()
        seen.flags.update(brought.flags)
        seen.tiers.add(brought.tier)
        if brought.artifact is not None:
            seen.classes.add(brought.artifact)

    def receives(self, count: int) -> None:
        """Bytes of a result."""
        self.bytes += count

    def has_room(self, fingerprint: str, bounds: Bounds) -> bool:
        """Whether the call may be made once more."""
        is_new = bounds.same is None or self.times(fingerprint) < bounds.same
        return is_new and (bounds.calls is None or self.calls < bounds.calls)

    def absorbs(self, other: "TurnMemory", *, since: "TurnMemory") -> None:
        """Know, too, what the same turn has come to know in another process. Nothing that was seen is forgotten.

        Both began with `since`: what either has counted from there on is added up.
        """
        ours, theirs = self._spread_out(), other._spread_out()
        ours.flags |= theirs.flags
        ours.tiers |= theirs.tiers
        ours.classes |= theirs.classes
        self.output_ran |= other.output_ran
        self.calls = max(0, other.calls + self.calls - since.calls)
        self.bytes = max(0, other.bytes + self.bytes - since.bytes)
        both = Counter(ours.newest) | Counter(theirs.newest)
        ours.newest = sorted(both.elements(), key=lambda call: call.at)[-NEWEST:]
        ours.same = _counted_by_both(ours.same, theirs.same, since._spread_out().same)

    def learns(self, stored: bytes | None) -> None:
        """Know, too, what other processes wrote down meanwhile. Raises `MemoryUnreadable`."""
        if stored is not None and stored != self.known:
            self.absorbs(TurnMemory.from_json(stored), since=memory_of(self.known))
            self.known = stored

    def has_seen(self, brought: Brought) -> bool:
        """Whether the turn knows all of that already."""
        seen = self._spread_out()
        is_known = brought.tier in seen.tiers and seen.flags.issuperset(brought.flags)
        return is_known and (brought.artifact is None or brought.artifact in seen.classes)

    def beginning_with(self, fingerprint: str, *, tool: str, size: int, output_ran: bool = False) -> bytes:
        """What a conversation starts with that goes on from one call: all that was seen, and that call alone."""
        ours = self._spread_out()
        begun = TurnMemory()
        begun.output_ran = output_ran
        seen = begun._spread_out()
        seen.flags, seen.tiers, seen.classes = ours.flags, ours.tiers, ours.classes
        made = next((each for each in reversed(ours.newest) if each.tool == tool), None)
        if made is not None:
            seen.newest.append(made)
            if made.decision == "allow":
                begun.calls, begun.bytes = 1, size
                seen.same[fingerprint[:_KEY]] = 1
        return begun.to_json()

    def to_write(self) -> tuple[bytes, bytes | None]:
        """What is about to be written where all processes find it, and what was known to be there before."""
        knowing, self.known = self.known, self.to_json()
        return self.known, knowing

    def was_not_written(self, memory: bytes, knowing: bytes | None) -> None:
        """It could not be: what was counted is still to be written."""
        if self.known is memory:
            self.known = knowing

    def to_json(self) -> bytes:
        if self._brought is not None and not self.output_ran:
            begin, kind = _written(self._brought)
            return _ONE_CALL % (begin, self.calls, self.bytes, orjson.dumps(self._key), kind, self._at)
        seen = self._spread_out()
        kinds: dict[tuple[str, tuple[str, ...], str], int] = {}
        newest = []
        for tool, flags, tier, decision, at in seen.newest:
            newest.append((kinds.setdefault((tool, flags, tier), len(kinds)), decision, at))
        return orjson.dumps(
            {
                "version": VERSION,
                "flags": sorted(seen.flags),
                "tiers": sorted(seen.tiers),
                "classes": sorted(seen.classes),
                "calls": self.calls,
                "bytes": self.bytes,
                "same": list(seen.same.items()),
                "kinds": list(kinds),
                "newest": newest,
                **({"outputRan": True} if self.output_ran else {}),
            }
        )

    @classmethod
    def from_json(cls, text: bytes | str) -> "TurnMemory":
        """Raises `MemoryUnreadable` for whatever `to_json` could not have written."""
        if len(text) > MAX_JSON:
            raise MemoryUnreadable("the memory of the turn is too large")
        try:
            found = orjson.loads(text)
        except ValueError as error:
            raise MemoryUnreadable("the memory of the turn is not JSON") from error
        return _read(found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TurnMemory) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]  # it changes


def _counted_by_both(ours: dict[str, int], theirs: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    if len(ours) >= DIFFERENT:  # what is missing may have been pushed out, which takes nothing back
        before = {key: times for key, times in before.items() if key in ours}
    added = {key: ours.get(key, 0) - before.get(key, 0) for key in {**before, **ours}}
    both = {key: times for key, times in theirs.items() if not added.get(key)}
    changed = {key: theirs.get(key, 0) + more for key, more in added.items() if more}
    both |= {key: times for key, times in changed.items() if times > 0}
    return dict(list(both.items())[-DIFFERENT:])


def _remembered(brought: Brought, decision: Made, at: int) -> RememberedCall:
    return RememberedCall(brought.tool, brought.flags, brought.tier, decision, at)


_ONE_CALL: Final = b'%b,"calls":%d,"bytes":%d,"same":[[%b,1]],"kinds":%b,"newest":[[0,"allow",%d]]}'
"""What `to_json` writes of a turn that has made one call."""


@lru_cache(maxsize=4096)
def _written(brought: Brought) -> tuple[bytes, bytes]:
    """How that begins, and the kind of the call in it."""
    tool, flags, tier, artifact = brought
    classes = [] if artifact is None else [artifact]
    begin = {"version": VERSION, "flags": sorted(set(flags)), "tiers": [tier], "classes": classes}
    return orjson.dumps(begin)[:-1], orjson.dumps([(tool, flags, tier)])


def both_remembered(ours: bytes, theirs: bytes, *, since: bytes | None) -> bytes:
    """What two processes know of one turn. What cannot be read stays as it is, so that nothing is allowed by it."""
    try:
        memory = TurnMemory.from_json(ours)
        memory.absorbs(TurnMemory.from_json(theirs), since=memory_of(since))
    except MemoryUnreadable:
        return theirs
    return memory.to_json()


def memory_of(stored: bytes | None) -> TurnMemory:
    """The memory as it is kept, a new one if there is none. Raises `MemoryUnreadable`."""
    memory = TurnMemory() if stored is None else TurnMemory.from_json(stored)
    memory.known = stored
    return memory


def _read(found: Any) -> TurnMemory:
    match found:
        case {
            "version": 1,
            "flags": [*flags],
            "tiers": [*tiers],
            "classes": [*classes],
            "calls": calls,
            "bytes": size,
            "same": [*same],
            "kinds": [*kinds],
            "newest": [*newest],
            **more,
        } if type(found["version"]) is int and (
            not more or (more.keys() == {"outputRan"} and more["outputRan"] is True)
        ):
            memory = TurnMemory()
            memory.output_ran = bool(more)
            seen = memory._spread_out()
            seen.flags, seen.tiers, seen.classes = set(_names(flags)), set(_names(tiers)), set(_names(classes))
            memory.calls, memory.bytes = _count(calls), _count(size)
            seen.same = _counts(same)
            seen.newest.extend(_history(kinds, newest))
            return memory
    raise MemoryUnreadable("the memory of the turn has another shape, or is of another version")


def _names(values: list[Any]) -> tuple[str, ...]:
    if len(values) > _MAX_NAMES or not all(isinstance(name, str) and 0 < len(name) <= _MAX_NAME for name in values):
        raise MemoryUnreadable("the memory of the turn holds names that are none")
    return tuple(values)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        raise MemoryUnreadable("the memory of the turn holds counts that are none")
    return value


def _counts(pairs: list[Any]) -> dict[str, int]:
    if len(pairs) > DIFFERENT:
        raise MemoryUnreadable("the memory of the turn counts more calls than it may")
    found: dict[str, int] = {}
    for pair in pairs:
        match pair:
            case [str(key), times] if len(key) <= _KEY and key not in found and _count(times):
                found[key] = times
            case _:
                raise MemoryUnreadable("the memory of the turn holds counts that are none")
    return found


def _history(kinds: list[Any], newest: list[Any]) -> Iterable[RememberedCall]:
    if max(len(kinds), len(newest)) > NEWEST:
        raise MemoryUnreadable("the history of the turn is longer than it may be")
    known = [_kind(kind) for kind in kinds]
    for entry in newest:
        match entry:
            case [kind, "allow" | "hold" | "deny" as decision, at] if _count(kind) < len(known):
                yield known[kind]._replace(decision=decision, at=_count(at))
            case _:
                raise MemoryUnreadable("the history of the turn holds calls that are none")


def _kind(value: Any) -> RememberedCall:
    """A call of that tool, about which nothing else is known yet."""
    match value:
        case [tool, [*flags], tier]:
            names = _names([tool, tier])
            return RememberedCall(names[0], _names(flags), names[1], "deny", 0)
    raise MemoryUnreadable("the history of the turn holds tools that are none")


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)

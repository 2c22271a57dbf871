"""The state of one turn: the flags, tiers and classes it has seen, how often each call was made, the newest calls.

What was seen and the totals are never dropped; the history is bounded. Nothing here decides, and nothing here knows
where the state is stored between calls. It is converted to and from JSON, and malformed JSON is refused.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from time import time_ns
from typing import Any, Final, Literal, NamedTuple

import orjson

VERSION: Final = 1
NEWEST: Final = 128
"""Calls that conditions can read one by one; the flags, tiers and classes of older calls still count as seen."""

DIFFERENT: Final = 256
"""Number of different calls whose repetitions are counted: the last ones made."""

MAX_JSON: Final = 256 << 10
_MAX_NAMES: Final = 1_024
_MAX_NAME: Final = 256
_MAX_COUNT: Final = 2**53 - 1
_KEY: Final = 16
"""Characters of a fingerprint that identify a call. Calls that share them count as one, which can only refuse more."""

CallDecision = Literal["allow", "hold", "deny"]


class InvalidTurnState(ValueError):
    """Stored turn state is malformed. It must not be treated as empty, which could allow calls."""


class Taint(NamedTuple):
    """What a tool adds to a turn that calls it, or reads its result: its flags, its tier, the class it yields."""

    tool: str
    flags: tuple[str, ...]
    tier: str
    artifact: str | None = None


class TurnCall(NamedTuple):
    """One call of the history; `at` counts milliseconds since 1970."""

    tool: str
    flags: tuple[str, ...]
    tier: str
    decision: CallDecision
    at: int

    def age(self, now: datetime) -> timedelta:
        """Return the call's age; never negative, even if the clock was set back."""
        return timedelta(milliseconds=max(0, _milliseconds(now) - self.at))


class CallBounds(NamedTuple):
    """How often one call may be made in a turn, and how many calls the turn may make; `None` is no bound."""

    same: int | None = None
    calls: int | None = None


_Kind = tuple[str, tuple[str, ...], str]
_DECISIONS: Final[dict[CallDecision, bytes]] = {"allow": b"allow", "hold": b"hold", "deny": b"deny"}
_ROW: Final = b'[%d,"%b",%d]'
_HISTORY: Final = b'"kinds":%b,"newest":[%b]'
_NO_HISTORY: Final = _HISTORY % (b"[]", b"")


class _History:
    """The newest calls, with the form that is stored of them: every call of the turn writes it."""

    __slots__ = ("_kinds", "_kinds_json", "_rows", "calls")

    def __init__(self, calls: Iterable[TurnCall] = ()) -> None:
        self.calls: list[TurnCall] = []
        self._kinds: dict[_Kind, int] = {}
        self._kinds_json = b"[]"
        self._rows: list[bytes] = []
        for call in calls:
            self.add(call)

    def add(self, call: TurnCall) -> None:
        tool, flags, tier, decision, at = call
        self.calls.append(call)
        kind = self._kinds.get((tool, flags, tier))
        if kind is None:
            kind = self._kinds[tool, flags, tier] = len(self._kinds)
            self._kinds_json = b"%b" % orjson.dumps(list(self._kinds))  # a copy: orjson's keep a buffer of 4 KB
        self._rows.append(_ROW % (kind, _DECISIONS[decision], at))
        if len(self.calls) > NEWEST:
            del self.calls[0], self._rows[0]
            if len(self._kinds) > NEWEST:  # some are of calls that were dropped
                rebuilt = _History(self.calls)
                self._kinds, self._kinds_json, self._rows = rebuilt._kinds, rebuilt._kinds_json, rebuilt._rows

    def to_json(self) -> bytes:
        """Return the members of the stored state that hold the history."""
        return _HISTORY % (self._kinds_json, b",".join(self._rows))


class _Seen:
    """The expanded part of the state: what was seen, the newest calls, and how often each call was made."""

    __slots__ = ("_head", "classes", "flags", "history", "same", "tiers")

    def __init__(self, flags: Iterable[str] = (), tiers: Iterable[str] = (), classes: Iterable[str] = ()) -> None:
        self.flags = set(flags)
        self.tiers = set(tiers)
        self.classes = set(classes)
        self.history = _History()
        self.same: dict[str, int] = {}
        self._head: bytes | None = None

    def has(self, taint: Taint) -> bool:
        is_known = taint.tier in self.tiers and self.flags.issuperset(taint.flags)
        return is_known and (taint.artifact is None or taint.artifact in self.classes)

    def add(self, flags: Iterable[str], tiers: Iterable[str], classes: Iterable[str]) -> None:
        self.flags.update(flags)
        self.tiers.update(tiers)
        self.classes.update(classes)
        self._head = None

    def to_head(self) -> bytes:
        """Return the beginning of the stored state, which rarely changes."""
        if self._head is None:
            self._head = _encode_head(self.flags, self.tiers, self.classes)
        return self._head


class TurnState:
    """The state of one turn, changed only by its turn. A call is reserved, recorded when it runs, and adds its bytes.

    `calls` and `bytes` are the totals of the turn. `known` is the state as last read from or written to the store that
    all processes share; later changes are not stored yet. Most turns make one call and nothing reads what they have
    seen, so that part is expanded on first use.
    """

    __slots__ = ("_at", "_key", "_seen", "_taint", "bytes", "calls", "current_since", "known", "output_ran")

    def __init__(self) -> None:
        self.known: bytes | None = None
        self.current_since: int | None = None
        """The number of the store's processes since which this state has all changes; `None` if that is not known."""
        self.output_ran = False
        """Whether the output stages of the turn have run, or run after its first call."""
        self.calls = 0
        self.bytes = 0
        self._seen: _Seen | None = None
        self._key: str | None = None
        """The key of the only reserved call, while the state is not expanded."""
        self._taint: Taint | None = None
        """The taint that this call added when it ran."""
        self._at = 0

    @property
    def flags(self) -> set[str]:
        return self._expand().flags

    @property
    def tiers(self) -> set[str]:
        return self._expand().tiers

    @property
    def classes(self) -> set[str]:
        return self._expand().classes

    @property
    def newest(self) -> list[TurnCall]:
        return self._expand().history.calls

    def _expand(self) -> _Seen:
        if self._seen is None:
            self._seen = seen = _Seen()
            if self._key is not None:
                seen.same[self._key] = 1
            if self._taint is not None:
                seen.history.add(_to_call(self._taint, "allow", self._at))
                self.record_read(self._taint)
            self._key = self._taint = None
        return self._seen

    def count_calls(self, fingerprint: str) -> int:
        """Return how often the same call was made; refused calls do not count."""
        key = fingerprint[:_KEY]
        return int(key == self._key) if self._seen is None else self._seen.same.get(key, 0)

    def reserve_call(self, fingerprint: str) -> None:
        """Count a call that is about to be made, before the first await: other calls may be evaluated meanwhile."""
        key = fingerprint[:_KEY]
        self.calls += 1
        if self._key is None and self._seen is None:
            self._key = key
            return
        same = (self._seen or self._expand()).same
        same[key] = same.pop(key, 0) + 1  # moved to the end: the last one made
        if len(same) > DIFFERENT:
            del same[next(iter(same))]

    def release_call(self, fingerprint: str) -> None:
        """Take back the reservation of a call that was not made after all."""
        key, same = fingerprint[:_KEY], self._expand().same
        times = same.get(key, 0)
        if times > 1:
            same[key] = times - 1
        elif times == 1:
            del same[key]
        self.calls = max(0, self.calls - 1)

    def record_call(self, taint: Taint, decision: CallDecision, *, at: datetime | None = None) -> None:
        """Record a call and the decision about it, at the current time by default.

        A call that runs adds its taint, whatever its result.
        """
        moment = time_ns() // 1_000_000 if at is None else _milliseconds(at)
        if self._key is not None and self._taint is None and decision == "allow":
            self._taint, self._at = taint, moment
            return
        (self._seen or self._expand()).history.add(_to_call(taint, decision, moment))
        if decision == "allow":
            self.record_read(taint)

    def record_read(self, taint: Taint) -> None:
        """Record that the turn reads the result of a tool: its own, or an artifact of any turn."""
        seen = self._seen or self._expand()
        if not seen.has(taint):
            seen.add(taint.flags, (taint.tier,), () if taint.artifact is None else (taint.artifact,))

    def add_bytes(self, count: int) -> None:
        """Add the bytes of a result."""
        self.bytes += count

    def has_room(self, fingerprint: str, bounds: CallBounds) -> bool:
        """Whether the call may be made once more."""
        is_new = bounds.same is None or self.count_calls(fingerprint) < bounds.same
        return is_new and (bounds.calls is None or self.calls < bounds.calls)

    def merge(self, other: "TurnState", *, since: "TurnState") -> None:
        """Add what the same turn has recorded in another process. Nothing that was seen is dropped.

        Both started from `since`; what each has counted from there on is added up.
        """
        ours, theirs = self._expand(), other._expand()
        ours.add(theirs.flags, theirs.tiers, theirs.classes)
        self.output_ran |= other.output_ran
        self.calls = max(0, other.calls + self.calls - since.calls)
        self.bytes = max(0, other.bytes + self.bytes - since.bytes)
        both = Counter(ours.history.calls) | Counter(theirs.history.calls)
        ours.history = _History(sorted(both.elements(), key=lambda call: call.at)[-NEWEST:])
        ours.same = _add_counts(ours.same, theirs.same, since._expand().same)

    def merge_stored(self, stored: bytes | None) -> None:
        """Merge what other processes stored meanwhile. Raise `InvalidTurnState` if it is malformed."""
        if stored is not None and stored != self.known:
            self.merge(TurnState.from_json(stored), since=load_turn_state(self.known))
            self.known = stored

    def has_seen(self, taint: Taint) -> bool:
        """Whether the turn already has this taint."""
        return (self._seen or self._expand()).has(taint)

    def to_continuation(self, fingerprint: str, *, tool: str, size: int, output_ran: bool = False) -> bytes:
        """Return the state of a conversation that continues from one call: everything seen, and only that call."""
        ours = self._seen or self._expand()
        for call in reversed(ours.history.calls):
            if call.tool == tool:
                break
        else:
            return _encode_state(ours.to_head(), 0, 0, [], _NO_HISTORY, output_ran=output_ran)
        kinds = _encode_kind(call.tool, call.flags, call.tier)
        history = _HISTORY % (kinds, _ROW % (0, _DECISIONS[call.decision], call.at))
        if call.decision != "allow":
            return _encode_state(ours.to_head(), 0, 0, [], history, output_ran=output_ran)
        return _encode_state(ours.to_head(), 1, size, [(fingerprint[:_KEY], 1)], history, output_ran=output_ran)

    def begin_write(self) -> tuple[bytes, bytes | None]:
        """Return the state to be written to the shared store, and the state last known to be there."""
        knowing, self.known = self.known, self.to_json()
        return self.known, knowing

    def abort_write(self, memory: bytes, knowing: bytes | None) -> None:
        """Undo `begin_write` after a failed write: the changes are still to be written."""
        if self.known is memory:
            self.known = knowing

    def to_json(self) -> bytes:
        if self._taint is not None and not self.output_ran:
            begin, kind = _encode_taint(self._taint)
            return _ONE_CALL % (begin, self.calls, self.bytes, orjson.dumps(self._key), kind, self._at)
        seen = self._seen or self._expand()
        same = list(seen.same.items())
        history = seen.history.to_json()
        return _encode_state(seen.to_head(), self.calls, self.bytes, same, history, output_ran=self.output_ran)

    @classmethod
    def from_json(cls, text: bytes | str) -> "TurnState":
        """Raise `InvalidTurnState` for anything that `to_json` could not have written."""
        if len(text) > MAX_JSON:
            raise InvalidTurnState("the turn state is too large")
        try:
            found = orjson.loads(text)
        except ValueError as error:
            raise InvalidTurnState("the turn state is not JSON") from error
        return _read(found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TurnState) and self._to_values() == other._to_values()

    def _to_values(self) -> tuple[Any, ...]:
        seen = self._expand()
        totals = (self.calls, self.bytes, self.output_ran)
        return *totals, seen.flags, seen.tiers, seen.classes, list(seen.same.items()), seen.history.calls

    __hash__ = None  # type: ignore[assignment]  # it changes


def _add_counts(ours: dict[str, int], theirs: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    if len(ours) >= DIFFERENT:  # a missing key may have been evicted, which takes nothing back
        before = {key: times for key, times in before.items() if key in ours}
    # In our order: once everything is merged, the stored state equals that of its process again.
    keys = [*(key for key in before if key not in ours), *ours]
    added = {key: ours.get(key, 0) - before.get(key, 0) for key in keys}
    both = {key: times for key, times in theirs.items() if not added.get(key)}
    changed = {key: theirs.get(key, 0) + more for key, more in added.items() if more}
    both |= {key: times for key, times in changed.items() if times > 0}
    return dict(list(both.items())[-DIFFERENT:])


def _to_call(taint: Taint, decision: CallDecision, at: int) -> TurnCall:
    return TurnCall(taint.tool, taint.flags, taint.tier, decision, at)


_ONE_CALL: Final = b'%b,"calls":%d,"bytes":%d,"same":[[%b,1]],"kinds":%b,"newest":[[0,"allow",%d]]}'
"""The output of `to_json` for a turn that has made one call."""


@lru_cache(maxsize=4096)
def _encode_taint(taint: Taint) -> tuple[bytes, bytes]:
    """Return the start of that JSON, and its kind of call."""
    tool, flags, tier, artifact = taint
    classes = [] if artifact is None else [artifact]
    return _encode_head(flags, [tier], classes), _encode_kind(tool, flags, tier)


@lru_cache(maxsize=4096)
def _encode_kind(tool: str, flags: tuple[str, ...], tier: str) -> bytes:
    """Return the only kind of a history with one call."""
    return b"%b" % orjson.dumps([(tool, flags, tier)])  # a copy, likewise


def _encode_head(flags: Iterable[str], tiers: Iterable[str], classes: Iterable[str]) -> bytes:
    head = {"version": VERSION, "flags": sorted(set(flags)), "tiers": sorted(tiers), "classes": sorted(classes)}
    return orjson.dumps(head)[:-1]


def _encode_state(
    head: bytes, calls: int, size: int, same: Sequence[tuple[str, int]], history: bytes, *, output_ran: bool
) -> bytes:
    end = b',"outputRan":true}' if output_ran else b"}"
    return b'%b,"calls":%d,"bytes":%d,"same":%b,%b%b' % (head, calls, size, orjson.dumps(same), history, end)


def load_turn_state(stored: bytes | None) -> TurnState:
    """Return the stored state, or a new one if there is none. Raise `InvalidTurnState` if it is malformed."""
    memory = TurnState() if stored is None else TurnState.from_json(stored)
    memory.known = stored
    return memory


def _read(found: Any) -> TurnState:
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
            memory = TurnState()
            memory.output_ran = bool(more)
            seen = memory._seen = _Seen(_names(flags), _names(tiers), _names(classes))
            memory.calls, memory.bytes = _count(calls), _count(size)
            seen.same = _counts(same)
            seen.history = _History(_history(kinds, newest))
            return memory
    raise InvalidTurnState("the turn state has an unknown shape or version")


def _names(values: list[Any]) -> tuple[str, ...]:
    if len(values) > _MAX_NAMES or not all(isinstance(name, str) and 0 < len(name) <= _MAX_NAME for name in values):
        raise InvalidTurnState("the turn state contains invalid names")
    return tuple(values)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        raise InvalidTurnState("the turn state contains invalid counts")
    return value


def _counts(pairs: list[Any]) -> dict[str, int]:
    if len(pairs) > DIFFERENT:
        raise InvalidTurnState("the turn state counts too many different calls")
    found: dict[str, int] = {}
    for pair in pairs:
        match pair:
            case [str(key), times] if len(key) <= _KEY and key not in found and _count(times):
                found[key] = times
            case _:
                raise InvalidTurnState("the turn state contains invalid counts")
    return found


def _history(kinds: list[Any], newest: list[Any]) -> Iterable[TurnCall]:
    if max(len(kinds), len(newest)) > NEWEST:
        raise InvalidTurnState("the history of the turn is too long")
    known = [_kind(kind) for kind in kinds]
    for entry in newest:
        match entry:
            case [kind, "allow" | "hold" | "deny" as decision, at] if _count(kind) < len(known):
                yield known[kind]._replace(decision=decision, at=_count(at))
            case _:
                raise InvalidTurnState("the history of the turn contains invalid calls")


def _kind(value: Any) -> TurnCall:
    """Return a call of that tool with placeholders for decision and time."""
    match value:
        case [tool, [*flags], tier]:
            names = _names([tool, tier])
            return TurnCall(names[0], _names(flags), names[1], "deny", 0)
    raise InvalidTurnState("the history of the turn contains invalid tools")


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)

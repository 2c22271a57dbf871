"""The states of turns, rebuilt from recorded calls.

A call without a turn of its own shares the state of its caller, which begins anew after an idle time. States that do
not fit into memory are encoded, and the oldest of those are dropped: what a dropped turn has seen is unknown.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from gateway.model import duration_microseconds
from gateway.policy import TurnState
from gateway.review.replay.recorded_calls import RecordedCall

_IN_MEMORY: Final = 4_096
_MOST_BYTES: Final = 64 << 20


@dataclass(slots=True)
class TurnRecord:
    """The state of a turn. `is_known`: nothing that the turn has done or seen is missing."""

    state: TurnState = field(default_factory=TurnState)
    is_known: bool = True
    is_unsized: bool = False
    """Whether the size of one of its results is not known."""
    until: int = 0
    """When an implicit turn ends."""
    since: int = 0
    """When an implicit turn began."""


_MOST_READERS: Final = 100_000


class TurnStates:
    """`complete_since` is the time from which every call is on record; `None` if nothing is missing.

    `are_whole`: if one call of a turn is on record, all are, unless the turn is implicit.
    """

    def __init__(self, complete_since: int | None, *, are_whole: bool) -> None:
        self._complete_since = complete_since
        self._are_whole = are_whole
        self._recent: OrderedDict[str, TurnRecord] = OrderedDict()
        self._encoded: OrderedDict[str, tuple[bytes, bool, bool, int, int]] = OrderedDict()
        self._bytes = 0
        self._lost: set[int] = set()
        self._read_at: dict[int, int] = {}
        """When callers last read something in a turn that may be their implicit one."""

    def find(self, call: RecordedCall, idle: timedelta | None) -> TurnRecord:
        """Return the state that a call reads. `idle` is how long implicit turns last without a call."""
        if call.implicit is None:
            return self._find_turn(call.turn)
        if idle is None:
            return TurnRecord()
        return self._find_implicit(call, duration_microseconds(idle))

    def note_read(self, call: RecordedCall) -> None:
        """Note a read that is no call: it is not known whether the caller's implicit turn has its taint."""
        if len(self._read_at) >= _MOST_READERS:
            self._read_at.clear()
            self._complete_since = call.at  # what was dropped is unknown
        self._read_at[_reader(call)] = call.at

    def continue_turn(self, turn: str, record: TurnRecord, fingerprint: str, *, tool: str, size: int) -> None:
        """Begin the turn of a call that shared an implicit state: later calls may name it."""
        state = record.state.to_continuation(fingerprint, tool=tool, size=size)
        self._encode(turn, state, record)

    def _find_turn(self, turn: str | None) -> TurnRecord:
        if turn is None:
            return TurnRecord(is_known=False)
        found = self._restore(turn)
        if found is None:
            is_known = (self._are_whole or self._complete_since is None) and hash(turn) not in self._lost
            found = TurnRecord(is_known=is_known)
        self._keep(turn, found)
        return found

    def _find_implicit(self, call: RecordedCall, idle: int) -> TurnRecord:
        key, at = f"implicit {call.catalogue} {call.implicit}", call.at
        longer = idle * 17 // 16  # not every call has to prolong the turn in the store
        found = self._restore(key)
        if found is None or found.until <= at:
            is_known = self._complete_since is None or at - longer >= self._complete_since
            is_lost = found is None and hash(key) in self._lost
            found = TurnRecord(is_known=is_known and not is_lost, until=at + longer, since=at)
        elif found.until - at < idle:
            found.until = at + longer
        if self._read_at and found.since <= self._read_at.get(_reader(call), -1):
            found.is_known = False
        self._keep(key, found)
        return found

    def _restore(self, key: str) -> TurnRecord | None:
        found = self._recent.get(key)
        if found is not None:
            return found
        encoded = self._encoded.pop(key, None)
        if encoded is None:
            return None
        text, is_known, is_unsized, until, since = encoded
        self._bytes -= len(text)
        return TurnRecord(TurnState.from_json(text), is_known, is_unsized, until, since)

    def _keep(self, key: str, record: TurnRecord) -> None:
        self._recent[key] = record
        self._recent.move_to_end(key)
        if len(self._recent) > _IN_MEMORY:
            old, oldest = self._recent.popitem(last=False)
            self._encode(old, oldest.state.to_json(), oldest)

    def _encode(self, key: str, text: bytes, of: TurnRecord) -> None:
        self._encoded[key] = (text, of.is_known, of.is_unsized, of.until, of.since)
        self._bytes += len(text)
        while self._bytes > _MOST_BYTES:
            dropped, (dropped_text, *_) = self._encoded.popitem(last=False)
            self._bytes -= len(dropped_text)
            self._lost.add(hash(dropped))


def _reader(call: RecordedCall) -> int:
    return hash((call.principal and call.principal.tenant, call.subject, call.catalogue))

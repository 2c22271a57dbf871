"""The result of a replay: which decisions differ, grouped by what decides, and which calls cannot be replayed.

Memory does not grow with the number of calls: names and groups are counted up to a bound.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from gateway.policy import Decision
from gateway.review.replay.recorded_calls import RecordedCall

Change = Literal[
    "allow-to-deny",
    "allow-to-hold",
    "hold-to-deny",
    "deny-to-hold",
    "hold-to-allow",
    "deny-to-allow",
    "other-rule",
    "tool-gone",
]
CHANGES: Final[Mapping[Change, str]] = {
    "deny-to-allow": "refused before, allowed now",
    "hold-to-allow": "held before, allowed now",
    "deny-to-hold": "refused before, held now",
    "tool-gone": "the tool is gone",
    "allow-to-deny": "allowed before, refused now",
    "hold-to-deny": "held before, refused now",
    "allow-to-hold": "allowed before, held now",
    "other-rule": "the same decision, by another rule or row",
}
"""Every kind of difference, the gravest first."""

WIDENING: Final[frozenset[Change]] = frozenset({"deny-to-allow", "hold-to-allow", "deny-to-hold"})
"""Differences by which more calls pass."""

Obstacle = Literal[
    "arguments",
    "arguments-masked",
    "source",
    "turn",
    "counts",
    "result-size",
    "caller",
    "grant",
    "decision",
    "not-recorded",
]
OBSTACLES: Final[Mapping[Obstacle, str]] = {
    "arguments": "a rule or the schema reads arguments, and they were not stored",
    "arguments-masked": "a rule reads an argument that was masked when it was stored",
    "source": "the result that was read is not on record",
    "turn": "a rule reads what the turn had done or seen before, and that is not on record",
    "counts": "a limit counts calls from before the oldest record",
    "result-size": "a budget counts bytes of a result that this policy allows and nothing recorded",
    "caller": "the roles of the caller were not stored",
    "grant": "the grant that allowed it is not stored any more",
    "decision": "why the call was refused, or how it ended, was not stored",
    "not-recorded": "the refusal was only counted: more than a minute's worth of records were refused before",
}
"""Why a call cannot be replayed."""

EXAMPLES: Final = 3
_MOST_NAMES: Final = 2_000
_SHOWN_NAMES: Final = 20
_MOST_GROUPS: Final = 1_000


class Decider(NamedTuple):
    """What decided: a decision with the rule, the policy row or the step behind it.

    `name` is the name of a gate rule, or the step of the decision: `policy`, `tool`, `tier`. `position` is FILE:LINE.
    """

    decision: Decision
    name: str = ""
    position: str = ""


@dataclass(frozen=True, slots=True)
class ReplayGroup:
    """Differences with the same kind and the same deciders. Names are those with most calls, with their number."""

    change: Change
    before: Decider
    after: Decider
    calls: int
    callers: tuple[tuple[str, int], ...]
    other_callers: int
    """Calls of callers that are not named."""
    tools: tuple[tuple[str, int], ...]
    other_tools: int
    first: int
    last: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnreplayedCalls:
    obstacle: Obstacle
    calls: int
    tools: tuple[tuple[str, int], ...] = ()
    examples: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        return OBSTACLES[self.obstacle]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """`calls` were compared or counted as not replayable. `baseline` is a revision, or `None` for the record itself."""

    revision: str
    baseline: str | None
    calls: int
    same: int
    groups: tuple[ReplayGroup, ...] = ()
    unreplayed: tuple[UnreplayedCalls, ...] = ()
    first: int | None = None
    last: int | None = None
    refused_outside: int = 0
    """Calls that the stop list or a failure refused, and still would: no policy decides about them."""

    @property
    def differing(self) -> int:
        return sum(each.calls for each in self.groups)

    @property
    def not_replayable(self) -> int:
        return sum(each.calls for each in self.unreplayed)

    @property
    def is_widened(self) -> bool:
        """Whether calls pass that did not pass before."""
        return any(each.change in WIDENING for each in self.groups)

    def count(self, *changes: Change) -> int:
        return sum(each.calls for each in self.groups if each.change in changes)


class NameCounts:
    """Counts names up to a bound; further names are counted together."""

    __slots__ = ("_counts", "_others")

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._others = 0

    def add(self, name: str) -> None:
        if name in self._counts or len(self._counts) < _MOST_NAMES:
            self._counts[name] += 1
        else:
            self._others += 1

    def list_most(self) -> tuple[tuple[tuple[str, int], ...], int]:
        """Return the names with most calls, and how many calls the others have."""
        ordered = sorted(self._counts.items(), key=lambda each: (-each[1], each[0]))
        rest = sum(number for _, number in ordered[_SHOWN_NAMES:])
        return tuple(ordered[:_SHOWN_NAMES]), rest + self._others


@dataclass(slots=True)
class _Tally:
    first: int
    last: int = 0
    calls: int = 0
    callers: NameCounts = field(default_factory=NameCounts)
    tools: NameCounts = field(default_factory=NameCounts)
    examples: list[str] = field(default_factory=list)

    def add(self, call: RecordedCall) -> None:
        self.calls += 1
        self.first, self.last = min(self.first, call.at), max(self.last, call.at)
        self.callers.add(call.subject)
        self.tools.add(call.tool)
        if len(self.examples) < EXAMPLES:
            self.examples.append(call.id)


_GroupKey = tuple[Change, Decider, Decider]


class DifferenceCounter:
    """Collects what a replay finds."""

    def __init__(self) -> None:
        self._groups: dict[_GroupKey, _Tally] = {}
        self._obstacles: dict[Obstacle, _Tally] = {}
        self.calls = 0
        self.same = 0
        self.outside = 0
        self.first: int | None = None
        self.last: int | None = None

    def add_same(self, call: RecordedCall) -> None:
        self._count(call)
        self.same += 1

    def add_outside(self, call: RecordedCall) -> None:
        self.add_same(call)
        self.outside += 1

    def add_difference(self, call: RecordedCall, change: Change, before: Decider, after: Decider) -> None:
        self._count(call)
        key = (change, before, after)
        if key not in self._groups and len(self._groups) >= _MOST_GROUPS:
            key = (change, Decider(before.decision, "others"), Decider(after.decision, "others"))
        self._groups.setdefault(key, _Tally(call.at)).add(call)

    def add_obstacle(self, call: RecordedCall, obstacle: Obstacle) -> None:
        self._count(call)
        self._obstacles.setdefault(obstacle, _Tally(call.at)).add(call)

    def _count(self, call: RecordedCall) -> None:
        self.calls += 1
        self.first = call.at if self.first is None else min(self.first, call.at)
        self.last = call.at if self.last is None else max(self.last, call.at)

    def to_result(self, *, revision: str, baseline: str | None, unrecorded: int = 0) -> ReplayResult:
        groups = [_to_group(*key, tally) for key, tally in self._groups.items()]
        order = list(CHANGES)
        groups.sort(key=lambda each: (order.index(each.change), -each.calls, each.after, each.before))
        unreplayed = [
            UnreplayedCalls(name, tally.calls, tally.tools.list_most()[0], tuple(tally.examples))
            for name in OBSTACLES
            if (tally := self._obstacles.get(name)) is not None
        ]
        if unrecorded:
            unreplayed.append(UnreplayedCalls("not-recorded", unrecorded))
        return ReplayResult(
            revision,
            baseline,
            self.calls + unrecorded,
            self.same,
            tuple(groups),
            tuple(unreplayed),
            self.first,
            self.last,
            self.outside,
        )


def _to_group(change: Change, before: Decider, after: Decider, tally: _Tally) -> ReplayGroup:
    callers, other_callers = tally.callers.list_most()
    tools, other_tools = tally.tools.list_most()
    return ReplayGroup(
        change,
        before,
        after,
        tally.calls,
        callers,
        other_callers,
        tools,
        other_tools,
        tally.first,
        tally.last,
        tuple(tally.examples),
    )

"""Section: what the policy would have decided about recorded calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.model import from_microseconds
from gateway.review.replay.differences import CHANGES, WIDENING, Decider, ReplayGroup
from gateway.review.replay.replay_text import summarize_replay
from gateway.review.report.report_input import NoData, ReportInput


@dataclass(frozen=True, slots=True)
class CountedName:
    name: str
    calls: int


@dataclass(frozen=True, slots=True)
class ReplayedDifference:
    """Calls that would be decided otherwise, by the same rules. `is_wider`: more calls pass."""

    change: str
    words: str
    is_wider: bool
    before: str
    after: str
    calls: int
    callers: tuple[CountedName, ...]
    tools: tuple[CountedName, ...]
    first: datetime
    last: datetime
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnreplayedReason:
    words: str
    calls: int


@dataclass(frozen=True, slots=True)
class ReplaySection:
    summary: str
    baseline: str | None
    """The revision to compare with; `None` compares with what was recorded."""
    calls: int
    same: int
    differences: tuple[ReplayedDifference, ...]
    unreplayed: tuple[UnreplayedReason, ...]
    first: datetime | None
    last: datetime | None


def build_replay(source: ReportInput) -> ReplaySection | NoData:
    result = source.replay
    if isinstance(result, NoData):
        return result
    return ReplaySection(
        summarize_replay(result),
        result.baseline,
        result.calls,
        result.same,
        tuple(map(_difference, result.groups)),
        tuple(UnreplayedReason(each.words, each.calls) for each in result.unreplayed),
        None if result.first is None else from_microseconds(result.first),
        None if result.last is None else from_microseconds(result.last),
    )


def _difference(group: ReplayGroup) -> ReplayedDifference:
    return ReplayedDifference(
        group.change,
        CHANGES[group.change],
        group.change in WIDENING,
        _decider(group.before),
        _decider(group.after),
        group.calls,
        _names(group.callers),
        _names(group.tools),
        from_microseconds(group.first),
        from_microseconds(group.last),
        group.examples,
    )


def _decider(decider: Decider) -> str:
    by = f" by {decider.name}" if decider.name else ""
    return f"{decider.decision}{by}"


def _names(names: Sequence[tuple[str, int]]) -> tuple[CountedName, ...]:
    return tuple(CountedName(name, calls) for name, calls in names)

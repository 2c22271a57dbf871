"""A call as it is on record, with the facts that a replay needs. Facts that were not stored are `None`.

Times are microseconds since 1970. Readers of stores and exports make these; nothing here reads anything. Objects are
not frozen, because creating a frozen one takes four times as long and a replay reads millions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.model import Principal
from gateway.policy import Decision, Grant

HELD_REASONS: Final = frozenset(
    {
        *("approval-approved", "approval-pending", "approval-expired", "approval-refused", "approval-withdrawn"),
        *("confirmed", "confirmation-pending", "confirmation-refused", "confirmation-impossible", "rule-held"),
    }
)
"""Reasons of calls that a rule held, whatever became of them."""

OUTSIDE_REASONS: Final = frozenset(
    {
        *("quarantined", "definition-changed", "config-expired", "approval-mismatch", "check-failed"),
        *("audit-unavailable", "backend-spared"),
    }
)
"""Reasons of refusals that no policy made: the stop list, changed definitions, failures."""

TOLERANCE: Final = 5_000
"""Microseconds between the recorded time of a decision and the clocks of its limits."""


@dataclass(slots=True)
class RecordedCall:
    """One recorded call. `at` is when it was decided, or when it began if that was not stored.

    `turn` is `None` for a call that belongs to no turn of its own: then `implicit` names the state that it shares.
    """

    id: str
    tool: str
    """The name in the call."""
    principal: Principal | None
    """The caller; `None` if the record does not have its roles."""
    subject: str
    catalogue: str
    at: int
    decision: Decision | None
    """The recorded decision; `None` if the arguments were refused before any decision, or nothing is known."""
    reason: str | None = None
    """A word of the vocabulary of the decision log."""
    rules: tuple[str, ...] = ()
    """The gate rules that decided."""
    because: str | None = None
    """What decided, in words: a rule with its place, or a policy row."""
    position: str | None = None
    """The place of what decided, as FILE:LINE."""
    ended: int | None = None
    turn: str | None = None
    implicit: str | None = None
    arguments: Mapping[str, Any] | None = None
    masked: frozenset[str] = frozenset()
    """Names of arguments that are stored without their values."""
    fingerprint: str | None = None
    """Equal for equal calls of a tool with equal arguments."""
    size: int | None = None
    """Bytes of the result."""
    artifact: str | None = None
    """The class of the result."""
    reads: str | None = None
    """What a request that is no call read: a prompt or a group of resources; empty if that was not stored."""
    grants: tuple[str, ...] = ()
    """Ids of the grants that allowed it, as far as the record names them."""

    @property
    def was_held(self) -> bool:
        return self.decision == "hold" or self.reason in HELD_REASONS

    @property
    def was_approved(self) -> bool:
        """Whether it ran after people had agreed."""
        return self.decision == "allow" and self.reason in ("approval-approved", "confirmed")

    @property
    def was_refused_outside(self) -> bool:
        return self.decision == "deny" and self.reason in OUTSIDE_REASONS


@dataclass(slots=True)
class RecordedHistory:
    """Recorded calls in the order of their decisions, older ones than the replayed period first.

    `complete_since` is the time from which everything is on record; `None` if nothing was ever pruned.
    """

    calls: Iterable[RecordedCall]
    complete_since: int | None = None
    total: int | None = None
    """How many calls there are, if that is known."""
    are_turns_whole: bool = True
    """Whether all calls of a turn are on record if one of them is."""
    tolerance: int = TOLERANCE
    """How inexact the times of decisions are, in microseconds."""
    unrecorded: int = 0
    """Refused calls of the replayed period that were only counted."""
    grants: Sequence[Grant] = ()
    """The grants that are still stored."""

    def __iter__(self) -> Iterator[RecordedCall]:
        return iter(self.calls)


@dataclass(frozen=True, slots=True)
class CallSelection:
    """Which calls a replay compares; `None` matches all. Other calls only count for limits and turns."""

    since: int | None = None
    callers: frozenset[str] = field(default_factory=frozenset)
    """Subjects; empty for all."""
    tools: frozenset[str] = field(default_factory=frozenset)
    """Names in calls; empty for all."""

    def has(self, call: RecordedCall) -> bool:
        if self.since is not None and call.at < self.since:
            return False
        if self.callers and call.subject not in self.callers:
            return False
        return not self.tools or call.tool in self.tools


EVERY_CALL: Final = CallSelection()

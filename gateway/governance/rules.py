"""Gate rules: allow, hold or deny one call, by what can be told from the call, the caller and the clock.

Rules have no order: deny beats hold beats allow. A rule in `observe` mode says what it would have decided
and decides nothing. Counting (rates, quotas, loops) needs memory, so such checks allow here and are
judged where the memory is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Any, Final, Literal, Protocol
from zoneinfo import ZoneInfo

from gateway.governance.catalogues import GovernedTool, Selector
from gateway.governance.conditions import Condition, Scope
from gateway.governance.diagnostics import Position

Decision = Literal["allow", "hold", "deny"]
Mode = Literal["enforce", "observe", "disabled"]
Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
MayDo = Callable[[str, str], bool]
"""Whether the caller may do an action to an object: (action, object)."""

SEVERITY: Final[dict[Decision, int]] = {"allow": 0, "hold": 1, "deny": 2}
WEEKDAYS: Final[tuple[Weekday, ...]] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a check says of a call, and why."""

    decision: Decision
    reason: str


class Check(Protocol):
    def judge(self, scope: Scope, may: MayDo) -> Judgement: ...


@dataclass(frozen=True, slots=True)
class Approval:
    """Holds until enough approvers agree."""

    approvers: tuple[str, ...]
    reason: str
    count: int = 1
    timeout: timedelta | None = None
    show: tuple[str, ...] = ()
    resolution: Mapping[str, Any] | None = None
    reuse_for: timedelta | None = None

    def judge(self, scope: Scope, may: MayDo) -> Judgement:
        needed = f"{self.count} of {', '.join(self.approvers)}"
        return Judgement("hold", f"{self.reason}: waits for {needed}")


@dataclass(frozen=True, slots=True)
class Permission:
    """Asks for another permission besides that for the call itself."""

    action: str
    object: str

    def judge(self, scope: Scope, may: MayDo) -> Judgement:
        if may(self.action, self.object):
            return Judgement("allow", f"{self.action} on {self.object} is permitted")
        return Judgement("deny", f"{self.action} on {self.object} is not permitted")


@dataclass(frozen=True, slots=True)
class Arguments:
    """Refuses calls whose arguments do not meet a requirement."""

    require: Condition
    message: str

    def judge(self, scope: Scope, may: MayDo) -> Judgement:
        answer = self.require.is_met(scope)
        if answer.value:
            return Judgement("allow", f"{self.require.source} holds")
        because = f" ({answer.failure})" if answer.failure else ""
        return Judgement("deny", f"{self.message}{because}")


@dataclass(frozen=True, slots=True)
class Opening:
    """Hours on some days of the week, from the first moment up to, not including, the last."""

    days: frozenset[Weekday]
    start: time
    end: time

    def includes(self, local: datetime) -> bool:
        return WEEKDAYS[local.weekday()] in self.days and self.start <= local.time() < self.end


@dataclass(frozen=True, slots=True)
class Window:
    """Opening hours in one time zone, with days on which it is closed all the same."""

    timezone: ZoneInfo
    openings: tuple[Opening, ...]
    closed: frozenset[date] = frozenset()
    outside: Literal["hold", "deny"] = "hold"

    def judge(self, scope: Scope, may: MayDo) -> Judgement:
        local = scope.now.astimezone(self.timezone)
        if local.date() not in self.closed and any(opening.includes(local) for opening in self.openings):
            return Judgement("allow", f"{local:%A %H:%M} is inside the window")
        return Judgement(self.outside, f"{local:%A %Y-%m-%d %H:%M} {self.timezone.key} is outside the window")


@dataclass(frozen=True, slots=True)
class Counting:
    """A rate, a quota, a loop or budget rule: judged where calls are counted."""

    kind: str

    def judge(self, scope: Scope, may: MayDo) -> Judgement:
        return Judgement("allow", f"the {self.kind} is counted when the call is made")


@dataclass(frozen=True, slots=True)
class GateRule:
    """One rule: which calls it is about, when, and what it checks."""

    name: str
    match: Selector
    check: Check
    position: Position
    when: Condition | None = None
    mode: Mode = "enforce"
    catalogues: frozenset[str] = frozenset()
    hold_for: timedelta = timedelta(seconds=45)
    description: str = field(default="", compare=False)

    def is_about(self, tool: GovernedTool, catalogue: str) -> bool:
        """Whether calls of the tool through the catalogue are its business; without catalogues, all are."""
        return (not self.catalogues or catalogue in self.catalogues) and self.match.chooses(tool)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one rule said of a call. One that only observes has no say in the outcome."""

    rule: GateRule
    judgement: Judgement
    failure: str | None = None

    @property
    def counts(self) -> bool:
        return self.rule.mode == "enforce"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What all rules together decide, the verdict that decided, and everything that was said."""

    decision: Decision
    decided_by: Verdict | None
    verdicts: tuple[Verdict, ...]


def judge_call(rules: Iterable[GateRule], tool: GovernedTool, scope: Scope, *, catalogue: str, may: MayDo) -> Outcome:
    """Ask every rule that is about the call. The gravest verdict decides; of equals, the first by name."""
    about = (rule for rule in rules if rule.mode != "disabled" and rule.is_about(tool, catalogue))
    asked = (_verdict(rule, scope, may) for rule in about)
    verdicts = sorted((verdict for verdict in asked if verdict is not None), key=lambda verdict: verdict.rule.name)
    decided_by = _gravest([verdict for verdict in verdicts if verdict.counts])
    decision: Decision = decided_by.judgement.decision if decided_by else "allow"
    return Outcome(decision, decided_by, tuple(verdicts))


def _verdict(rule: GateRule, scope: Scope, may: MayDo) -> Verdict | None:
    """`None` if the rule's condition says that it is not about this call."""
    failure = None
    if rule.when is not None:
        applies = rule.when.applies(scope)
        failure = applies.failure
        if not applies.value:
            return None
    try:
        return Verdict(rule, rule.check.judge(scope, may), failure)
    except Exception as error:  # a check that breaks must not open the gate
        return Verdict(rule, Judgement("deny", f"the check failed: {type(error).__name__}"), failure)


def _gravest(verdicts: Sequence[Verdict]) -> Verdict | None:
    return max(verdicts, key=lambda verdict: SEVERITY[verdict.judgement.decision], default=None)

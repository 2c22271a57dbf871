"""Gate rules: allow, hold or deny one call, by the call, the caller, the clock and what the turn remembers.

Rules have no order: deny beats hold beats allow. A rule in `observe` mode says what it would have decided
and decides nothing. Rates and quotas are counted where all workers count together: they allow here, and the outcome
names them, to be taken all at once when nothing else stands against the call. What is made for every call is a tuple,
because a frozen dataclass takes three times as long.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import ceil
from typing import Any, Final, Literal, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from gateway.governance import limits
from gateway.governance.catalogues import GovernedTool, Selector
from gateway.governance.conditions import Condition, Scope
from gateway.governance.diagnostics import Position
from gateway.governance.leaves import Leaf, deciding_leaf
from gateway.governance.limits import LARGEST_AMOUNT, MILLIONTHS, CountBy, Limit, written
from gateway.governance.memory import Bounds

Decision = Literal["allow", "hold", "deny"]
Refusal = Literal["hold", "deny"]
Mode = Literal["enforce", "observe", "disabled"]
Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
MayDo = Callable[[str, str], bool]
"""Whether the caller may do an action to an object: (action, object)."""

SEVERITY: Final[dict[Decision, int]] = {"allow": 0, "hold": 1, "deny": 2}
_LONGEST_CLOSED: Final = 366
OF_BYTES: Final = "#bytes"
"""Ends the name under which a budget counts bytes, besides its calls."""

WEEKDAYS: Final[tuple[Weekday, ...]] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class Judgement(NamedTuple):
    """What a check says of a call, and why; `until` is the moment from which it says something else, if it knows."""

    decision: Decision
    reason: str
    until: datetime | None = None


_RATE_COUNTED: Final = Judgement("allow", "the rate is counted when the call is made")
_QUOTA_COUNTED: Final = Judgement("allow", "the quota is counted when the call is made")
_LOOP_COUNTED: Final = Judgement("allow", "how often the caller made the call is counted when it is made")
_BUDGET_COUNTED: Final = Judgement("allow", "the budget of the caller is counted when the call is made")
_NOT_USED_UP: Final = Judgement("allow", "the budget of this turn is not used up")


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
class Confirmation:
    """Holds until whoever calls has confirmed the call: nobody else looks at it, and it approves nothing."""

    reason: str
    show: tuple[str, ...] = ()
    timeout: timedelta = timedelta(minutes=10)

    def judge(self, scope: Scope, may: MayDo) -> Judgement:
        return Judgement("hold", f"{self.reason}: waits for the caller to confirm it")


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
    outside: Refusal = "hold"

    def judge(self, scope: Scope, may: MayDo) -> Judgement:
        local = scope.now.astimezone(self.timezone)
        if local.date() not in self.closed and any(opening.includes(local) for opening in self.openings):
            return Judgement("allow", f"{local:%A %H:%M} is inside the window")
        reason = f"{local:%A %Y-%m-%d %H:%M} {self.timezone.key} is outside the window"
        return Judgement(self.outside, reason, self.opens_at(scope.now))

    def opens_at(self, now: datetime) -> datetime | None:
        """The first moment after now at which it opens, in UTC; `None` if that is more than a year away."""
        today = now.astimezone(self.timezone).date()
        for day in (today + timedelta(days=number) for number in range(_LONGEST_CLOSED)):
            starts = [each.start for each in self.openings if WEEKDAYS[day.weekday()] in each.days]
            moments = [datetime.combine(day, start, self.timezone).astimezone(UTC) for start in starts]
            later = [moment for moment in moments if moment > now]
            if later and day not in self.closed:
                return min(later)
        return None


@dataclass(frozen=True, slots=True)
class Rate:
    """So many calls in a short time, counted when the call is made. Without `burst`, `limit` may come at once."""

    limit: int
    per: timedelta
    burst: int | None = None
    by: tuple[CountBy, ...] = ("subject",)

    def judge(self, scope: Scope, may: MayDo) -> Judgement:
        return _RATE_COUNTED


@dataclass(frozen=True, slots=True)
class Quota:
    """A budget of calls that outlives the process, counted when the call is made."""

    limit: int
    per: timedelta
    by: tuple[CountBy, ...] = ("subject",)
    on_exhausted: Refusal = "deny"
    sum: tuple[str, ...] = ()
    """The argument whose amounts are added up instead of counting calls, as the names that lead to it."""
    approval: Approval | None = None
    """Who decides about calls beyond the budget, if people do."""

    def judge(self, scope: Scope, may: MayDo) -> Judgement:
        if self.sum and amount_of(scope.args, self.sum) is None:
            return Judgement("deny", f"args.{'.'.join(self.sum)} is no amount that can be added up")
        return _QUOTA_COUNTED


@dataclass(frozen=True, slots=True)
class Loop:
    """The same call with the same arguments, so often in one turn and not once more.

    With `within`, so often by one caller in that time, in whichever turns; that is counted when the call is made.
    """

    same_call: int
    on_exceeded: Refusal = "deny"
    within: timedelta | None = None

    @property
    def refusal(self) -> Refusal:
        return self.on_exceeded

    def exceeded(self) -> str:
        within = written(self.within or timedelta(0))
        return f"this caller made the same call {self.same_call} times within {within}"

    def judge(self, scope: Scope, may: MayDo) -> Judgement:
        if self.within is not None:
            return _LOOP_COUNTED
        made = scope.turn.times(scope.fingerprint)
        if made < self.same_call:
            return Judgement("allow", f"the same call was made {made} of {self.same_call} times in this turn")
        return Judgement(self.on_exceeded, f"the same call was made {made} times in this turn")


@dataclass(frozen=True, slots=True)
class Budget:
    """What one turn may use: calls, and bytes of their results. With `within`, what one caller may use in that time."""

    calls: int | None = None
    bytes: int | None = None
    on_exhausted: Refusal = "deny"
    within: timedelta | None = None

    @property
    def refusal(self) -> Refusal:
        return self.on_exhausted

    def exceeded(self) -> str:
        parts = (("calls", self.calls), ("bytes", self.bytes))
        most = " or ".join(f"{number} {what}" for what, number in parts if number is not None)
        return f"this caller has used {most} within {written(self.within or timedelta(0))}"

    def judge(self, scope: Scope, may: MayDo) -> Judgement:
        if self.within is not None:
            return _BUDGET_COUNTED
        turn = scope.turn
        if self.calls is not None and turn.calls >= self.calls:
            return Judgement(self.on_exhausted, f"this turn has made {turn.calls} calls of {self.calls}")
        if self.bytes is not None and turn.bytes >= self.bytes:
            return Judgement(self.on_exhausted, f"this turn has received {turn.bytes} bytes of {self.bytes}")
        return _NOT_USED_UP


@dataclass(frozen=True, slots=True)
class Flow:
    """Keeps what an artifact class holds from tools it must not reach: those it names can be called until it is read.

    `because` says what it is about the tool.
    """

    artifact: str
    because: str

    def judge(self, scope: Scope, may: MayDo) -> Judgement:
        if self.artifact in scope.turn.classes:
            return Judgement("deny", f"this turn has read {self.artifact}, {self.because}")
        return Judgement("allow", f"this turn has not read {self.artifact}")


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
    limits: tuple[Limit, ...] = field(init=False, repr=False, compare=False)
    """What is counted when a call is made: of a rate, a quota, or a rule that looks back over all turns of a caller."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "limits", tuple(_limits(self)))

    def is_about(self, tool: GovernedTool, catalogue: str) -> bool:
        """Whether calls of the tool through the catalogue are its business; without catalogues, all are."""
        if (self.catalogues and catalogue not in self.catalogues) or not self.match.chooses(tool):
            return False
        return tool.kind == "tool" or not self.is_for_calls or self.match.singles_out(tool)

    @property
    def is_for_calls(self) -> bool:
        """Whether it looks at the arguments of a call, or asks people about one.

        Arguments of a tool are not those of a query, and nobody who agreed to a call is asked again for each look at
        its result: such a rule is about query tools, prompts and resources only if it names them.
        """
        if isinstance(self.check, Approval | Confirmation):
            return True
        return any(each.looks_at_arguments for each in self.conditions)

    @property
    def looks_back(self) -> bool:
        """Whether what it says depends on what the turn has seen and done."""
        check = self.check
        looks = isinstance(check, Flow) or (isinstance(check, Loop | Budget) and check.within is None)
        return looks or any(each.looks_back for each in self.conditions)

    @property
    def approval(self) -> Approval | None:
        """Who may be asked about calls of the rule, always or beyond a budget."""
        if isinstance(self.check, Approval):
            return self.check
        return self.check.approval if isinstance(self.check, Quota) else None

    @property
    def conditions(self) -> tuple[Condition, ...]:
        found = (self.when, getattr(self.check, "require", None))
        return tuple(each for each in found if each is not None)

    @property
    def watched_flags(self) -> frozenset[str]:
        """Flags that it asks whether the caller has seen."""
        if self.mode == "disabled":
            return frozenset()
        return frozenset(flag for each in self.conditions for flag in each.watched_flags)

    @property
    def place(self) -> str:
        return f"{self.name} at {self.position.file}:{self.position.line}"


class Verdict(NamedTuple):
    """What one rule said of a call. One that only observes has no say in the outcome.

    `leaf` is the part of a condition that decided: of the requirement, or of what narrows the rule. Only a verdict
    against the call has one.
    """

    rule: GateRule
    judgement: Judgement
    failure: str | None = None
    leaf: Leaf | None = None

    @property
    def counts(self) -> bool:
        return self.rule.mode == "enforce"

    @property
    def because(self) -> str:
        """The rule, where it stands and the part that decided, for records: no argument is in it."""
        return f"{self.rule.place}: {self.leaf.text}" if self.leaf is not None else self.rule.place


class Outcome(NamedTuple):
    """What all rules together decide, the verdict that decided, and everything that was said, by the names of rules."""

    decision: Decision
    decided_by: Verdict | None
    verdicts: tuple[Verdict, ...]

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The rates and quotas that apply to the call, observing ones too: to be taken if the call is let through."""
        return tuple(limit for verdict in self.verdicts for limit in verdict.rule.limits)

    @property
    def holds(self) -> tuple[GateRule, ...]:
        """Every rule that holds the call: each of them wants its own approval."""
        return tuple(each.rule for each in self.verdicts if each.counts and each.judgement.decision == "hold")

    @property
    def bounds(self) -> Bounds | None:
        """How many calls the turn may still make, as the rules say that let this one through; `None` if none does."""
        checks = [each.rule.check for each in self.verdicts if each.counts and each.judgement.decision == "allow"]
        in_turn = [check for check in checks if isinstance(check, Loop | Budget) and check.within is None]
        same = [check.same_call for check in in_turn if isinstance(check, Loop)]
        calls = [check.calls for check in in_turn if isinstance(check, Budget) and check.calls is not None]
        return Bounds(min(same, default=None), min(calls, default=None)) if same or calls else None

    @property
    def observed(self) -> tuple[Verdict, ...]:
        """What rules that only observe would have refused."""
        return tuple(each for each in self.verdicts if not each.counts and each.judgement.decision != "allow")


def judge_call(rules: Iterable[GateRule], tool: GovernedTool, scope: Scope, *, catalogue: str, may: MayDo) -> Outcome:
    """Ask every rule that is about the call. The gravest verdict decides; of equals, the first by name."""
    about = [rule for rule in rules if rule.mode != "disabled" and rule.is_about(tool, catalogue)]
    return judge_rules(sorted(about, key=lambda rule: rule.name), scope, may=may)


def judge_rules(rules: Iterable[GateRule], scope: Scope, *, may: MayDo) -> Outcome:
    """The same with rules that are known to be about the call, in the order of their names."""
    verdicts: list[Verdict] = []
    decided_by: Verdict | None = None
    decision: Decision = "allow"
    for rule in rules:
        verdict = _verdict(rule, scope, may)
        if verdict is None:
            continue
        verdicts.append(verdict)
        said = verdict.judgement.decision
        if rule.mode == "enforce" and (decided_by is None or SEVERITY[said] > SEVERITY[decision]):
            decided_by, decision = verdict, said
    return Outcome(decision, decided_by, tuple(verdicts))


def _limits(rule: GateRule) -> Iterator[Limit]:
    enforced = rule.mode == "enforce"
    match rule.check:
        case Rate(limit, per, burst, by):
            yield limits.Rate(rule.name, limit, per, burst, by, enforced)
        case Quota(limit, per, by, _, sum):
            yield limits.Quota(rule.name, limit, per, by, enforced, "amounts" if sum else "calls")
        case Loop(same_call, _, timedelta() as within):
            yield limits.Quota(rule.name, same_call, within, ("subject", "call"), enforced)
        case Budget(calls, size, _, timedelta() as within):
            if calls is not None:
                yield limits.Quota(rule.name, calls, within, enforced=enforced)
            if size is not None:
                yield limits.Quota(f"{rule.name}{OF_BYTES}", size, within, enforced=enforced, counts="bytes")


def amount_of(args: Mapping[str, Any], path: Sequence[str]) -> int | None:
    """An argument as an amount, in millionths rounded up; `None` for what cannot be added up."""
    value: Any = args
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_AMOUNT:
        return None
    return ceil(Decimal(str(value)) * MILLIONTHS)


def _verdict(rule: GateRule, scope: Scope, may: MayDo) -> Verdict | None:
    """`None` if the rule's condition says that it is not about this call."""
    failure = None
    if rule.when is not None:
        applies = rule.when.applies(scope)
        failure = applies.failure
        if not applies.value:
            return None
    try:
        judgement = rule.check.judge(scope, may)
    except Exception as error:  # a check that breaks must not open the gate
        judgement = Judgement("deny", f"the check failed: {type(error).__name__}")
    leaf = _leaf(rule, scope) if judgement.decision != "allow" else None
    return Verdict(rule, judgement, failure, leaf)


def _leaf(rule: GateRule, scope: Scope) -> Leaf | None:
    deciding = rule.check.require if isinstance(rule.check, Arguments) else rule.when
    return deciding_leaf(deciding, scope) if deciding is not None else None

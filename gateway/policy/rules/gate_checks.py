"""Gate checks: what a rule may ask of a call. Each is a frozen dataclass that judges one call.

Rates and quotas are counted where all workers count together, so their checks allow here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import ceil
from typing import Any, ClassVar, Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

from gateway.policy.limits import LARGEST_AMOUNT, MILLIONTHS, CountBy, format_period
from gateway.policy.rules.conditions import Condition, ConditionScope

Decision = Literal["allow", "hold", "deny"]
RefusalDecision = Literal["hold", "deny"]
Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
PermissionLookup = Callable[[str, str], bool]
"""Whether the caller may perform an action on an object: (action, object)."""

_LONGEST_CLOSED: Final = 366

WEEKDAYS: Final[tuple[Weekday, ...]] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class Judgement(NamedTuple):
    """The decision of a check about a call, and why; `until` is when the decision changes, if known."""

    decision: Decision
    reason: str
    until: datetime | None = None


_RATE_COUNTED: Final = Judgement("allow", "the rate is counted when the call is made")
_QUOTA_COUNTED: Final = Judgement("allow", "the quota is counted when the call is made")
_LOOP_COUNTED: Final = Judgement("allow", "how often the caller made the call is counted when it is made")
_BUDGET_COUNTED: Final = Judgement("allow", "the budget of the caller is counted when the call is made")
_NOT_USED_UP: Final = Judgement("allow", "the budget of this turn is not used up")


class GateCheck:
    """What a rule asks of a call. A check is a frozen dataclass that inherits from this class."""

    refusal_reason: ClassVar[str | None] = None
    """The word of the audit vocabulary for calls that it refuses; `None` for `rule-denied` and `rule-held`."""
    is_for_calls: ClassVar[bool] = False
    """Whether it reads the arguments of a call, or asks people about it; see `GateRule.is_for_calls`."""

    @property
    def reads_turn_state(self) -> bool:
        """Whether the result depends on what the turn has seen and done."""
        return False

    def judge(self, scope: ConditionScope, may: PermissionLookup) -> Judgement:
        raise NotImplementedError  # a rule whose check raises refuses


@dataclass(frozen=True, slots=True)
class ApprovalCheck(GateCheck):
    """Holds until enough approvers agree."""

    is_for_calls: ClassVar = True

    approvers: tuple[str, ...]
    reason: str
    count: int = 1
    timeout: timedelta | None = None
    show: tuple[str, ...] = ()
    resolution: Mapping[str, Any] | None = None
    reuse_for: timedelta | None = None

    def judge(self, scope: ConditionScope, may: PermissionLookup) -> Judgement:
        needed = f"{self.count} of {', '.join(self.approvers)}"
        return Judgement("hold", f"{self.reason}: waits for {needed}")


@dataclass(frozen=True, slots=True)
class ConfirmationCheck(GateCheck):
    """Holds until the caller has confirmed the call. No one else reviews it; a confirmation is not an approval."""

    is_for_calls: ClassVar = True

    reason: str
    show: tuple[str, ...] = ()
    timeout: timedelta = timedelta(minutes=10)

    def judge(self, scope: ConditionScope, may: PermissionLookup) -> Judgement:
        return Judgement("hold", f"{self.reason}: waits for the caller to confirm it")


@dataclass(frozen=True, slots=True)
class PermissionCheck(GateCheck):
    """Requires another permission besides the one for the call itself."""

    action: str
    object: str

    def judge(self, scope: ConditionScope, may: PermissionLookup) -> Judgement:
        if may(self.action, self.object):
            return Judgement("allow", f"{self.action} on {self.object} is permitted")
        return Judgement("deny", f"{self.action} on {self.object} is not permitted")


@dataclass(frozen=True, slots=True)
class ArgumentsCheck(GateCheck):
    """Refuses calls whose arguments do not meet a requirement."""

    require: Condition
    message: str

    def judge(self, scope: ConditionScope, may: PermissionLookup) -> Judgement:
        answer = self.require.evaluate_requirement(scope)
        if answer.value:
            return Judgement("allow", f"{self.require.source} holds")
        because = f" ({answer.failure})" if answer.failure else ""
        return Judgement("deny", f"{self.message}{because}")


@dataclass(frozen=True, slots=True)
class WindowInterval:
    """Hours on some days of the week, from `start` up to, not including, `end`."""

    days: frozenset[Weekday]
    start: time
    end: time

    def includes(self, local: datetime) -> bool:
        return WEEKDAYS[local.weekday()] in self.days and self.start <= local.time() < self.end


@dataclass(frozen=True, slots=True)
class WindowCheck(GateCheck):
    """Opening hours in one time zone, except on `closed` days."""

    refusal_reason: ClassVar = "window-closed"

    timezone: ZoneInfo
    openings: tuple[WindowInterval, ...]
    closed: frozenset[date] = frozenset()
    outside: RefusalDecision = "hold"

    def judge(self, scope: ConditionScope, may: PermissionLookup) -> Judgement:
        local = scope.now.astimezone(self.timezone)
        if local.date() not in self.closed and any(opening.includes(local) for opening in self.openings):
            return Judgement("allow", f"{local:%A %H:%M} is inside the window")
        reason = f"{local:%A %Y-%m-%d %H:%M} {self.timezone.key} is outside the window"
        return Judgement(self.outside, reason, self.opens_at(scope.now))

    def opens_at(self, now: datetime) -> datetime | None:
        """Return the next opening time after now, in UTC; `None` if it is more than a year away."""
        today = now.astimezone(self.timezone).date()
        for day in (today + timedelta(days=number) for number in range(_LONGEST_CLOSED)):
            starts = [each.start for each in self.openings if WEEKDAYS[day.weekday()] in each.days]
            moments = [datetime.combine(day, start, self.timezone).astimezone(UTC) for start in starts]
            later = [moment for moment in moments if moment > now]
            if later and day not in self.closed:
                return min(later)
        return None


@dataclass(frozen=True, slots=True)
class RateCheck(GateCheck):
    """A number of calls in a short time, counted when the call is made. Without `burst`, up to `limit` at once."""

    limit: int
    per: timedelta
    burst: int | None = None
    by: tuple[CountBy, ...] = ("subject",)

    def judge(self, scope: ConditionScope, may: PermissionLookup) -> Judgement:
        return _RATE_COUNTED


@dataclass(frozen=True, slots=True)
class QuotaCheck(GateCheck):
    """A budget of calls that outlives the process, counted when the call is made."""

    limit: int
    per: timedelta
    by: tuple[CountBy, ...] = ("subject",)
    on_exhausted: RefusalDecision = "deny"
    sum: tuple[str, ...] = ()
    """The path of the argument whose amounts are summed instead of counting calls."""
    approval: ApprovalCheck | None = None
    """Who decides about calls beyond the budget, if approvers do."""

    def judge(self, scope: ConditionScope, may: PermissionLookup) -> Judgement:
        if self.sum and amount_of(scope.args, self.sum) is None:
            return Judgement("deny", f"args.{'.'.join(self.sum)} is not an amount that can be summed")
        return _QUOTA_COUNTED


@dataclass(frozen=True, slots=True)
class LoopCheck(GateCheck):
    """At most `same_call` calls with the same arguments in one turn.

    With `within`, at most that many by one caller in that time, over all turns, counted when the call is made.
    """

    refusal_reason: ClassVar = "loop-stopped"

    same_call: int
    on_exceeded: RefusalDecision = "deny"
    within: timedelta | None = None

    @property
    def reads_turn_state(self) -> bool:
        return self.within is None

    @property
    def refusal(self) -> RefusalDecision:
        return self.on_exceeded

    def describe_excess(self) -> str:
        within = format_period(self.within or timedelta(0))
        return f"this caller made the same call {self.same_call} times within {within}"

    def judge(self, scope: ConditionScope, may: PermissionLookup) -> Judgement:
        if self.within is not None:
            return _LOOP_COUNTED
        made = scope.turn.count_calls(scope.fingerprint)
        if made < self.same_call:
            return Judgement("allow", f"the same call was made {made} of {self.same_call} times in this turn")
        return Judgement(self.on_exceeded, f"the same call was made {made} times in this turn")


@dataclass(frozen=True, slots=True)
class BudgetCheck(GateCheck):
    """What one turn may use: calls, and bytes of results. With `within`, what one caller may use in that time."""

    refusal_reason: ClassVar = "budget-spent"

    calls: int | None = None
    bytes: int | None = None
    on_exhausted: RefusalDecision = "deny"
    within: timedelta | None = None

    @property
    def reads_turn_state(self) -> bool:
        return self.within is None

    @property
    def refusal(self) -> RefusalDecision:
        return self.on_exhausted

    def describe_excess(self) -> str:
        parts = (("calls", self.calls), ("bytes", self.bytes))
        most = " or ".join(f"{number} {what}" for what, number in parts if number is not None)
        return f"this caller has used {most} within {format_period(self.within or timedelta(0))}"

    def judge(self, scope: ConditionScope, may: PermissionLookup) -> Judgement:
        if self.within is not None:
            return _BUDGET_COUNTED
        turn = scope.turn
        if self.calls is not None and turn.calls >= self.calls:
            return Judgement(self.on_exhausted, f"this turn has made {turn.calls} calls of {self.calls}")
        if self.bytes is not None and turn.bytes >= self.bytes:
            return Judgement(self.on_exhausted, f"this turn has received {turn.bytes} bytes of {self.bytes}")
        return _NOT_USED_UP


@dataclass(frozen=True, slots=True)
class FlowCheck(GateCheck):
    """Blocks the flow of an artifact class to tools: they can be called until the turn has read the class.

    `because` is the reason, as a relative clause about the class.
    """

    refusal_reason: ClassVar = "flow-blocked"

    artifact: str
    because: str

    @property
    def reads_turn_state(self) -> bool:
        return True

    def judge(self, scope: ConditionScope, may: PermissionLookup) -> Judgement:
        if self.artifact in scope.turn.classes:
            return Judgement("deny", f"this turn has read {self.artifact}, {self.because}")
        return Judgement("allow", f"this turn has not read {self.artifact}")


def amount_of(args: Mapping[str, Any], path: Sequence[str]) -> int | None:
    """Return an argument as an amount, in millionths rounded up; `None` if it cannot be summed."""
    value: Any = args
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_AMOUNT:
        return None
    return ceil(Decimal(str(value)) * MILLIONTHS)

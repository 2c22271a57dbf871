"""Gate rules in plain words: what a rule is about, when it applies, and what it does."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from gateway.policy import (
    ApprovalCheck,
    ArgumentsCheck,
    BudgetCheck,
    ConfirmationCheck,
    FlowCheck,
    GateRule,
    LoopCheck,
    PermissionCheck,
    QuotaCheck,
    RateCheck,
    WindowCheck,
    WindowInterval,
)
from gateway.review.report.setting_values import format_setting

_WEEK: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_UNITS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
_KEYS: Final = {
    "tools": "named {}",
    "labels": "with the label {}",
    "flags": "with one of the flags {}",
    "upstreams": "of the upstream {}",
    "tiers": "of tier {}",
    "artifacts": "that return {}",
    "maxTier": "of tier {} or a more trusted one",
    "prompts": "that are prompts named {}",
    "resources": "that are resources named {}",
}


def describe_match(spec: Mapping[str, Any]) -> str:
    """Say which calls a rule is about; `spec` is the rule as written."""
    match = spec.get("match", {})
    parts = [_KEYS[key].format(_join(value)) for key, value in match.items() if key in _KEYS]
    about = " ".join(parts) if parts else "of any kind"
    catalogues = spec.get("catalogues") or match.get("catalogues")
    where = f" in {format_setting(list(catalogues))}" if catalogues else ""
    return f"calls of tools {about}{where}" if match.get("tools") != ["*"] else f"calls of all tools{where}"


def _join(value: Any) -> str:
    if isinstance(value, Mapping):
        return " and ".join(f"{key}={each}" for key, each in value.items())
    return format_setting(value)


def describe_check(rule: GateRule, spec: Mapping[str, Any]) -> str:
    """Say what a rule does with a call that it applies to."""
    check, written = rule.check, spec.get("check", {})
    match check:
        case ApprovalCheck():
            return _approval(check)
        case ConfirmationCheck():
            return f"holds the call until the caller confirms it, for at most {format_period(check.timeout)}"
        case PermissionCheck(action=action, object=object):
            return f"denies the call unless the caller may also {action} {object}"
        case ArgumentsCheck():
            return f"denies the call unless {written.get('require', check.require.source)}"
        case WindowCheck():
            return _window(check)
        case RateCheck():
            burst = f", {check.burst} at once" if check.burst is not None else ""
            return f"denies calls beyond {check.limit} in {format_period(check.per)}{burst}, {_counted_by(check.by)}"
        case QuotaCheck():
            return _quota(check)
        case LoopCheck():
            within = "in one turn" if check.within is None else f"by one caller within {format_period(check.within)}"
            return f"{_refuses(check.on_exceeded)} the same call after {check.same_call} times {within}"
        case BudgetCheck():
            return _budget(check)
        case FlowCheck():
            return f"denies the call once the turn has read {check.artifact}"
    return "denies the call"


def format_period(period: timedelta) -> str:
    """Return a period in words, in the largest unit that fits: `90 seconds`, `2 hours`."""
    seconds = period.total_seconds()
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return f"{count} {unit}{'s' * (count != 1)}"
    return f"{seconds:g} seconds"


def _approval(check: ApprovalCheck) -> str:
    needs = f"holds the call until {check.count} of {', '.join(check.approvers)} approve{'s' * (check.count == 1)} it"
    until = f", for at most {format_period(check.timeout)}" if check.timeout is not None else ""
    sees = f"; approvers see {', '.join(check.show)}" if check.show else "; approvers see all arguments"
    again = f"; one approval counts for {format_period(check.reuse_for)}" if check.reuse_for is not None else ""
    return f"{needs}{until}{sees}{again}"


def _window(check: WindowCheck) -> str:
    hours = "; ".join(map(_interval, check.openings))
    closed = f", not on {', '.join(sorted(day.isoformat() for day in check.closed))}" if check.closed else ""
    return f"{_refuses(check.outside)} the call outside of {hours} ({check.timezone.key}){closed}"


def _interval(opening: WindowInterval) -> str:
    days = ", ".join(_ranges([day for day in _WEEK if day in opening.days]))
    return f"{days} {opening.start:%H:%M} to {opening.end:%H:%M}"


def _ranges(days: list[str]) -> Iterator[str]:
    """Yield consecutive days as ranges: `mon to thu`."""
    while days:
        first, size = days[0], 1
        while size < len(days) and _WEEK.index(days[size]) == _WEEK.index(first) + size:
            size += 1
        yield first if size == 1 else f"{first} to {days[size - 1]}"
        days = days[size:]


def _quota(check: QuotaCheck) -> str:
    what = f"a sum of args.{'.'.join(check.sum)} beyond {check.limit}" if check.sum else f"calls beyond {check.limit}"
    holds = f"; {', '.join(check.approval.approvers)} can approve more" if check.approval is not None else ""
    period = format_period(check.per)
    return f"{_refuses(check.on_exhausted)} {what} in {period}, {_counted_by(check.by)}{holds}"


def _budget(check: BudgetCheck) -> str:
    parts = (("calls", check.calls), ("bytes of results", check.bytes))
    most = " or ".join(f"{number:,} {what}" for what, number in parts if number is not None)
    whose = "a turn" if check.within is None else f"a caller within {format_period(check.within)}"
    return f"{_refuses(check.on_exhausted)} calls once {whose} has used {most}"


def _counted_by(names: Iterable[str]) -> str:
    return f"counted by {' and '.join(names)}"


def _refuses(decision: str) -> str:
    return "holds" if decision == "hold" else "denies"

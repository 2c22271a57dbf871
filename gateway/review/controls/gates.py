"""How a gate rule asks less than it did: mode, condition, approvals, limits, hours."""

from collections.abc import Callable, Iterator, Mapping
from datetime import time
from typing import Final

from gateway.review.controls.common import Spec, Weakness, added, at, differs, dropped, is_further, is_longer, is_more
from gateway.review.written import milliseconds

_MODES: Final = ("enforce", "observe", "disabled")
_REFUSALS: Final = ("deny", "hold")
_MINUTE: Final = 60


def removed_gate(before: Spec) -> Iterator[Weakness]:
    yield Weakness("gate-removed" if at(before, "mode", "enforce") == "enforce" else "idle-gate-removed")


def weaker_gate(before: Spec, after: Spec) -> Iterator[Weakness]:
    modes = at(before, "mode", "enforce"), at(after, "mode", "enforce")
    if is_further(*modes, order=_MODES):
        yield Weakness("gate-not-enforced" if modes[0] == "enforce" else "gate-not-observed", "mode")
    if at(after, "when") is not None and differs(before, after, "when"):
        yield Weakness("gate-condition", "when")
    old, new = at(before, "check", {}), at(after, "check", {})
    if differs(old, new, "type"):
        yield Weakness("gate-check", "check.type")
        return
    for found in _CHECKS.get(at(new, "type", ""), _unknown)(old, new):
        yield Weakness(found.code, f"check.{found.path}", found.note)


def _approval(old: Spec, new: Spec) -> Iterator[Weakness]:
    if at(new, "count", 1) < at(old, "count", 1):
        yield Weakness("approval-count", "count")
    if names := added(old, new, "from"):
        yield Weakness("approvers-widened", "from", ", ".join(names))
    if at(new, "reuse") and (not at(old, "reuse") or is_longer(at(old, "reuse.for"), at(new, "reuse.for"))):
        yield Weakness("approval-reuse", "reuse.for")
    if at(old, "resolution") and differs(old, new, "resolution"):
        yield Weakness("approval-answer", "resolution")
    if names := dropped(old, new, "show"):
        yield Weakness("approval-blind", "show", ", ".join(names))


def _confirmation(old: Spec, new: Spec) -> Iterator[Weakness]:
    if names := dropped(old, new, "show"):
        yield Weakness("approval-blind", "show", ", ".join(names))
    if at(new, "show") and not at(old, "show"):  # all of them were shown
        yield Weakness("approval-blind", "show")


def _permission(old: Spec, new: Spec) -> Iterator[Weakness]:
    for path in ("action", "object"):
        if differs(old, new, path):
            yield Weakness("gate-check", path)


def _rate(old: Spec, new: Spec) -> Iterator[Weakness]:
    if is_more(_pace(old), _pace(new)):
        yield Weakness("limit-raised", "limit" if differs(old, new, "limit") else "per")
    elif is_more(_at_once(old), _at_once(new)):  # 10 in a minute and 600 in an hour are one pace, and not one limit
        yield Weakness("limit-raised", "burst" if differs(old, new, "burst") else "limit")
    if names := sorted(set(at(new, "by", ["subject"])) - set(at(old, "by", ["subject"]))):
        yield Weakness("limit-raised", "by", f"counted apart by {', '.join(names)}")
    yield from _softer(old, new, "onExhausted")


def _at_once(check: Spec) -> float:
    return float(at(check, "burst", at(check, "limit", float("inf"))))


def _pace(check: Spec) -> float:
    limit: float = at(check, "limit", float("inf"))
    return limit / milliseconds(at(check, "per", "P"))


def _window(old: Spec, new: Spec) -> Iterator[Weakness]:
    if differs(old, new, "timezone"):
        yield Weakness("window-widened", "timezone")
    if _minutes(new) - _minutes(old):
        yield Weakness("window-widened", "open")
    if days := dropped(old, new, "closed"):
        yield Weakness("window-widened", "closed", ", ".join(days))
    yield from _softer(old, new, "outside")


def _minutes(check: Spec) -> set[tuple[str, int]]:
    """Every minute of the week at which it is open."""
    return {
        (day, minute)
        for opening in at(check, "open", ())
        for day in opening["days"]
        for minute in range(_minute(opening["from"]), _minute(opening["to"]))
    }


def _minute(clock: str) -> int:
    read = time.fromisoformat(clock)
    return 24 * _MINUTE if read == time.max else read.hour * _MINUTE + read.minute


def _arguments(old: Spec, new: Spec) -> Iterator[Weakness]:
    if differs(old, new, "require"):
        yield Weakness("gate-check", "require")


def _loop(old: Spec, new: Spec) -> Iterator[Weakness]:
    if is_more(at(old, "sameCall"), at(new, "sameCall")):
        yield Weakness("limit-raised", "sameCall")
    yield from _softer(old, new, "onExceeded")


def _budget(old: Spec, new: Spec) -> Iterator[Weakness]:
    for path in ("calls", "bytes"):
        if is_more(at(old, path), at(new, path)):
            yield Weakness("limit-raised", path)
    yield from _softer(old, new, "onExhausted")


def _softer(old: Spec, new: Spec, path: str) -> Iterator[Weakness]:
    if is_further(at(old, path, "deny"), at(new, path, "deny"), order=_REFUSALS):
        yield Weakness("refusal-softened", path)


def _unknown(old: Spec, new: Spec) -> Iterator[Weakness]:
    """A kind of check that nothing is known about here: any difference may be a relaxation."""
    if old != new:
        yield Weakness("gate-check", "type")


_CHECKS: Final[Mapping[str, Callable[[Spec, Spec], Iterator[Weakness]]]] = {
    "approval": _approval,
    "confirmation": _confirmation,
    "permission": _permission,
    "rate": _rate,
    "quota": _rate,
    "window": _window,
    "arguments": _arguments,
    "loop": _loop,
    "budget": _budget,
}

"""Finds weaker gate rules: mode, condition, approvals, limits, hours, and calls that escape a rule."""

from collections.abc import Callable, Iterator, Mapping
from datetime import time
from typing import Final

from gateway.policy import GateRule
from gateway.registries import Snapshot
from gateway.review.plan.document_changes import milliseconds
from gateway.review.weakened_controls.spec_comparison import (
    Spec,
    Weakness,
    find_added,
    find_removed,
    is_different,
    is_later_in_order,
    is_longer,
    is_more,
    join_names,
    value_at_path,
)

_MODES: Final = ("enforce", "observe", "disabled")
_REFUSALS: Final = ("deny", "hold")
_MINUTE: Final = 60


def gate_removal(before: Spec) -> Iterator[Weakness]:
    yield Weakness("gate-removed" if value_at_path(before, "mode", "enforce") == "enforce" else "idle-gate-removed")


def weaker_gate(before: Spec, after: Spec) -> Iterator[Weakness]:
    modes = value_at_path(before, "mode", "enforce"), value_at_path(after, "mode", "enforce")
    if is_later_in_order(*modes, order=_MODES):
        yield Weakness("gate-not-enforced" if modes[0] == "enforce" else "gate-not-observed", "mode")
    if value_at_path(after, "when") is not None and is_different(before, after, "when"):
        yield Weakness("gate-condition", "when")
    old, new = value_at_path(before, "check", {}), value_at_path(after, "check", {})
    if is_different(old, new, "type"):
        yield Weakness("gate-check", "check.type")
        return
    for found in _CHECKS.get(value_at_path(new, "type", ""), _unknown)(old, new):
        yield Weakness(found.code, f"check.{found.path}", found.note)


def _approval(old: Spec, new: Spec) -> Iterator[Weakness]:
    if value_at_path(new, "count", 1) < value_at_path(old, "count", 1):
        yield Weakness("approval-count", "count")
    if names := find_added(old, new, "from"):
        yield Weakness("approvers-widened", "from", ", ".join(names))
    if value_at_path(new, "reuse") and (
        not value_at_path(old, "reuse") or is_longer(value_at_path(old, "reuse.for"), value_at_path(new, "reuse.for"))
    ):
        yield Weakness("approval-reuse", "reuse.for")
    if value_at_path(old, "resolution") and is_different(old, new, "resolution"):
        yield Weakness("approval-answer", "resolution")
    if names := find_removed(old, new, "show"):
        yield Weakness("approval-blind", "show", ", ".join(names))


def _confirmation(old: Spec, new: Spec) -> Iterator[Weakness]:
    if names := find_removed(old, new, "show"):
        yield Weakness("approval-blind", "show", ", ".join(names))
    if value_at_path(new, "show") and not value_at_path(old, "show"):  # without a list, all arguments were shown
        yield Weakness("approval-blind", "show")


def _permission(old: Spec, new: Spec) -> Iterator[Weakness]:
    for path in ("action", "object"):
        if is_different(old, new, path):
            yield Weakness("gate-check", path)


def _rate(old: Spec, new: Spec) -> Iterator[Weakness]:
    if is_more(_calls_per_millisecond(old), _calls_per_millisecond(new)):
        yield Weakness("limit-raised", "limit" if is_different(old, new, "limit") else "per")
    elif is_more(_burst(old), _burst(new)):  # 10 per minute and 600 per hour are the same rate, but not the same limit
        yield Weakness("limit-raised", "burst" if is_different(old, new, "burst") else "limit")
    if names := sorted(set(value_at_path(new, "by", ["subject"])) - set(value_at_path(old, "by", ["subject"]))):
        yield Weakness("limit-raised", "by", f"counted separately by {', '.join(names)}")
    yield from _softer(old, new, "onExhausted")


def _burst(check: Spec) -> float:
    return float(value_at_path(check, "burst", value_at_path(check, "limit", float("inf"))))


def _calls_per_millisecond(check: Spec) -> float:
    limit: float = value_at_path(check, "limit", float("inf"))
    return limit / milliseconds(value_at_path(check, "per", "P"))


def _window(old: Spec, new: Spec) -> Iterator[Weakness]:
    if is_different(old, new, "timezone"):
        yield Weakness("window-widened", "timezone")
    if _minutes(new) - _minutes(old):
        yield Weakness("window-widened", "open")
    if days := find_removed(old, new, "closed"):
        yield Weakness("window-widened", "closed", ", ".join(days))
    yield from _softer(old, new, "outside")


def _minutes(check: Spec) -> set[tuple[str, int]]:
    """Return every minute of the week at which the window is open."""
    return {
        (day, minute)
        for opening in value_at_path(check, "open", ())
        for day in opening["days"]
        for minute in range(_minute(opening["from"]), _minute(opening["to"]))
    }


def _minute(clock: str) -> int:
    read = time.fromisoformat(clock)
    return 24 * _MINUTE if read == time.max else read.hour * _MINUTE + read.minute


def _arguments(old: Spec, new: Spec) -> Iterator[Weakness]:
    if is_different(old, new, "require"):
        yield Weakness("gate-check", "require")


def _loop(old: Spec, new: Spec) -> Iterator[Weakness]:
    if is_more(value_at_path(old, "sameCall"), value_at_path(new, "sameCall")):
        yield Weakness("limit-raised", "sameCall")
    yield from _softer(old, new, "onExceeded")


def _budget(old: Spec, new: Spec) -> Iterator[Weakness]:
    for path in ("calls", "bytes"):
        if is_more(value_at_path(old, path), value_at_path(new, path)):
            yield Weakness("limit-raised", path)
    yield from _softer(old, new, "onExhausted")


def _softer(old: Spec, new: Spec, path: str) -> Iterator[Weakness]:
    if is_later_in_order(value_at_path(old, path, "deny"), value_at_path(new, path, "deny"), order=_REFUSALS):
        yield Weakness("refusal-softened", path)


def _unknown(old: Spec, new: Spec) -> Iterator[Weakness]:
    """Yield a weakness for any difference of an unknown kind of check."""
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


def calls_without_gate(before: Snapshot, after: Snapshot) -> Iterator[tuple[str, Weakness]]:
    """Yield enforced rules, by name, with calls that are still possible but that the rule no longer applies to."""
    for name, rule in after.gates.items():
        old = before.gates.get(name)
        if old is None or "enforce" not in (old.mode, rule.mode) or old.mode == "disabled":
            continue
        gone = sorted(_governed_calls(before, old, rule, after) - _governed_calls(after, rule, old, before))
        still = [f"{tool} in {catalogue}" for catalogue, tool in gone if tool in _tools(after, catalogue)]
        if still:
            yield name, Weakness("gate-escaped", "match", join_names(still))


def _governed_calls(snapshot: Snapshot, rule: GateRule, other: GateRule, against: Snapshot) -> set[tuple[str, str]]:
    """Return the calls that a rule applies to. If the rule did not change, unchanged tools are left out."""
    is_same = rule.match == other.match and rule.catalogues == other.catalogues
    found = set()
    for tool in snapshot.tools.values():
        twin = against.tools.get(tool.name)
        if is_same and twin is not None and twin.to_governed == tool.to_governed:
            continue
        if rule.match.matches(tool.to_governed):
            found.add(tool.name)
    return {
        (catalogue.name, name)
        for catalogue in snapshot.catalogues.values()
        if not rule.catalogues or catalogue.name in rule.catalogues
        for name in found & set(catalogue.tools.values())
    }


def _tools(snapshot: Snapshot, catalogue: str) -> set[str]:
    return set(snapshot.catalogues[catalogue].tools.values()) if catalogue in snapshot.catalogues else set()

"""How the limits of a call are counted together: which limit refuses it, and which excess approvers decide about.

Calls in progress and replays of recorded calls count with the same function.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gateway.policy.limits import (
    NO_AMOUNTS,
    ExceededLimit,
    Limit,
    LimitKey,
    LimitReservation,
    LimitStore,
    QuotaLimit,
)
from gateway.policy.rules.gate_checks import BudgetCheck, Decision, LoopCheck, QuotaCheck, amount_of
from gateway.policy.rules.gate_rules import OF_BYTES, GateRule


class LimitOutcome(NamedTuple):
    """What the limits of one call decided. It is counted by all of `reservation.taken`, or by none if it is refused."""

    reservation: LimitReservation
    over: tuple[GateRule, ...] = ()
    """Quotas that the call exceeds, and that approvers decide about."""
    observed: tuple[str, ...] = ()
    """Rules that only observe and would have refused."""
    is_refused: bool = False


class LimitRefusal(NamedTuple):
    """The refusal of the limit that a call would have to wait longest for."""

    worst: ExceededLimit
    rule: GateRule
    decision: Decision
    is_loop: bool
    is_budget: bool
    kind: str
    """`quota` or `rate`."""


def find_amounts(rules: Sequence[GateRule]) -> dict[str, tuple[str, ...]]:
    """Return the path of the argument that each rule sums."""
    return {rule.name: each.sum for rule in rules if isinstance(each := rule.check, QuotaCheck) and each.sum}


def read_amounts(args: Mapping[str, Any], sums: Mapping[str, tuple[str, ...]]) -> Mapping[str, int]:
    """Return what a call adds to the sums of rules. A rule denies a call without its amount."""
    return {name: amount_of(args, path) or 0 for name, path in sums.items()} if sums else NO_AMOUNTS


async def acquire_limits(
    store: LimitStore, wanted: Sequence[Limit], key: LimitKey, rules: Sequence[GateRule]
) -> LimitOutcome:
    """Count a call by all its limits, or by none. Calls beyond a quota with approvers are counted, too."""
    over: dict[str, GateRule] = {}
    observed: tuple[str, ...] = ()
    while True:
        lifted = [_lift(each) if each.rule in over else each for each in wanted] if over else wanted
        taken = await store.acquire(lifted, key)
        if taken.observed:
            observed += tuple(rule_name(each.limit) for each in taken.observed)
        if not taken.exceeded:
            return LimitOutcome(taken, tuple(over.values()), observed)
        exceeded = [find_rule(each.limit, rules) for each in taken.exceeded]
        approvable = {rule.name: rule for rule in exceeded if rule.approval is not None}
        if len(approvable) < len(taken.exceeded):
            return LimitOutcome(taken, (), observed, is_refused=True)
        over |= approvable


def find_refusal(taken: LimitReservation, rules: Sequence[GateRule]) -> LimitRefusal:
    """Return what refuses a call that limits do not count."""
    worst = max(taken.exceeded, key=lambda each: each.retry_after)
    rule = find_rule(worst.limit, rules)
    check = rule.check
    kind = "quota" if isinstance(worst.limit, QuotaLimit) else "rate"
    if isinstance(check, LoopCheck | BudgetCheck):
        is_loop = isinstance(check, LoopCheck)
        return LimitRefusal(worst, rule, check.refusal, is_loop, not is_loop, kind)
    held = {each.name for each in rules if getattr(each.check, "on_exhausted", "deny") == "hold"}
    is_held = all(each.limit.rule in held for each in taken.exceeded)
    return LimitRefusal(worst, rule, "hold" if is_held else "deny", is_loop=False, is_budget=False, kind=kind)


def find_rule(limit: Limit, rules: Sequence[GateRule]) -> GateRule:
    name = rule_name(limit)
    return next(rule for rule in rules if rule.name == name)


def rule_name(limit: Limit) -> str:
    """Return the name of the limit's rule."""
    return limit.rule.removesuffix(OF_BYTES)


def _lift(limit: Limit) -> Limit:
    return replace(limit, is_lifted=True) if isinstance(limit, QuotaLimit) else limit

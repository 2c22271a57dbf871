"""Apply rates, quotas and budgets to a call: all limits count it, or none does and it is refused."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

from gateway.engine.call import Call
from gateway.errors import RuleDenied, RuleHeld
from gateway.policy import (
    GateRule,
    Limit,
    LimitExceeded,
    LimitKey,
    LimitReservation,
    LimitStore,
    QuotaLimit,
    acquire_limits,
    find_amounts,
    find_refusal,
    read_amounts,
)


class LimitClaim(NamedTuple):
    """The counts of a call that is about to run, to be given back if it does not."""

    limits: LimitStore
    taken: LimitReservation
    call: LimitKey
    over: tuple[GateRule, ...] = ()
    """Quotas that the call exceeds, and that approvers decide about."""

    async def give_back(self) -> None:
        await self.limits.release(self.taken, self.call)


class CallLimits:
    """Counts calls of one object in one catalogue. `rules` are all rules that apply to it."""

    def __init__(self, limits: LimitStore, rules: Sequence[GateRule], identity: str, catalogue: str) -> None:
        self._limits = limits
        self._rules = rules
        self._identity = identity
        self._catalogue = catalogue
        self._sums = find_amounts(rules)
        """The path of the argument that a rule sums."""

    async def count(self, call: Call, wanted: Sequence[Limit], args: Mapping[str, Any]) -> LimitClaim:
        """Count the call. Raise if a limit refuses it, unless approvers decide about calls beyond the limit."""
        amounts = read_amounts(args, self._sums)
        counted = LimitKey(call.principal, self._identity, self._catalogue, call.fingerprint, amounts)
        taken, over, observed, is_refused = await acquire_limits(self._limits, wanted, counted, self._rules)
        if observed:
            call.observed += observed
        if is_refused:
            self._refuse(call, taken)
        of_bytes = [each for each in taken.taken if isinstance(each, QuotaLimit) and each.counts == "bytes"]
        if of_bytes:
            call.charge = partial(self._limits.charge, of_bytes, counted)
        return LimitClaim(self._limits, taken, counted, over)

    def _refuse(self, call: Call, taken: LimitReservation) -> NoReturn:
        worst, rule, decision, is_loop, is_budget, kind = find_refusal(taken, self._rules)
        call.rules = (rule.name,)
        if is_loop or is_budget:
            call.position = str(rule.position)
            call.set_decision(decision, "loop-stopped" if is_loop else "budget-spent", rule.place)
            excess = rule.check.describe_excess()  # type: ignore[attr-defined]  # a loop or a budget: it has one
            if decision == "hold":
                raise RuleHeld(f"{excess}; try again later")
            raise RuleDenied(excess)
        call.set_decision(decision, f"{kind}-exceeded", rule.name)
        call.limited = {"status": "limited", "kind": kind, "rule": rule.name, "retryAfter": worst.seconds}
        raise LimitExceeded(worst)  # in no variable: an exception refers to the frame that raises it

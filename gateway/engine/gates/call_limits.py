"""Apply rates, quotas and budgets to a call: all limits count it, or none does and it is refused."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, NoReturn

from gateway.engine.call import Call
from gateway.errors import RuleDenied, RuleHeld
from gateway.policy import (
    NO_AMOUNTS,
    OF_BYTES,
    BudgetCheck,
    ExceededLimit,
    GateRule,
    Limit,
    LimitExceeded,
    LimitKey,
    LimitReservation,
    LimitStore,
    LoopCheck,
    QuotaCheck,
    QuotaLimit,
    amount_of,
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
        self._sums = {rule.name: each.sum for rule in rules if isinstance(each := rule.check, QuotaCheck) and each.sum}
        """The path of the argument that a rule sums."""

    async def count(self, call: Call, wanted: Sequence[Limit], args: Mapping[str, Any]) -> LimitClaim:
        """Count the call. Raise if a limit refuses it, unless approvers decide about calls beyond the limit."""
        amounts = NO_AMOUNTS
        if self._sums:  # a rule denies a call without its amount
            amounts = {name: amount_of(args, path) or 0 for name, path in self._sums.items()}
        counted = LimitKey(call.principal, self._identity, self._catalogue, call.fingerprint, amounts)
        over: dict[str, GateRule] = {}
        while True:
            lifted = [_lift(each) if each.rule in over else each for each in wanted] if over else wanted
            taken = await self._limits.acquire(lifted, counted)
            if taken.observed:
                call.observed += tuple(_rule_name(each.limit) for each in taken.observed)
            if not taken.exceeded:
                break
            approvable = {rule.name: rule for rule in map(self._rule_of, taken.exceeded) if rule.approval is not None}
            if len(approvable) < len(taken.exceeded):
                self._refuse(call, taken)
            over |= approvable
        of_bytes = [each for each in taken.taken if isinstance(each, QuotaLimit) and each.counts == "bytes"]
        if of_bytes:
            call.charge = partial(self._limits.charge, of_bytes, counted)
        return LimitClaim(self._limits, taken, counted, tuple(over.values()))

    def _refuse(self, call: Call, taken: LimitReservation) -> NoReturn:
        worst = max(taken.exceeded, key=lambda each: each.retry_after)
        rule = self._rule_of(worst)
        call.rules = (rule.name,)
        if isinstance(rule.check, LoopCheck | BudgetCheck):
            call.position = str(rule.position)
            reason = "loop-stopped" if isinstance(rule.check, LoopCheck) else "budget-spent"
            call.set_decision(rule.check.refusal, reason, rule.place)
            if rule.check.refusal == "hold":
                raise RuleHeld(f"{rule.check.describe_excess()}; try again later")
            raise RuleDenied(rule.check.describe_excess())
        kind = "quota" if isinstance(worst.limit, QuotaLimit) else "rate"
        held = {rule.name for rule in self._rules if getattr(rule.check, "on_exhausted", "deny") == "hold"}
        is_held = all(each.limit.rule in held for each in taken.exceeded)
        call.set_decision("hold" if is_held else "deny", f"{kind}-exceeded", rule.name)
        call.limited = {"status": "limited", "kind": kind, "rule": rule.name, "retryAfter": worst.seconds}
        raise LimitExceeded(worst)  # in no variable: an exception refers to the frame that raises it

    def _rule_of(self, exceeded: ExceededLimit) -> GateRule:
        name = _rule_name(exceeded.limit)
        return next(rule for rule in self._rules if rule.name == name)


def _lift(limit: Limit) -> Limit:
    return replace(limit, is_lifted=True) if isinstance(limit, QuotaLimit) else limit


def _rule_name(limit: Limit) -> str:
    return limit.rule.removesuffix(OF_BYTES)

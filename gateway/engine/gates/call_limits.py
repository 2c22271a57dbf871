"""Apply rates, quotas and budgets to a call: all limits count it, or none does and it is refused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from gateway.engine.call import Call
from gateway.errors import RuleDenied, RuleHeld
from gateway.policy import (
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
    QuotaLimit,
    amount_of,
)
from gateway.policy import QuotaCheck as QuotaCheck


@dataclass(frozen=True, slots=True)
class LimitClaim:
    """The counts of a call that is about to run, to be given back if it does not."""

    limits: LimitStore
    taken: LimitReservation
    call: LimitKey
    over: tuple[GateRule, ...] = ()
    """Quotas that the call exceeds, and that approvers decide about."""

    async def give_back(self) -> None:
        await self.limits.release(self.taken, self.call)


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Counts calls of one object in one catalogue. `rules` are all rules that apply to it."""

    limits: LimitStore
    rules: Sequence[GateRule]
    identity: str
    catalogue: str

    async def count(self, call: Call, wanted: Sequence[Limit], args: Mapping[str, Any]) -> LimitClaim:
        """Count the call. Raise if a limit refuses it, unless approvers decide about calls beyond the limit."""
        amounts = {rule.name: amount for rule in self.rules if (amount := _amount(rule, args)) is not None}
        counted = LimitKey(call.principal, self.identity, self.catalogue, call.fingerprint, amounts)
        over: dict[str, GateRule] = {}
        while True:
            lifted = [_lift(each) if each.rule in over else each for each in wanted]
            taken = await self.limits.acquire(lifted, counted)
            call.observed += tuple(_rule_name(each.limit) for each in taken.observed)
            if taken.is_allowed:
                break
            approvable = {rule.name: rule for rule in map(self._rule_of, taken.exceeded) if rule.approval is not None}
            if len(approvable) < len(taken.exceeded):
                self._refuse(call, taken)
            over |= approvable
        of_bytes = [each for each in taken.taken if isinstance(each, QuotaLimit) and each.counts == "bytes"]
        if of_bytes:
            call.charge = partial(self.limits.charge, of_bytes, counted)
        return LimitClaim(self.limits, taken, counted, tuple(over.values()))

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
        held = {rule.name for rule in self.rules if getattr(rule.check, "on_exhausted", "deny") == "hold"}
        is_held = all(each.limit.rule in held for each in taken.exceeded)
        call.set_decision("hold" if is_held else "deny", f"{kind}-exceeded", rule.name)
        refusal = LimitExceeded(worst)
        call.limited = {"status": "limited", "kind": kind, "rule": rule.name, "retryAfter": refusal.seconds}
        raise refusal

    def _rule_of(self, exceeded: ExceededLimit) -> GateRule:
        name = _rule_name(exceeded.limit)
        return next(rule for rule in self.rules if rule.name == name)


def _amount(rule: GateRule, args: Mapping[str, Any]) -> int | None:
    """Return the amount that a call adds for a rule that sums an argument. The rule denies a call without one."""
    check = rule.check
    return (amount_of(args, check.sum) or 0) if isinstance(check, QuotaCheck) and check.sum else None


def _lift(limit: Limit) -> Limit:
    return replace(limit, is_lifted=True) if isinstance(limit, QuotaLimit) else limit


def _rule_name(limit: Limit) -> str:
    return limit.rule.removesuffix(OF_BYTES)

"""Rates, quotas and budgets of callers: one call is counted by all that are about it, or by none and refused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from gateway.errors import RuleDenied, RuleHeld
from gateway.governance.limits import CountedCall, Exceeded, Limit, LimitExceeded, Limits, Quota, Taken
from gateway.governance.rules import OF_BYTES, Budget, GateRule, Loop, amount_of
from gateway.governance.rules import Quota as QuotaCheck
from gateway.serving.current import ServedCall


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted for a call that is about to run, to be given back if it does not."""

    limits: Limits
    taken: Taken
    call: CountedCall
    over: tuple[GateRule, ...] = ()
    """Quotas that it goes beyond, and that people decide about."""

    async def give_back(self) -> None:
        await self.limits.give_back(self.taken, self.call)


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What counts calls of one thing in one catalogue. `rules` are all that are about it."""

    limits: Limits
    rules: Sequence[GateRule]
    identity: str
    catalogue: str

    async def count(self, call: ServedCall, wanted: Sequence[Limit], args: Mapping[str, Any]) -> Counted:
        """Count the call. Raises where a limit refuses it, unless people decide about calls beyond it."""
        amounts = {rule.name: amount for rule in self.rules if (amount := _amount(rule, args)) is not None}
        counted = CountedCall(call.principal, self.identity, self.catalogue, call.fingerprint, amounts)
        over: dict[str, GateRule] = {}
        while True:
            lifted = [_lifted(each) if each.rule in over else each for each in wanted]
            taken = await self.limits.take(lifted, counted)
            call.observed += tuple(_rule_name(each.limit) for each in taken.observed)
            if taken.allowed:
                break
            asking = {rule.name: rule for rule in map(self._rule_of, taken.exceeded) if rule.approval is not None}
            if len(asking) < len(taken.exceeded):
                self._refuse(call, taken)
            over |= asking
        of_bytes = [each for each in taken.taken if isinstance(each, Quota) and each.counts == "bytes"]
        if of_bytes:
            call.charge = partial(self.limits.charge, of_bytes, counted)
        return Counted(self.limits, taken, counted, tuple(over.values()))

    def _refuse(self, call: ServedCall, taken: Taken) -> NoReturn:
        worst = max(taken.exceeded, key=lambda each: each.retry_after)
        rule = self._rule_of(worst)
        call.rules = (rule.name,)
        if isinstance(rule.check, Loop | Budget):
            call.position = str(rule.position)
            reason = "loop-stopped" if isinstance(rule.check, Loop) else "budget-spent"
            call.decide(rule.check.refusal, reason, rule.place)
            if rule.check.refusal == "hold":
                raise RuleHeld(f"{rule.check.exceeded()}; try again later")
            raise RuleDenied(rule.check.exceeded())
        kind = "quota" if isinstance(worst.limit, Quota) else "rate"
        held = {rule.name for rule in self.rules if getattr(rule.check, "on_exhausted", "deny") == "hold"}
        is_held = all(each.limit.rule in held for each in taken.exceeded)
        call.decide("hold" if is_held else "deny", f"{kind}-exceeded", rule.name)
        refusal = LimitExceeded(worst)
        call.limited = {"status": "limited", "kind": kind, "rule": rule.name, "retryAfter": refusal.seconds}
        raise refusal

    def _rule_of(self, exceeded: Exceeded) -> GateRule:
        name = _rule_name(exceeded.limit)
        return next(rule for rule in self.rules if rule.name == name)


def _amount(rule: GateRule, args: Mapping[str, Any]) -> int | None:
    """What a call counts for a rule that sums an argument. The rule itself denies one without an amount."""
    check = rule.check
    return (amount_of(args, check.sum) or 0) if isinstance(check, QuotaCheck) and check.sum else None


def _lifted(limit: Limit) -> Limit:
    return replace(limit, is_lifted=True) if isinstance(limit, Quota) else limit


def _rule_name(limit: Limit) -> str:
    return limit.rule.removesuffix(OF_BYTES)

"""Gate rules: allow, hold or deny one call, by the call, the caller, the clock and the state of the turn.

Rules have no order: deny beats hold beats allow. A rule in `observe` mode reports what it would have decided and
decides nothing. Rates and quotas are counted where all workers count together: they allow here, and the outcome lists
them, to be acquired all at once if every other rule allows. Objects created for every call are tuples, because a frozen
dataclass takes three times as long.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal, NamedTuple

from gateway.policy import limits
from gateway.policy.limits import Limit
from gateway.policy.rules.conditions import Condition, ConditionScope
from gateway.policy.rules.deciding_part import ConditionPart, find_deciding_part
from gateway.policy.rules.gate_checks import (
    ApprovalCheck,
    ArgumentsCheck,
    BudgetCheck,
    Decision,
    GateCheck,
    Judgement,
    LoopCheck,
    PermissionLookup,
    QuotaCheck,
    RateCheck,
)
from gateway.policy.rules.turn_state import CallBounds
from gateway.registries import GovernedTool, Position, Selector

RuleMode = Literal["enforce", "observe", "disabled"]
SEVERITY: Final[dict[Decision, int]] = {"allow": 0, "hold": 1, "deny": 2}
OF_BYTES: Final = "#bytes"
"""Suffix of the name under which a budget counts bytes, besides its calls."""


@dataclass(frozen=True, slots=True)
class GateRule:
    """One rule: which calls it matches, when it applies, and what it checks."""

    name: str
    match: Selector
    check: GateCheck
    position: Position
    when: Condition | None = None
    mode: RuleMode = "enforce"
    catalogues: frozenset[str] = frozenset()
    hold_for: timedelta = timedelta(seconds=45)
    description: str = field(default="", compare=False)
    limits: tuple[Limit, ...] = field(init=False, repr=False, compare=False)
    """What is counted when a call is made: for a rate, a quota, or a rule over all turns of a caller."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "limits", tuple(_limits(self)))

    def matches(self, tool: GovernedTool, catalogue: str) -> bool:
        """Whether the rule matches calls of the tool through the catalogue; without catalogues, through any."""
        if (self.catalogues and catalogue not in self.catalogues) or not self.match.matches(tool):
            return False
        return tool.kind == "tool" or not self.is_for_calls or self.match.singles_out(tool)

    @property
    def is_for_calls(self) -> bool:
        """Whether the rule reads the arguments of a call, or asks people about it.

        A query's arguments are not those of its tool, and an approver of a call is not asked again for each read of its
        result: such a rule matches query tools, prompts and resources only if it names them.
        """
        return self.check.is_for_calls or any(each.looks_at_arguments for each in self.conditions)

    @property
    def reads_arguments(self) -> bool:
        """Whether the result, or what is counted, depends on the arguments of a call."""
        if self.is_for_calls or isinstance(self.check, LoopCheck):
            return True
        return any("call" in each.by or getattr(each, "counts", "calls") == "amounts" for each in self.limits)

    @property
    def argument_names(self) -> frozenset[str] | None:
        """The arguments that it reads; `None` if it reads all of them."""
        found = frozenset(self.check.sum[:1]) if isinstance(self.check, QuotaCheck) else frozenset[str]()
        for each in self.conditions:
            if each.argument_names is None:
                return None
            found |= each.argument_names
        return found

    @property
    def reads_turn_state(self) -> bool:
        """Whether the result depends on what the turn has seen and done."""
        return self.check.reads_turn_state or any(each.reads_turn_state for each in self.conditions)

    @property
    def reads_turn_calls(self) -> bool:
        """Whether a condition reads the calls of the turn, refused ones included."""
        return self.mode != "disabled" and any(each.reads_turn_calls for each in self.conditions)

    @property
    def approval(self) -> ApprovalCheck | None:
        """The approval that calls of the rule need, always or beyond a budget."""
        if isinstance(self.check, ApprovalCheck):
            return self.check
        return self.check.approval if isinstance(self.check, QuotaCheck) else None

    @property
    def conditions(self) -> tuple[Condition, ...]:
        found = (self.when, getattr(self.check, "require", None))
        return tuple(each for each in found if each is not None)

    @property
    def watched_flags(self) -> frozenset[str]:
        """Flags that its conditions look up in the caller's sightings."""
        if self.mode == "disabled":
            return frozenset()
        return frozenset(flag for each in self.conditions for flag in each.watched_flags)

    @property
    def place(self) -> str:
        return f"{self.name} at {self.position.file}:{self.position.line}"


class RuleVerdict(NamedTuple):
    """The result of one rule for a call. A rule that only observes does not affect the outcome.

    `leaf` is the part of a condition that decided: of the requirement, or of `when`. Only a verdict against the call
    has one.
    """

    rule: GateRule
    judgement: Judgement
    failure: str | None = None
    leaf: ConditionPart | None = None

    @property
    def is_enforced(self) -> bool:
        return self.rule.mode == "enforce"

    @property
    def because(self) -> str:
        """The rule, its position and the part that decided, for records: contains no arguments."""
        return f"{self.rule.place}: {self.leaf.text}" if self.leaf is not None else self.rule.place


class GateOutcome(NamedTuple):
    """The decision of all rules together, the verdict that decided, and all verdicts in the order of rule names."""

    decision: Decision
    decided_by: RuleVerdict | None
    verdicts: tuple[RuleVerdict, ...]
    limits: tuple[Limit, ...] = ()
    """The rates and quotas of the call, observing ones too: to be acquired if the call is allowed."""
    observed_refusals: tuple[RuleVerdict, ...] = ()
    """Verdicts of rules that only observe and would have refused."""

    @property
    def holds(self) -> tuple[GateRule, ...]:
        """Every rule that holds the call: each needs its own approval."""
        return tuple(each.rule for each in self.verdicts if each.is_enforced and each.judgement.decision == "hold")

    @property
    def bounds(self) -> CallBounds | None:
        """How many calls the turn may still make, by the rules that allow this one; `None` if none sets a bound."""
        same: int | None = None
        calls: int | None = None
        for rule, judgement, *_ in self.verdicts:
            check = rule.check
            if rule.mode != "enforce" or judgement.decision != "allow":
                continue
            if isinstance(check, LoopCheck) and check.within is None:
                same = check.same_call if same is None else min(same, check.same_call)
            elif isinstance(check, BudgetCheck) and check.within is None and check.calls is not None:
                calls = check.calls if calls is None else min(calls, check.calls)
        return None if same is None and calls is None else CallBounds(same, calls)


def evaluate_call(
    rules: Iterable[GateRule], tool: GovernedTool, scope: ConditionScope, *, catalogue: str, may: PermissionLookup
) -> GateOutcome:
    """Evaluate every rule that matches the call. The most severe verdict decides; of equals, the first by name."""
    about = [rule for rule in rules if rule.mode != "disabled" and rule.matches(tool, catalogue)]
    return evaluate_rules(sorted(about, key=lambda rule: rule.name), scope, may=may)


def evaluate_rules(rules: Iterable[GateRule], scope: ConditionScope, *, may: PermissionLookup) -> GateOutcome:
    """Evaluate rules that are known to match the call, in the order of their names."""
    verdicts: list[RuleVerdict] = []
    limits: tuple[Limit, ...] = ()
    observed: tuple[RuleVerdict, ...] = ()
    decided_by: RuleVerdict | None = None
    decision: Decision = "allow"
    for rule in rules:
        verdict = _verdict(rule, scope, may)
        if verdict is None:
            continue
        verdicts.append(verdict)
        limits += rule.limits
        current = verdict.judgement.decision
        if rule.mode != "enforce":
            observed += (verdict,) if current != "allow" else ()
        elif decided_by is None or SEVERITY[current] > SEVERITY[decision]:
            decided_by, decision = verdict, current
    return GateOutcome(decision, decided_by, tuple(verdicts), limits, observed)


def _limits(rule: GateRule) -> Iterator[Limit]:
    enforced = rule.mode == "enforce"
    match rule.check:
        case RateCheck(limit, per, burst, by):
            yield limits.RateLimit(rule.name, limit, per, burst, by, enforced)
        case QuotaCheck(limit, per, by, _, sum):
            yield limits.QuotaLimit(rule.name, limit, per, by, enforced, "amounts" if sum else "calls")
        case LoopCheck(same_call, _, timedelta() as within):
            yield limits.QuotaLimit(rule.name, same_call, within, ("subject", "call"), enforced)
        case BudgetCheck(calls, size, _, timedelta() as within):
            if calls is not None:
                yield limits.QuotaLimit(rule.name, calls, within, enforced=enforced)
            if size is not None:
                yield limits.QuotaLimit(f"{rule.name}{OF_BYTES}", size, within, enforced=enforced, counts="bytes")


def _verdict(rule: GateRule, scope: ConditionScope, may: PermissionLookup) -> RuleVerdict | None:
    """Return the verdict of a rule; `None` if its condition does not apply to this call."""
    failure = None
    if rule.when is not None:
        applies = rule.when.evaluate(scope)
        failure = applies.failure
        if not applies.value:
            return None
    try:
        judgement = rule.check.judge(scope, may)
    except Exception as error:  # fail closed: a broken check denies
        judgement = Judgement("deny", f"the check failed: {type(error).__name__}")
    leaf = _leaf(rule, scope) if judgement.decision != "allow" else None
    return RuleVerdict(rule, judgement, failure, leaf)


def _leaf(rule: GateRule, scope: ConditionScope) -> ConditionPart | None:
    deciding = rule.check.require if isinstance(rule.check, ArgumentsCheck) else rule.when
    return find_deciding_part(deciding, scope) if deciding is not None else None

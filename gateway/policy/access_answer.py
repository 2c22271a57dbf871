"""What an access decision is about and what it says: the question, its steps in their order, the answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from gateway.model import Principal, fingerprint_of
from gateway.policy.authoriser import AccessDecision
from gateway.policy.rules.conditions import ConditionScope
from gateway.policy.rules.gate_checks import Decision, FlowCheck
from gateway.policy.rules.gate_rules import GateOutcome, GateRule
from gateway.policy.rules.turn_state import TurnState
from gateway.registries import Catalogue, DeclaredTool, ExpectedReason, Position

StepName = Literal["audience", "tool", "arguments", "tier", "lifecycle", "policy", "gates"]
STEPS: Final[tuple[StepName, ...]] = ("audience", "tool", "arguments", "tier", "lifecycle", "policy", "gates")


class AccessQuestion(NamedTuple):
    """The call to decide about. `tool` is the advertised name, `memory` the state of the turn, if there is one.

    `fingerprint` identifies the call within its turn; by default it is computed from tool and arguments. `of` is the
    advertised name of the tool whose result a query tool reads; it is optional if there is only one such tool.
    `sightings` are when the caller last saw each flag; by default, the caller has just seen all flags of the turn.
    """

    principal: Principal
    catalogue: str
    tool: str
    at: datetime
    args: Mapping[str, Any] = {}
    memory: TurnState | None = None
    fingerprint: str | None = None
    of: str | None = None
    sightings: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class AccessStep:
    """One step that was evaluated: its decision, the reason, and the position of the configuration that decided."""

    name: StepName
    decision: Decision
    reason: str
    position: Position | None = None
    because: ExpectedReason | None = None


@dataclass(frozen=True, slots=True)
class AccessAnswer:
    """The decision about a call. `steps` are the steps that were evaluated; the last one decided.

    `outcome` is the result of the gate rules, `scope` the values they could read; both are set only if gates ran.
    """

    steps: tuple[AccessStep, ...]
    outcome: GateOutcome | None = None
    scope: ConditionScope | None = None
    idle_rules: tuple[GateRule, ...] = ()
    """Gate rules that match the tool but whose condition does not apply to this call."""
    rows: frozenset[Position] = frozenset()
    """Policy rows that decided the call itself, or a permission that a gate rule checks."""

    @property
    def decision(self) -> Decision:
        return self.steps[-1].decision

    @property
    def because(self) -> ExpectedReason | None:
        return self.steps[-1].because

    @property
    def skipped_steps(self) -> tuple[StepName, ...]:
        return STEPS[len(self.steps) :]


@dataclass(frozen=True, slots=True)
class ToolVisibility:
    """Whether a caller may see a tool of a catalogue, by its advertised name, and the decision behind it."""

    name: str
    tool: DeclaredTool
    decision: AccessDecision


def refuse(steps: Sequence[AccessStep]) -> AccessAnswer:
    return AccessAnswer(tuple(steps), rows=find_deciding_rows(steps))


def find_deciding_rows(steps: Sequence[AccessStep]) -> frozenset[Position]:
    by_policy = [step for step in steps if step.because is not None and step.because.kind == "policy"]
    return frozenset(step.position for step in by_policy if step.position is not None)


def check_audience(catalogue: Catalogue | None, name: str, *, held: frozenset[str] | None) -> AccessStep:
    if catalogue is None:
        return AccessStep("audience", "deny", f"there is no catalogue {name!r}")
    if held is None:
        return AccessStep("audience", "deny", "the caller's roles cannot be determined", catalogue.position)
    shared = sorted(catalogue.audience & held)
    if not shared:
        return AccessStep("audience", "deny", f"the caller is not in the audience of {name}", catalogue.position)
    return AccessStep("audience", "allow", f"{name} is for {shared[0]}", catalogue.position)


def fingerprint_of_call(call: AccessQuestion) -> str:
    """Return what identifies the call; empty if its arguments are not JSON: such a call is never a repetition."""
    if call.fingerprint is not None:
        return call.fingerprint
    try:
        return fingerprint_of(call.tool, call.args)
    except (TypeError, ValueError):
        return ""


def is_refused(steps: Sequence[AccessStep]) -> bool:
    return steps[-1].decision != "allow"


def describe_gates(outcome: GateOutcome, policy: AccessStep) -> AccessStep:
    verdict = outcome.decided_by
    if verdict is None or outcome.decision == "allow":  # the policy allowed the call
        return AccessStep("gates", "allow", _nothing_against(outcome), policy.position, policy.because)
    rule = verdict.rule
    reason = f"{rule.name}: {verdict.judgement.reason}"
    return AccessStep("gates", outcome.decision, reason, rule.position, reason_of_rule(rule))


def reason_of_rule(rule: GateRule) -> ExpectedReason:
    if isinstance(rule.check, FlowCheck):
        return ExpectedReason("class", rule.check.artifact)
    return ExpectedReason("gate", rule.name)


def _nothing_against(outcome: GateOutcome) -> str:
    enforced = [verdict for verdict in outcome.verdicts if verdict.is_enforced]
    observing = len(outcome.verdicts) - len(enforced)
    words = f"{len(enforced)} evaluated, none holds or denies" if enforced else "no rule applies"
    return f"{words}; {observing} only observe{'s' * (observing == 1)}" if observing else words


def by_policy(decision: AccessDecision) -> ExpectedReason | None:
    return ExpectedReason("policy", decision.subject) if decision.subject else None

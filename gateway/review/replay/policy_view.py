"""One policy as a replay asks it: what it decides before rules, which rules apply, and what decided.

Equal questions are decided once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from gateway.model import Principal, from_microseconds
from gateway.policy import (
    Access,
    AccessQuestion,
    AccessStep,
    ApprovalCheck,
    ConfirmationCheck,
    Decision,
    GateOutcome,
    GateRule,
    Taint,
    find_amounts,
)
from gateway.registries import DeclaredTool, Position, Query
from gateway.review.replay.differences import Decider, Obstacle
from gateway.review.replay.past_access import PastAccess
from gateway.review.replay.recorded_calls import RecordedCall

_MOST_CACHED: Final = 100_000
_DAY: Final = 86_400_000_000


class ReplayedDecision(NamedTuple):
    """A decision of the replayed policy. With an `obstacle`, it is not known."""

    decider: Decider
    obstacle: Obstacle | None = None
    is_gone: bool = False
    """Whether the catalogue or the tool does not exist any more."""


class Admission(NamedTuple):
    """The decision before arguments and rules; `tool` is `None` if it is final."""

    refusal: ReplayedDecision | None
    tool: DeclaredTool | Query | None
    last: AccessStep | None = None


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules that apply to calls of a tool in a catalogue, with what they need to know."""

    rules: tuple[GateRule, ...]
    sums: Mapping[str, tuple[str, ...]]
    reads_turn: bool
    reads_sightings: bool
    argument_names: frozenset[str] | None
    taint: Taint


class PolicyView:
    """`naming` maps the files of the policy to the names that results have."""

    def __init__(self, access: Access, past: PastAccess, naming: Callable[[str], str]) -> None:
        self._access = access
        self._past = past
        self._naming = naming
        self._admissions: dict[tuple[Any, ...], Admission] = {}
        self._rules: dict[tuple[str, ...], RuleSet] = {}
        self._looks_back: dict[str, bool] = {}

    def admit(self, call: RecordedCall, principal: Principal, made_by: str) -> Admission:
        """Run the steps that depend on neither arguments nor state.

        Equal questions are decided once per day, and again when a row has ended or other grants are in force.
        """
        access = self._past.at(call.at)
        grants = tuple([each.id for each in access.list_grants(principal)])
        key = (principal, call.catalogue, call.tool, made_by, call.at // _DAY, id(access), grants)
        found = self._admissions.get(key)
        if found is None:
            if len(self._admissions) >= _MOST_CACHED:
                self._admissions.clear()
            found = self._admissions[key] = self._decide_admission(access, call, principal, made_by)
        return found

    def _decide_admission(self, access: Access, call: RecordedCall, principal: Principal, made_by: str) -> Admission:
        at = from_microseconds(call.at)
        question = AccessQuestion(principal, call.catalogue, call.tool, at, of=made_by or None)
        steps, tool = access.decide_entry(question)
        if tool is not None and steps[-1].decision == "allow":
            steps = access.decide_admission(question, tool)
        last = steps[-1]
        if last.decision == "allow" and tool is not None:
            return Admission(None, tool, last)
        is_gone = call.catalogue not in access.snapshot.catalogues or (last.name == "tool" and tool is None)
        refusal = ReplayedDecision(Decider("deny", last.name, self._place(last.position)), is_gone=is_gone)
        return Admission(refusal, tool, last)

    def check_arguments(
        self, call: RecordedCall, tool: DeclaredTool | Query, rules: RuleSet
    ) -> tuple[Mapping[str, Any], ReplayedDecision | None]:
        """Return the arguments that rules read. Arguments that were not stored fit the schema if they did then."""
        is_invalid = call.reason == "arguments-invalid"
        if is_invalid and isinstance(tool, Query):  # the id of no result, or a pattern that cannot be run
            return {}, ReplayedDecision(Decider("deny", "arguments"))
        if call.arguments is None or call.masked:
            return call.arguments or {}, blocked("arguments") if is_invalid else None
        question = AccessQuestion(
            call.principal or Principal(call.subject), call.catalogue, call.tool, _NEVER, call.arguments
        )
        if isinstance(tool, Query):
            return call.arguments, None
        arguments, step = self._access.check_arguments(question, tool)
        return arguments, None if step.decision == "allow" else ReplayedDecision(Decider("deny", "arguments"))

    def rules_of(self, tool: DeclaredTool | Query, catalogue: str) -> RuleSet:
        of = (tool.maker.name, tool.artifact) if isinstance(tool, Query) else ("", "")
        key = (catalogue, tool.name, *of)
        found = self._rules.get(key)
        if found is None:
            rules = tuple(self._access.find_rules(tool, catalogue))
            names: frozenset[str] | None = frozenset()
            for rule in rules:
                names = None if names is None or rule.argument_names is None else names | rule.argument_names
            found = self._rules[key] = RuleSet(
                rules,
                find_amounts(rules),
                any(rule.reads_turn_state for rule in rules),
                any(rule.watched_flags for rule in rules),
                names,
                self._access.taint_of_tool(tool),
            )
        return found

    def needs_state(self, catalogue: str) -> bool:
        found = self._looks_back.get(catalogue)
        if found is None:
            found = self._looks_back[catalogue] = self._access.looks_back(catalogue)
        return found

    def idle_of(self, catalogue: str) -> timedelta | None:
        found = self._access.snapshot.catalogues.get(catalogue)
        return None if found is None else found.implicit

    def decider_of(self, decision: Decision, rule: GateRule) -> Decider:
        return Decider(decision, rule.name, self._place(rule.position))

    def hold_decider(self, outcome: GateOutcome, over: Sequence[GateRule]) -> Decider:
        """Return what holds a call: every rule that people decide about, or the first that holds without asking."""
        holding = (*outcome.holds, *over)
        if not holding:
            return ALLOW
        if all(isinstance(rule.check, ApprovalCheck | ConfirmationCheck) for rule in outcome.holds):
            return self.decider_of("hold", holding[0])._replace(name=", ".join(rule.name for rule in holding))
        return self.decider_of("hold", next(each.rule for each in outcome.verdicts if each.rule in holding))

    def _place(self, position: Position | None) -> str:
        return "" if position is None else f"{self._naming(position.file)}:{position.line}"


_NEVER: Final = datetime.min
ALLOW: Final = Decider("allow", "policy")


def blocked(obstacle: Obstacle) -> ReplayedDecision:
    return ReplayedDecision(ALLOW, obstacle)

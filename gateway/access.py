"""What becomes of a call: every step in its fixed order, what decided, and which steps were not asked any more.

Explanations, policy tests, plans and the handlers ask the same steps, so what is told is what happens. The first
refusal ends the way. Where gates count (rates, quotas, loops), the counting is not done here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from gateway.core.schemas import Schema
from gateway.errors import ValidationException
from gateway.governance.cases import Because
from gateway.governance.conditions import Scope
from gateway.governance.diagnostics import Position
from gateway.governance.ports import AccessDecision, AccessRequest, Authoriser
from gateway.governance.principals import Principal
from gateway.governance.rules import Decision, GateRule, Outcome, judge_call
from gateway.snapshot import Catalogue, DeclaredTool, Snapshot

StepName = Literal["audience", "tool", "arguments", "tier", "lifecycle", "policy", "gates"]
STEPS: Final[tuple[StepName, ...]] = ("audience", "tool", "arguments", "tier", "lifecycle", "policy", "gates")


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is asked about. `tool` is the advertised name; `saw` and `calls` are what the turn remembers."""

    principal: Principal
    catalogue: str
    tool: str
    at: datetime
    args: Mapping[str, Any] = field(default_factory=dict)
    saw: frozenset[str] = frozenset()
    calls: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One step that was asked: what it said, why, and where that stands."""

    name: StepName
    decision: Decision
    reason: str
    position: Position | None = None
    because: Because | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What becomes of the call. `steps` are those that were asked; the last one decided.

    `outcome` is what the gate rules said, `scope` what they could see; both only if gates were asked.
    """

    steps: tuple[Step, ...]
    outcome: Outcome | None = None
    scope: Scope | None = None
    idle_rules: tuple[GateRule, ...] = ()
    """Gate rules about the tool whose condition said that they are not about this call."""

    @property
    def decision(self) -> Decision:
        return self.steps[-1].decision

    @property
    def because(self) -> Because | None:
        return self.steps[-1].because

    @property
    def not_asked(self) -> tuple[StepName, ...]:
        return STEPS[len(self.steps) :]


class Access:
    """Asks about one snapshot and its authoriser. Immutable but for schemas, which are compiled when first needed."""

    def __init__(self, snapshot: Snapshot, authoriser: Authoriser) -> None:
        self.snapshot = snapshot
        self.authoriser = authoriser
        self._schemas: dict[str, Schema] = {}

    def call(self, call: Call) -> Answer:
        """Take the steps up to the first refusal."""
        catalogue = self.snapshot.catalogues.get(call.catalogue)
        steps = [self._audience(call.principal, catalogue, call.catalogue)]
        if catalogue is None or _is_refused(steps):
            return Answer(tuple(steps))
        tool = self.snapshot.tool_in(catalogue.name, call.tool)
        steps.append(self._tool(call, tool))
        if tool is None or _is_refused(steps):
            return Answer(tuple(steps))
        arguments, step = self._arguments(call, tool)
        steps.append(step)
        for ask in (self._tier, self._lifecycle, self._policy):
            if _is_refused(steps):
                break
            steps.append(ask(call, tool))
        if _is_refused(steps):
            return Answer(tuple(steps))
        return self._gates(call, tool, arguments=arguments, steps=steps)

    def listed(self, principal: Principal, catalogue: str, *, at: datetime) -> list[tuple[str, DeclaredTool]]:
        """The tools a caller is shown in a catalogue, by advertised name; none to those outside its audience."""
        found = self.snapshot.catalogues.get(catalogue)
        if found is None or self._audience(principal, found, catalogue).decision != "allow":
            return []
        named = [(name, self.snapshot.tools[tool]) for name, tool in found.tools.items() if name not in found.hidden]
        return [
            (name, tool)
            for name, tool in named
            if tool.is_in_use(at.date()) and self.asks(principal, "discover", catalogue=catalogue, tool=tool).allowed
        ]

    def asks(self, principal: Principal, action: str, *, catalogue: str, tool: DeclaredTool) -> AccessDecision:
        """What the policy says about an action on a tool."""
        return self._decided(principal, action, catalogue=catalogue, object=tool.object, tier=tool.trust.tier.name)

    def _decided(self, principal: Principal, action: str, *, catalogue: str, object: str, tier: str) -> AccessDecision:
        return self.authoriser.decide(AccessRequest(principal.names, catalogue, object, action, tier))

    def _audience(self, principal: Principal, catalogue: Catalogue | None, name: str) -> Step:
        if catalogue is None:
            return Step("audience", "deny", f"there is no catalogue {name!r}")
        shared = sorted(catalogue.audience & self.authoriser.held_by(principal.names))
        if not shared:
            return Step("audience", "deny", f"the caller is not in the audience of {name}", catalogue.position)
        return Step("audience", "allow", f"{name} is for {shared[0]}", catalogue.position)

    def _tool(self, call: Call, tool: DeclaredTool | None) -> Step:
        """Whether the caller may know of the tool: unknown and not visible are told apart in explanations only."""
        if tool is None:
            return Step("tool", "deny", f"there is no tool {call.tool!r} in {call.catalogue}")
        seen = self.asks(call.principal, "discover", catalogue=call.catalogue, tool=tool)
        used = self.asks(call.principal, "invoke", catalogue=call.catalogue, tool=tool)
        if seen.allowed or used.allowed:
            return Step("tool", "allow", "the caller may know of it", tool.position)
        refusal = used if used.row else seen
        reason = f"the caller may neither see nor call it: {refusal.reason}"
        return Step("tool", "deny", reason, refusal.row, _by_policy(refusal))

    def _arguments(self, call: Call, tool: DeclaredTool) -> tuple[Mapping[str, Any], Step]:
        if tool.input_schema is None:
            return call.args, Step("arguments", "allow", "only the upstream server knows their schema")
        try:
            accepted: Mapping[str, Any] = self._schema(tool, tool.input_schema).accepted(dict(call.args))
        except ValidationException as error:
            problems = "; ".join(_worded(each) for each in error.details)
            return call.args, Step("arguments", "deny", f"they do not fit the schema: {problems}", tool.position)
        return accepted, Step("arguments", "allow", "they fit the schema")

    def _schema(self, tool: DeclaredTool, document: Mapping[str, Any]) -> Schema:
        if tool.name not in self._schemas:
            self._schemas[tool.name] = Schema(dict(document))
        return self._schemas[tool.name]

    def _tier(self, call: Call, tool: DeclaredTool) -> Step:
        tier = tool.trust.tier
        because = Because("tier", tier.name)
        if not tier.callable:
            return Step("tier", "deny", f"tools of tier {tier.name!r} cannot be called", tool.position, because)
        if not tool.trust.callable:
            reason = f"the tool does not meet what tier {tier.name!r} asks for"
            return Step("tier", "deny", reason, tool.position, because)
        return Step("tier", "allow", f"tools of tier {tier.name!r} can be called", tool.position, because)

    def _lifecycle(self, call: Call, tool: DeclaredTool) -> Step:
        if tool.is_in_use(call.at.date()):
            return Step("lifecycle", "allow", f"the tool is {tool.lifecycle}", tool.position)
        if tool.lifecycle == "deprecated" and tool.deprecation is not None:
            return Step("lifecycle", "deny", f"its last day was {tool.deprecation.remove_after}", tool.position)
        return Step("lifecycle", "deny", f"the tool is {tool.lifecycle}", tool.position)

    def _policy(self, call: Call, tool: DeclaredTool) -> Step:
        decision = self.asks(call.principal, "invoke", catalogue=call.catalogue, tool=tool)
        word: Decision = "allow" if decision.allowed else "deny"
        return Step("policy", word, decision.reason, decision.row, _by_policy(decision))

    def _gates(self, call: Call, tool: DeclaredTool, *, arguments: Mapping[str, Any], steps: list[Step]) -> Answer:
        scope = self._scope(call, tool, arguments)
        rules = [
            rule
            for rule in self.snapshot.gates.values()
            if rule.mode != "disabled" and rule.is_about(tool.governed, call.catalogue)
        ]

        def may(action: str, object: str) -> bool:
            tier = tool.trust.tier.name
            return self._decided(call.principal, action, catalogue=call.catalogue, object=object, tier=tier).allowed

        outcome = judge_call(rules, tool.governed, scope, catalogue=call.catalogue, may=may)
        said = {verdict.rule.name for verdict in outcome.verdicts}
        idle = tuple(rule for rule in rules if rule.name not in said)
        return Answer((*steps, _gate_step(outcome, steps[-1])), outcome, scope, idle)

    def _scope(self, call: Call, tool: DeclaredTool, arguments: Mapping[str, Any]) -> Scope:
        roles = self.authoriser.held_by(call.principal.names) - {call.principal.subject}
        caller = {"subject": call.principal.subject, "roles": sorted(roles), "tenant": call.principal.tenant}
        trust = tool.trust
        seen_tool = {"name": tool.name, "tier": trust.tier.name, "flags": sorted(trust.flags), "labels": tool.labels}
        turn = {"seen": sorted(call.saw), "calls": list(call.calls)}
        return Scope(dict(arguments), caller, seen_tool, turn, call.at)


def _is_refused(steps: Sequence[Step]) -> bool:
    return steps[-1].decision != "allow"


def _gate_step(outcome: Outcome, policy: Step) -> Step:
    verdict = outcome.decided_by
    if verdict is None or outcome.decision == "allow":  # then it was the policy that let the call through
        words = f"{len(outcome.verdicts)} asked, none holds or denies" if outcome.verdicts else "no rule is about it"
        return Step("gates", "allow", words, policy.position, policy.because)
    rule = verdict.rule
    reason = f"{rule.name}: {verdict.judgement.reason}"
    return Step("gates", outcome.decision, reason, rule.position, Because("gate", rule.name))


def _by_policy(decision: AccessDecision) -> Because | None:
    return Because("policy", decision.subject) if decision.subject else None


def _worded(problem: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in problem["path"])
    return f"{where}: {problem['message']}" if where else str(problem["message"])

"""What becomes of a call: every step in its fixed order, what decided, and which steps were not asked any more.

Explanations, policy tests, plans and the handlers ask the same steps, so what is told is what happens. The first
refusal ends the way, and a step that breaks refuses. What a turn remembers is given with the call and never changed
here; rates and quotas are counted where the call is made.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any, Final, Literal

from gateway.core.exact_json import fingerprint_of
from gateway.core.moments import microseconds
from gateway.core.schemas import Schema
from gateway.errors import NotPermitted, ValidationException
from gateway.governance.cases import Because
from gateway.governance.catalogues import Selector
from gateway.governance.conditions import Scope
from gateway.governance.diagnostics import Position
from gateway.governance.effects import EFFECT_FLAGS
from gateway.governance.memory import Brought, TurnMemory
from gateway.governance.names import CONFIG
from gateway.governance.ports import AccessDecision, AccessRequest, Authoriser
from gateway.governance.principals import Principal
from gateway.governance.rules import Decision, Flow, GateRule, MayDo, Outcome, judge_rules
from gateway.snapshot import ArtifactClass, Catalogue, DeclaredTool, Offer, Query, Requested, Snapshot

StepName = Literal["audience", "tool", "arguments", "tier", "lifecycle", "policy", "gates"]
STEPS: Final[tuple[StepName, ...]] = ("audience", "tool", "arguments", "tier", "lifecycle", "policy", "gates")


_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is asked about. `tool` is the advertised name, `memory` what the turn remembers, if anything.

    `fingerprint` tells the call from others of its turn; it follows from tool and arguments if it is not given. `of` is
    the advertised name of the tool whose result a query tool reads; it may be left out where there is only one.
    `sightings` are when the caller saw flags last; if they are not given, the caller has just seen what the turn saw.
    """

    principal: Principal
    catalogue: str
    tool: str
    at: datetime
    args: Mapping[str, Any] = field(default_factory=dict)
    memory: TurnMemory | None = None
    fingerprint: str | None = None
    of: str | None = None
    sightings: Mapping[str, int] | None = None


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
    rows: frozenset[Position] = frozenset()
    """Policy rows that decided something: the call itself, or a permission that a gate rule asks for."""

    @property
    def decision(self) -> Decision:
        return self.steps[-1].decision

    @property
    def because(self) -> Because | None:
        return self.steps[-1].because

    @property
    def not_asked(self) -> tuple[StepName, ...]:
        return STEPS[len(self.steps) :]


@dataclass(frozen=True, slots=True)
class Discovery:
    """Whether a caller is shown a tool of a catalogue, by its advertised name, and what decided that."""

    name: str
    tool: DeclaredTool
    decision: AccessDecision


class Access:
    """Asks about one snapshot and its authoriser. Immutable but for what is made when it is first needed."""

    def __init__(self, snapshot: Snapshot, authoriser: Authoriser) -> None:
        self.snapshot = snapshot
        self.authoriser = authoriser
        self._ranks = snapshot.ranks
        self._schemas: dict[str, Schema] = {}
        self._seen_tools: dict[str, tuple[Requested, Mapping[str, Any]]] = {}

    def call(self, call: Call) -> Answer:
        """Take the steps up to the first refusal."""
        catalogue = self.snapshot.catalogues.get(call.catalogue)
        held = self._held_by(call.principal)
        steps = [_audience(catalogue, call.catalogue, held=held)]
        if catalogue is None or held is None or _is_refused(steps):
            return _refused(steps)
        tool = self.requested(call)
        steps.append(self._tool(call, tool))
        if tool is None or _is_refused(steps):
            return _refused(steps)
        arguments, step = self._arguments(call, tool)
        steps.append(step)
        for ask in (self._tier, self._lifecycle, self._policy):
            if _is_refused(steps):
                break
            steps.append(ask(call, tool))
        if _is_refused(steps):
            return _refused(steps)
        scope = self._scope(call, tool, arguments=arguments, held=held)
        return self._gates(call, tool, scope=scope, steps=steps)

    def requested(self, call: Call) -> DeclaredTool | Query | None:
        """What a call is about: a tool, or a query tool over what one tool yields. `None` if that cannot be told."""
        tool = self.snapshot.tool_in(call.catalogue, call.tool)
        if tool is not None:
            return tool
        found = self.snapshot.queries_in(call.catalogue, call.tool)
        if call.of is not None:
            return found.get(call.of)
        return next(iter(found.values())) if len(found) == 1 else None

    def listed(self, principal: Principal, catalogue: str, *, at: datetime) -> list[tuple[str, DeclaredTool]]:
        """The tools a caller is shown in a catalogue, by advertised name; none to those outside its audience."""
        found = self.discoveries(principal, catalogue, at=at)
        return [(each.name, each.tool) for each in found if each.decision.allowed]

    def discoveries(self, principal: Principal, catalogue: str, *, at: datetime) -> list[Discovery]:
        """The same with those that the policy does not show; tools nobody is shown are not asked about."""
        found = self.snapshot.catalogues.get(catalogue)
        held = self._held_by(principal)
        if found is None or _audience(found, catalogue, held=held).decision != "allow":
            return []
        named = [(name, self.snapshot.tool_in(catalogue, name)) for name in found.tools if name not in found.hidden]
        return [
            Discovery(name, tool, self.visibility(principal, catalogue=catalogue, tool=tool))
            for name, tool in named
            if tool is not None and tool.is_in_use(_day(at))
        ]

    def visibility(self, principal: Principal, catalogue: str, tool: DeclaredTool) -> AccessDecision:
        """Whether the caller may know of a tool. A row about `discover` decides; without one, whoever may call it may.

        What is listed and what a call finds is asked here alike, so neither can know more than the other.
        """
        seen = self.asks(principal, "discover", catalogue, tool)
        if seen.allowed or seen.row is not None:
            return seen
        used = self.asks(principal, "invoke", catalogue, tool)
        return used if used.allowed or used.row is not None else seen

    def offers(self, principal: Principal, *, catalogue: str, offer: Offer) -> AccessDecision:
        """Whether the caller may have a prompt, or read resources of a group. Whoever may not does not know of it.

        A row that hides it decides; else the one about `invoke`, or about `read`.
        """
        if not offer.trust.callable:
            return AccessDecision(False, f"what is of tier {offer.trust.tier.name!r} cannot be had")
        seen = self.asks(principal, "discover", catalogue=catalogue, tool=offer)
        if not seen.allowed and seen.row is not None:
            return seen
        return self.asks(principal, "invoke" if offer.kind == "prompt" else "read", catalogue=catalogue, tool=offer)

    def admits(self, principal: Principal, catalogue: str) -> bool:
        """Whether the caller is in the catalogue's audience."""
        found, held = self.snapshot.catalogues.get(catalogue), self._held_by(principal)
        return found is not None and held is not None and not found.audience.isdisjoint(held)

    def administers(self, principal: Principal) -> bool:
        """Whether the caller may administer the gateway: a row about `config` says so, in whichever catalogue."""
        return self._does_to_config(principal, "administer")

    def observes(self, principal: Principal) -> bool:
        """Whether the caller may read what the gateway counts; whoever administers it may, too."""
        return self._does_to_config(principal, "observe") or self._does_to_config(principal, "administer")

    def _does_to_config(self, principal: Principal, action: str) -> bool:
        """Whether a row about `config` lets the caller do that."""
        if self._held_by(principal) is None:
            return False
        tier = min(self.snapshot.tiers.values(), key=lambda each: each.rank).name
        return any(
            self._decided(principal, action, catalogue=name, object=CONFIG, tier=tier).allowed
            for name in self.snapshot.catalogues
        )

    def held_by(self, principal: Principal) -> frozenset[str]:
        """The caller's names and every role that comes with them."""
        return self.authoriser.held_by(principal.names)

    def asks(self, principal: Principal, action: str, catalogue: str, tool: DeclaredTool | Offer) -> AccessDecision:
        """What the policy says about an action on a tool, or on what else an upstream offers."""
        return self._decided(principal, action, catalogue, tool.object, tool.trust.tier.name)

    def permits(self, principal: Principal, catalogue: str, asked: Requested) -> AccessDecision:
        """Whether the policy lets the caller have what they ask for. Every handler asks this first."""
        if isinstance(asked, DeclaredTool):
            return self.asks(principal, "invoke", catalogue, asked)
        if isinstance(asked, Query):
            return self.reads(principal, catalogue, asked)
        return self.offers(principal, catalogue=catalogue, offer=asked)

    def reads(self, principal: Principal, catalogue: str, query: Query) -> AccessDecision:
        """Whether the caller may read what a tool yielded, by a query tool or whole.

        A row that denies `read` on the query tool, on the class or on the tool that made it decides. Else a row that
        allows it, on the class or on that tool; without one, whoever may still make the call may read its result.
        """
        maker, tier = query.maker, query.trust.tier.name
        is_declared = query.artifact in self.snapshot.artifacts
        about = [query.object, *([f"class:{query.artifact}"] if is_declared else ()), maker.object]
        of_query, *others = [self._decided(principal, "read", catalogue, each, tier) for each in about]
        for each in (of_query, *others):
            if not each.allowed and (each.row is not None or each.is_unanswered):
                return each
        allowed = next((each for each in others if each.allowed), None)
        return allowed or self.asks(principal, "invoke", catalogue, maker)

    def approves(self, principal: Principal, *, catalogue: str, tool: str) -> AccessDecision:
        """Whether the policy lets somebody decide about calls of a tool: by the tool itself, or by the class it yields.

        A row that denies either of them decides. A query tool counts as of the riskiest tier that it can read from.
        """
        objects, tier = self._approvable(catalogue, tool)
        if not objects:
            return AccessDecision(False, "there is no such tool")
        found = [self._decided(principal, "approve", catalogue=catalogue, object=each, tier=tier) for each in objects]
        denied = next((each for each in found if not each.allowed and each.row is not None), None)
        return denied or next((each for each in found if each.allowed), found[0])

    @cached_property
    def watched_flags(self) -> frozenset[str]:
        """Flags whose sightings by callers some rule asks for."""
        rules = self.snapshot.gates.values()
        return frozenset(flag for rule in rules for flag in rule.watched_flags)

    def _approvable(self, catalogue: str, tool: str) -> tuple[list[str], str]:
        """What rows about approving it speak of, and its tier."""
        declared, offer = self.snapshot.tools.get(tool), self.snapshot.offers.get(tool)
        if declared is not None:
            is_declared = declared.artifact in self.snapshot.artifacts
            classes = [f"class:{declared.artifact}"] if is_declared else []
            return [declared.object, *classes], declared.trust.tier.name
        if offer is not None:
            return [offer.object], offer.trust.tier.name
        queries = self.snapshot.queries_in(catalogue, tool).values()
        tiers = sorted((each.trust.tier.name for each in queries), key=self._ranks.__getitem__)
        return ([f"tool:{tool}"], tiers[-1]) if tiers else ([], "")

    def rules_about(self, asked: Requested, catalogue: str) -> list[GateRule]:
        """The gate rules that have a say in calls of the tool through the catalogue, by name, whatever the arguments.

        An artifact class that must not flow to the tool is one of them, under the name `class:NAME`. Nothing flows out
        by a query.
        """
        governed = asked.governed
        rules = self.snapshot.gates.values()
        about = [rule for rule in rules if rule.mode != "disabled" and rule.is_about(governed, catalogue)]
        if not isinstance(asked, Query):
            about += [rule for each in self.snapshot.artifacts.values() if (rule := self._flow(each, asked))]
        return sorted(about, key=lambda rule: rule.name)

    def judged(self, call: Call, tool: Requested, rules: Sequence[GateRule]) -> Outcome:
        """What the rules of `rules_about` say of a call that the policy lets through.

        Its arguments are those that were accepted. `Outcome.limits` are left to be taken when it decides to allow.
        """
        held = self._held_by(call.principal)
        if held is None:  # then no rule can be asked about the caller's roles
            raise NotPermitted()
        scope = self._scope(call, tool, arguments=call.args, held=held)
        return judge_rules(rules, scope, may=self._may(call, tool))

    def brings(self, tool: Requested) -> Brought:
        """What a call of the tool brings into its turn, or what is read."""
        if isinstance(tool, Query):
            return self.brought_by(tool.maker.name, artifact=tool.artifact)
        if isinstance(tool, Offer):
            return self.brought_with(tool)
        artifact = tool.artifact if tool.artifact in self.snapshot.artifacts else None
        return Brought(tool.name, tuple(sorted(tool.trust.flags)), tool.trust.tier.name, artifact)

    def brought_with(self, offer: Offer) -> Brought:
        """What a prompt, or a resource, brings into a turn that it is read in."""
        return Brought(offer.object, tuple(sorted(offer.trust.flags)), offer.trust.tier.name, None)

    def brought_by(self, identity: str, *, artifact: str | None = None) -> Brought:
        """What reading an artifact brings into a turn, by the tool that made it, in whichever turn.

        `artifact` is the class it was kept as. Of a tool that is no longer declared nothing good is known: it counts
        as having every flag, and the least trusted tier.
        """
        tool = self.snapshot.tools.get(identity)
        kept = artifact if artifact in self.snapshot.artifacts else None
        if tool is None:
            worst = max(self._ranks, key=self._ranks.__getitem__)
            return Brought(identity, tuple(sorted(EFFECT_FLAGS.union(self.snapshot.flags))), worst, kept)
        brought = self.brings(tool)
        return brought if kept is None else brought._replace(artifact=kept)

    def _flow(self, artifact: ArtifactClass, tool: DeclaredTool | Offer) -> GateRule | None:
        """The rule that keeps a class from the tool, if it must not reach it."""
        tier, ceiling = tool.trust.tier, artifact.max_tier
        blocked = sorted(tool.trust.flags & artifact.blocked_by)
        if ceiling is not None and tier.rank > self._ranks.get(ceiling, -1):
            because = f"which may not flow to tier {tier.name!r}, only up to {ceiling!r}"
        elif blocked:
            because = f"which may not flow to tools with the flag {blocked[0]!r}"
        else:
            return None
        check = Flow(artifact.name, because)
        return GateRule(f"class:{artifact.name}", Selector(tools=(tool.name,)), check, artifact.position)

    def _scope(self, call: Call, tool: Requested, *, arguments: Mapping[str, Any], held: frozenset[str]) -> Scope:
        principal = call.principal
        roles = sorted(held - {principal.subject})
        caller = {"subject": principal.subject, "roles": roles, "tenant": principal.tenant}
        turn = TurnMemory() if call.memory is None else call.memory
        sightings = call.sightings
        if sightings is None:
            sightings = dict.fromkeys(turn.flags, microseconds(call.at))
        return Scope(arguments, caller, self._seen(tool), turn, call.at, fingerprint_of_call(call), sightings)

    def _seen(self, tool: Requested) -> Mapping[str, Any]:
        """The tool as conditions see it; remembered, because it is the same for every call."""
        known = self._seen_tools.get(tool.name)
        if known is None or known[0] is not tool:
            flags = sorted(tool.trust.flags)
            seen = {"name": tool.name, "tier": tool.trust.tier.name, "flags": flags, "labels": tool.labels}
            known = self._seen_tools[tool.name] = (tool, seen)
        return known[1]

    def _may(self, call: Call, tool: Requested, permitting: set[Position] | None = None) -> MayDo:
        """Whether the policy lets the caller do something else, too; rows that decide are added to `permitting`."""

        def may(action: str, object: str) -> bool:
            tier = tool.trust.tier.name
            decision = self._decided(call.principal, action, catalogue=call.catalogue, object=object, tier=tier)
            if permitting is not None and decision.row is not None:
                permitting.add(decision.row)
            return decision.allowed

        return may

    def _decided(self, principal: Principal, action: str, catalogue: str, object: str, tier: str) -> AccessDecision:
        try:
            # What the constructor does, without calling it: most answers are remembered, and found in less time.
            request = tuple.__new__(AccessRequest, (principal.names, catalogue, object, action, tier))
            return self.authoriser.decide(request)
        except Exception as error:  # an authoriser that does not keep its promise must not open anything
            _log.exception("the authoriser failed")
            return AccessDecision(False, f"authorisation failed ({type(error).__name__})", is_unanswered=True)

    def _held_by(self, principal: Principal) -> frozenset[str] | None:
        """Everything the caller is; `None` if that cannot be told.

        A role that is none would be another caller's name: whoever could choose it would be that caller.
        """
        for role in principal.roles:
            if not role.startswith("role:"):
                return None
        try:
            return self.authoriser.held_by(principal.names)
        except Exception:  # likewise
            _log.exception("the authoriser failed")
            return None

    def _tool(self, call: Call, tool: DeclaredTool | Query | None) -> Step:
        """Whether the caller may know of the tool: unknown and not visible are told apart in explanations only."""
        if tool is None and (makers := self.snapshot.queries_in(call.catalogue, call.tool)):
            return Step("tool", "deny", f"{call.tool} reads what one of {', '.join(sorted(makers))} yields; say which")
        if tool is None:
            return Step("tool", "deny", f"there is no tool {call.tool!r} in {call.catalogue}")
        if isinstance(tool, Query):
            return Step("tool", "allow", f"it reads what {tool.maker.name} yields", tool.position)
        refusal = self.visibility(call.principal, catalogue=call.catalogue, tool=tool)
        if refusal.allowed:
            return Step("tool", "allow", "the caller may know of it", tool.position)
        reason = f"the caller may neither see nor call it: {refusal.reason}"
        return Step("tool", "deny", reason, refusal.row, _by_policy(refusal))

    def _arguments(self, call: Call, tool: DeclaredTool | Query) -> tuple[Mapping[str, Any], Step]:
        if tool.input_schema is None:
            return call.args, Step("arguments", "allow", "only the upstream server knows their schema")
        try:
            accepted: Mapping[str, Any] = self._schema(tool, tool.input_schema).accepted(dict(call.args))
        except ValidationException as error:
            problems = "; ".join(str(each["message"]) for each in error.details)
            return call.args, Step("arguments", "deny", f"they do not fit the schema: {problems}", tool.position)
        except Exception as error:  # what cannot be checked is not let through; the text could show an argument
            reason = f"they cannot be checked ({type(error).__name__})"
            return call.args, Step("arguments", "deny", reason, tool.position)
        return accepted, Step("arguments", "allow", "they fit the schema")

    def _schema(self, tool: DeclaredTool | Query, document: Mapping[str, Any]) -> Schema:
        key = tool.name if isinstance(tool, DeclaredTool) else f"{tool.artifact}/{tool.name}"
        if key not in self._schemas:
            self._schemas[key] = Schema(dict(document))
        return self._schemas[key]

    def _tier(self, call: Call, tool: DeclaredTool | Query) -> Step:
        tier = tool.trust.tier
        if isinstance(tool, Query):
            return Step("tier", "allow", "results can be read whatever the tier", tool.position)
        because = Because("tier", tier.name)
        if not tier.callable:
            return Step("tier", "deny", f"tools of tier {tier.name!r} cannot be called", tool.position, because)
        if not tool.trust.callable:
            reason = f"the tool does not meet what tier {tier.name!r} asks for"
            return Step("tier", "deny", reason, tool.position, because)
        return Step("tier", "allow", f"tools of tier {tier.name!r} can be called", tool.position, because)

    def _lifecycle(self, call: Call, tool: DeclaredTool | Query) -> Step:
        if isinstance(tool, Query):
            return Step("lifecycle", "allow", "results can be read as long as they are kept", tool.position)
        if tool.is_in_use(_day(call.at)):
            return Step("lifecycle", "allow", f"the tool is {tool.lifecycle}", tool.position)
        if tool.lifecycle == "deprecated" and tool.deprecation is not None:
            return Step("lifecycle", "deny", f"its last day was {tool.deprecation.remove_after}", tool.position)
        return Step("lifecycle", "deny", f"the tool is {tool.lifecycle}", tool.position)

    def _policy(self, call: Call, tool: DeclaredTool | Query) -> Step:
        decision = self.permits(call.principal, call.catalogue, tool)
        word: Decision = "allow" if decision.allowed else "deny"
        return Step("policy", word, decision.reason, decision.row, _by_policy(decision))

    def _gates(self, call: Call, tool: Requested, *, scope: Scope, steps: list[Step]) -> Answer:
        rules = self.rules_about(tool, call.catalogue)
        permitting: set[Position] = set()
        outcome = judge_rules(rules, scope, may=self._may(call, tool, permitting))
        said = {verdict.rule.name for verdict in outcome.verdicts}
        idle = tuple(rule for rule in rules if rule.name not in said)
        taken = (*steps, _gate_step(outcome, steps[-1]))
        return Answer(taken, outcome, scope, idle, _deciding_rows(steps) | permitting)


def _refused(steps: Sequence[Step]) -> Answer:
    return Answer(tuple(steps), rows=_deciding_rows(steps))


def _deciding_rows(steps: Sequence[Step]) -> frozenset[Position]:
    by_policy = [step for step in steps if step.because is not None and step.because.kind == "policy"]
    return frozenset(step.position for step in by_policy if step.position is not None)


def _audience(catalogue: Catalogue | None, name: str, *, held: frozenset[str] | None) -> Step:
    if catalogue is None:
        return Step("audience", "deny", f"there is no catalogue {name!r}")
    if held is None:
        return Step("audience", "deny", "it cannot be told which roles the caller holds", catalogue.position)
    shared = sorted(catalogue.audience & held)
    if not shared:
        return Step("audience", "deny", f"the caller is not in the audience of {name}", catalogue.position)
    return Step("audience", "allow", f"{name} is for {shared[0]}", catalogue.position)


def fingerprint_of_call(call: Call) -> str:
    """What tells the call from others. Empty for arguments that are no JSON: such a call was never made before."""
    if call.fingerprint is not None:
        return call.fingerprint
    try:
        return fingerprint_of(call.tool, call.args)
    except (TypeError, ValueError):
        return ""


def _day(at: datetime) -> date:
    """Days end at midnight UTC, for every caller alike."""
    return at.astimezone(UTC).date()


def _is_refused(steps: Sequence[Step]) -> bool:
    return steps[-1].decision != "allow"


def _gate_step(outcome: Outcome, policy: Step) -> Step:
    verdict = outcome.decided_by
    if verdict is None or outcome.decision == "allow":  # then it was the policy that let the call through
        return Step("gates", "allow", _nothing_against(outcome), policy.position, policy.because)
    rule = verdict.rule
    reason = f"{rule.name}: {verdict.judgement.reason}"
    return Step("gates", outcome.decision, reason, rule.position, decided_by(rule))


def decided_by(rule: GateRule) -> Because:
    if isinstance(rule.check, Flow):
        return Because("class", rule.check.artifact)
    return Because("gate", rule.name)


def _nothing_against(outcome: Outcome) -> str:
    asked = [verdict for verdict in outcome.verdicts if verdict.counts]
    observing = len(outcome.verdicts) - len(asked)
    words = f"{len(asked)} asked, none holds or denies" if asked else "no rule is about it"
    return f"{words}; {observing} only observe{'s' * (observing == 1)}" if observing else words


def _by_policy(decision: AccessDecision) -> Because | None:
    return Because("policy", decision.subject) if decision.subject else None

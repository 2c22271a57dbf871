"""The access decision for a call: its steps in their fixed order, what decided, and which steps were skipped.

Handlers, explanations, policy tests and plans run the same steps, so an explanation matches what happens. The first
refusal ends the evaluation; a step that raises refuses. Turn state is passed in with the call and never changed here.
Rates and quotas are counted when the call is made.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any, Final, NamedTuple

from gateway.errors import NotPermitted, ValidationException
from gateway.model import CONFIG_OBJECT, Principal, Schema, to_microseconds
from gateway.policy.access_answer import (
    AccessAnswer,
    AccessQuestion,
    AccessStep,
    ToolVisibility,
    by_policy,
    check_audience,
    describe_gates,
    find_deciding_rows,
    fingerprint_of_call,
    is_refused,
    refuse,
)
from gateway.policy.authoriser import AccessDecision, AccessRequest, Authoriser, TimedAuthoriser
from gateway.policy.grants.grant import Grant
from gateway.policy.rules.conditions import ConditionScope
from gateway.policy.rules.gate_checks import Decision, FlowCheck, PermissionLookup
from gateway.policy.rules.gate_rules import GateOutcome, GateRule, evaluate_rules
from gateway.policy.rules.turn_state import Taint, TurnState
from gateway.registries import (
    EFFECT_FLAGS,
    ArtifactClass,
    DeclaredDefinition,
    DeclaredTool,
    ExpectedReason,
    Position,
    Query,
    Requested,
    Selector,
    Snapshot,
)

_MOST_CALLERS: Final = 1024
"""Number of callers whose rights are cached."""

_log: Final = logging.getLogger(__name__)


GrantLookup = Callable[[Principal], tuple[Grant, ...]]
"""Returns the grants of a caller that are in force now."""


class CallerRights(NamedTuple):
    """What every decision about one caller needs: their names with all roles, and who they are to conditions."""

    held: frozenset[str]
    catalogues: frozenset[str]
    """The catalogues whose audience they are in."""
    facts: Mapping[str, Any]


class Access:
    """Access decisions for one snapshot and its authoriser. Immutable except for its caches."""

    def __init__(self, snapshot: Snapshot, authoriser: Authoriser) -> None:
        self.snapshot = snapshot
        self.authoriser = authoriser
        self._ranks = snapshot.ranks
        self._schemas: dict[str, Schema] = {}
        self._seen_tools: dict[str, tuple[Requested, Mapping[str, Any]]] = {}
        self._rights: dict[tuple[str, str | None, frozenset[str]], CallerRights] = {}
        self._find_grants: GrantLookup | None = None

    def at(self, moment: datetime) -> "Access":
        """Return the access of the policy rows that are in force at a moment; grants are those of now."""
        if not isinstance(self.authoriser, TimedAuthoriser):
            return self
        timed = copy(self)
        timed.authoriser = self.authoriser.at(moment)
        return timed

    def with_grants(self, find: "GrantLookup") -> "Access":
        """Return the access of callers with the roles that their grants add. `find` must not raise."""
        granting = copy(self)
        granting._find_grants = find
        return granting

    def without_grants(self) -> "Access":
        granting = copy(self)
        granting._find_grants = None
        return granting

    def list_grants(self, principal: Principal) -> tuple[Grant, ...]:
        """Return the caller's grants in force."""
        return () if self._find_grants is None else self._find_grants(principal)

    def decide_call(self, call: AccessQuestion) -> AccessAnswer:
        """Run the steps up to the first refusal, with the rows that are in force when the call is made."""
        timed = self.at(call.at)
        return timed._decide_call(call)

    def _decide_call(self, call: AccessQuestion) -> AccessAnswer:
        steps, tool = self.decide_entry(call)
        rights = self._find_rights(call.principal)
        if tool is None or rights is None or is_refused(steps):
            return refuse(steps)
        arguments, step = self.check_arguments(call, tool)
        steps = [*steps, step] if is_refused([step]) else [*steps, step, *self.decide_admission(call, tool)]
        if is_refused(steps):
            return refuse(steps)
        scope = self._scope(call, tool, arguments=arguments, rights=rights)
        return self._gates(call, tool, scope=scope, steps=steps)

    def decide_entry(self, call: AccessQuestion) -> tuple[list[AccessStep], DeclaredTool | Query | None]:
        """Run the first steps: the audience, and whether the caller may know of the tool. Arguments do not matter."""
        catalogue = self.snapshot.catalogues.get(call.catalogue)
        rights = self._find_rights(call.principal)
        steps = [check_audience(catalogue, call.catalogue, held=None if rights is None else rights.held)]
        if catalogue is None or rights is None or is_refused(steps):
            return steps, None
        tool = self.find_requested(call)
        steps.append(self._tool(call, tool))
        return steps, tool

    def decide_admission(self, call: AccessQuestion, tool: DeclaredTool | Query) -> list[AccessStep]:
        """Run the steps between arguments and gate rules: tier, lifecycle, policy, up to the first refusal."""
        steps: list[AccessStep] = []
        for ask in (self._tier, self._lifecycle, self._policy):
            steps.append(ask(call, tool))
            if is_refused(steps):
                break
        return steps

    def find_requested(self, call: AccessQuestion) -> DeclaredTool | Query | None:
        """Return the tool or query tool that a call names; `None` if it is unknown or ambiguous."""
        tool = self.snapshot.tool_in(call.catalogue, call.tool)
        if tool is not None:
            return tool
        found = self.snapshot.queries_in(call.catalogue, call.tool)
        if call.of is not None:
            return found.get(call.of)
        return next(iter(found.values())) if len(found) == 1 else None

    def list_tools(
        self, principal: Principal, catalogue: str, *, at: datetime, names: Sequence[str] | None = None
    ) -> list[tuple[str, DeclaredTool]]:
        """Return the tools a caller sees in a catalogue, by advertised name; none if outside the audience.

        `names` limits them, in this order, so that a long list can be decided about in slices.
        """
        found = self.list_visibility(principal, catalogue, at=at, names=names)
        return [(each.name, each.tool) for each in found if each.decision.allowed]

    def list_visibility(
        self, principal: Principal, catalogue: str, *, at: datetime, names: Sequence[str] | None = None
    ) -> list[ToolVisibility]:
        """Return every tool with its decision, including denied ones; tools hidden from all callers are left out."""
        found = self.snapshot.catalogues.get(catalogue)
        if found is None or not self.is_in_audience(principal, catalogue):
            return []
        asked = found.tools if names is None else names
        named = [(name, self.snapshot.tool_in(catalogue, name)) for name in asked if name not in found.hidden]
        return [
            ToolVisibility(name, tool, self.decide_discovery(principal, catalogue=catalogue, tool=tool))
            for name, tool in named
            if tool is not None and tool.is_callable_on(_day(at))
        ]

    def decide_discovery(self, principal: Principal, catalogue: str, tool: DeclaredTool) -> AccessDecision:
        """Whether the caller may know of a tool. A `discover` row decides; without one, permission to call it does.

        Listings and calls both use this decision, so neither reveals more than the other.
        """
        object, tier = tool.object, tool.trust.tier.name
        discovery = self._decide(principal, "discover", catalogue, object, tier)
        if discovery.allowed or discovery.row is not None:
            return discovery
        invocation = self._decide(principal, "invoke", catalogue, object, tier)
        return invocation if invocation.allowed or invocation.row is not None else discovery

    def decide_definition(self, principal: Principal, *, catalogue: str, offer: DeclaredDefinition) -> AccessDecision:
        """Whether the caller may use a prompt, or read resources of a group; a refused caller must not learn of it.

        A row that denies `discover` decides; otherwise the row for `invoke` (prompts) or `read` (resources).
        """
        if not offer.trust.callable:
            return AccessDecision(False, f"definitions of tier {offer.trust.tier.name!r} cannot be used")
        discovery = self.decide_action(principal, "discover", catalogue=catalogue, tool=offer)
        if not discovery.allowed and discovery.row is not None:
            return discovery
        return self.decide_action(
            principal, "invoke" if offer.kind == "prompt" else "read", catalogue=catalogue, tool=offer
        )

    def is_in_audience(self, principal: Principal, catalogue: str) -> bool:
        """Whether the caller is in the catalogue's audience."""
        rights = self._find_rights(principal)
        return rights is not None and catalogue in rights.catalogues

    def can_administer(self, principal: Principal) -> bool:
        """Whether a row in any catalogue allows the caller to `administer` the object `config`."""
        return self._does_to_config(principal, "administer")

    def can_read_metrics(self, principal: Principal) -> bool:
        """Whether the caller may read metrics: allowed to `observe` or `administer` the object `config`."""
        return self._does_to_config(principal, "observe") or self._does_to_config(principal, "administer")

    def _does_to_config(self, principal: Principal, action: str) -> bool:
        """Whether a row in any catalogue allows the caller this action on the object `config`."""
        if self._find_rights(principal) is None:
            return False
        tier = min(self.snapshot.tiers.values(), key=lambda each: each.rank).name
        return any(
            self._decide(principal, action, catalogue=name, object=CONFIG_OBJECT, tier=tier).allowed
            for name in self.snapshot.catalogues
        )

    def roles_of(self, principal: Principal) -> frozenset[str]:
        """Return the caller's names and every role that these names hold, without granted roles.

        Approvers are determined by these: a granted role does not let its holder approve anything.
        """
        return self.authoriser.roles_of(principal.names)

    def decide_action(
        self, principal: Principal, action: str, catalogue: str, tool: DeclaredTool | DeclaredDefinition
    ) -> AccessDecision:
        """Return the policy's decision on an action on a tool, prompt or resource group."""
        return self._decide(principal, action, catalogue, tool.object, tool.trust.tier.name)

    def permits(self, principal: Principal, catalogue: str, target: Requested) -> AccessDecision:
        """Whether the policy allows the caller what they request. Every handler checks this first."""
        if isinstance(target, DeclaredTool):
            return self._decide(principal, "invoke", catalogue, target.object, target.trust.tier.name)
        if isinstance(target, Query):
            return self.reads(principal, catalogue, target)
        return self.decide_definition(principal, catalogue=catalogue, offer=target)

    def reads(self, principal: Principal, catalogue: str, query: Query) -> AccessDecision:
        """Whether the caller may read the result of a tool, through a query tool or whole.

        A row that denies `read` on the query tool, on the artifact class or on the tool that made the result decides.
        Otherwise a row that allows `read` on the class or on that tool; without one, permission to make the call.
        """
        maker, tier = query.maker, query.trust.tier.name
        is_declared = query.artifact in self.snapshot.artifacts
        about = [query.object, *([f"class:{query.artifact}"] if is_declared else ()), maker.object]
        of_query, *others = [self._decide(principal, "read", catalogue, each, tier) for each in about]
        for each in (of_query, *others):
            if not each.allowed and (each.row is not None or each.is_unanswered):
                return each
        allowed = next((each for each in others if each.allowed), None)
        return allowed or self.decide_action(principal, "invoke", catalogue, maker)

    def decide_approval(self, principal: Principal, *, catalogue: str, tool: str) -> AccessDecision:
        """Whether the policy allows the principal to approve calls of a tool: by the tool, or by the class it yields.

        A row that denies either of them decides. A query tool has the riskiest tier of the tools it can read from.
        """
        objects, tier = self._approvable(catalogue, tool)
        if not objects:
            return AccessDecision(False, "there is no such tool")
        found = [self._ask(principal.names, "approve", catalogue, each, tier) for each in objects]
        denied = next((each for each in found if not each.allowed and each.row is not None), None)
        return denied or next((each for each in found if each.allowed), found[0])

    @cached_property
    def watched_flags(self) -> frozenset[str]:
        """Flags that some rule tests for in the caller's sightings."""
        rules = self.snapshot.gates.values()
        return frozenset(flag for rule in rules for flag in rule.watched_flags)

    @cached_property
    def reads_turn_calls(self) -> bool:
        """Whether some rule reads the calls of a turn, refused ones included."""
        return any(rule.reads_turn_calls for rule in self.snapshot.gates.values())

    @cached_property
    def depends_on_earlier_calls(self) -> bool:
        """Whether some decision depends on calls that were made before: limits, turns, or what callers have seen."""
        rules = [each for each in self.snapshot.gates.values() if each.mode != "disabled"]
        counts = any(rule.limits or rule.watched_flags for rule in rules)
        return counts or any(self.looks_back(name) for name in self.snapshot.catalogues)

    def looks_back(self, catalogue: str) -> bool:
        """Whether some rule or artifact class reads what turns of the catalogue have seen and done."""
        rules = [each for each in self.snapshot.gates.values() if each.mode != "disabled" and each.reads_turn_state]
        if any(not rule.catalogues or catalogue in rule.catalogues for rule in rules):
            return True
        return any(each.max_tier is not None or each.blocked_by for each in self.snapshot.artifacts.values())

    def _approvable(self, catalogue: str, tool: str) -> tuple[list[str], str]:
        """Return the objects that `approve` rows may name for this tool, and its tier."""
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

    def find_rules(self, target: Requested, catalogue: str) -> list[GateRule]:
        """Return the gate rules that apply to calls of the tool through the catalogue, by name, for any arguments.

        An artifact class that must not flow to the tool adds a rule named `class:NAME`. Queries send no data out, so
        they have no such rules.
        """
        governed = target.to_governed
        rules = self.snapshot.gates.values()
        about = [rule for rule in rules if rule.mode != "disabled" and rule.matches(governed, catalogue)]
        if not isinstance(target, Query):
            about += [rule for each in self.snapshot.artifacts.values() if (rule := self._flow(each, target))]
        return sorted(about, key=lambda rule: rule.name)

    def evaluate_rules(self, call: AccessQuestion, tool: Requested, rules: Sequence[GateRule]) -> GateOutcome:
        """Evaluate the rules of `find_rules` for a call that the policy allows.

        The call's arguments are already validated. The caller acquires `GateOutcome.limits` if the decision is allow.
        """
        rights = self._find_rights(call.principal)
        if rights is None:  # no rule can be evaluated without the caller's roles
            raise NotPermitted()
        scope = self._scope(call, tool, arguments=call.args, rights=rights)
        return evaluate_rules(rules, scope, may=self._may(call, tool))

    def taint_of_tool(self, tool: Requested) -> Taint:
        """Return the taint that a call of the tool, or a read, adds to its turn."""
        if isinstance(tool, Query):
            return self.taint_of_artifact(tool.maker.name, artifact=tool.artifact)
        if isinstance(tool, DeclaredDefinition):
            return self.taint_of_definition(tool)
        artifact = tool.artifact if tool.artifact in self.snapshot.artifacts else None
        return Taint(tool.name, tuple(sorted(tool.trust.flags)), tool.trust.tier.name, artifact)

    def taint_of_definition(self, offer: DeclaredDefinition) -> Taint:
        """Return the taint that reading a prompt or resource adds to a turn."""
        return Taint(offer.object, tuple(sorted(offer.trust.flags)), offer.trust.tier.name, None)

    def taint_of_artifact(self, identity: str, *, artifact: str | None = None) -> Taint:
        """Return the taint that reading an artifact adds to a turn, by the tool that made it, in whichever turn.

        `artifact` is the class it was stored as. A tool that is no longer declared is treated as having every flag
        and the least trusted tier.
        """
        tool = self.snapshot.tools.get(identity)
        known = artifact if artifact in self.snapshot.artifacts else None
        if tool is None:
            worst = max(self._ranks, key=self._ranks.__getitem__)
            return Taint(identity, tuple(sorted(EFFECT_FLAGS.union(self.snapshot.flags))), worst, known)
        taint = self.taint_of_tool(tool)
        return taint if known is None else taint._replace(artifact=known)

    def _flow(self, artifact: ArtifactClass, tool: DeclaredTool | DeclaredDefinition) -> GateRule | None:
        """Return the rule that blocks the flow of an artifact class to the tool; `None` if the flow is allowed."""
        tier, ceiling = tool.trust.tier, artifact.max_tier
        blocked = sorted(tool.trust.flags & artifact.blocked_by)
        if ceiling is not None and tier.rank > self._ranks.get(ceiling, -1):
            because = f"which may not flow to tier {tier.name!r}, only up to {ceiling!r}"
        elif blocked:
            because = f"which may not flow to tools with the flag {blocked[0]!r}"
        else:
            return None
        check = FlowCheck(artifact.name, because)
        return GateRule(f"class:{artifact.name}", Selector(tools=(tool.name,)), check, artifact.position)

    def _scope(
        self, call: AccessQuestion, tool: Requested, *, arguments: Mapping[str, Any], rights: CallerRights
    ) -> ConditionScope:
        turn = TurnState() if call.memory is None else call.memory
        sightings = call.sightings
        if sightings is None:
            sightings = dict.fromkeys(turn.flags, to_microseconds(call.at))
        facts, fingerprint = self._facts(tool), fingerprint_of_call(call)
        return ConditionScope(arguments, rights.facts, facts, turn, call.at, fingerprint, sightings)

    def _facts(self, tool: Requested) -> Mapping[str, Any]:
        """Return the tool as conditions see it; cached, because it is the same for every call."""
        known = self._seen_tools.get(tool.name)
        if known is None or known[0] is not tool:
            flags = sorted(tool.trust.flags)
            facts = {"name": tool.name, "tier": tool.trust.tier.name, "flags": flags, "labels": tool.labels}
            known = self._seen_tools[tool.name] = (tool, facts)
        return known[1]

    def _may(self, call: AccessQuestion, tool: Requested, permitting: set[Position] | None = None) -> PermissionLookup:
        """Return a lookup of further permissions of the caller; rows that decide are added to `permitting`."""

        def may(action: str, object: str) -> bool:
            tier = tool.trust.tier.name
            decision = self._decide(call.principal, action, catalogue=call.catalogue, object=object, tier=tier)
            if permitting is not None and decision.row is not None:
                permitting.add(decision.row)
            return decision.allowed

        return may

    def _decide(self, principal: Principal, action: str, catalogue: str, object: str, tier: str) -> AccessDecision:
        grants = () if self._find_grants is None else self._find_grants(principal)
        decision = self._ask(_with_roles(principal, grants), action, catalogue, object, tier)
        if not grants or not decision.allowed or self._ask(principal.names, action, catalogue, object, tier).allowed:
            return decision
        used = [each.id for each in grants if decision.subject in self.authoriser.roles_of(frozenset({each.role}))]
        return replace(decision, reason=f"{decision.reason}, by grant {', '.join(used)}", grants=tuple(used))

    def _ask(self, names: frozenset[str], action: str, catalogue: str, object: str, tier: str) -> AccessDecision:
        try:
            # Bypasses the constructor to save time: most decisions come from the authoriser's cache.
            request = tuple.__new__(AccessRequest, (names, catalogue, object, action, tier))
            return self.authoriser.decide(request)
        except Exception as error:  # fail closed: an authoriser must not raise, but if it does, deny
            _log.exception("the authoriser failed")
            return AccessDecision(False, f"authorisation failed ({type(error).__name__})", is_unanswered=True)

    def _find_rights(self, principal: Principal) -> CallerRights | None:
        """Return the rights of a caller, granted roles included; `None` if their roles cannot be determined.

        What follows from the roles is cached, the roles are not: rows and grants end. A role without the prefix `role:`
        could be another caller's name and would grant that caller's rights.
        """
        if not all(role.startswith("role:") for role in principal.roles):
            return None
        try:
            held = self.authoriser.roles_of(_with_roles(principal, self.list_grants(principal)))
        except Exception:  # fail closed
            _log.exception("the authoriser failed")
            return None
        key = (principal.subject, principal.tenant, held)
        rights = self._rights.get(key)
        if rights is None:
            if len(self._rights) >= _MOST_CALLERS:
                self._rights.clear()
            rights = self._rights[key] = self._rights_of(principal, held)
        return rights

    def _rights_of(self, principal: Principal, held: frozenset[str]) -> CallerRights:
        roles = sorted(held - {principal.subject})
        facts = {"subject": principal.subject, "roles": roles, "tenant": principal.tenant}
        catalogues = self.snapshot.catalogues.items()
        admitted = frozenset(name for name, each in catalogues if not each.audience.isdisjoint(held))
        return CallerRights(held, admitted, facts)

    def _tool(self, call: AccessQuestion, tool: DeclaredTool | Query | None) -> AccessStep:
        """Whether the caller may know of the tool. Only explanations distinguish unknown from hidden tools."""
        if tool is None and (makers := self.snapshot.queries_in(call.catalogue, call.tool)):
            return AccessStep(
                "tool", "deny", f"{call.tool} reads what one of {', '.join(sorted(makers))} yields; name one"
            )
        if tool is None:
            return AccessStep("tool", "deny", f"there is no tool {call.tool!r} in {call.catalogue}")
        if isinstance(tool, Query):
            return AccessStep("tool", "allow", f"it reads what {tool.maker.name} yields", tool.position)
        refusal = self.decide_discovery(call.principal, catalogue=call.catalogue, tool=tool)
        if refusal.allowed:
            return AccessStep("tool", "allow", "the caller may know of it", tool.position)
        reason = f"the caller may neither see nor call it: {refusal.reason}"
        return AccessStep("tool", "deny", reason, refusal.row, by_policy(refusal))

    def check_arguments(self, call: AccessQuestion, tool: DeclaredTool | Query) -> tuple[Mapping[str, Any], AccessStep]:
        """Return the arguments as rules and backend get them, with defaults, and whether they fit the schema."""
        if tool.input_schema is None:
            return call.args, AccessStep("arguments", "allow", "only the upstream server knows their schema")
        try:
            accepted: Mapping[str, Any] = self._schema(tool, tool.input_schema).check(dict(call.args))
        except ValidationException as error:
            problems = "; ".join(str(each["message"]) for each in error.details)
            return call.args, AccessStep("arguments", "deny", f"they do not fit the schema: {problems}", tool.position)
        except Exception as error:  # fail closed; the error's text could reveal an argument
            reason = f"they cannot be checked ({type(error).__name__})"
            return call.args, AccessStep("arguments", "deny", reason, tool.position)
        return accepted, AccessStep("arguments", "allow", "they fit the schema")

    def _schema(self, tool: DeclaredTool | Query, document: Mapping[str, Any]) -> Schema:
        key = tool.name if isinstance(tool, DeclaredTool) else f"{tool.artifact}/{tool.name}"
        if key not in self._schemas:
            self._schemas[key] = Schema(dict(document))
        return self._schemas[key]

    def _tier(self, call: AccessQuestion, tool: DeclaredTool | Query) -> AccessStep:
        tier = tool.trust.tier
        if isinstance(tool, Query):
            return AccessStep("tier", "allow", "results can be read whatever the tier", tool.position)
        because = ExpectedReason("tier", tier.name)
        if not tier.callable:
            return AccessStep("tier", "deny", f"tools of tier {tier.name!r} cannot be called", tool.position, because)
        if not tool.trust.callable:
            reason = f"the tool does not meet the requirements of tier {tier.name!r}"
            return AccessStep("tier", "deny", reason, tool.position, because)
        return AccessStep("tier", "allow", f"tools of tier {tier.name!r} can be called", tool.position, because)

    def _lifecycle(self, call: AccessQuestion, tool: DeclaredTool | Query) -> AccessStep:
        if isinstance(tool, Query):
            return AccessStep("lifecycle", "allow", "results can be read as long as they are stored", tool.position)
        if tool.is_callable_on(_day(call.at)):
            return AccessStep("lifecycle", "allow", f"the tool is {tool.lifecycle}", tool.position)
        if tool.lifecycle == "deprecated" and tool.deprecation is not None:
            return AccessStep("lifecycle", "deny", f"its last day was {tool.deprecation.remove_after}", tool.position)
        return AccessStep("lifecycle", "deny", f"the tool is {tool.lifecycle}", tool.position)

    def _policy(self, call: AccessQuestion, tool: DeclaredTool | Query) -> AccessStep:
        decision = self.permits(call.principal, call.catalogue, tool)
        word: Decision = "allow" if decision.allowed else "deny"
        return AccessStep("policy", word, decision.reason, decision.row, by_policy(decision))

    def _gates(
        self, call: AccessQuestion, tool: Requested, *, scope: ConditionScope, steps: list[AccessStep]
    ) -> AccessAnswer:
        rules = self.find_rules(tool, call.catalogue)
        permitting: set[Position] = set()
        outcome = evaluate_rules(rules, scope, may=self._may(call, tool, permitting))
        matched = {verdict.rule.name for verdict in outcome.verdicts}
        idle = tuple(rule for rule in rules if rule.name not in matched)
        taken = (*steps, describe_gates(outcome, steps[-1]))
        return AccessAnswer(taken, outcome, scope, idle, find_deciding_rows(steps) | permitting)


def _with_roles(principal: Principal, grants: tuple[Grant, ...]) -> frozenset[str]:
    return principal.names.union(each.role for each in grants) if grants else principal.names


def _day(at: datetime) -> date:
    """Return the day in UTC, for every caller alike."""
    return at.astimezone(UTC).date()

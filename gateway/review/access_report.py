"""Lists the tools, prompts and resources of a catalogue, for a reviewer or as one caller sees them.

Gate rules check arguments, hours and counts, which are not known here; where they could deny or hold a call, the
answer is `perhaps`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal

from gateway.model import Principal
from gateway.policy import (
    Access,
    AccessRequest,
    ApprovalCheck,
    ArgumentsCheck,
    BudgetCheck,
    ConfirmationCheck,
    Decision,
    FlowCheck,
    GateRule,
    LoopCheck,
    PermissionCheck,
    PermissionLookup,
    QuotaCheck,
    RateCheck,
    WindowCheck,
)
from gateway.registries import Catalogue, DeclaredDefinition, DeclaredTool, Snapshot

Likelihood = Literal["yes", "perhaps", "no"]

_OPPOSITE: Final[dict[Likelihood, Likelihood]] = {"yes": "no", "perhaps": "perhaps", "no": "yes"}


@dataclass(frozen=True, slots=True)
class ToolAccess:
    """A tool with its advertised name, and the gate rules that apply to its calls.

    `may_call` and `is_held` are set if the list is for one caller.
    """

    name: str
    tool: DeclaredTool
    is_hidden: bool
    gates: tuple[GateRule, ...]
    may_call: Likelihood | None = None
    is_held: Likelihood | None = None


def list_tool_access(snapshot: Snapshot, catalogue: Catalogue) -> list[ToolAccess]:
    """Return every tool of a catalogue, sorted by name, including hidden tools."""
    return [
        ToolAccess(name, tool, name in catalogue.hidden, _gates(snapshot, catalogue, tool))
        for name, identity in sorted(catalogue.tools.items())
        if (tool := snapshot.tools.get(identity)) is not None
    ]


def list_tool_access_for(
    access: Access, principal: Principal, catalogue: Catalogue, *, at: datetime
) -> list[ToolAccess]:
    """Return the tools that a caller can see or, if they are hidden, call; none outside of the audience."""
    if not access.is_in_audience(principal, catalogue.name):
        return []
    found = []
    for offer in list_tool_access(access.snapshot, catalogue):
        sees = access.decide_discovery(principal, catalogue=catalogue.name, tool=offer.tool).allowed
        calls = access.decide_action(principal, "invoke", catalogue=catalogue.name, tool=offer.tool).allowed
        if offer.tool.is_callable_on(at.date()) and sees and (calls or not offer.is_hidden):
            may = permission_lookup(access, principal, catalogue=catalogue.name, tier=offer.tool.trust.tier.name)
            found.append(_with_decisions(offer, may_invoke=calls, may=may))
    return found


@dataclass(frozen=True, slots=True)
class ResourceAccess:
    """A prompt with its advertised name, or a group of resources with its URI patterns as name."""

    name: str
    offer: DeclaredDefinition


def list_resource_access(snapshot: Snapshot, catalogue: Catalogue) -> list[ResourceAccess]:
    """Return the prompts of a catalogue by name, then its groups of resources in order: the first match gets a URI."""
    prompts = [ResourceAccess(name, snapshot.offers[object]) for name, object in sorted(catalogue.prompts.items())]
    groups = [snapshot.offers[object] for object in catalogue.resources]
    return [*prompts, *(ResourceAccess(", ".join(each.uris), each) for each in groups)]


def list_resource_access_for(access: Access, principal: Principal, catalogue: Catalogue) -> list[ResourceAccess]:
    """Return the prompts and resources that a caller may use; others are invisible to it."""
    if not access.is_in_audience(principal, catalogue.name):
        return []
    found = list_resource_access(access.snapshot, catalogue)
    return [
        each
        for each in found
        if access.decide_definition(principal, catalogue=catalogue.name, offer=each.offer).allowed
    ]


def permission_lookup(access: Access, principal: Principal, *, catalogue: str, tier: str) -> PermissionLookup:
    def may(action: str, object: str) -> bool:
        return access.authoriser.decide(AccessRequest(principal.names, catalogue, object, action, tier)).allowed

    return may


def _with_decisions(offer: ToolAccess, *, may_invoke: bool, may: PermissionLookup) -> ToolAccess:
    if not (may_invoke and offer.tool.trust.callable):
        return replace(offer, may_call="no", is_held="no")
    effects = [worst_decision(rule, may) for rule in offer.gates if rule.mode == "enforce"]
    refused, held = (_likelihood(sure for decision, sure in effects if decision == each) for each in ("deny", "hold"))
    return replace(offer, may_call=_OPPOSITE[refused], is_held="no" if refused == "yes" else held)


def worst_decision(rule: GateRule, may: PermissionLookup) -> tuple[Decision, bool]:
    """Return the strictest decision of a rule for the caller, and whether it applies to every call."""
    match rule.check:
        case ApprovalCheck() | ConfirmationCheck():
            return "hold", rule.when is None
        case PermissionCheck(action=action, object=object):
            return ("allow", False) if may(action, object) else ("deny", rule.when is None)
        case ArgumentsCheck():
            return "deny", False
        case WindowCheck(outside=outside):
            return outside, False
        case RateCheck() | QuotaCheck() | LoopCheck() | BudgetCheck() | FlowCheck():
            return "allow", False  # the first call of a turn is let through
    return "deny", False


def _likelihood(sure: Iterable[bool]) -> Likelihood:
    found = list(sure)
    return "yes" if any(found) else "perhaps" if found else "no"


def _gates(snapshot: Snapshot, catalogue: Catalogue, tool: DeclaredTool) -> tuple[GateRule, ...]:
    about = [rule for rule in snapshot.gates.values() if rule.matches(tool.to_governed, catalogue.name)]
    return tuple(sorted((rule for rule in about if rule.mode != "disabled"), key=lambda rule: rule.name))

"""What a catalogue offers, tool by tool, with its prompts and resources: to whoever reviews it, or to one caller.

Gate rules look at arguments, hours and counts, which are not known here; where they could refuse or hold a call, the
answer is `perhaps`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal

from gateway.access import Access
from gateway.governance.ports import AccessRequest
from gateway.governance.principals import Principal
from gateway.governance.rules import Approval, Arguments, Confirmation, Decision, GateRule, MayDo, Permission, Window
from gateway.snapshot import Catalogue, DeclaredTool, Snapshot
from gateway.snapshot import Offer as Brought

Likelihood = Literal["yes", "perhaps", "no"]

_OPPOSITE: Final[dict[Likelihood, Likelihood]] = {"yes": "no", "perhaps": "perhaps", "no": "yes"}


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool under its advertised name, and the gate rules about its calls.

    `may_call` and `is_held` say what becomes of a caller's calls, if a caller is asked about.
    """

    name: str
    tool: DeclaredTool
    is_hidden: bool
    gates: tuple[GateRule, ...]
    may_call: Likelihood | None = None
    is_held: Likelihood | None = None


def offers(snapshot: Snapshot, catalogue: Catalogue) -> list[Offer]:
    """Every tool of a catalogue, by name, hidden ones too."""
    return [
        Offer(name, tool, name in catalogue.hidden, _gates(snapshot, catalogue, tool))
        for name, identity in sorted(catalogue.tools.items())
        if (tool := snapshot.tools.get(identity)) is not None
    ]


def offers_to(access: Access, principal: Principal, catalogue: Catalogue, *, at: datetime) -> list[Offer]:
    """The tools that a caller can see or, if they are hidden, call; none to those outside the audience."""
    if not access.admits(principal, catalogue.name):
        return []
    found = []
    for offer in offers(access.snapshot, catalogue):
        sees = access.visibility(principal, catalogue=catalogue.name, tool=offer.tool).allowed
        calls = access.asks(principal, "invoke", catalogue=catalogue.name, tool=offer.tool).allowed
        if offer.tool.is_in_use(at.date()) and sees and (calls or not offer.is_hidden):
            may = _permissions(access, principal, catalogue=catalogue.name, tier=offer.tool.trust.tier.name)
            found.append(_asked_for(offer, may_invoke=calls, may=may))
    return found


@dataclass(frozen=True, slots=True)
class Beside:
    """A prompt under its advertised name, or a group of resources under what its URIs look like."""

    name: str
    offer: Brought


def beside(snapshot: Snapshot, catalogue: Catalogue) -> list[Beside]:
    """Every prompt of a catalogue by its name, then its groups of resources in their order: the first that fits has a
    URI."""
    prompts = [Beside(name, snapshot.offers[object]) for name, object in sorted(catalogue.prompts.items())]
    groups = [snapshot.offers[object] for object in catalogue.resources]
    return [*prompts, *(Beside(", ".join(each.uris), each) for each in groups)]


def beside_for(access: Access, principal: Principal, catalogue: Catalogue) -> list[Beside]:
    """Those that a caller can have; whoever may not have one does not know of it."""
    if not access.admits(principal, catalogue.name):
        return []
    found = beside(access.snapshot, catalogue)
    return [each for each in found if access.offers(principal, catalogue=catalogue.name, offer=each.offer).allowed]


def _permissions(access: Access, principal: Principal, *, catalogue: str, tier: str) -> MayDo:
    def may(action: str, object: str) -> bool:
        return access.authoriser.decide(AccessRequest(principal.names, catalogue, object, action, tier)).allowed

    return may


def _asked_for(offer: Offer, *, may_invoke: bool, may: MayDo) -> Offer:
    if not (may_invoke and offer.tool.trust.callable):
        return replace(offer, may_call="no", is_held="no")
    said = [_said(rule, may) for rule in offer.gates if rule.mode == "enforce"]
    refused, held = (_likelihood(is_sure for word, is_sure in said if word == each) for each in ("deny", "hold"))
    return replace(offer, may_call=_OPPOSITE[refused], is_held="no" if refused == "yes" else held)


def _said(rule: GateRule, may: MayDo) -> tuple[Decision, bool]:
    """The gravest word that a rule has for the caller, and whether it is said of every call."""
    match rule.check:
        case Approval() | Confirmation():
            return "hold", rule.when is None
        case Permission(action=action, object=object):
            return ("allow", False) if may(action, object) else ("deny", rule.when is None)
        case Arguments():
            return "deny", False
        case Window(outside=outside):
            return outside, False
    return "allow", False


def _likelihood(sure: Iterable[bool]) -> Likelihood:
    found = list(sure)
    return "yes" if any(found) else "perhaps" if found else "no"


def _gates(snapshot: Snapshot, catalogue: Catalogue, tool: DeclaredTool) -> tuple[GateRule, ...]:
    about = [rule for rule in snapshot.gates.values() if rule.is_about(tool.governed, catalogue.name)]
    return tuple(sorted((rule for rule in about if rule.mode != "disabled"), key=lambda rule: rule.name))

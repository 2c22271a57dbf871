"""Section: who can call what moves money, destroys something or sends data out, and which row allows it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.model import Principal
from gateway.registries import Catalogue, Position, add_implied_flags, in_effect_order
from gateway.review.access_report import Likelihood, ToolAccess, list_tool_access, list_tool_access_for
from gateway.review.plan.access_changes import list_callers
from gateway.review.report.report_input import ReportInput

GRAVE: Final = frozenset({"destructive", "egress"})
"""A flag is grave if it is or implies one of these; so a project's own flag, such as one for payments, counts, too."""


@dataclass(frozen=True, slots=True)
class HazardCaller:
    """A caller who can call the tool. `answer` and `held` are `perhaps` if arguments, hours or counts decide."""

    caller: str
    answer: Likelihood
    held: Likelihood
    by: str | None
    position: Position | None


@dataclass(frozen=True, slots=True)
class HazardTool:
    catalogue: str
    name: str
    identity: str
    tier: str
    hazards: tuple[str, ...]
    is_unknown: bool
    callable: bool
    gates: tuple[str, ...]
    callers: tuple[HazardCaller, ...]
    position: Position


@dataclass(frozen=True, slots=True)
class HazardsSection:
    flags: tuple[str, ...]
    callers: int
    """How many callers and roles were asked for."""
    tools: tuple[HazardTool, ...]


def build_hazards(source: ReportInput) -> HazardsSection:
    flags = grave_flags(source)
    callers = list_callers(source.snapshot, source.project.rows)
    tools = [
        tool
        for _, catalogue in sorted(source.snapshot.catalogues.items())
        for tool in _of_catalogue(source, catalogue, callers, flags)
    ]
    return HazardsSection(tuple(in_effect_order(flags)), len(callers), tuple(tools))


def grave_flags(source: ReportInput) -> frozenset[str]:
    """Return the flags that are grave, or imply a grave one."""
    flags = source.snapshot.flags
    return frozenset(name for name in flags if GRAVE & add_implied_flags([name], flags))


def _of_catalogue(
    source: ReportInput, catalogue: Catalogue, callers: Mapping[str, Principal], flags: frozenset[str]
) -> Iterator[HazardTool]:
    offers = [each for each in list_tool_access(source.snapshot, catalogue) if flags & each.tool.trust.flags]
    if not offers:
        return
    known: dict[str, list[HazardCaller]] = {each.name: [] for each in offers}
    for name, principal in sorted(callers.items()):
        for offer in list_tool_access_for(source.access, principal, catalogue, at=source.at):
            if offer.name in known and offer.may_call not in (None, "no"):
                known[offer.name].append(_caller(source, name, principal, catalogue, offer))
    for offer in offers:
        tool = offer.tool
        yield HazardTool(
            catalogue.name,
            offer.name,
            tool.name,
            tool.trust.tier.name,
            tuple(in_effect_order(flags & tool.trust.flags)),
            tool.trust.is_unknown,
            tool.trust.callable and tool.is_callable_on(source.day),
            tuple(rule.name for rule in offer.gates if rule.mode == "enforce"),
            tuple(known[offer.name]),
            source.place(tool.position),
        )


def _caller(
    source: ReportInput, name: str, principal: Principal, catalogue: Catalogue, offer: ToolAccess
) -> HazardCaller:
    decision = source.access.decide_action(principal, "invoke", catalogue=catalogue.name, tool=offer.tool)
    row = None if decision.row is None else source.place(decision.row)
    return HazardCaller(name, offer.may_call or "no", offer.is_held or "no", decision.subject, row)

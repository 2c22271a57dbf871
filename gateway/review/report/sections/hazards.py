"""Section: who can call what moves money, destroys something or sends data out, and which row allows it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.policy import BudgetCheck, LoopCheck, QuotaCheck, RateCheck, find_common_subject
from gateway.registries import Position, add_implied_flags, in_effect_order
from gateway.review.access.effective_access import APPROVE, CALL, AccessBlock
from gateway.review.access_report import ToolAccess, list_tool_access
from gateway.review.report.report_input import ReportInput

GRAVE: Final = frozenset({"destructive", "egress"})
"""A flag is grave if it is or implies one of these; so a project's own flag, such as one for payments, counts, too."""


_COUNTERS: Final = (RateCheck, QuotaCheck, LoopCheck, BudgetCheck)


@dataclass(frozen=True, slots=True)
class HazardGate:
    """A rule that holds or denies the call, always or in some cases."""

    rule: str
    decision: str
    is_certain: bool


@dataclass(frozen=True, slots=True)
class HazardCaller:
    """Callers that can call the tool by the same row. `words` are that row in plain words."""

    callers: tuple[str, ...]
    gates: tuple[HazardGate, ...]
    words: str
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
    guards: tuple[str, ...]
    """Rules that do more than count calls."""
    callers: tuple[HazardCaller, ...]
    approvers: tuple[str, ...]
    position: Position


@dataclass(frozen=True, slots=True)
class HazardsSection:
    flags: tuple[str, ...]
    asked: int
    """How many callers and roles were asked for."""
    common_subject: str | None
    tools: tuple[HazardTool, ...]


def build_hazards(source: ReportInput) -> HazardsSection:
    flags = grave_flags(source)
    offers = [
        (name, offer)
        for name, catalogue in sorted(source.snapshot.catalogues.items())
        for offer in list_tool_access(source.snapshot, catalogue)
        if flags & offer.tool.trust.flags
    ]
    return HazardsSection(
        tuple(in_effect_order(flags)),
        len(source.review.callers.principals),
        find_common_subject(source.snapshot),
        tuple(_tool(source, name, offer, flags) for name, offer in offers),
    )


def grave_flags(source: ReportInput) -> frozenset[str]:
    """Return the flags that are grave, or imply a grave one."""
    flags = source.snapshot.flags
    return frozenset(name for name in flags if GRAVE & add_implied_flags([name], flags))


def _tool(source: ReportInput, catalogue: str, offer: ToolAccess, flags: frozenset[str]) -> HazardTool:
    tool = offer.tool
    enforced = [rule for rule in offer.gates if rule.mode == "enforce"]
    blocks = [each for each in source.review.blocks if each.catalogue == catalogue and tool.object in each.objects]
    approvers = {
        name for each in blocks if each.can(APPROVE) for name in source.review.callers.list_names(each.callers)
    }
    return HazardTool(
        catalogue,
        offer.name,
        tool.name,
        tool.trust.tier.name,
        tuple(in_effect_order(flags & tool.trust.flags)),
        tool.trust.is_unknown,
        tool.trust.callable and tool.is_callable_on(source.day),
        tuple(rule.name for rule in enforced),
        tuple(rule.name for rule in enforced if not isinstance(rule.check, _COUNTERS)),
        tuple(_callers(source, blocks)),
        tuple(sorted(approvers)),
        source.place(tool.position),
    )


def _callers(source: ReportInput, blocks: list[AccessBlock]) -> Iterator[HazardCaller]:
    found = []
    for block in blocks:
        right = next((each for each in block.rights if each.action == CALL), None)
        if right is not None:
            names = tuple(sorted(source.review.callers.list_names(block.callers)))
            gates = tuple(HazardGate(each.rule, each.decision, each.is_certain) for each in block.gates)
            row = right.row
            place = None if row is None else source.place(row.position)
            found.append(HazardCaller(names, gates, "" if row is None else str(row), place))
    yield from sorted(found, key=lambda each: each.callers)

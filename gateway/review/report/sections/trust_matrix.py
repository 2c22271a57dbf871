"""Section: the trust matrix. Columns are tiers, rows are flags, and a cell has the tools of that tier and flag."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta

from gateway.registries import DeclaredTool, Position, Tier, add_implied_flags, in_effect_order
from gateway.review.report.report_input import ReportInput

NO_FLAG = "no flag"


@dataclass(frozen=True, slots=True)
class MatrixTier:
    """A column: a tier, and what it means in words."""

    name: str
    rank: int
    description: str
    meaning: tuple[str, ...]
    callable: bool
    position: Position | None


@dataclass(frozen=True, slots=True)
class MatrixTool:
    """A tool in a cell. `origin` is how it got the flag."""

    name: str
    origin: str


@dataclass(frozen=True, slots=True)
class MatrixCell:
    tier: str
    is_forbidden: bool
    tools: tuple[MatrixTool, ...]


@dataclass(frozen=True, slots=True)
class MatrixRow:
    flag: str
    description: str
    cells: tuple[MatrixCell, ...]


@dataclass(frozen=True, slots=True)
class WaiverInForce:
    """A waiver of a catalogue that is in force on the day, or has expired."""

    catalogue: str
    flags: tuple[str, ...]
    until: date
    by: str
    because: str
    position: Position


@dataclass(frozen=True, slots=True)
class TrustSection:
    tools: int
    tiers: tuple[MatrixTier, ...]
    rows: tuple[MatrixRow, ...]
    waivers: tuple[WaiverInForce, ...]


def build_trust(source: ReportInput) -> TrustSection:
    snapshot = source.snapshot
    tiers = sorted(snapshot.tiers.values(), key=lambda tier: (tier.rank, tier.name))
    rows = [*in_effect_order(snapshot.flags), NO_FLAG]
    return TrustSection(
        len(snapshot.tools),
        tuple(_tier(source, tier) for tier in tiers),
        tuple(_row(source, flag, tiers) for flag in rows),
        tuple(_waivers(source)),
    )


def _tier(source: ReportInput, tier: Tier) -> MatrixTier:
    document = source.project.documents.get("TrustTier", {}).get(tier.name)
    meaning = tuple(_meaning(tier))
    position = document.position if document else None
    return MatrixTier(tier.name, tier.rank, tier.description, meaning, tier.callable, position)


def _meaning(tier: Tier) -> Iterator[str]:
    if not tier.callable:
        yield "no caller can call its tools"
    if tier.may_be_trusted:
        yield "results may be marked trusted: a model may follow their text"
    if tier.requires_pinned:
        yield "imported tools must be pinned"
    if tier.reviewed_within is not None:
        yield f"reviewed within {_days(tier.reviewed_within)}"
    if tier.forbidden_backends:
        yield f"forbids the backends {', '.join(sorted(tier.forbidden_backends))}"
    if tier.forbids_confirmation:
        yield "callers cannot confirm calls themselves"
    if tier.adds_flags:
        yield f"adds {', '.join(sorted(tier.adds_flags))} to every tool"


def _days(period: timedelta) -> str:
    return f"{period.days} days"


def _row(source: ReportInput, flag: str, tiers: list[Tier]) -> MatrixRow:
    known = source.snapshot.flags.get(flag)
    description = "reads what is public and changes nothing" if flag == NO_FLAG else known.description if known else ""
    return MatrixRow(flag, description, tuple(_cell(source, flag, tier) for tier in tiers))


def _cell(source: ReportInput, flag: str, tier: Tier) -> MatrixCell:
    of_tier = [tool for _, tool in sorted(source.snapshot.tools.items()) if tool.trust.tier.name == tier.name]
    found = [MatrixTool(tool.name, origin) for tool in of_tier if (origin := _origin(source, tool, flag))]
    return MatrixCell(tier.name, flag in tier.forbidden_flags, tuple(found))


def _origin(source: ReportInput, tool: DeclaredTool, flag: str) -> str | None:
    """Return how the tool got the flag: declared, tier, implied, claimed or assumed; `None` if it does not have it."""
    trust = tool.trust
    if flag == NO_FLAG:
        return None if trust.flags else "declared"
    if flag not in trust.flags:
        return None
    if flag in trust.assumed:
        return "assumed"
    if flag in trust.claimed:
        return "claimed"
    if flag in _written_flags(source, tool):
        return "declared"
    if flag in trust.tier.adds_flags:
        return "tier"
    others = trust.flags - {flag}
    is_implied = any(flag in add_implied_flags([each], source.snapshot.flags) for each in others)
    return "implied" if is_implied else "declared"


def _written_flags(source: ReportInput, tool: DeclaredTool) -> frozenset[str]:
    document = source.project.documents.get("Tool", {}).get(tool.name)
    spec = document.data.get("spec", {}) if document else {}
    return frozenset(spec.get("trust", {}).get("flags", ()))


def _waivers(source: ReportInput) -> Iterator[WaiverInForce]:
    for name, catalogue in sorted(source.snapshot.catalogues.items()):
        for combination in catalogue.combinations:
            if (waiver := combination.waiver) is not None:
                flags = tuple(in_effect_order(combination.flags))
                place = source.place(catalogue.position)
                yield WaiverInForce(name, flags, waiver.until, waiver.by, waiver.because, place)

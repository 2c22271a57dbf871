"""Flags and tiers as governance knows them, and the effective trust of whatever declares some."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from gateway.config.linking.effects import StatedEffects
from gateway.config.linking.entries import Entries, Entry
from gateway.config.nodes import Path
from gateway.config.specs.common import Trust
from gateway.config.specs.trust import TrustFlagDocument, TrustTierDocument
from gateway.governance.diagnostics import Diagnostic, Position
from gateway.governance.trust import (
    BUILT_IN_FLAGS,
    DeclaredTrust,
    EffectiveTrust,
    Flag,
    Hint,
    Tier,
    TrustProblem,
    effective_trust,
    most_alarming,
    with_implied,
)


@dataclass(frozen=True, slots=True)
class TrustScale:
    """Every flag and tier, the tier of what nobody judged, and where each tier is declared."""

    flags: Mapping[str, Flag]
    tiers: Mapping[str, Tier]
    default_tier: str | None
    today: date
    positions: Mapping[str, Position]


def link_scale(entries: Entries, *, default_tier: str | None) -> TrustScale:
    positions = {name: entry.position for name, entry in entries.of(TrustTierDocument).items()}
    return TrustScale(link_flags(entries), link_tiers(entries), default_tier, entries.today, positions)


def link_flags(entries: Entries) -> dict[str, Flag]:
    """Flags that documents declare, and those of effects, which are there without one."""
    return {**BUILT_IN_FLAGS, **{name: _flag(entry) for name, entry in entries.of(TrustFlagDocument).items()}}


def link_tiers(entries: Entries) -> dict[str, Tier]:
    return {name: _tier(entry) for name, entry in entries.of(TrustTierDocument).items()}


def link_trust(
    entry: Entry[Any],
    trust: Trust | None,
    path: Path,
    stated: StatedEffects,
    *,
    scale: TrustScale,
    backend: str,
    imported: bool,
    pinned: bool,
    whose: str = "",
) -> tuple[EffectiveTrust | None, list[Diagnostic]]:
    """What holds for a declaration at a path. `None` if its tier is not known, which is told elsewhere.

    `whose` names the tools that it is about where the document does not.
    """
    declared = trust or Trust.model_construct()
    tier = scale.tiers.get(declared.tier or scale.default_tier or "")
    if tier is None:
        return None, []
    claims = DeclaredTrust(
        tier=tier.name,
        backend=backend,
        flags=stated.flags,
        is_implied=stated.is_implied,
        claims=stated.claims,
        trusted=declared.trusted,
        reviewed=declared.reviewed.date if declared.reviewed else None,
        imported=imported,
        pinned=pinned,
    )
    effective, problems = effective_trust(claims, tier, scale.flags, today=scale.today)
    where = scale.positions[tier.name]
    return effective, list(_told(entry, path, problems, stated, effective, scale=scale, tier=where, whose=whose))


def _told(
    entry: Entry[Any],
    path: Path,
    problems: list[TrustProblem],
    stated: StatedEffects,
    trust: EffectiveTrust,
    *,
    scale: TrustScale,
    tier: Position,
    whose: str,
) -> Iterator[Diagnostic]:
    for problem in problems:
        place = _place(entry, path, problem, stated=stated, scale=scale)
        help = problem.help or _help(problem, place, stated=stated, trust=trust)
        message = f"{problem.message}: {whose}" if whose and problem.field == "flags" else problem.message
        related = [("the tier", tier)]
        yield entry.problem(problem.code, message, place, help=help, severity=problem.severity, related=related)


def _help(problem: TrustProblem, place: Path, *, stated: StatedEffects, trust: EffectiveTrust) -> str | None:
    """Why a flag is there that nobody wrote, or what to do about one of the two that disagree."""
    if problem.field != "flags":
        return "choose another tier or another backend" if problem.field == "backend" else None
    flag = problem.flag or ""
    written = next((name for name, where in stated.written if where == place), None)
    if written is not None:
        implied = f"{written!r} implies {flag!r}: " if written != flag else ""
        return f"{implied}remove the flag if the tool cannot do that, or choose another tier"
    if flag in trust.assumed:
        return f"unknown effects count as {flag!r}: declare flags, or choose another tier"
    if flag in trust.claimed:
        return f"the server itself says {flag!r} of its tool: exclude the tool, or choose another tier"
    if stated.method is not None and flag in (stated.flags or ()):
        return f"{stated.method} implies {flag!r}: declare flags if the operation cannot do that, or exclude it"
    return f"the tier itself brings {flag!r}: correct the tier, or choose another one"


def _place(entry: Entry[Any], path: Path, problem: TrustProblem, *, stated: StatedEffects, scale: TrustScale) -> Path:
    """The token at fault: the flag that brings the forbidden one, the review's day, the tier that adds or demands."""
    if problem.field == "backend":
        return ("spec", "backend", "type") if entry.has("spec", "backend", "type") else ("spec", "transport", "type")
    if problem.field == "flags":
        for flag, where in stated.written:
            if problem.flag in with_implied([flag], scale.flags):
                return where
    elif problem.field in ("trusted", "reviewed"):
        wanted = (*path, "trusted") if problem.field == "trusted" else (*path, "reviewed", "date")
        if entry.has(*wanted):
            return wanted
    if entry.has(*path, "tier"):
        return (*path, "tier")
    return path if entry.has(*path) else ("metadata", "name")


def _flag(entry: Entry[TrustFlagDocument]) -> Flag:
    spec = entry.document.spec
    given: dict[str, bool] = spec.hint.model_dump(by_alias=True, exclude_none=True) if spec.hint else {}
    hints: dict[Hint, bool] = {hint: given[hint] for hint in _HINTS if hint in given}
    least = BUILT_IN_FLAGS.get(entry.name) or Flag(entry.name)
    implies = least.implies | frozenset(spec.implies)
    return Flag(entry.name, spec.description, implies, most_alarming([least.hints, hints]))


_HINTS: tuple[Hint, ...] = ("readOnly", "destructive", "idempotent", "openWorld")


def _tier(entry: Entry[TrustTierDocument]) -> Tier:
    spec = entry.document.spec
    return Tier(
        entry.name,
        spec.rank,
        spec.origin,
        description=spec.description,
        may_be_trusted=spec.may_be_trusted,
        callable=spec.callable,
        requires_pinned=spec.requires.pinned if spec.requires else False,
        reviewed_within=spec.requires.reviewed_within if spec.requires else None,
        forbidden_backends=frozenset(spec.forbids.backends) if spec.forbids else frozenset(),
        forbidden_flags=frozenset(spec.forbids.flags) if spec.forbids else frozenset(),
        forbids_confirmation=spec.forbids.confirmation if spec.forbids else False,
        adds_flags=frozenset(spec.adds_flags),
    )

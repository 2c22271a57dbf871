"""Link trust flags and tiers, and compute the effective trust of tools and imports."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from gateway.config.kinds.classification import TrustFlagDocument, TrustTierDocument
from gateway.config.kinds.common_specs import TrustSpec
from gateway.config.linking.document_index import DocumentEntry, DocumentIndex
from gateway.config.linking.tool_effects import StatedEffects
from gateway.config.yaml.document import DocumentPath
from gateway.registries import (
    BUILT_IN_FLAGS,
    DeclaredTrust,
    Diagnostic,
    EffectiveTrust,
    Flag,
    Hint,
    Position,
    Tier,
    TrustProblem,
    add_implied_flags,
    most_alarming,
    resolve_trust,
)


@dataclass(frozen=True, slots=True)
class TrustVocabulary:
    """All flags and tiers, the default tier, and the position of each tier."""

    flags: Mapping[str, Flag]
    tiers: Mapping[str, Tier]
    default_tier: str | None
    today: date
    positions: Mapping[str, Position]


def link_trust_vocabulary(entries: DocumentIndex, *, default_tier: str | None) -> TrustVocabulary:
    positions = {name: entry.position for name, entry in entries.of(TrustTierDocument).items()}
    return TrustVocabulary(link_flags(entries), link_tiers(entries), default_tier, entries.today, positions)


def link_flags(entries: DocumentIndex) -> dict[str, Flag]:
    """Return the declared flags and the built-in effect flags."""
    return {**BUILT_IN_FLAGS, **{name: _flag(entry) for name, entry in entries.of(TrustFlagDocument).items()}}


def link_tiers(entries: DocumentIndex) -> dict[str, Tier]:
    return {name: _tier(entry) for name, entry in entries.of(TrustTierDocument).items()}


def link_trust(
    entry: DocumentEntry[Any],
    trust: TrustSpec | None,
    path: DocumentPath,
    stated: StatedEffects,
    *,
    scale: TrustVocabulary,
    backend: str,
    imported: bool,
    pinned: bool,
    whose: str = "",
) -> tuple[EffectiveTrust | None, list[Diagnostic]]:
    """Return the effective trust of a declaration at a path, or `None` if its tier is unknown, and the problems.

    `whose` names the affected tools if the document is an Upstream.
    """
    declared = trust or TrustSpec.model_construct()
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
    effective, problems = resolve_trust(claims, tier, scale.flags, today=scale.today)
    where = scale.positions[tier.name]
    return effective, list(_report(entry, path, problems, stated, effective, scale=scale, tier=where, whose=whose))


def _report(
    entry: DocumentEntry[Any],
    path: DocumentPath,
    problems: list[TrustProblem],
    stated: StatedEffects,
    trust: EffectiveTrust,
    *,
    scale: TrustVocabulary,
    tier: Position,
    whose: str,
) -> Iterator[Diagnostic]:
    for problem in problems:
        place = _place(entry, path, problem, stated=stated, scale=scale)
        help = problem.help or _help(problem, place, stated=stated, trust=trust)
        message = f"{problem.message}: {whose}" if whose and problem.field == "flags" else problem.message
        related = [("the tier", tier)]
        yield entry.problem(problem.code, message, place, help=help, severity=problem.severity, related=related)


def _help(problem: TrustProblem, place: DocumentPath, *, stated: StatedEffects, trust: EffectiveTrust) -> str | None:
    """Explain where a flag comes from, and what to change."""
    if problem.field != "flags":
        return "choose another tier or another backend" if problem.field == "backend" else None
    flag = problem.flag or ""
    written = next((name for name, where in stated.written if where == place), None)
    if written is not None:
        implied = f"{written!r} implies {flag!r}: " if written != flag else ""
        return f"{implied}remove the flag if the tool cannot do this, or choose another tier"
    if flag in trust.assumed:
        return f"undeclared effects count as {flag!r}: declare flags, or choose another tier"
    if flag in trust.claimed:
        return f"the server declares {flag!r} for its tool: exclude the tool, or choose another tier"
    if stated.method is not None and flag in (stated.flags or ()):
        return f"{stated.method} implies {flag!r}: declare flags if the operation cannot do this, or exclude it"
    return f"the tier itself adds {flag!r}: correct the tier, or choose another one"


def _place(
    entry: DocumentEntry[Any],
    path: DocumentPath,
    problem: TrustProblem,
    *,
    stated: StatedEffects,
    scale: TrustVocabulary,
) -> DocumentPath:
    """Return the path at fault: the flag that implies the forbidden one, the review's day, or the tier."""
    if problem.field == "backend":
        return ("spec", "backend", "type") if entry.has("spec", "backend", "type") else ("spec", "transport", "type")
    if problem.field == "flags":
        for flag, where in stated.written:
            if problem.flag in add_implied_flags([flag], scale.flags):
                return where
    elif problem.field in ("trusted", "reviewed"):
        wanted = (*path, "trusted") if problem.field == "trusted" else (*path, "reviewed", "date")
        if entry.has(*wanted):
            return wanted
    if entry.has(*path, "tier"):
        return (*path, "tier")
    return path if entry.has(*path) else ("metadata", "name")


def _flag(entry: DocumentEntry[TrustFlagDocument]) -> Flag:
    spec = entry.document.spec
    given: dict[str, bool] = spec.hint.model_dump(by_alias=True, exclude_none=True) if spec.hint else {}
    hints: dict[Hint, bool] = {hint: given[hint] for hint in _HINTS if hint in given}
    least = BUILT_IN_FLAGS.get(entry.name) or Flag(entry.name)
    implies = least.implies | frozenset(spec.implies)
    return Flag(entry.name, spec.description, implies, most_alarming([least.hints, hints]))


_HINTS: tuple[Hint, ...] = ("readOnly", "destructive", "idempotent", "openWorld")


def _tier(entry: DocumentEntry[TrustTierDocument]) -> Tier:
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

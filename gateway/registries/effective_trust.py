"""Trust: how far the operator of a tool is trusted (tier), and the effective trust of its tier and its flags.

A tier has requirements, prohibitions and flags that all its tools have. If the declaration of a tool contradicts its
tier, the tier wins. A tool of unknown effects counts as the most dangerous.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final, Literal

from gateway.model import TrustTier as Origin
from gateway.registries.diagnostics import Severity
from gateway.registries.tool_flags import EFFECT_FLAGS, Effects, Flag, Hint, add_implied_flags, most_alarming

TrustField = Literal["tier", "flags", "trusted", "reviewed", "backend"]

_DEFAULT_HINTS: Final[dict[Hint, bool]] = {"readOnly": True, "destructive": False, "openWorld": False}
"""Hints of a tool that declares no flags: it only reads, and has no external effects."""

_EXPIRED_AFTER: Final = 2
"""A review is overdue after its period, and expires after this many periods."""


@dataclass(frozen=True, slots=True)
class Tier:
    """How far the operator of a tool is trusted. A lower rank is more trusted."""

    name: str
    rank: int
    origin: Origin
    description: str = ""
    may_be_trusted: bool = False
    callable: bool = True
    requires_pinned: bool = False
    reviewed_within: timedelta | None = None
    forbidden_backends: frozenset[str] = frozenset()
    forbidden_flags: frozenset[str] = frozenset()
    forbids_confirmation: bool = False
    adds_flags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DeclaredTrust:
    """The trust that a document declares for a tool, and properties of its source."""

    tier: str
    backend: str
    flags: frozenset[str] | None = None
    """`None` if the effects are not declared; an empty set declares no effects."""
    is_implied: bool = False
    """Whether the HTTP method implies the flags."""
    claims: frozenset[str] = frozenset()
    """Flags that the upstream claims for its tool."""
    trusted: bool = False
    reviewed: date | None = None
    imported: bool = False
    pinned: bool = False

    @property
    def effects(self) -> Effects:
        if self.flags is None:
            return "unknown"
        return "implied" if self.is_implied else "declared"


@dataclass(frozen=True, slots=True)
class EffectiveTrust:
    """The trust that applies to a tool. All controls use its `flags`."""

    tier: Tier
    flags: frozenset[str]
    trusted: bool
    callable: bool
    effects: Effects = "declared"
    assumed: frozenset[str] = frozenset()
    """Flags that apply only because the effects are unknown."""
    claimed: frozenset[str] = frozenset()
    """Flags that apply only because the upstream claims them."""

    @property
    def known_flags(self) -> frozenset[str]:
        """Flags that are declared, implied or claimed."""
        return self.flags - self.assumed

    @property
    def is_unknown(self) -> bool:
        return self.effects == "unknown"


@dataclass(frozen=True, slots=True)
class TrustProblem:
    """A contradiction between a declaration and its tier; `field` is the part at fault."""

    code: str
    message: str
    field: TrustField
    severity: Severity = "error"
    help: str | None = None
    flag: str | None = None
    """The flag at fault if `field` is `flags`; the tier or another flag may add it."""


def resolve_trust(
    declared: DeclaredTrust, tier: Tier, flags: Mapping[str, Flag], *, today: date
) -> tuple[EffectiveTrust, list[TrustProblem]]:
    """Return the effective trust of a tool and all contradictions, which never add trust."""
    own = add_implied_flags((declared.flags or frozenset()) | tier.adds_flags, flags)
    claimed = add_implied_flags(declared.claims, flags) - own
    assumed = frozenset[str]() if declared.flags is not None else add_implied_flags(EFFECT_FLAGS, flags) - own - claimed
    all_flags = own | claimed | assumed
    problems = [
        *_check_flags(all_flags, tier),
        *_check_backend(declared, tier),
        *_check_trusted(declared, tier),
        *_check_pinned(declared, tier),
        *_check_review(declared, tier, today),
    ]
    refused = any(problem.severity == "error" or problem.code == "review-expired" for problem in problems)
    trusted = declared.trusted and tier.may_be_trusted
    may_call = tier.callable and not refused
    return EffectiveTrust(tier, all_flags, trusted, may_call, declared.effects, assumed, claimed), problems


def derive_hints(trust: EffectiveTrust, flags: Mapping[str, Flag]) -> dict[Hint, bool]:
    """Return the hints for clients, derived from the flags; none for a tool of unknown effects."""
    if trust.is_unknown:
        return {}
    return most_alarming([_DEFAULT_HINTS, *(flags[name].hints for name in sorted(trust.flags) if name in flags)])


def _check_flags(flags: frozenset[str], tier: Tier) -> list[TrustProblem]:
    return [
        TrustProblem(
            "tier-forbids-flag", f"tier {tier.name!r} forbids tools with the flag {flag!r}", "flags", flag=flag
        )
        for flag in sorted(flags & tier.forbidden_flags)
    ]


def _check_backend(declared: DeclaredTrust, tier: Tier) -> list[TrustProblem]:
    if declared.backend not in tier.forbidden_backends:
        return []
    return [TrustProblem("tier-forbids-backend", f"tier {tier.name!r} forbids {declared.backend} backends", "backend")]


def _check_trusted(declared: DeclaredTrust, tier: Tier) -> list[TrustProblem]:
    if not declared.trusted or tier.may_be_trusted:
        return []
    message = f"tools of tier {tier.name!r} may not be trusted"
    return [TrustProblem("tier-forbids-trusted", message, "trusted", help="remove trusted: true")]


def _check_pinned(declared: DeclaredTrust, tier: Tier) -> list[TrustProblem]:
    if not tier.requires_pinned or not declared.imported or declared.pinned:
        return []
    message = f"tier {tier.name!r} requires imported tools to be pinned"
    return [TrustProblem("not-pinned", message, "tier", severity="warning", help="run: gateway lock")]


def _check_review(declared: DeclaredTrust, tier: Tier, today: date) -> list[TrustProblem]:
    if tier.reviewed_within is None:
        return []
    days = tier.reviewed_within.days
    if declared.reviewed is None:
        message = f"tier {tier.name!r} requires a review within {days} days"
        return [TrustProblem("review-missing", message, "reviewed", help="add reviewed: {date: ..., by: ...}")]
    age = today - declared.reviewed
    if age < timedelta(0):
        return [TrustProblem("review-in-future", f"the review is dated {declared.reviewed}, after today", "reviewed")]
    if age <= tier.reviewed_within:
        return []
    message = f"the review is {age.days} days old; tier {tier.name!r} allows {days}"
    expired = age > tier.reviewed_within * _EXPIRED_AFTER
    code, then = ("review-expired", "the tool cannot be called until then") if expired else ("review-overdue", None)
    return [TrustProblem(code, message, "reviewed", severity="warning", help=_review_help(then))]


def _review_help(then: str | None) -> str:
    return "review the tool again and update the date" + (f"; {then}" if then else "")

"""Trust: what a tool can do (flags), how much we trust who runs it (tier), and what follows from both.

A tier carries obligations, prohibitions and unavoidable flags. What a tool declares and what its tier
demands become one effective trust; where they disagree the tool does not get its way. A tool whose effects
nobody declares counts as the worst. What an upstream claims can only add flags.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Final, Literal

from gateway.core.media import TrustTier as Origin
from gateway.governance.diagnostics import Severity
from gateway.governance.effects import DESTRUCTIVE, EFFECT_FLAGS, EGRESS, WRITES, Effects

Hint = Literal["readOnly", "destructive", "idempotent", "openWorld"]
Field = Literal["tier", "flags", "trusted", "reviewed", "backend"]

_DEFAULT_HINTS: Final[dict[Hint, bool]] = {"readOnly": True, "destructive": False, "openWorld": False}
"""What a tool is that declares to have no flag: it reads, breaks nothing and touches nothing outside."""

_QUARANTINED_AFTER: Final = 2
"""A review is overdue after its period, and no longer counts after this many of them."""


@dataclass(frozen=True, slots=True)
class Flag:
    """Something a tool can do. A flag implies others and gives clients hints."""

    name: str
    description: str = ""
    implies: frozenset[str] = frozenset()
    hints: Mapping[Hint, bool] = field(default_factory=dict)


BUILT_IN_FLAGS: Final[Mapping[str, Flag]] = {
    WRITES: Flag(WRITES, "Changes something.", hints={"readOnly": False}),
    DESTRUCTIVE: Flag(
        DESTRUCTIVE,
        "May destroy something.",
        implies=frozenset({WRITES}),
        hints={"readOnly": False, "destructive": True},
    ),
    EGRESS: Flag(EGRESS, "Can carry data out.", hints={"openWorld": True}),
}
"""What the flags of effects mean at least; a document of the same name can add to it."""


@dataclass(frozen=True, slots=True)
class Tier:
    """How much we trust whoever runs a tool. A lower rank is more trusted."""

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
    """What a tool's document says about itself, with what the loader knows of its source."""

    tier: str
    backend: str
    flags: frozenset[str] | None = None
    """`None` if nothing says what the tool can do; an empty set declares that it has no effects."""
    is_implied: bool = False
    """Whether the flags come from the method of an HTTP request."""
    claims: frozenset[str] = frozenset()
    """Flags that the upstream gives its own tool."""
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
    """What holds for a tool, whatever it says of itself. `flags` are all that count, for every control."""

    tier: Tier
    flags: frozenset[str]
    trusted: bool
    callable: bool
    effects: Effects = "declared"
    assumed: frozenset[str] = frozenset()
    """Flags that count only because the effects are unknown."""
    claimed: frozenset[str] = frozenset()
    """Flags that count only because the upstream claims them."""

    @property
    def known_flags(self) -> frozenset[str]:
        """Flags that somebody gave the tool."""
        return self.flags - self.assumed

    @property
    def is_unknown(self) -> bool:
        return self.effects == "unknown"


@dataclass(frozen=True, slots=True)
class TrustProblem:
    """Where a declaration and its tier disagree; `field` is the part of the declaration at fault."""

    code: str
    message: str
    field: Field
    severity: Severity = "error"
    help: str | None = None
    flag: str | None = None
    """The flag at fault, where the field is `flags`; it may come from the tier or from another flag."""


def effective_trust(
    declared: DeclaredTrust, tier: Tier, flags: Mapping[str, Flag], *, today: date
) -> tuple[EffectiveTrust, list[TrustProblem]]:
    """What holds for the tool, and every disagreement. A disagreement never widens what holds."""
    own = with_implied((declared.flags or frozenset()) | tier.adds_flags, flags)
    claimed = with_implied(declared.claims, flags) - own
    assumed = frozenset[str]() if declared.flags is not None else with_implied(EFFECT_FLAGS, flags) - own - claimed
    all_flags = own | claimed | assumed
    problems = [
        *_forbidden_flags(all_flags, tier),
        *_forbidden_backend(declared, tier),
        *_unearned_trust(declared, tier),
        *_unpinned(declared, tier),
        *_review(declared, tier, today),
    ]
    refused = any(problem.severity == "error" or problem.code == "review-expired" for problem in problems)
    trusted = declared.trusted and tier.may_be_trusted
    may_call = tier.callable and not refused
    return EffectiveTrust(tier, all_flags, trusted, may_call, declared.effects, assumed, claimed), problems


def with_implied(names: Iterable[str], flags: Mapping[str, Flag]) -> frozenset[str]:
    """The flags and everything they imply, at any distance."""
    found: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += flags[name].implies if name in flags else ()
    return frozenset(found)


def hints_of(trust: EffectiveTrust, flags: Mapping[str, Flag]) -> dict[Hint, bool]:
    """The hints clients are given, derived from flags alone; none at all for a tool whose effects are unknown."""
    if trust.is_unknown:
        return {}
    return most_alarming([_DEFAULT_HINTS, *(flags[name].hints for name in sorted(trust.flags) if name in flags)])


def most_alarming(answers: Iterable[Mapping[Hint, bool]]) -> dict[Hint, bool]:
    """One answer per hint out of several: the more alarming one wins."""
    hints: dict[Hint, bool] = {}
    for hint, value in (each for answer in answers for each in answer.items()):
        current = hints.get(hint, value)
        hints[hint] = (current or value) if hint in ("destructive", "openWorld") else (current and value)
    return hints


def _forbidden_flags(flags: frozenset[str], tier: Tier) -> list[TrustProblem]:
    return [
        TrustProblem(
            "tier-forbids-flag", f"tier {tier.name!r} forbids tools with the flag {flag!r}", "flags", flag=flag
        )
        for flag in sorted(flags & tier.forbidden_flags)
    ]


def _forbidden_backend(declared: DeclaredTrust, tier: Tier) -> list[TrustProblem]:
    if declared.backend not in tier.forbidden_backends:
        return []
    return [TrustProblem("tier-forbids-backend", f"tier {tier.name!r} forbids {declared.backend} backends", "backend")]


def _unearned_trust(declared: DeclaredTrust, tier: Tier) -> list[TrustProblem]:
    if not declared.trusted or tier.may_be_trusted:
        return []
    message = f"tools of tier {tier.name!r} may not be trusted"
    return [TrustProblem("tier-forbids-trusted", message, "trusted", help="remove trusted: true")]


def _unpinned(declared: DeclaredTrust, tier: Tier) -> list[TrustProblem]:
    if not tier.requires_pinned or not declared.imported or declared.pinned:
        return []
    message = f"tier {tier.name!r} requires imported tools to be pinned"
    return [TrustProblem("not-pinned", message, "tier", severity="warning", help="run: gateway lock")]


def _review(declared: DeclaredTrust, tier: Tier, today: date) -> list[TrustProblem]:
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
    expired = age > tier.reviewed_within * _QUARANTINED_AFTER
    code, then = ("review-expired", "nobody can call the tool until then") if expired else ("review-overdue", None)
    return [TrustProblem(code, message, "reviewed", severity="warning", help=_review_help(then))]


def _review_help(then: str | None) -> str:
    return "review the tool again and update the date" + (f"; {then}" if then else "")

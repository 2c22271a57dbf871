"""Trust: what a tool can do (flags), how far its operator is trusted (tier), and the effective trust of both.

A tier has requirements, prohibitions and flags that all its tools have. If the declaration of a tool contradicts its
tier, the tier wins. A tool of unknown effects counts as the most dangerous. Claims of an upstream only add flags.

Effects are what a call can do: a document declares them by the flags of a tool, or the method of an HTTP operation
implies them. Otherwise they are unknown, and the tool has all of `EFFECT_FLAGS`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from json import dumps
from typing import Any, Final, Literal

from gateway.model import TrustTier as Origin
from gateway.registries.diagnostics import Severity

Effects = Literal["declared", "implied", "unknown"]
"""Source of the effects: declared by a document, implied by the HTTP method, or unknown."""

WRITES: Final = "writes"
DESTRUCTIVE: Final = "destructive"
EGRESS: Final = "egress"
EFFECT_FLAGS: Final = frozenset({WRITES, DESTRUCTIVE, EGRESS})
"""Built-in flags, which exist without a TrustFlag document. Tools of unknown effects have all of them."""

CHANGES: Final = frozenset({WRITES, DESTRUCTIVE})
"""Flags of tools whose calls must not be retried or answered from a cache."""

_ORDER: Final = (WRITES, DESTRUCTIVE, EGRESS)
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_CHANGING_METHODS: Final = frozenset({"PUT", "PATCH", "DELETE"})
"""Methods that always change something; POST is often used for searches."""

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
_READS: Final = """
check count describe download fetch find get has head help is list lookup peek ping query read retrieve search show stat
status view
"""
_WRITES: Final = """
accept add append apply approve archive assign book call cancel change clear close commit confirm copy create deploy
disable edit enable exec execute grant import insert install invite kill lock make merge modify move new open order
patch pay post publish push put refund register rename replace reset restart restore resume revoke rotate run save
schedule set start stop store submit sync toggle transfer unlock update upgrade upload upsert write
"""
_DESTROYS: Final = "clear delete destroy drop erase kill purge remove rm terminate truncate wipe"
_SENDS: Final = "email export forward invite mail message notify post publish send share upload"


def method_flags(method: str) -> frozenset[str]:
    """Return the flags that an HTTP method implies. An unknown method counts as writing."""
    named = method.upper()
    if named in _SAFE_METHODS:
        return frozenset()
    return frozenset({WRITES, DESTRUCTIVE}) if named == "DELETE" else frozenset({WRITES})


def contradicts_method(method: str, flags: Iterable[str]) -> bool:
    """Whether the flags declare no change although the method changes something."""
    return method.upper() in _CHANGING_METHODS and CHANGES.isdisjoint(flags)


def find_claimed_flags(annotations: Mapping[str, Any]) -> frozenset[str]:
    """Return the flags that an upstream's annotations add to its tool. Reassuring hints are ignored.

    A hint that is not a boolean counts as the alarming value.
    """
    found: set[str] = set()
    if _is_claimed(annotations, "readOnlyHint", unless=True):
        found.add(WRITES)
    if _is_claimed(annotations, "destructiveHint", unless=False):
        found |= CHANGES
    if _is_claimed(annotations, "openWorldHint", unless=False):
        found.add(EGRESS)
    return frozenset(found)


def claims_not_idempotent(annotations: Mapping[str, Any]) -> bool:
    """Whether an upstream declares that its tool is not idempotent."""
    return _is_claimed(annotations, "idempotentHint", unless=True)


def _is_claimed(annotations: Mapping[str, Any], hint: str, *, unless: bool) -> bool:
    value = annotations.get(hint)
    return value is not None and value is not unless


def in_effect_order(flags: Iterable[str]) -> list[str]:
    """Return effect flags first, in order of severity, then other flags by name."""
    given = set(flags)
    return [*(flag for flag in _ORDER if flag in given), *sorted(given.difference(_ORDER))]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Proposed flags of a tool for a reviewer. They are never applied automatically."""

    tool: str
    flags: tuple[str, ...]
    because: str

    @property
    def line(self) -> str:
        return f"{dumps(self.tool)}: {{flags: [{', '.join(self.flags)}]}}"


def propose_flags(tool: str, *, annotations: Mapping[str, Any], method: str | None = None) -> Proposal:
    """Combine the flags that the upstream claims, the method implies and the name suggests."""
    words = [word.lower() for word in _CAMEL.split(tool) if word]
    claims = find_claimed_flags(annotations)
    implied = frozenset[str]() if method is None else method_flags(method)
    named = _guess_flags(words)
    reasons = [
        *(["the server declares it"] if claims else []),
        *([f"{method} implies it"] if implied else []),
        *(["its name suggests it"] if named else []),
    ]
    if flags := claims | implied | named:
        return Proposal(tool, tuple(in_effect_order(flags)), " and ".join(reasons))
    if method is not None:
        return Proposal(tool, (), f"{method} changes nothing")
    if annotations.get("readOnlyHint") is True:
        return Proposal(tool, (), "the server declares that it only reads")
    if words and words[0] in _READS.split():
        return Proposal(tool, (), "its name suggests that it only reads")
    return Proposal(tool, _ORDER, "its effects are unknown")


def _guess_flags(words: Sequence[str]) -> frozenset[str]:
    """Return the flags that the words of a name suggest; none if the first word is a verb of reading."""
    if not words or words[0] in _READS.split():
        return frozenset()
    destroys, sends = (not set(words).isdisjoint(each.split()) for each in (_DESTROYS, _SENDS))
    writes = destroys or sends or not set(words).isdisjoint(_WRITES.split())
    return frozenset(flag for flag, is_named in zip(_ORDER, (writes, destroys, sends), strict=True) if is_named)


Hint = Literal["readOnly", "destructive", "idempotent", "openWorld"]
TrustField = Literal["tier", "flags", "trusted", "reviewed", "backend"]

_DEFAULT_HINTS: Final[dict[Hint, bool]] = {"readOnly": True, "destructive": False, "openWorld": False}
"""Hints of a tool that declares no flags: it only reads, and has no external effects."""

_EXPIRED_AFTER: Final = 2
"""A review is overdue after its period, and expires after this many periods."""


@dataclass(frozen=True, slots=True)
class Flag:
    """Something that a tool can do. A flag can imply other flags and provides hints for clients."""

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
"""Built-in effect flags; a TrustFlag document of the same name can only add to them."""


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


def add_implied_flags(names: Iterable[str], flags: Mapping[str, Flag]) -> frozenset[str]:
    """Return the flags and all flags that they imply, transitively."""
    found: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += flags[name].implies if name in flags else ()
    return frozenset(found)


def derive_hints(trust: EffectiveTrust, flags: Mapping[str, Flag]) -> dict[Hint, bool]:
    """Return the hints for clients, derived from the flags; none for a tool of unknown effects."""
    if trust.is_unknown:
        return {}
    return most_alarming([_DEFAULT_HINTS, *(flags[name].hints for name in sorted(trust.flags) if name in flags)])


def most_alarming(answers: Iterable[Mapping[Hint, bool]]) -> dict[Hint, bool]:
    """Merge hints; the more alarming value of each wins."""
    hints: dict[Hint, bool] = {}
    for hint, value in (each for answer in answers for each in answer.items()):
        current = hints.get(hint, value)
        hints[hint] = (current or value) if hint in ("destructive", "openWorld") else (current and value)
    return hints


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

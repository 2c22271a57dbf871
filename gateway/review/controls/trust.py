"""How trust is given away: tiers that ask less, flags that say less, tools that are trusted more."""

from collections.abc import Iterator
from typing import Final

from gateway.governance.effects import in_effect_order
from gateway.review.controls.common import Spec, Weakness, at, differs, dropped, is_further, is_longer
from gateway.review.controls.networks import wider_networks
from gateway.snapshot import IN_USE, DeclaredTool

_ORIGINS: Final = ("third-party-public", "third-party-private", "first-party")
GRAVE_FLAGS: Final = ("egress", "destructive", "private-data")


def weaker_tier(before: Spec, after: Spec) -> Iterator[Weakness]:
    if at(after, "rank", 0) < at(before, "rank", 0):
        yield Weakness("tier-rank-lowered", "rank")
    if at(after, "callable", True) and not at(before, "callable", True):
        yield Weakness("tier-callable", "callable")
    if at(after, "mayBeTrusted", False) and not at(before, "mayBeTrusted", False):
        yield Weakness("tier-may-be-trusted", "mayBeTrusted")
    if at(before, "requires.pinned", False) and not at(after, "requires.pinned", False):
        yield Weakness("tier-unpinned", "requires.pinned")
    if is_longer(at(before, "requires.reviewedWithin"), at(after, "requires.reviewedWithin")):
        yield Weakness("tier-review-relaxed", "requires.reviewedWithin")
    for path in ("forbids.flags", "forbids.backends"):
        if names := dropped(before, after, path):
            yield Weakness("tier-forbids-less", path, ", ".join(names))
    if at(before, "forbids.confirmation", False) and not at(after, "forbids.confirmation", False):
        yield Weakness("tier-forbids-less", "forbids.confirmation")
    if names := dropped(before, after, "addsFlags"):
        yield Weakness("tier-adds-less", "addsFlags", ", ".join(names))
    if is_further(at(before, "origin"), at(after, "origin"), order=_ORIGINS):
        yield Weakness("tier-origin", "origin")


def weaker_flag(before: Spec, after: Spec) -> Iterator[Weakness]:
    if names := dropped(before, after, "implies"):
        yield Weakness("flag-implies-less", "implies", ", ".join(names))


def changed_tool(before: Spec, after: Spec) -> Iterator[Weakness]:
    """What its document says; what follows from its tier and flags is `retrusted`'s to tell."""
    if differs(before, after, "backend"):
        yield Weakness("tool-backend", "backend")
    yield from wider_networks(before, after, "backend.networks")
    if at(after, "idempotent", False) and not at(before, "idempotent", False):
        yield Weakness("tool-retried", "idempotent")
    if differs(before, after, "input"):
        yield Weakness("tool-input", "input")
    if differs(before, after, "description"):
        yield Weakness("tool-described", "description")
    if is_longer(at(before, "limits.timeout"), at(after, "limits.timeout")):
        yield Weakness("timeout-raised", "limits.timeout")


def new_tool(tool: DeclaredTool) -> Iterator[Weakness]:
    if flags := [flag for flag in GRAVE_FLAGS if flag in tool.trust.known_flags]:
        yield Weakness("tool-hazardous", "trust.flags", ", ".join(flags))
    if tool.trust.is_unknown:
        yield Weakness("tool-unknown", "trust.flags")
    if tool.trust.trusted:
        yield Weakness("result-trusted", "trust.trusted")


def retrusted(before: DeclaredTool, after: DeclaredTool) -> Iterator[Weakness]:
    """What holds for a tool now and did not, whichever document it comes from."""
    old, new = before.trust, after.trust
    if new.is_unknown and not old.is_unknown:
        yield Weakness("effects-unknown", "trust.flags")
    if old.is_unknown and not new.is_unknown:
        yield Weakness("effects-declared", "trust.flags", ", ".join(in_effect_order(old.flags - new.flags)))
    for flag in sorted(new.known_flags - old.flags):
        if flag in GRAVE_FLAGS:
            yield Weakness(f"flag-{flag}", "trust.flags")
        else:
            yield Weakness("flag-added", "trust.flags", flag)
    if flags := sorted(old.known_flags - new.flags):
        yield Weakness("flag-removed", "trust.flags", ", ".join(flags))
    if new.tier.rank < old.tier.rank and new.tier.name != old.tier.name:
        yield Weakness("tool-more-trusted", "trust.tier", f"{old.tier.name} → {new.tier.name}")
    if new.trusted and not old.trusted:
        yield Weakness("result-trusted", "trust.trusted")
    if new.callable and not old.callable and new.tier.name == old.tier.name and old.tier.callable:
        yield Weakness("tool-callable", "trust.reviewed")
    if before.lifecycle not in IN_USE and after.lifecycle in IN_USE:
        yield Weakness("tool-revived", "lifecycle")

"""Finds weaker tools, tiers, flags, catalogues, pipelines and collision policies."""

from collections.abc import Iterator, Mapping
from typing import Final

from gateway.registries import CALLABLE_LIFECYCLES, ArtifactClass, DeclaredTool, Pipeline, Snapshot, in_effect_order
from gateway.review.weakened_controls.spec_comparison import (
    Spec,
    Weakness,
    find_added,
    find_removed,
    is_different,
    is_later_in_order,
    is_longer,
    value_at_path,
    wider_networks,
)

_HONOURED: Final = ("never", "sameOrHigherTrust", "always")


def weaker_catalogue(before: Spec, after: Spec) -> Iterator[Weakness]:
    forbidden = {frozenset(flags) for flags in value_at_path(after, "forbidTogether", ())}
    for flags in value_at_path(before, "forbidTogether", ()):
        if frozenset(flags) not in forbidden:
            yield Weakness("combination-allowed", "forbidTogether", " + ".join(flags))
    yield from _waivers(before, after)
    if len([each for each in value_at_path(before, "exclude", ()) if each not in value_at_path(after, "exclude", ())]):
        yield Weakness("exclude-removed", "exclude")
    if names := find_added(before, after, "audience"):
        yield Weakness("audience-widened", "audience", ", ".join(names))
    if (
        value_at_path(after, "publish.render", "envelope") == "plain"
        and value_at_path(before, "publish.render", "envelope") != "plain"
    ):
        yield Weakness("envelope-dropped", "publish.render")
    if (
        value_at_path(after, "publish.structured", "raw") == "raw"
        and value_at_path(before, "publish.structured", "raw") != "raw"
    ):
        yield Weakness("json-unmarked", "publish.structured")
    protocols = ("mcp", "http")
    if names := sorted(
        set(value_at_path(after, "publish.as", protocols)) - set(value_at_path(before, "publish.as", protocols))
    ):
        yield Weakness("protocol-added", "publish.as", ", ".join(names))


def new_catalogue(after: Spec) -> Iterator[Weakness]:
    yield from _waivers({}, after)
    if value_at_path(after, "publish.render", "envelope") == "plain":
        yield Weakness("envelope-dropped", "publish.render")


def _waivers(before: Spec, after: Spec) -> Iterator[Weakness]:
    last_days: dict[frozenset[str], str] = {}
    for waiver in value_at_path(before, "waivers", ()):
        flags = frozenset(waiver["forbidTogether"])
        last_days[flags] = max(waiver["until"], last_days.get(flags, ""))
    for waiver in value_at_path(after, "waivers", ()):
        last_day = last_days.get(frozenset(waiver["forbidTogether"]))
        note = f"{' + '.join(waiver['forbidTogether'])} until {waiver['until']}, by {waiver['by']}"
        if last_day is None:
            yield Weakness("waiver-added", "waivers", note)
        elif waiver["until"] > last_day:
            yield Weakness("waiver-prolonged", "waivers", note)


def weaker_collisions(before: Spec, after: Spec) -> Iterator[Weakness]:
    honoured = (value_at_path(before, "honourTool", _HONOURED[1]), value_at_path(after, "honourTool", _HONOURED[1]))
    if is_later_in_order(*honoured, order=_HONOURED):
        yield Weakness("honour-tool-widened", "honourTool")
    for path, strict in (("onCollision", "throw"), ("names.compare", "folded"), ("names.lookalikes", "throw")):
        if value_at_path(before, path, strict) == strict != value_at_path(after, path, strict):
            yield Weakness("collisions-relaxed", path)
    if names := find_removed(before, after, "names.reserved"):
        yield Weakness("collisions-relaxed", "names.reserved", ", ".join(names))
    if value_at_path(before, "order") != value_at_path(after, "order"):
        yield Weakness("collisions-relaxed", "order", "another tool is the incoming one")


_GUARDS: Final = {
    "gates": "pipeline-without-gates",
    "redact": "pipeline-without-redact",
    "timeout": "pipeline-without-timeout",
}


def weaker_pipeline(before: Pipeline, after: Pipeline) -> Iterator[Weakness]:
    """Yield stages and refusals that are missing after the change, in any phase."""
    for phase, uses in before.phases.items():
        for use in uses:
            stage = after.stage(use.name)
            if stage is None:
                yield Weakness(_GUARDS.get(use.name, "pipeline-without-stage"), phase, use.name)
            elif stage.options != use.options:
                yield Weakness("pipeline-options", phase, use.name)
    if flags := sorted(before.refuses - after.refuses):
        yield Weakness("refuses-dropped", "refuses.flags", ", ".join(flags))


def weaker_catalogue_pipelines(before: Snapshot, after: Snapshot) -> Iterator[tuple[str, Weakness]]:
    """Yield catalogues that have another pipeline, by name, with what it lacks."""
    for name, catalogue in after.catalogues.items():
        old = before.catalogues.get(name)
        if old is None or old.pipeline == catalogue.pipeline:
            continue
        for found in weaker_pipeline(before.pipelines[old.pipeline], after.pipelines[catalogue.pipeline]):
            yield name, Weakness(found.code, "pipeline", found.note)


def weaker_results(before: Snapshot, after: Snapshot) -> Iterator[tuple[str, Weakness]]:
    """Yield tools, by name, whose results have another class that masks less or lets them flow further."""
    for name, tool in after.tools.items():
        old = before.tools.get(name)
        if old is None or old.artifact == tool.artifact or old.artifact not in before.artifacts:
            continue
        old_class, new_class = before.artifacts[old.artifact], after.artifacts.get(tool.artifact)
        if _guards_less(old_class, new_class, after.ranks):
            yield name, Weakness("result-reclassified", "output.artifact", f"{old.artifact} → {tool.artifact}")


def _guards_less(before: ArtifactClass, after: ArtifactClass | None, ranks: Mapping[str, int]) -> bool:
    if after is None:
        return bool(before.redact or before.blocked_by or before.max_tier)
    ceilings = [float("inf") if each is None else ranks.get(each, 0) for each in (before.max_tier, after.max_tier)]
    masked, blocked = set(before.redact) - set(after.redact), before.blocked_by - after.blocked_by
    return bool(masked or blocked) or ceilings[1] > ceilings[0]


_ORIGINS: Final = ("third-party-public", "third-party-private", "first-party")
GRAVE_FLAGS: Final = ("egress", "destructive", "private-data")


def weaker_tier(before: Spec, after: Spec) -> Iterator[Weakness]:
    if value_at_path(after, "rank", 0) < value_at_path(before, "rank", 0):
        yield Weakness("tier-rank-lowered", "rank")
    if value_at_path(after, "callable", True) and not value_at_path(before, "callable", True):
        yield Weakness("tier-callable", "callable")
    if value_at_path(after, "mayBeTrusted", False) and not value_at_path(before, "mayBeTrusted", False):
        yield Weakness("tier-may-be-trusted", "mayBeTrusted")
    if value_at_path(before, "requires.pinned", False) and not value_at_path(after, "requires.pinned", False):
        yield Weakness("tier-unpinned", "requires.pinned")
    if is_longer(value_at_path(before, "requires.reviewedWithin"), value_at_path(after, "requires.reviewedWithin")):
        yield Weakness("tier-review-relaxed", "requires.reviewedWithin")
    for path in ("forbids.flags", "forbids.backends"):
        if names := find_removed(before, after, path):
            yield Weakness("tier-forbids-less", path, ", ".join(names))
    if value_at_path(before, "forbids.confirmation", False) and not value_at_path(after, "forbids.confirmation", False):
        yield Weakness("tier-forbids-less", "forbids.confirmation")
    if names := find_removed(before, after, "addsFlags"):
        yield Weakness("tier-adds-less", "addsFlags", ", ".join(names))
    if is_later_in_order(value_at_path(before, "origin"), value_at_path(after, "origin"), order=_ORIGINS):
        yield Weakness("tier-origin", "origin")


def weaker_flag(before: Spec, after: Spec) -> Iterator[Weakness]:
    if names := find_removed(before, after, "implies"):
        yield Weakness("flag-implies-less", "implies", ", ".join(names))


def weaker_tool(before: Spec, after: Spec) -> Iterator[Weakness]:
    """Yield weaker settings of the tool's document; `weaker_trust` handles its tier and flags."""
    if is_different(before, after, "backend"):
        yield Weakness("tool-backend", "backend")
    yield from wider_networks(before, after, "backend.networks")
    if value_at_path(after, "idempotent", False) and not value_at_path(before, "idempotent", False):
        yield Weakness("tool-retried", "idempotent")
    if is_different(before, after, "input"):
        yield Weakness("tool-input", "input")
    if is_different(before, after, "description"):
        yield Weakness("tool-described", "description")
    if is_longer(value_at_path(before, "limits.timeout"), value_at_path(after, "limits.timeout")):
        yield Weakness("timeout-raised", "limits.timeout")


def new_tool(tool: DeclaredTool) -> Iterator[Weakness]:
    if flags := [flag for flag in GRAVE_FLAGS if flag in tool.trust.known_flags]:
        yield Weakness("tool-hazardous", "trust.flags", ", ".join(flags))
    if tool.trust.is_unknown:
        yield Weakness("tool-unknown", "trust.flags")
    if tool.trust.trusted:
        yield Weakness("result-trusted", "trust.trusted")


def weaker_trust(before: DeclaredTool, after: DeclaredTool) -> Iterator[Weakness]:
    """Yield changes of a tool's effective trust, whichever document they come from."""
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
    if before.lifecycle not in CALLABLE_LIFECYCLES and after.lifecycle in CALLABLE_LIFECYCLES:
        yield Weakness("tool-revived", "lifecycle")

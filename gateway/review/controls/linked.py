"""What follows from documents together: calls that escape a gate rule, catalogues and results that are guarded less."""

from collections.abc import Iterator, Mapping
from typing import Final

from gateway.governance.rules import GateRule
from gateway.review.controls.common import Weakness, listed
from gateway.snapshot import ArtifactClass, Pipeline, Snapshot

_GUARDS: Final = {
    "gates": "pipeline-without-gates",
    "redact": "pipeline-without-redact",
    "timeout": "pipeline-without-timeout",
}


def weaker_pipeline(before: Pipeline, after: Pipeline) -> Iterator[Weakness]:
    """Stages and refusals that are there no longer, whichever list they stood in."""
    for phase, uses in before.phases.items():
        for use in uses:
            kept = after.stage(use.name)
            if kept is None:
                yield Weakness(_GUARDS.get(use.name, "pipeline-without-stage"), phase, use.name)
            elif kept.options != use.options:
                yield Weakness("pipeline-options", phase, use.name)
    if flags := sorted(before.refuses - after.refuses):
        yield Weakness("refuses-dropped", "refuses.flags", ", ".join(flags))


def moved_pipelines(before: Snapshot, after: Snapshot) -> Iterator[tuple[str, Weakness]]:
    """Catalogues that go through another pipeline now, by name, with what it lacks."""
    for name, catalogue in after.catalogues.items():
        old = before.catalogues.get(name)
        if old is None or old.pipeline == catalogue.pipeline:
            continue
        for found in weaker_pipeline(before.pipelines[old.pipeline], after.pipelines[catalogue.pipeline]):
            yield name, Weakness(found.code, "pipeline", found.note)


def escapes(before: Snapshot, after: Snapshot) -> Iterator[tuple[str, Weakness]]:
    """Enforced rules, by name, with calls they were about and are no longer, though the calls can still be made."""
    for name, rule in after.gates.items():
        old = before.gates.get(name)
        if old is None or "enforce" not in (old.mode, rule.mode) or old.mode == "disabled":
            continue
        gone = sorted(_about(before, old, rule, after) - _about(after, rule, old, before))
        still = [f"{tool} in {catalogue}" for catalogue, tool in gone if tool in _tools(after, catalogue)]
        if still:
            yield name, Weakness("gate-escaped", "match", listed(still))


def reclassified(before: Snapshot, after: Snapshot) -> Iterator[tuple[str, Weakness]]:
    """Tools, by name, whose results are of another class that masks less or lets them flow further."""
    for name, tool in after.tools.items():
        old = before.tools.get(name)
        if old is None or old.artifact == tool.artifact or old.artifact not in before.artifacts:
            continue
        one, other = before.artifacts[old.artifact], after.artifacts.get(tool.artifact)
        if _guards_less(one, other, after.ranks):
            yield name, Weakness("result-reclassified", "output.artifact", f"{old.artifact} → {tool.artifact}")


def _guards_less(before: ArtifactClass, after: ArtifactClass | None, ranks: Mapping[str, int]) -> bool:
    if after is None:
        return bool(before.redact or before.blocked_by or before.max_tier)
    ceilings = [float("inf") if each is None else ranks.get(each, 0) for each in (before.max_tier, after.max_tier)]
    masked, blocked = set(before.redact) - set(after.redact), before.blocked_by - after.blocked_by
    return bool(masked or blocked) or ceilings[1] > ceilings[0]


def _about(snapshot: Snapshot, rule: GateRule, other: GateRule, against: Snapshot) -> set[tuple[str, str]]:
    """The calls a rule is about. If it reads the same on both sides, only tools that differ need a look."""
    is_same = rule.match == other.match and rule.catalogues == other.catalogues
    found = set()
    for tool in snapshot.tools.values():
        twin = against.tools.get(tool.name)
        if is_same and twin is not None and twin.governed == tool.governed:
            continue
        if rule.match.chooses(tool.governed):
            found.add(tool.name)
    return {
        (catalogue.name, name)
        for catalogue in snapshot.catalogues.values()
        if not rule.catalogues or catalogue.name in rule.catalogues
        for name in found & set(catalogue.tools.values())
    }


def _tools(snapshot: Snapshot, catalogue: str) -> set[str]:
    return set(snapshot.catalogues[catalogue].tools.values()) if catalogue in snapshot.catalogues else set()

"""Controls that disappear or weaken between two snapshots: one rule per kind of document, and those over several."""

from collections.abc import Iterable, Iterator

from gateway.review.changes import Pair
from gateway.review.controls.catalogues import new_catalogue, weaker_catalogue, weaker_collisions
from gateway.review.controls.common import Spec, Weakness
from gateway.review.controls.data import weaker_artifact, weaker_storage, weaker_telemetry
from gateway.review.controls.gates import removed_gate, weaker_gate
from gateway.review.controls.identity import (
    new_provider,
    new_upstream,
    weaker_gateway,
    weaker_provider,
    weaker_upstream,
)
from gateway.review.controls.linked import escapes, moved_pipelines, reclassified, weaker_pipeline
from gateway.review.controls.networks import wider_networks
from gateway.review.controls.trust import changed_tool, new_tool, retrusted, weaker_flag, weaker_tier
from gateway.review.risk import Finding
from gateway.snapshot import Snapshot

__all__ = ["control_findings"]


def control_findings(changed: Iterable[Pair], before: Snapshot, after: Snapshot) -> Iterator[Finding]:
    """What the changed documents loosen, and what follows from them for documents that did not change."""
    for pair in changed:
        for found in _of_document(pair, before, after):
            yield _finding(found, pair.about)
    for name, tool in after.tools.items():
        old = before.tools.get(name)
        for found in new_tool(tool) if old is None else retrusted(old, tool):
            yield _finding(found, f"Tool {name}")
    for name, found in moved_pipelines(before, after):
        yield _finding(found, f"Catalogue {name}")
    for name, found in reclassified(before, after):
        yield _finding(found, f"Tool {name}")
    for name, found in escapes(before, after):
        yield _finding(found, f"GateRule {name}")


def _of_document(pair: Pair, before: Snapshot, after: Snapshot) -> Iterator[Weakness]:
    old: Spec = pair.before.data.get("spec", {}) if pair.before else {}
    new: Spec = pair.after.data.get("spec", {}) if pair.after else {}
    if pair.before is None:
        return _of_new(pair.kind, new)
    if pair.after is None:
        return removed_gate(old) if pair.kind == "GateRule" else _of_removed(pair.kind)
    return _of_changed(pair, old, new, before, after)


def _of_new(kind: str, new: Spec) -> Iterator[Weakness]:
    match kind:
        case "Catalogue":
            yield from new_catalogue(new)
        case "IdentityProvider":
            yield from new_provider(new)
        case "Upstream":
            yield from new_upstream(new)
        case "Tool":
            yield from wider_networks({}, new, "backend.networks")


def _of_removed(kind: str) -> Iterator[Weakness]:
    if kind == "Telemetry":
        yield Weakness("telemetry-reduced")


def _of_changed(pair: Pair, old: Spec, new: Spec, before: Snapshot, after: Snapshot) -> Iterator[Weakness]:
    match pair.kind:
        case "GateRule":
            yield from weaker_gate(old, new)
        case "Pipeline":
            yield from weaker_pipeline(before.pipelines[pair.name], after.pipelines[pair.name])
        case "TrustTier":
            yield from weaker_tier(old, new)
        case "TrustFlag":
            yield from weaker_flag(old, new)
        case "Tool":
            yield from changed_tool(old, new)
        case "Catalogue":
            yield from weaker_catalogue(old, new)
        case "CollisionPolicy":
            yield from weaker_collisions(old, new)
        case "ArtifactClass":
            yield from weaker_artifact(old, new, ranks=after.ranks)
        case "Telemetry":
            yield from weaker_telemetry(old, new)
        case "Storage":
            yield from weaker_storage(old, new)
        case "IdentityProvider":
            yield from weaker_provider(old, new)
        case "Gateway":
            yield from weaker_gateway(old, new, ranks=after.ranks)
        case "Upstream":
            yield from weaker_upstream(old, new, ranks=after.ranks)


def _finding(found: Weakness, about: str) -> Finding:
    return Finding(found.code, about, found.path, found.note)

"""Finds controls that disappear or weaken between two snapshots, by document and across documents."""

from collections.abc import Iterable, Iterator

from gateway.registries import Snapshot
from gateway.review.plan.document_changes import DocumentPair
from gateway.review.plan.risk import RiskFinding
from gateway.review.weakened_controls.gate_rules import calls_without_gate, gate_removal, weaker_gate
from gateway.review.weakened_controls.grant_policies import new_grant_policy, weaker_grant_policy
from gateway.review.weakened_controls.installation import (
    new_provider,
    new_upstream,
    weaker_artifact,
    weaker_gateway,
    weaker_provider,
    weaker_storage,
    weaker_telemetry,
    weaker_upstream,
)
from gateway.review.weakened_controls.spec_comparison import Spec, Weakness, wider_networks
from gateway.review.weakened_controls.tools_and_catalogues import (
    new_catalogue,
    new_tool,
    weaker_catalogue,
    weaker_catalogue_pipelines,
    weaker_collisions,
    weaker_flag,
    weaker_pipeline,
    weaker_results,
    weaker_tier,
    weaker_tool,
    weaker_trust,
)

__all__ = ["control_findings"]


def control_findings(changed: Iterable[DocumentPair], before: Snapshot, after: Snapshot) -> Iterator[RiskFinding]:
    """Yield what the changed documents weaken, also for documents that did not change themselves."""
    for pair in changed:
        for found in _of_document(pair, before, after):
            yield _to_finding(found, pair.about)
    for name, tool in after.tools.items():
        old = before.tools.get(name)
        for found in new_tool(tool) if old is None else weaker_trust(old, tool):
            yield _to_finding(found, f"Tool {name}")
    for name, found in weaker_catalogue_pipelines(before, after):
        yield _to_finding(found, f"Catalogue {name}")
    for name, found in weaker_results(before, after):
        yield _to_finding(found, f"Tool {name}")
    for name, found in calls_without_gate(before, after):
        yield _to_finding(found, f"GateRule {name}")


def _of_document(pair: DocumentPair, before: Snapshot, after: Snapshot) -> Iterator[Weakness]:
    old: Spec = pair.before.data.get("spec", {}) if pair.before else {}
    new: Spec = pair.after.data.get("spec", {}) if pair.after else {}
    if pair.before is None:
        return _of_new(pair.kind, new)
    if pair.after is None:
        return gate_removal(old) if pair.kind == "GateRule" else _of_removal(pair.kind)
    return _of_change(pair, old, new, before, after)


def _of_new(kind: str, new: Spec) -> Iterator[Weakness]:
    match kind:
        case "Catalogue":
            yield from new_catalogue(new)
        case "IdentityProvider":
            yield from new_provider(new)
        case "GrantPolicy":
            yield from new_grant_policy(new)
        case "Upstream":
            yield from new_upstream(new)
        case "Tool":
            yield from wider_networks({}, new, "backend.networks")


def _of_removal(kind: str) -> Iterator[Weakness]:
    if kind == "Telemetry":
        yield Weakness("telemetry-reduced")


def _of_change(pair: DocumentPair, old: Spec, new: Spec, before: Snapshot, after: Snapshot) -> Iterator[Weakness]:
    match pair.kind:
        case "GateRule":
            yield from weaker_gate(old, new)
        case "GrantPolicy":
            yield from weaker_grant_policy(old, new)
        case "Pipeline":
            yield from weaker_pipeline(before.pipelines[pair.name], after.pipelines[pair.name])
        case "TrustTier":
            yield from weaker_tier(old, new)
        case "TrustFlag":
            yield from weaker_flag(old, new)
        case "Tool":
            yield from weaker_tool(old, new)
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


def _to_finding(found: Weakness, about: str) -> RiskFinding:
    return RiskFinding(found.code, about, found.path, found.note)

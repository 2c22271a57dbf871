"""Link checked documents to one immutable snapshot.

Linking continues after problems, so that one run reports all of them. A snapshot is returned only if there is no error.
Checks that depend on the date use the given day, never the clock.

The snapshot is frozen, because all requests share it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final

from pydantic import ValidationError

from gateway.config.kinds.common_specs import SpecModel
from gateway.config.kinds.installation import GatewayDocument
from gateway.config.kinds.pipelines import PipelineDocument, parse_stage_options
from gateway.config.linking.advertised_names import import_prefix, link_collision_policies
from gateway.config.linking.artifact_classes import link_artifacts, link_queries, list_query_names
from gateway.config.linking.catalogues import CatalogueInputs, link_catalogues, link_pipelines
from gateway.config.linking.document_index import DocumentIndex, index_documents
from gateway.config.linking.gate_rules import check_case_tools, link_cases, link_gate_rules
from gateway.config.linking.grants import link_grant_policies
from gateway.config.linking.installation_checks import check_anchors, check_store_encryption, find_exposing_programs
from gateway.config.linking.policy_checks import (
    check_token_expiry,
    find_known_callers,
    find_resettable_rules,
    find_unreached_rules,
)
from gateway.config.linking.tools import build_placeholder_tools, link_tools
from gateway.config.linking.trust import link_trust_vocabulary
from gateway.config.linking.upstream_imports import check_tool_references, link_definitions, review_definitions
from gateway.config.loader import ConfigDocuments
from gateway.model import freeze
from gateway.registries import (
    CONTENT,
    PHASES,
    DeclaredDocument,
    Diagnostic,
    DocumentRegistry,
    Position,
    Snapshot,
    UpstreamDefinition,
    sort_diagnostics,
)

_NOT_LINKED: Final = frozenset({"Overlay", "PolicyTest", "Attestation"})
"""Kinds that decide nothing: a change of them is no new revision."""


@dataclass(frozen=True, slots=True)
class LinkResult:
    """`snapshot` is `None` if loading or linking found errors."""

    snapshot: Snapshot | None
    diagnostics: tuple[Diagnostic, ...]


def link_documents(
    loaded: ConfigDocuments,
    *,
    today: date,
    packages: Collection[str] = (),
    imports: Collection[UpstreamDefinition] = (),
) -> LinkResult:
    """Link the documents as of a day. Python code may be imported from `packages`."""
    checked = [(each.spec, each.source) for each in loaded.documents]
    found = index_documents(
        checked,
        names=loaded.names,
        is_complete=not loaded.has_errors,
        today=today,
        input_schemas=loaded.input_schemas,
    )
    unknown_tools = list(check_tool_references(found, queries=list_query_names(found, packages=packages)))
    if unknown_tools:  # idle selectors and unpublished tools may only be consequences
        found = replace(found, is_complete=False)
    snapshot, problems = _snapshot(found, packages=packages, imports=imports)
    diagnostics = sort_diagnostics([*loaded.diagnostics, *loaded.drop_follow_ups([*unknown_tools, *problems])])
    is_sound = not any(each.is_error for each in diagnostics)
    return LinkResult(snapshot if is_sound else None, tuple(diagnostics))


def _snapshot(
    found: DocumentIndex, *, packages: Collection[str], imports: Collection[UpstreamDefinition]
) -> tuple[Snapshot | None, list[Diagnostic]]:
    gateway = found.get_single(GatewayDocument)
    defaults = gateway.document.spec.defaults if gateway else None
    scale = link_trust_vocabulary(found, default_tier=defaults.tier if defaults else None)
    artifacts, problems = link_artifacts(found, packages=packages)
    tools, of_tools = link_tools(found, scale, imports=imports, packages=packages)
    offers, of_offers = link_definitions(found, scale, imports=imports)
    prospects = build_placeholder_tools(found, scale, imports=imports)
    queries = link_queries(tools.values(), artifacts)
    gates, of_gates = link_gate_rules(found, tools, offers=offers, queries=queries, prospects=prospects)
    grants, of_grants = link_grant_policies(found)
    problems += [
        *of_tools,
        *of_offers,
        *review_definitions(found, imports),
        *of_gates,
        *of_grants,
        *check_token_expiry(found),
        *check_anchors(found),
        *check_store_encryption(found),
        *find_exposing_programs(found),
    ]
    if gateway is None or defaults is None:
        return None, problems
    pipelines, policies = link_pipelines(found), link_collision_policies(found)
    named = (defaults.pipeline, defaults.collision_policy)
    parts = CatalogueInputs(tools, scale.tiers, pipelines, policies, *named, prospects, offers, artifacts)
    catalogues, of_catalogues = link_catalogues(found, parts)
    problems += of_catalogues
    problems += find_unreached_rules(found, gates, tools, catalogues, prospects)
    problems += find_resettable_rules(found, gates, tools, catalogues)
    problems += check_case_tools(
        found,
        advertised={
            CONTENT,
            *(name for catalogue in catalogues.values() for name in catalogue.tools),
            *(name for schemas in queries.values() for name in schemas),
        },
        prefixes={import_prefix(policy, tool.upstream or "") for policy in policies.values() for tool in prospects},
    )
    roles, subjects = find_known_callers(found)
    snapshot = Snapshot(
        gateway.name,
        _registries(found),
        flags=scale.flags,
        tiers=scale.tiers,
        artifacts=artifacts,
        collision_policies=policies,
        gates=gates,
        pipelines=pipelines,
        tools=tools,
        catalogues=catalogues,
        default_catalogue=defaults.catalogue,
        cases=tuple(link_cases(found)),
        roles=roles,
        subjects=subjects,
        offers=offers,
        queries=queries,
        grants=grants,
    )
    return freeze(snapshot, unchangeable=frozenset({Position})), problems


def _registries(found: DocumentIndex) -> Mapping[str, DocumentRegistry]:
    """Return every document by kind and name, as plain data without defaults."""
    registries: dict[str, dict[str, DeclaredDocument]] = {}
    for entry in found.documents:
        data = _plain(entry.document)
        kind = data.pop("kind")
        if kind in _NOT_LINKED:
            continue
        if isinstance(entry.document, PipelineDocument):
            _normalise_stages(data["spec"])
        owner = data["metadata"].get("owner")
        registries.setdefault(kind, {})[entry.name] = DeclaredDocument(kind, entry.name, owner, entry.position, data)
    return registries


def _plain(spec: SpecModel) -> dict[str, Any]:
    return spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, context={"references": True})


def _normalise_stages(spec: dict[str, Any]) -> None:
    """Normalise the options of built-in stages like other fields, so that `60s` equals `1m`."""
    for stage in (stage for phase in PHASES for stage in spec.get(phase, ())):
        try:
            options = _plain(parse_stage_options(stage["use"], stage.get("with", {})))
        except (KeyError, ValidationError):  # a plug-in stage, or invalid options that are already reported
            continue
        stage.pop("with", None)
        if options:
            stage["with"] = options

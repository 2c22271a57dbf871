"""From checked documents to one immutable snapshot: what they mean together.

Linking goes on after problems, so that one run shows all of them; a snapshot comes out only if there is no error.
What depends on the day is asked about the day that is given, never about the clock.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final

from pydantic import ValidationError

from gateway.config.linking.anchors import anchors_within_reach
from gateway.config.linking.artifacts import link_artifacts
from gateway.config.linking.cases import expired_tokens, known_callers, link_cases, unknown_calls
from gateway.config.linking.catalogues import Parts, link_catalogues
from gateway.config.linking.entries import Entries, entries
from gateway.config.linking.frozen import frozen
from gateway.config.linking.gates import link_gates
from gateway.config.linking.mentions import unknown_tools
from gateway.config.linking.naming import link_collision_policies, prefix_of
from gateway.config.linking.offers import link_offers
from gateway.config.linking.pipelines import link_pipelines
from gateway.config.linking.prospects import find_prospects
from gateway.config.linking.queries import conceivable_queries, link_queries
from gateway.config.linking.reach import programs_in_reach
from gateway.config.linking.reviewing import review_imports
from gateway.config.linking.rule_matches import unreached_rules
from gateway.config.linking.rule_memory import forgetful_rules
from gateway.config.linking.stores import stores_in_clear
from gateway.config.linking.tools import link_tools
from gateway.config.linking.trust import link_scale
from gateway.config.loader import Loaded
from gateway.config.specs.base import Spec
from gateway.config.specs.gateway import GatewayDocument
from gateway.config.specs.pipelines import PipelineDocument
from gateway.config.specs.stages import stage_options
from gateway.governance.diagnostics import Diagnostic, in_order
from gateway.governance.imports import ImportedDefinition
from gateway.governance.stages import PHASES
from gateway.snapshot import CONTENT, Declared, Registry, Snapshot

_NOT_LINKED: Final = frozenset({"Overlay", "PolicyTest"})


@dataclass(frozen=True, slots=True)
class Linked:
    """`snapshot` is `None` if there are errors, here or where the documents were loaded."""

    snapshot: Snapshot | None
    diagnostics: tuple[Diagnostic, ...]


def link(
    loaded: Loaded, *, today: date, packages: Collection[str] = (), imports: Collection[ImportedDefinition] = ()
) -> Linked:
    """Link the documents as of a day. `packages` are those that Python code may be imported from."""
    checked = [(each.spec, each.source) for each in loaded.documents]
    found = entries(checked, names=loaded.names, is_complete=not loaded.has_errors, today=today)
    misspelled = list(unknown_tools(found, queries=conceivable_queries(found, packages=packages)))
    if misspelled:  # what then chooses nothing, or is published by nobody, only follows from that
        found = replace(found, is_complete=False)
    snapshot, problems = _snapshot(found, packages=packages, imports=imports)
    diagnostics = in_order([*loaded.diagnostics, *loaded.without_echoes([*misspelled, *problems])])
    is_sound = not any(each.is_error for each in diagnostics)
    return Linked(snapshot if is_sound else None, tuple(diagnostics))


def _snapshot(
    found: Entries, *, packages: Collection[str], imports: Collection[ImportedDefinition]
) -> tuple[Snapshot | None, list[Diagnostic]]:
    gateway = found.only(GatewayDocument)
    defaults = gateway.document.spec.defaults if gateway else None
    scale = link_scale(found, default_tier=defaults.tier if defaults else None)
    artifacts, problems = link_artifacts(found, packages=packages)
    tools, of_tools = link_tools(found, scale, imports=imports, packages=packages)
    offers, of_offers = link_offers(found, scale, imports=imports)
    prospects = find_prospects(found, scale, imports=imports)
    queries = link_queries(tools.values(), artifacts)
    gates, of_gates = link_gates(found, tools, offers=offers, queries=queries, prospects=prospects)
    problems += [
        *of_tools,
        *of_offers,
        *review_imports(found, imports),
        *of_gates,
        *expired_tokens(found),
        *anchors_within_reach(found),
        *stores_in_clear(found),
        *programs_in_reach(found),
    ]
    if gateway is None or defaults is None:
        return None, problems
    pipelines, policies = link_pipelines(found), link_collision_policies(found)
    named = (defaults.pipeline, defaults.collision_policy)
    parts = Parts(tools, scale.tiers, pipelines, policies, *named, prospects, offers, artifacts)
    catalogues, of_catalogues = link_catalogues(found, parts)
    problems += of_catalogues
    problems += unreached_rules(found, gates, tools, catalogues, prospects)
    problems += forgetful_rules(found, gates, tools, catalogues)
    problems += unknown_calls(
        found,
        advertised={
            CONTENT,
            *(name for catalogue in catalogues.values() for name in catalogue.tools),
            *(name for schemas in queries.values() for name in schemas),
        },
        prefixes={prefix_of(policy, tool.upstream or "") for policy in policies.values() for tool in prospects},
    )
    roles, subjects = known_callers(found)
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
    )
    return frozen(snapshot), problems


def _registries(found: Entries) -> Mapping[str, Registry]:
    """Every document by kind and name, as plain data without what is only a default."""
    registries: dict[str, dict[str, Declared]] = {}
    for entry in found.documents:
        data = _plain(entry.document)
        kind = data.pop("kind")
        if kind in _NOT_LINKED:
            continue
        if isinstance(entry.document, PipelineDocument):
            _normalise_stages(data["spec"])
        owner = data["metadata"].get("owner")
        registries.setdefault(kind, {})[entry.name] = Declared(kind, entry.name, owner, entry.position, data)
    return registries


def _plain(spec: Spec) -> dict[str, Any]:
    return spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, context={"references": True})


def _normalise_stages(spec: dict[str, Any]) -> None:
    """Options of stages are free in the document's shape; as their stage reads them, `60s` is `1m` here, too."""
    for stage in (stage for phase in PHASES for stage in spec.get(phase, ())):
        try:
            options = _plain(stage_options(stage["use"], stage.get("with", {})))
        except (KeyError, ValidationError):  # a stage from elsewhere, or options that have been told to be wrong
            continue
        stage.pop("with", None)
        if options:
            stage["with"] = options

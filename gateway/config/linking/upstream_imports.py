"""Link prompts and resource groups of upstreams, check references to their tools, report review findings.

Prompts and resources have the trust that the import declares. Only the server knows its current resources, so documents
declare groups of them by URI pattern.

A tool that a selector names without `*` must be declared, or an upstream's import must be able to provide it.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import date
from typing import Final
from urllib.parse import urlsplit

from gateway.backends import REQUEST_META
from gateway.config.kinds.catalogues import CatalogueDocument
from gateway.config.kinds.gate_rules import GateRuleDocument
from gateway.config.kinds.tools import ToolDocument
from gateway.config.kinds.upstreams import (
    DefinitionReviewSpec,
    DefinitionWaiverSpec,
    ImportSelectionSpec,
    ImportSpec,
    ResourceGroupSpec,
    StdioTransport,
    UpstreamDocument,
)
from gateway.config.linking.document_index import DocumentEntry, DocumentIndex
from gateway.config.linking.tool_effects import effects_of_terms
from gateway.config.linking.trust import TrustVocabulary, link_trust
from gateway.config.yaml.document import DocumentPath
from gateway.model import NAME_REGEX, glob_matches
from gateway.registries import (
    DeclaredDefinition,
    Diagnostic,
    EffectiveTrust,
    ReviewContext,
    UpstreamDefinition,
    other_upstream_tools,
    review_definition,
    suggest_name,
)


def check_tool_references(entries: DocumentIndex, *, queries: frozenset[str] = frozenset()) -> Iterator[Diagnostic]:
    """Report unknown tools in selectors. `queries` are names of query tools, which only gate rules may use."""
    for catalogue in entries.of(CatalogueDocument).values():
        spec = catalogue.document.spec
        for field, selectors in (("include", spec.include), ("exclude", spec.exclude)):
            for index, selector in enumerate(selectors):
                yield from _find_unknown(entries, catalogue, ("spec", field, index, "tools"), selector.tools)
    for rule in entries.of(GateRuleDocument).values():
        yield from _find_unknown(entries, rule, ("spec", "match", "tools"), rule.document.spec.match.tools, queries)


def _find_unknown(
    entries: DocumentIndex,
    entry: DocumentEntry[CatalogueDocument] | DocumentEntry[GateRuleDocument],
    path: DocumentPath,
    names: tuple[str, ...],
    queries: frozenset[str] = frozenset(),
) -> Iterator[Diagnostic]:
    declared = entries.names.get("Tool", frozenset()) | queries
    for index, name in enumerate(names):
        if "*" in name or name in declared:
            continue
        upstream = next(
            (each for each in sorted(entries.names.get("Upstream", ())) if name.startswith(f"{each}.")), None
        )
        if upstream is None:
            help = suggest_name(name, declared) or "write an imported tool as upstream.tool"
        elif _may_be_imported(entries, name, upstream):
            continue
        else:
            help = f"spec.import of Upstream {upstream} does not include it"
        yield entry.problem("unknown-reference", f"there is no Tool {name!r}", (*path, index), help=help)


def _may_be_imported(entries: DocumentIndex, name: str, upstream: str) -> bool:
    """Whether the upstream's import may provide the tool. True if the Upstream document has errors."""
    found = entries.of(UpstreamDocument).get(upstream)
    return found is None or imports_tool(name.removeprefix(f"{upstream}."), found.document.spec.import_)


def matches_import_filter(definition: UpstreamDefinition, terms: ImportSpec) -> bool:
    """Whether an upstream's import includes a definition of any kind."""
    if definition.kind == "tool":
        return imports_tool(definition.name, terms) and _is_selected(definition, terms.select)
    if definition.kind == "prompt":
        return any(glob_matches(definition.name, pattern) for pattern in terms.prompts)
    uri = definition.given.get("uriTemplate")
    return any(glob_matches(uri, pattern) for group in terms.resources for pattern in group.uris)


def _is_selected(definition: UpstreamDefinition, select: ImportSelectionSpec | None) -> bool:
    """Whether `select` matches an operation. Definitions do not contain tags or operationIds, so these are ignored."""
    request = (definition.given.get("_meta") or {}).get(REQUEST_META)
    if select is None or not isinstance(request, Mapping):
        return True
    by_path = not select.paths or any(glob_matches(request.get("path"), pattern) for pattern in select.paths)
    return by_path and (not select.methods or request.get("method") in select.methods)


def imports_tool(name: str, terms: ImportSpec) -> bool:
    """Whether an upstream's import includes its tool of that name."""
    included = any(glob_matches(name, pattern) for pattern in terms.include)
    return included and not any(glob_matches(name, pattern) for pattern in terms.exclude)


_NAME: Final = re.compile(NAME_REGEX)


def link_definitions(
    entries: DocumentIndex, scale: TrustVocabulary, *, imports: Collection[UpstreamDefinition]
) -> tuple[dict[str, DeclaredDefinition], list[Diagnostic]]:
    """Return prompts and resource groups by policy object, sorted by upstream and name. Trust is checked with tools."""
    linked: dict[str, DeclaredDefinition] = {}
    problems: list[Diagnostic] = []
    for name, entry in sorted(entries.of(UpstreamDocument).items()):
        terms = entry.document.spec.import_
        selected = [each for each in imports if each.upstream == name and matches_import_filter(each, terms)]
        prompts = [each for each in selected if each.kind == "prompt"]
        problems += _bad_names(entry, prompts)
        found = [offer for each in prompts if _NAME.fullmatch(each.name) and (offer := _prompt(entry, each, scale))]
        templates = [each for each in selected if each.kind == "resourceTemplate"]
        groups = [_link_group(entry, each, templates, scale) for each in terms.resources]
        linked |= {each.object: each for each in (*sorted(found, key=lambda each: each.name), *groups) if each}
    return linked, problems


def _prompt(
    entry: DocumentEntry[UpstreamDocument], prompt: UpstreamDefinition, scale: TrustVocabulary
) -> DeclaredDefinition | None:
    trust = _trust(entry, scale, pinned=prompt.is_pinned)
    if trust is None:
        return None
    return DeclaredDefinition(
        "prompt",
        prompt.identity,
        entry.name,
        prompt.name,
        trust,
        entry.position_at("spec", "import"),
        given=prompt.given,
        labels=dict(entry.document.metadata.labels),
        pinned_digest=prompt.digest if prompt.is_pinned else None,
    )


def _link_group(
    entry: DocumentEntry[UpstreamDocument],
    group: ResourceGroupSpec,
    templates: Collection[UpstreamDefinition],
    scale: TrustVocabulary,
) -> DeclaredDefinition | None:
    """Return a resource group. Unless `onChange` is `accept`, templates that are not pinned are left out."""
    trust = _trust(entry, scale, pinned=True)
    if trust is None:
        return None
    accepts = entry.document.spec.import_.on_change == "accept"
    shown = [each for each in templates if (each.is_pinned or accepts) and _belongs_to(each, group)]
    return DeclaredDefinition(
        "resource",
        f"{entry.name}.{group.name}",
        entry.name,
        group.name,
        trust,
        entry.position_at("spec", "import"),
        uris=group.uris,
        templates=tuple(each.given for each in shown),
        labels=dict(entry.document.metadata.labels),
    )


def _belongs_to(template: UpstreamDefinition, group: ResourceGroupSpec) -> bool:
    return any(glob_matches(template.given["uriTemplate"], pattern) for pattern in group.uris)


def _trust(entry: DocumentEntry[UpstreamDocument], scale: TrustVocabulary, *, pinned: bool) -> EffectiveTrust | None:
    terms = entry.document.spec.import_
    path = ("spec", "import", "trust")
    stated = effects_of_terms(entry.document.spec)
    trust, _ = link_trust(entry, terms.trust, path, stated, scale=scale, backend="mcp", imported=True, pinned=pinned)
    return trust


def _bad_names(entry: DocumentEntry[UpstreamDocument], prompts: Collection[UpstreamDefinition]) -> Iterator[Diagnostic]:
    for each in prompts:
        if not _NAME.fullmatch(each.name):
            message = f"{each.identity} is left out: its name has characters that policies do not support"
            yield Diagnostic("bad-definition", message, each.position or entry.position_at("spec", "import"), "warning")


OWN_SOURCE = "this gateway"


def review_definitions(entries: DocumentIndex, imports: Collection[UpstreamDefinition]) -> Iterator[Diagnostic]:
    """Yield review findings in imported definitions. A waiver suppresses a finding through its last day."""
    names: dict[str, list[str]] = {OWN_SOURCE: list(entries.of(ToolDocument))}
    for each in imports:
        if each.kind == "tool":
            names.setdefault(each.upstream, []).append(each.name)
    for name, entry in entries.of(UpstreamDocument).items():
        terms = entry.document.spec.review or DefinitionReviewSpec.model_construct()
        around = ReviewContext(other_upstream_tools(name, names), hosts=(*terms.hosts, *_own_hosts(entry)))
        found = [
            (each, finding) for each in imports if each.upstream == name for finding in review_definition(each, around)
        ]
        yield from _apply_waivers(entry, found, terms.waivers, today=entries.today)


def _apply_waivers(
    entry: DocumentEntry[UpstreamDocument],
    found: list[tuple[UpstreamDefinition, Diagnostic]],
    waivers: tuple[DefinitionWaiverSpec, ...],
    *,
    today: date,
) -> Iterator[Diagnostic]:
    used: set[int] = set()
    for definition, finding in found:
        fitting = [index for index, each in enumerate(waivers) if _covers(each, definition, finding)]
        used.update(fitting)
        if not any(today <= waivers[index].until for index in fitting):
            ended = [("the expired waiver", entry.position_at("spec", "review", "waivers", each)) for each in fitting]
            yield replace(finding, related=[*finding.related, *ended])
    for index, waiver in enumerate(waivers):
        place = ("spec", "review", "waivers", index)
        if index not in used:
            message = "the waiver is not needed: the review has no such finding"
            yield entry.problem("idle-waiver", message, (*place, "finding"), help="remove it", severity="warning")
        elif today > waiver.until:
            message = f"the waiver has expired, and {waiver.definition} still has the finding {waiver.finding}"
            help = "have the definition fixed, exclude it, or have the waiver renewed"
            yield entry.problem("waiver-expired", message, (*place, "until"), help=help)


def _covers(waiver: DefinitionWaiverSpec, definition: UpstreamDefinition, finding: Diagnostic) -> bool:
    return waiver.finding == finding.code and glob_matches(definition.name, waiver.definition)


def _own_hosts(entry: DocumentEntry[UpstreamDocument]) -> Iterator[str]:
    """Yield the host of the server, which its definitions may mention."""
    transport = entry.document.spec.transport
    if not isinstance(transport, StdioTransport):
        address = transport.server if transport.type == "openapi" else transport.url
        host = urlsplit(address).hostname
        if host is not None:
            yield host.casefold()

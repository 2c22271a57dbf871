"""Tools that selections name without a star: each is declared, or is one that an upstream could bring."""

from collections.abc import Iterator, Mapping

from gateway.config.linking.entries import Entries, Entry
from gateway.config.nodes import Path
from gateway.config.specs.catalogues import CatalogueDocument
from gateway.config.specs.gates import GateRuleDocument
from gateway.config.specs.upstreams import Import, Select, UpstreamDocument
from gateway.governance.diagnostics import Diagnostic, did_you_mean
from gateway.governance.globs import glob_matches
from gateway.governance.imports import ImportedDefinition
from gateway.openapi.importing import REQUEST


def unknown_tools(entries: Entries, *, queries: frozenset[str] = frozenset()) -> Iterator[Diagnostic]:
    """`queries` are the names of query tools, which rules may name and catalogues may not."""
    for catalogue in entries.of(CatalogueDocument).values():
        spec = catalogue.document.spec
        for field, selectors in (("include", spec.include), ("exclude", spec.exclude)):
            for index, selector in enumerate(selectors):
                yield from _unknown(entries, catalogue, ("spec", field, index, "tools"), selector.tools)
    for rule in entries.of(GateRuleDocument).values():
        yield from _unknown(entries, rule, ("spec", "match", "tools"), rule.document.spec.match.tools, queries)


def _unknown(
    entries: Entries,
    entry: Entry[CatalogueDocument] | Entry[GateRuleDocument],
    path: Path,
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
            help = did_you_mean(name, declared) or "an imported tool is named by its upstream: upstream.tool"
        elif _may_be_brought(entries, name, upstream):
            continue
        else:
            help = f"the terms of Upstream {upstream} do not let it in"
        yield entry.problem("unknown-reference", f"there is no Tool {name!r}", (*path, index), help=help)


def _may_be_brought(entries: Entries, name: str, upstream: str) -> bool:
    """Whether an upstream's terms let the tool in; what terms of the wrong shape let in nobody knows."""
    found = entries.of(UpstreamDocument).get(upstream)
    return found is None or is_imported(name.removeprefix(f"{upstream}."), found.document.spec.import_)


def is_let_in(definition: ImportedDefinition, terms: Import) -> bool:
    """Whether an upstream's terms let in a definition, of whichever kind."""
    if definition.kind == "tool":
        return is_imported(definition.name, terms) and _is_selected(definition, terms.select)
    if definition.kind == "prompt":
        return any(glob_matches(definition.name, pattern) for pattern in terms.prompts)
    uri = definition.given.get("uriTemplate")
    return any(glob_matches(uri, pattern) for group in terms.resources for pattern in group.uris)


def _is_selected(definition: ImportedDefinition, select: Select | None) -> bool:
    """Whether a selection has an operation, as far as its definition tells: not which tags or which id it has."""
    request = (definition.given.get("_meta") or {}).get(REQUEST)
    if select is None or not isinstance(request, Mapping):
        return True
    by_path = not select.paths or any(glob_matches(request.get("path"), pattern) for pattern in select.paths)
    return by_path and (not select.methods or request.get("method") in select.methods)


def is_imported(name: str, terms: Import) -> bool:
    """Whether an upstream's terms let in its tool of that name."""
    included = any(glob_matches(name, pattern) for pattern in terms.include)
    return included and not any(glob_matches(name, pattern) for pattern in terms.exclude)

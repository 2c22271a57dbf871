"""Tools that selections name without a star: each must be declared, or be one that an upstream could bring."""

from collections.abc import Iterator

from gateway.config.linking.entries import Entries, Entry
from gateway.config.nodes import Path
from gateway.config.specs.catalogues import CatalogueDocument
from gateway.config.specs.gates import GateRuleDocument
from gateway.governance.diagnostics import Diagnostic, did_you_mean


def unknown_tools(entries: Entries) -> Iterator[Diagnostic]:
    for catalogue in entries.of(CatalogueDocument).values():
        spec = catalogue.document.spec
        for field, selectors in (("include", spec.include), ("exclude", spec.exclude)):
            for index, selector in enumerate(selectors):
                yield from _unknown(entries, catalogue, ("spec", field, index, "tools"), selector.tools)
    for rule in entries.of(GateRuleDocument).values():
        yield from _unknown(entries, rule, ("spec", "match", "tools"), rule.document.spec.match.tools)


def _unknown(
    entries: Entries, entry: Entry[CatalogueDocument] | Entry[GateRuleDocument], path: Path, names: tuple[str, ...]
) -> Iterator[Diagnostic]:
    declared = entries.names.get("Tool", frozenset())
    upstreams = tuple(f"{name}." for name in entries.names.get("Upstream", ()))
    for index, name in enumerate(names):
        if "*" not in name and name not in declared and not name.startswith(upstreams):
            help = did_you_mean(name, declared) or "an imported tool is named by its upstream: upstream.tool"
            yield entry.problem("unknown-reference", f"there is no Tool {name!r}", (*path, index), help=help)

"""Tools that selections name without a star: each is declared, or is one that an upstream could bring."""

from collections.abc import Iterator

from gateway.config.linking.entries import Entries, Entry
from gateway.config.nodes import Path
from gateway.config.specs.catalogues import CatalogueDocument
from gateway.config.specs.gates import GateRuleDocument
from gateway.config.specs.upstreams import Import, UpstreamDocument
from gateway.governance.diagnostics import Diagnostic, did_you_mean
from gateway.governance.globs import glob_matches


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
    for index, name in enumerate(names):
        if "*" not in name and name not in declared and not _may_be_brought(entries, name):
            help = did_you_mean(name, declared) or "an imported tool is named by its upstream: upstream.tool"
            yield entry.problem("unknown-reference", f"there is no Tool {name!r}", (*path, index), help=help)


def _may_be_brought(entries: Entries, name: str) -> bool:
    """Whether it is an imported tool's name; of an upstream whose shape is wrong, every name may be."""
    upstreams = entries.of(UpstreamDocument)
    for upstream in entries.names.get("Upstream", ()):
        remote = name.removeprefix(f"{upstream}.")
        if remote != name:
            entry = upstreams.get(upstream)
            return entry is None or is_imported(remote, entry.document.spec.import_)
    return False


def is_imported(name: str, terms: Import) -> bool:
    """Whether an upstream's terms let in its tool of that name."""
    included = any(glob_matches(name, pattern) for pattern in terms.include)
    return included and not any(glob_matches(name, pattern) for pattern in terms.exclude)

"""Findings in the definitions that upstreams bring, without those that somebody bears until a day."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import date
from urllib.parse import urlsplit

from gateway.config.linking.entries import Entries, Entry
from gateway.config.specs.tools import ToolDocument
from gateway.config.specs.upstreams import DefinitionReview, DefinitionWaiver, StdioTransport, UpstreamDocument
from gateway.governance.diagnostics import Diagnostic
from gateway.governance.globs import glob_matches
from gateway.governance.imports import ImportedDefinition
from gateway.vetting.reviewing import Surroundings, others_of, review

OURS = "this gateway"


def review_imports(entries: Entries, imports: Collection[ImportedDefinition]) -> Iterator[Diagnostic]:
    """What deserves a look in what is imported. A waiver lifts a finding up to and including its last day."""
    names: dict[str, list[str]] = {OURS: list(entries.of(ToolDocument))}
    for each in imports:
        if each.kind == "tool":
            names.setdefault(each.upstream, []).append(each.name)
    for name, entry in entries.of(UpstreamDocument).items():
        terms = entry.document.spec.review or DefinitionReview.model_construct()
        around = Surroundings(others_of(name, names), hosts=(*terms.hosts, *_own_hosts(entry)))
        found = [(each, finding) for each in imports if each.upstream == name for finding in review(each, around)]
        yield from _borne(entry, found, terms.waivers, today=entries.today)


def _borne(
    entry: Entry[UpstreamDocument],
    found: list[tuple[ImportedDefinition, Diagnostic]],
    waivers: tuple[DefinitionWaiver, ...],
    *,
    today: date,
) -> Iterator[Diagnostic]:
    used: set[int] = set()
    for definition, finding in found:
        fitting = [index for index, each in enumerate(waivers) if _covers(each, definition, finding)]
        used.update(fitting)
        if not any(today <= waivers[index].until for index in fitting):
            ended = [("the waiver that ended", entry.at("spec", "review", "waivers", each)) for each in fitting]
            yield replace(finding, related=[*finding.related, *ended])
    for index, waiver in enumerate(waivers):
        place = ("spec", "review", "waivers", index)
        if index not in used:
            message = "the waiver is not needed: nothing that it is about is found"
            yield entry.problem("idle-waiver", message, (*place, "finding"), help="remove it", severity="warning")
        elif today > waiver.until:
            message = f"the waiver has ended, and {waiver.finding} is still found in {waiver.definition}"
            help = "have the definition mended, exclude it, or have the waiver renewed"
            yield entry.problem("waiver-expired", message, (*place, "until"), help=help)


def _covers(waiver: DefinitionWaiver, definition: ImportedDefinition, finding: Diagnostic) -> bool:
    return waiver.finding == finding.code and glob_matches(definition.name, waiver.definition)


def _own_hosts(entry: Entry[UpstreamDocument]) -> Iterator[str]:
    """A server may speak of its own host."""
    transport = entry.document.spec.transport
    if not isinstance(transport, StdioTransport):
        address = transport.server if transport.type == "openapi" else transport.url
        host = urlsplit(address).hostname
        if host is not None:
            yield host.casefold()

"""Prompts and resources that upstreams offer, on the terms of their documents and with the trust of their imports.

Which resources there are only their servers know, from one moment to the next; what is declared are groups of them.
"""

import re
from collections.abc import Collection, Iterator
from typing import Final

from gateway.config.linking.effects import effects_of_terms
from gateway.config.linking.entries import Entries, Entry
from gateway.config.linking.mentions import is_let_in
from gateway.config.linking.trust import TrustScale, link_trust
from gateway.config.specs.upstreams import ResourceGroup, UpstreamDocument
from gateway.governance.diagnostics import Diagnostic
from gateway.governance.globs import glob_matches
from gateway.governance.imports import ImportedDefinition
from gateway.governance.names import NAME
from gateway.governance.trust import EffectiveTrust
from gateway.snapshot import Offer

_NAME: Final = re.compile(NAME)


def link_offers(
    entries: Entries, scale: TrustScale, *, imports: Collection[ImportedDefinition]
) -> tuple[dict[str, Offer], list[Diagnostic]]:
    """Offers by their object, in the order of upstreams and names. What is wrong with trust is told of tools."""
    linked: dict[str, Offer] = {}
    problems: list[Diagnostic] = []
    for name, entry in sorted(entries.of(UpstreamDocument).items()):
        terms = entry.document.spec.import_
        brought = [each for each in imports if each.upstream == name and is_let_in(each, terms)]
        prompts = [each for each in brought if each.kind == "prompt"]
        problems += _unusable(entry, prompts)
        found = [offer for each in prompts if _NAME.fullmatch(each.name) and (offer := _prompt(entry, each, scale))]
        templates = [each for each in brought if each.kind == "resourceTemplate"]
        groups = [_group(entry, each, templates, scale) for each in terms.resources]
        linked |= {each.object: each for each in (*sorted(found, key=lambda each: each.name), *groups) if each}
    return linked, problems


def _prompt(entry: Entry[UpstreamDocument], prompt: ImportedDefinition, scale: TrustScale) -> Offer | None:
    trust = _trust(entry, scale, pinned=prompt.is_pinned)
    if trust is None:
        return None
    return Offer(
        "prompt",
        prompt.identity,
        entry.name,
        prompt.name,
        trust,
        entry.at("spec", "import"),
        given=prompt.given,
        labels=dict(entry.document.metadata.labels),
        pinned_digest=prompt.digest if prompt.is_pinned else None,
    )


def _group(
    entry: Entry[UpstreamDocument],
    group: ResourceGroup,
    templates: Collection[ImportedDefinition],
    scale: TrustScale,
) -> Offer | None:
    """Templates that nobody looked at are left out where the terms want that; what they lead to is not."""
    trust = _trust(entry, scale, pinned=True)
    if trust is None:
        return None
    accepts = entry.document.spec.import_.on_change == "accept"
    shown = [each for each in templates if (each.is_pinned or accepts) and _is_of(each, group)]
    return Offer(
        "resource",
        f"{entry.name}.{group.name}",
        entry.name,
        group.name,
        trust,
        entry.at("spec", "import"),
        uris=group.uris,
        templates=tuple(each.given for each in shown),
        labels=dict(entry.document.metadata.labels),
    )


def _is_of(template: ImportedDefinition, group: ResourceGroup) -> bool:
    return any(glob_matches(template.given["uriTemplate"], pattern) for pattern in group.uris)


def _trust(entry: Entry[UpstreamDocument], scale: TrustScale, *, pinned: bool) -> EffectiveTrust | None:
    terms = entry.document.spec.import_
    path = ("spec", "import", "trust")
    stated = effects_of_terms(entry.document.spec)
    trust, _ = link_trust(entry, terms.trust, path, stated, scale=scale, backend="mcp", imported=True, pinned=pinned)
    return trust


def _unusable(entry: Entry[UpstreamDocument], prompts: Collection[ImportedDefinition]) -> Iterator[Diagnostic]:
    for each in prompts:
        if not _NAME.fullmatch(each.name):
            message = f"{each.identity} is left out: its name has characters that no policy could name"
            yield Diagnostic("bad-definition", message, each.position or entry.at("spec", "import"), "warning")

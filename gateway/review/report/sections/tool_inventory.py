"""Sections: catalogues with their tools, and flags with what each one causes."""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.registries import CHANGES, Catalogue, Position, in_effect_order
from gateway.review.access_report import ResourceAccess, ToolAccess, list_resource_access, list_tool_access
from gateway.review.report.report_input import ReportInput


@dataclass(frozen=True, slots=True)
class ReviewedTool:
    """A tool of a catalogue. `flags` are known; `assumed` apply only because the effects are unknown."""

    name: str
    identity: str
    title: str | None
    description: str
    owner: str | None
    tier: str
    flags: tuple[str, ...]
    assumed: tuple[str, ...]
    effects: str
    trusted: bool
    callable: bool
    lifecycle: str
    backend: str
    upstream: str | None
    hidden: bool
    gates: tuple[str, ...]
    position: Position


@dataclass(frozen=True, slots=True)
class ReviewedResource:
    """A prompt, or a group of resources with its URI patterns as name."""

    kind: str
    name: str
    object: str
    upstream: str
    tier: str
    flags: tuple[str, ...]
    position: Position


@dataclass(frozen=True, slots=True)
class ReviewedCatalogue:
    name: str
    title: str | None
    owner: str | None
    audience: tuple[str, ...]
    path: str
    protocols: tuple[str, ...]
    pipeline: str
    render: str
    structured: str
    instructions: str | None
    position: Position
    tools: tuple[ReviewedTool, ...]
    resources: tuple[ReviewedResource, ...]


@dataclass(frozen=True, slots=True)
class CataloguesSection:
    catalogues: tuple[ReviewedCatalogue, ...]
    unlisted: tuple[str, ...]
    """Tools that are in no catalogue."""


@dataclass(frozen=True, slots=True)
class Consequence:
    """One thing that a flag causes, and where that is declared."""

    words: str
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class ReviewedFlag:
    name: str
    description: str
    implies: tuple[str, ...]
    tools: int
    consequences: tuple[Consequence, ...]
    position: Position | None


@dataclass(frozen=True, slots=True)
class FlagsSection:
    flags: tuple[ReviewedFlag, ...]


def build_catalogues(source: ReportInput) -> CataloguesSection:
    snapshot = source.snapshot
    listed = {tool for each in snapshot.catalogues.values() for tool in each.tools.values()}
    catalogues = tuple(_catalogue(source, each) for _, each in sorted(snapshot.catalogues.items()))
    return CataloguesSection(catalogues, tuple(sorted(set(snapshot.tools) - listed)))


def build_flags(source: ReportInput) -> FlagsSection:
    snapshot = source.snapshot
    declared = source.project.documents.get("TrustFlag", {})
    found = []
    for name in in_effect_order(snapshot.flags):
        flag, document = snapshot.flags[name], declared.get(name)
        found.append(
            ReviewedFlag(
                name,
                flag.description,
                tuple(in_effect_order(flag.implies)),
                sum(name in tool.trust.flags for tool in snapshot.tools.values()),
                tuple(_consequences(source, name)),
                document.position if document else None,
            )
        )
    return FlagsSection(tuple(found))


def _catalogue(source: ReportInput, each: Catalogue) -> ReviewedCatalogue:
    snapshot = source.snapshot
    return ReviewedCatalogue(
        name=each.name,
        title=each.title,
        owner=each.owner,
        audience=tuple(sorted(each.audience)),
        path=each.path,
        protocols=each.protocols,
        pipeline=each.pipeline,
        render=each.render,
        structured=each.structured,
        instructions=each.instructions,
        position=source.place(each.position),
        tools=tuple(_tool(source, offer) for offer in list_tool_access(snapshot, each)),
        resources=tuple(_resource(source, offer) for offer in list_resource_access(snapshot, each)),
    )


def _tool(source: ReportInput, offer: ToolAccess) -> ReviewedTool:
    tool, trust = offer.tool, offer.tool.trust
    return ReviewedTool(
        name=offer.name,
        identity=tool.name,
        title=tool.title,
        description=tool.description,
        owner=tool.owner,
        tier=trust.tier.name,
        flags=tuple(in_effect_order(trust.known_flags)),
        assumed=tuple(in_effect_order(trust.assumed)),
        effects=trust.effects,
        trusted=trust.trusted,
        callable=trust.callable and tool.is_callable_on(source.day),
        lifecycle=tool.lifecycle,
        backend=tool.backend,
        upstream=tool.upstream,
        hidden=offer.is_hidden,
        gates=tuple(rule.name if rule.mode == "enforce" else f"{rule.name} ({rule.mode})" for rule in offer.gates),
        position=source.place(tool.position),
    )


def _resource(source: ReportInput, each: ResourceAccess) -> ReviewedResource:
    offer = each.offer
    return ReviewedResource(
        offer.kind,
        each.name,
        offer.object,
        offer.upstream,
        offer.trust.tier.name,
        tuple(in_effect_order(offer.trust.flags)),
        source.place(offer.position),
    )


def _consequences(source: ReportInput, flag: str) -> Iterator[Consequence]:
    snapshot = source.snapshot
    if flag in CHANGES:
        yield Consequence("calls are neither retried nor answered from a cache, and recorded before they run")
    for hint, value in sorted(snapshot.flags[flag].hints.items()):
        yield Consequence(f"clients get the hint {hint}: {'true' if value else 'false'}")
    for name, rule in sorted(snapshot.gates.items()):
        if flag in rule.match.flags and rule.mode != "disabled":
            does = "checks every call" if rule.mode == "enforce" else "observes every call"
            yield Consequence(f"rule {name} {does} of such a tool", source.place(rule.position))
    for name, tier in sorted(snapshot.tiers.items()):
        position = _document_position(source, "TrustTier", name)
        if flag in tier.forbidden_flags:
            yield Consequence(f"tier {name} forbids it", position)
        if flag in tier.adds_flags:
            yield Consequence(f"tier {name} adds it to every tool", position)
    for name, pipeline in sorted(snapshot.pipelines.items()):
        if flag in pipeline.refuses:
            yield Consequence(f"catalogues with pipeline {name} refuse it", source.place(pipeline.position))
    for name, artifact in sorted(snapshot.artifacts.items()):
        if flag in artifact.blocked_by:
            yield Consequence(f"refused once the turn has read {name}", source.place(artifact.position))
    yield from _forbidden_combinations(source, flag)


def _forbidden_combinations(source: ReportInput, flag: str) -> Iterator[Consequence]:
    for name, document in sorted(source.project.documents.get("Catalogue", {}).items()):
        for combination in document.data.get("spec", {}).get("forbidTogether", ()):
            if flag in combination:
                others = ", ".join(each for each in combination if each != flag)
                yield Consequence(f"catalogue {name} forbids it together with {others}", document.position)


def _document_position(source: ReportInput, kind: str, name: str) -> Position | None:
    document = source.project.documents.get(kind, {}).get(name)
    return document.position if document else None

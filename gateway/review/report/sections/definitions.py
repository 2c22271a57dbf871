"""Sections: imported definitions with findings, pins and drift, and collisions of names with their winners."""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.registries import ChangeSeverity, Collision, NamedTool, Position, UpstreamDefinition
from gateway.review.report.report_input import NoData, ReportInput
from gateway.review.report.sections.diagnostics import ReviewedDiagnostic, review_diagnostic
from gateway.review.report.sections.installation import InstallationPart, list_parts


@dataclass(frozen=True, slots=True)
class ReviewedDefinition:
    """A definition as its upstream gives it. `served_as` are the catalogues and names under which it is served."""

    upstream: str
    kind: str
    name: str
    title: str | None
    description: str
    digest: str
    is_pinned: bool
    served_as: tuple[str, ...]
    position: Position | None


@dataclass(frozen=True, slots=True)
class DriftedDefinition:
    upstream: str
    kind: str
    name: str
    grade: ChangeSeverity
    words: str
    path: str


@dataclass(frozen=True, slots=True)
class DefinitionsSection:
    upstreams: tuple[InstallationPart, ...]
    definitions: tuple[ReviewedDefinition, ...]
    findings: tuple[ReviewedDiagnostic, ...]
    drift: tuple[DriftedDefinition, ...] | NoData


@dataclass(frozen=True, slots=True)
class CollisionSide:
    name: str
    source: str
    position: Position


@dataclass(frozen=True, slots=True)
class ReviewedCollision:
    """Two definitions with one name. `winner` is the source that gets it; `None` if none does."""

    catalogue: str
    kind: str
    existing: CollisionSide
    incoming: CollisionSide
    outcome: str
    winner: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class CollisionsSection:
    policies: tuple[InstallationPart, ...]
    collisions: tuple[ReviewedCollision, ...]


def build_definitions(source: ReportInput) -> DefinitionsSection:
    files = {each.position.file for each in source.project.definitions if each.position is not None}
    findings = [each for each in source.diagnostics if each.position.file in files]
    drift = source.drift
    return DefinitionsSection(
        tuple(list_parts(source, ["Upstream"])),
        tuple(_definition(source, each) for each in source.project.definitions),
        tuple(review_diagnostic(source, each) for each in findings),
        drift
        if isinstance(drift, NoData)
        else tuple(
            DriftedDefinition(each.upstream, each.kind, each.name, each.grade, each.words, each.path) for each in drift
        ),
    )


def build_collisions(source: ReportInput) -> CollisionsSection:
    found = [
        _collision(source, name, each)
        for name, catalogue in sorted(source.snapshot.catalogues.items())
        for each in catalogue.collisions
    ]
    return CollisionsSection(tuple(list_parts(source, ["CollisionPolicy"])), tuple(found))


def _definition(source: ReportInput, each: UpstreamDefinition) -> ReviewedDefinition:
    return ReviewedDefinition(
        each.upstream,
        each.kind,
        each.name,
        each.title,
        each.description,
        each.digest,
        each.is_pinned,
        tuple(_served_as(source, each)),
        None if each.position is None else source.place(each.position),
    )


def _served_as(source: ReportInput, each: UpstreamDefinition) -> Iterator[str]:
    tools = {
        name
        for name, tool in source.snapshot.tools.items()
        if (tool.upstream, tool.remote_name) == (each.upstream, each.name) or name == each.identity
    }
    objects = {offer.object for offer in source.snapshot.offers.values() if offer.name == each.identity}
    for name, catalogue in sorted(source.snapshot.catalogues.items()):
        served = {**catalogue.tools, **catalogue.prompts} if each.kind != "resourceTemplate" else {}
        wanted = tools if each.kind == "tool" else objects
        yield from (f"{name}/{advertised}" for advertised, identity in sorted(served.items()) if identity in wanted)


def _collision(source: ReportInput, catalogue: str, each: Collision) -> ReviewedCollision:
    winner = {"replace": each.incoming.source, "keep": each.existing.source}.get(each.outcome)
    existing, incoming = (_side(source, side) for side in (each.existing, each.incoming))
    return ReviewedCollision(catalogue, each.kind, existing, incoming, each.outcome, winner, each.reason)


def _side(source: ReportInput, side: NamedTool) -> CollisionSide:
    return CollisionSide(side.name, side.source, source.place(side.position))

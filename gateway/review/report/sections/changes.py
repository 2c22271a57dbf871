"""Sections: what changed since an earlier revision, and who gained and lost access."""

from dataclasses import dataclass
from typing import Final

from gateway.registries import Position
from gateway.review.plan.access_changes import AccessChange
from gateway.review.plan.builder import Plan
from gateway.review.plan.document_changes import DocumentChange
from gateway.review.plan.renderer import format_difference
from gateway.review.plan.risk import RiskFinding, Weight
from gateway.review.report.report_input import NoData, ReportInput

_WHOLE: Final = frozenset({"plan", "access", "tests"})
"""Findings about everything; other sections have the details."""


@dataclass(frozen=True, slots=True)
class ChangedControl:
    """A finding of the plan: how grave it is, what it is about, and what it means."""

    weight: Weight
    code: str
    about: str
    path: str
    words: str
    position: Position | None


@dataclass(frozen=True, slots=True)
class ChangedDocument:
    change: str
    kind: str
    name: str
    summary: str
    differences: tuple[str, ...]
    position: Position


@dataclass(frozen=True, slots=True)
class ChangedRow:
    change: str
    words: str
    position: Position


@dataclass(frozen=True, slots=True)
class ChangesSection:
    against: str
    before: str
    risk: Weight | None
    controls: tuple[ChangedControl, ...]
    documents: tuple[ChangedDocument, ...]
    rows: tuple[ChangedRow, ...]
    tests: tuple[ChangedRow, ...]


@dataclass(frozen=True, slots=True)
class AccessDifference:
    caller: str
    catalogue: str
    tool: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class AccessChangesSection:
    gained: tuple[AccessDifference, ...]
    lost: tuple[AccessDifference, ...]


def build_changes(source: ReportInput) -> ChangesSection | NoData:
    plan = source.plan
    if isinstance(plan, NoData):
        return plan
    places = _places(source, plan)
    return ChangesSection(
        source.against or plan.before,
        plan.before,
        plan.risk,
        tuple(_control(each, places) for each in sorted(plan.findings, key=_gravest_first) if each.about not in _WHOLE),
        tuple(_document(source, each) for each in plan.documents),
        tuple(ChangedRow(each.change, str(each), source.place(each.position)) for each in plan.policies),
        tuple(
            ChangedRow(each.change, f"{each.suite}: {each.name}", source.place(each.position)) for each in plan.cases
        ),
    )


def build_access_changes(source: ReportInput) -> AccessChangesSection | NoData:
    plan = source.plan
    if isinstance(plan, NoData):
        return plan
    return AccessChangesSection(
        tuple(map(_difference, (each for each in plan.access if each.is_gain))),
        tuple(map(_difference, (each for each in plan.access if not each.is_gain))),
    )


def _gravest_first(found: RiskFinding) -> int:
    return ("high", "medium", "low").index(found.weight)


def _places(source: ReportInput, plan: Plan) -> dict[str, Position]:
    """Return the positions of what findings are about: documents, tools, and definitions of upstreams."""
    places = {f"Tool {name}": source.place(tool.position) for name, tool in source.snapshot.tools.items()}
    for each in source.project.definitions:
        if each.position is not None:
            places[f"{each.kind} {each.identity}"] = source.place(each.position)
    return {**places, **{each.about: source.place(each.position) for each in plan.documents}}


def _control(found: RiskFinding, places: dict[str, Position]) -> ChangedControl:
    position = places.get(found.about)
    return ChangedControl(found.weight, found.code, found.about, found.path, found.words, position)


def _document(source: ReportInput, each: DocumentChange) -> ChangedDocument:
    differences = tuple(f"{field.path}: {format_difference(field)}" for field in each.fields)
    return ChangedDocument(each.change, each.kind, each.name, each.summary, differences, source.place(each.position))


def _difference(each: AccessChange) -> AccessDifference:
    return AccessDifference(each.caller, each.catalogue, each.tool, each.before, each.after)

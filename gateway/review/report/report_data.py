"""The whole report as data, built from one input, and its JSON. Equal inputs give equal bytes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, date, datetime
from typing import Any, Final

from gateway.registries import Position
from gateway.review.report.report_input import AuditState, DependencyList, NoData, ReportInput
from gateway.review.report.sections.access import AccessUseSection, build_access_use
from gateway.review.report.sections.changes import (
    AccessChangesSection,
    ChangesSection,
    build_access_changes,
    build_changes,
)
from gateway.review.report.sections.definitions import (
    CollisionsSection,
    DefinitionsSection,
    build_collisions,
    build_definitions,
)
from gateway.review.report.sections.diagnostics import DiagnosticsSection, build_diagnostics
from gateway.review.report.sections.gates import RulesSection, build_rules
from gateway.review.report.sections.grants import GrantsSection, build_grants
from gateway.review.report.sections.hazards import HazardsSection, build_hazards
from gateway.review.report.sections.identities import IdentitiesSection, build_identities
from gateway.review.report.sections.installation import (
    InstallationSection,
    RevisionSection,
    build_installation,
    build_revision,
)
from gateway.review.report.sections.operation import (
    QuarantinesSection,
    build_audit,
    build_dependencies,
    build_quarantines,
)
from gateway.review.report.sections.replay import ReplaySection, build_replay
from gateway.review.report.sections.results import ArtifactsSection, LimitsSection, build_artifacts, build_limits
from gateway.review.report.sections.summary import SummarySection, build_summary
from gateway.review.report.sections.tool_inventory import CataloguesSection, FlagsSection, build_catalogues, build_flags
from gateway.review.report.sections.trust_matrix import TrustSection, build_trust

FORMAT: Final = "gateway-review/1"


@dataclass(frozen=True, slots=True)
class ReportSections:
    """Every section but the summary, in the order of the page."""

    revision: RevisionSection
    installation: InstallationSection
    catalogues: CataloguesSection
    flags: FlagsSection
    trust: TrustSection
    hazards: HazardsSection
    rules: RulesSection
    changes: ChangesSection | NoData
    access_changes: AccessChangesSection | NoData
    replay: ReplaySection | NoData
    access_use: AccessUseSection
    definitions: DefinitionsSection
    collisions: CollisionsSection
    artifacts: ArtifactsSection
    limits: LimitsSection
    identities: IdentitiesSection
    grants: GrantsSection
    quarantines: QuarantinesSection | NoData
    audit: AuditState | NoData
    diagnostics: DiagnosticsSection
    dependencies: DependencyList | NoData


@dataclass(frozen=True, slots=True)
class ReportData:
    summary: SummarySection
    sections: ReportSections


def build_report(source: ReportInput) -> ReportData:
    sections = ReportSections(
        revision=build_revision(source),
        installation=build_installation(source),
        catalogues=build_catalogues(source),
        flags=build_flags(source),
        trust=build_trust(source),
        hazards=build_hazards(source),
        rules=build_rules(source),
        changes=build_changes(source),
        access_changes=build_access_changes(source),
        replay=build_replay(source),
        access_use=build_access_use(source),
        definitions=build_definitions(source),
        collisions=build_collisions(source),
        artifacts=build_artifacts(source),
        limits=build_limits(source),
        identities=build_identities(source),
        grants=build_grants(source),
        quarantines=build_quarantines(source),
        audit=build_audit(source),
        diagnostics=build_diagnostics(source),
        dependencies=build_dependencies(source),
    )
    return ReportData(build_summary(sections), sections)


def report_to_dict(report: ReportData) -> dict[str, Any]:
    """Return the report as plain data, with a key for each section."""
    sections = to_plain(report.sections)
    return {"format": FORMAT, "summary": to_plain(report.summary), **sections}


def report_to_json(report: ReportData) -> str:
    """Return JSON in ASCII: a character that a screen does not draw is an escape."""
    return json.dumps(report_to_dict(report), indent=1, ensure_ascii=True) + "\n"


def to_plain(value: Any) -> Any:
    """Return dataclasses as objects with camelCase keys; a position as its file and line; a day or moment as text."""
    match value:
        case Position():
            return {"file": value.file, "line": value.line}
        case NoData():
            return {"absent": value.reason, "help": value.help}
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case tuple() | list():
            return [to_plain(each) for each in value]
        case Mapping():
            return {str(key): to_plain(each) for key, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {_camel(each.name): to_plain(getattr(value, each.name)) for each in fields(value)}
    return value


def _camel(name: str) -> str:
    first, *rest = name.removeprefix("is_").split("_") if name.startswith("is_") else name.split("_")
    return first + "".join(part.title() for part in rest)

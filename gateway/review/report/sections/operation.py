"""Sections: quarantines and the decision log as a store has them, and the packages of the installation."""

from dataclasses import dataclass
from datetime import datetime

from gateway.review.report.report_input import AuditState, DependencyList, NoData, ReportInput


@dataclass(frozen=True, slots=True)
class ReviewedStop:
    target: str
    since: datetime
    until: datetime | None
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class QuarantinesSection:
    stops: tuple[ReviewedStop, ...]


def build_quarantines(source: ReportInput) -> QuarantinesSection | NoData:
    stops = source.stops
    if isinstance(stops, NoData):
        return stops
    return QuarantinesSection(
        tuple(
            ReviewedStop(str(each.target), each.since, each.until, each.by, each.reason)
            for each in sorted(stops, key=lambda stop: (stop.since, str(stop.target)))
        )
    )


def build_audit(source: ReportInput) -> AuditState | NoData:
    return source.audit


def build_dependencies(source: ReportInput) -> DependencyList | NoData:
    return source.dependencies

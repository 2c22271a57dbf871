"""Section: the diagnostics of the project, as `gateway check` reports them."""

from dataclasses import dataclass

from gateway.registries import Diagnostic, Position, Severity
from gateway.review.report.report_input import ReportInput


@dataclass(frozen=True, slots=True)
class ReviewedDiagnostic:
    code: str
    severity: Severity
    message: str
    help: str | None
    position: Position


@dataclass(frozen=True, slots=True)
class DiagnosticsSection:
    diagnostics: tuple[ReviewedDiagnostic, ...]


def build_diagnostics(source: ReportInput) -> DiagnosticsSection:
    return DiagnosticsSection(tuple(review_diagnostic(source, each) for each in source.diagnostics))


def review_diagnostic(source: ReportInput, each: Diagnostic) -> ReviewedDiagnostic:
    return ReviewedDiagnostic(each.code, each.severity, each.message, each.help, source.place(each.position))

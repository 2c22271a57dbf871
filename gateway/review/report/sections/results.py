"""Sections: artifact classes with the tools that yield them, and limits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.policy import BudgetCheck, LoopCheck, QuotaCheck, RateCheck
from gateway.registries import DeclaredDocument, Position
from gateway.review.report.report_input import ReportInput
from gateway.review.report.rule_words import describe_check, describe_match
from gateway.review.report.sections.installation import InstallationPart, list_parts
from gateway.review.report.setting_values import format_setting, read_spec


@dataclass(frozen=True, slots=True)
class ReviewedArtifact:
    part: InstallationPart
    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ArtifactsSection:
    classes: tuple[ReviewedArtifact, ...]


@dataclass(frozen=True, slots=True)
class ReviewedLimit:
    """A limit: what declares it, what it is about, and what it allows."""

    kind: str
    name: str
    about: str
    words: str
    position: Position


@dataclass(frozen=True, slots=True)
class LimitsSection:
    limits: tuple[ReviewedLimit, ...]


def build_artifacts(source: ReportInput) -> ArtifactsSection:
    tools = source.snapshot.tools
    return ArtifactsSection(
        tuple(
            ReviewedArtifact(part, tuple(sorted(name for name, tool in tools.items() if tool.artifact == part.name)))
            for part in list_parts(source, ["ArtifactClass"])
        )
    )


def build_limits(source: ReportInput) -> LimitsSection:
    return LimitsSection((*_of_rules(source), *_of_documents(source), *_of_pipelines(source)))


def _of_rules(source: ReportInput) -> Iterator[ReviewedLimit]:
    for name, rule in sorted(source.snapshot.gates.items()):
        if rule.mode != "disabled" and isinstance(rule.check, RateCheck | QuotaCheck | LoopCheck | BudgetCheck):
            document = source.project.documents["GateRule"][name]
            spec = read_spec(source.project, document)
            observes = "" if rule.mode == "enforce" else " (only observed)"
            words = f"{describe_check(rule, spec)}{observes}"
            yield ReviewedLimit("GateRule", name, describe_match(spec), words, document.position)


def _of_documents(source: ReportInput) -> Iterator[ReviewedLimit]:
    for kind in ("Tool", "Upstream"):
        for name, document in sorted(source.project.documents.get(kind, {}).items()):
            limits = read_spec(source.project, document).get("limits")
            if limits:
                yield _limit(document, f"one call of {kind.lower()} {name}", limits)


def _of_pipelines(source: ReportInput) -> Iterator[ReviewedLimit]:
    for name, document in sorted(source.project.documents.get("Pipeline", {}).items()):
        phases = read_spec(source.project, document)
        uses = [use for stages in phases.values() if isinstance(stages, list) for use in stages]
        for use in uses:
            if use.get("use") in ("timeout", "concurrency", "loop-guard") and use.get("with"):
                yield _limit(document, f"stage {use['use']} of pipeline {name}", use["with"])


def _limit(document: DeclaredDocument, about: str, values: Mapping[str, Any]) -> ReviewedLimit:
    words = ", ".join(f"{key} {format_setting(value)}" for key, value in values.items())
    return ReviewedLimit(document.kind, document.name, about, words, document.position)

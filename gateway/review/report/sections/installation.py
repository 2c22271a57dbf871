"""Section: the revision, and the parts of the installation with their settings as written."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from gateway.registries import Position
from gateway.review.report.report_input import ReportInput
from gateway.review.report.setting_values import WrittenSetting, list_settings

_KINDS = ("Gateway", "Storage", "Telemetry", "Pipeline", "Overlay")


@dataclass(frozen=True, slots=True)
class InstallationPart:
    kind: str
    name: str
    owner: str | None
    position: Position
    settings: tuple[WrittenSetting, ...]


@dataclass(frozen=True, slots=True)
class RevisionSection:
    """What was reviewed. `revision` is the digest of everything declared; files have digests of their own."""

    title: str
    revision: str
    environment: str | None
    commit: str | None
    day: date
    version: str
    files: tuple[WrittenSetting, ...]


@dataclass(frozen=True, slots=True)
class InstallationSection:
    parts: tuple[InstallationPart, ...]


def build_revision(source: ReportInput) -> RevisionSection:
    return RevisionSection(
        title=_title(source),
        revision=source.snapshot.revision,
        environment=source.environment,
        commit=source.commit,
        day=source.day,
        version=source.version,
        files=tuple(WrittenSetting(path, digest) for path, digest in sorted(source.files.items())),
    )


def build_installation(source: ReportInput) -> InstallationSection:
    return InstallationSection(tuple(list_parts(source, _KINDS)))


def list_parts(source: ReportInput, kinds: Iterable[str]) -> Iterable[InstallationPart]:
    """Yield the documents of some kinds, in the order of the kinds and by name."""
    for kind in kinds:
        for name, document in sorted(source.project.documents.get(kind, {}).items()):
            yield InstallationPart(
                kind, name, document.owner, document.position, list_settings(source.project, document)
            )


def _title(source: ReportInput) -> str:
    for document in source.project.documents.get("Gateway", {}).values():
        title = document.data.get("metadata", {}).get("title")
        return str(title or document.name)
    return source.snapshot.name

"""What a report is made from. Everything here was read or decided before; the report itself reads nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Final

from gateway.policy import Access, Stop
from gateway.registries import DefinitionChange, Diagnostic, Position, Snapshot
from gateway.review.access.access_review import AccessReview
from gateway.review.access.attestation import Attestation
from gateway.review.grant_report import EndingRow, GrantAccess
from gateway.review.plan.builder import Plan, PlanInput
from gateway.review.policy_tests import CaseResult, Coverage
from gateway.review.replay.differences import ReplayResult


@dataclass(frozen=True, slots=True)
class NoData:
    """A section of the report has no data: why, and what the reader can do."""

    reason: str
    help: str


@dataclass(frozen=True, slots=True)
class AuditState:
    """What a verification of the decision log found. `until` is the time of the last valid entry."""

    entries: int
    shards: int
    anchors: int
    unanchored: int
    until: datetime | None
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dependency:
    """A package that the installation consists of, with the digests that its lock file pins."""

    name: str
    version: str
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DependencyList:
    """The packages of a lock file or a bill of materials, and the digest of that file."""

    source: str
    digest: str
    packages: tuple[Dependency, ...]


_NAME_STORE: Final = "name the store of a gateway: --database PATH"


@dataclass(frozen=True, slots=True)
class ReportInput:
    """The project on one day, and what was asked besides. A part that was not asked is a `NoData` with the reason."""

    project: PlanInput
    review: AccessReview
    day: date
    version: str
    diagnostics: Sequence[Diagnostic]
    tests: Sequence[CaseResult]
    coverage: Coverage
    files: Mapping[str, str]
    """SHA-256 of the project's files by path."""
    ending_rows: Sequence[EndingRow] = ()
    attestations: Sequence[Attestation] = ()
    environment: str | None = None
    commit: str | None = None
    plan: Plan | NoData = NoData("no earlier revision was named", "compare with one: --against REV")
    against: str | None = None
    replay: ReplayResult | NoData = NoData("no calls were replayed", "replay a period: --replay 7d")
    drift: Sequence[DefinitionChange] | NoData = NoData(
        "the upstreams were not asked", "ask them: --drift, or run gateway drift"
    )
    stops: Sequence[Stop] | NoData = NoData("no store was read", _NAME_STORE)
    grants: tuple[GrantAccess, ...] | NoData = NoData("no store was read", _NAME_STORE)
    audit: AuditState | NoData = NoData("no store was read", _NAME_STORE)
    dependencies: DependencyList | NoData = NoData(
        "no lock file was named", "name one: --dependencies requirements-runtime.lock, or a CycloneDX file"
    )
    naming: Callable[[str], str] = str
    """Returns the name under which the report shows a file."""

    @property
    def access(self) -> Access:
        return self.project.access

    @property
    def snapshot(self) -> Snapshot:
        return self.project.access.snapshot

    @property
    def at(self) -> datetime:
        """Noon of the day: the time at which access is decided."""
        return datetime.combine(self.day, time(12), UTC)

    def place(self, position: Position) -> Position:
        """Return a position under the name of its file that the report shows."""
        return Position(self.naming(position.file), position.line)

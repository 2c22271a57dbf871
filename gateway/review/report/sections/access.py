"""Section: access that is not used, rows that add nothing, callers without an owner, and attestations."""

from dataclasses import dataclass
from datetime import date, datetime

from gateway.registries import Position
from gateway.review.access.attestation import Attestation
from gateway.review.access.usage import UsageTable
from gateway.review.plan.policy_changes import PolicyRow
from gateway.review.report.report_input import NoData, ReportInput


@dataclass(frozen=True, slots=True)
class IdleRow:
    """A policy row in words, and when it was last used, if that is known."""

    words: str
    last: datetime | None
    position: Position


@dataclass(frozen=True, slots=True)
class RecordedPeriod:
    """The period that records cover. `oldest` is the time of the oldest record; what was before is unknown."""

    since: datetime
    oldest: datetime | None
    is_covered: bool
    """Whether there are records from the start of the period or before."""
    unused: tuple[IdleRow, ...]


@dataclass(frozen=True, slots=True)
class ReviewedAttestation:
    name: str
    owner: str
    by: str
    on: date
    until: date
    digest: str
    is_intact: bool
    position: Position


@dataclass(frozen=True, slots=True)
class AccessUseSection:
    use: RecordedPeriod | NoData
    redundant: tuple[IdleRow, ...]
    ownerless: tuple[str, ...]
    attestations: tuple[ReviewedAttestation, ...]


def build_access_use(source: ReportInput) -> AccessUseSection:
    review = source.review
    return AccessUseSection(
        NO_RECORDS if review.usage is None else _period(source, review.usage),
        tuple(_row(source, row) for row in review.redundant_rows),
        review.ownerless,
        tuple(_attestation(source, each) for each in sorted(source.attestations, key=lambda each: each.name)),
    )


NO_RECORDS = NoData("no store was read, so the use of access is unknown", "name the store: --database PATH")


def _period(source: ReportInput, usage: UsageTable) -> RecordedPeriod:
    idle = [each for each in source.review.row_use if each.is_unused]
    rows = tuple(_row(source, each.row, last=each.use.last if each.use else None) for each in idle)
    return RecordedPeriod(usage.since, usage.oldest, usage.covers_period, rows)


def _row(source: ReportInput, row: PolicyRow, *, last: datetime | None = None) -> IdleRow:
    return IdleRow(str(row), last, source.place(row.position))


def _attestation(source: ReportInput, each: Attestation) -> ReviewedAttestation:
    place = source.place(each.position)
    return ReviewedAttestation(each.name, each.owner, each.by, each.on, each.until, each.digest, each.is_intact, place)

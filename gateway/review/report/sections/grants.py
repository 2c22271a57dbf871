"""Section: what ends by itself. Policy rows with an end, grant policies, and grants in force."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from gateway.registries import Position
from gateway.review.grant_report import EndingRow, GrantAccess
from gateway.review.report.report_input import NoData, ReportInput
from gateway.review.report.sections.installation import InstallationPart, list_parts


@dataclass(frozen=True, slots=True)
class ReviewedRowEnd:
    """A row that ends or has ended, with its ticket."""

    words: str
    is_deny: bool
    until: datetime
    ticket: str
    is_over: bool
    position: Position


@dataclass(frozen=True, slots=True)
class ReviewedGrant:
    """A grant that is approved and not over. `adds` is what the caller can do only because of it."""

    id: str
    subject: str
    role: str
    policy: str
    reason: str
    requester: str
    approver: str | None
    since: datetime | None
    until: datetime | None
    is_in_force: bool
    adds: tuple[str, ...]
    position: Position | None


@dataclass(frozen=True, slots=True)
class GrantsSection:
    rows: tuple[ReviewedRowEnd, ...]
    policies: tuple[InstallationPart, ...]
    grants: tuple[ReviewedGrant, ...] | NoData


def build_grants(source: ReportInput) -> GrantsSection:
    grants = source.grants
    return GrantsSection(
        tuple(_row(source, each) for each in source.ending_rows),
        tuple(list_parts(source, ["GrantPolicy"])),
        grants if isinstance(grants, NoData) else tuple(_grants(source, grants)),
    )


def _row(source: ReportInput, each: EndingRow) -> ReviewedRowEnd:
    place = source.place(each.position)
    return ReviewedRowEnd(each.text, each.is_deny, each.until, each.ticket, each.is_over, place)


def _grants(source: ReportInput, found: tuple[GrantAccess, ...]) -> Iterator[ReviewedGrant]:
    for each in found:
        grant = each.grant
        yield ReviewedGrant(
            grant.id,
            grant.subject,
            grant.role,
            grant.policy,
            grant.reason,
            grant.requester.subject,
            None if grant.decider is None else grant.decider.subject,
            grant.since,
            grant.until,
            each.is_in_force,
            tuple(f"{added.action} {added.tool} in {added.catalogue}" for added in each.adds),
            None if each.policy is None else source.place(each.policy),
        )

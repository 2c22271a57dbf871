"""Section: who callers are, which roles they hold, and whether every approval rule can be approved by someone."""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.policy import (
    build_active_approver_directory,
    build_approver_directory,
    check_approvers,
    find_approvers,
    find_common_subject,
)
from gateway.registries import Position
from gateway.review.plan.access_changes import list_callers
from gateway.review.plan.policy_changes import GroupingRow
from gateway.review.report.report_input import ReportInput
from gateway.review.report.sections.installation import InstallationPart, list_parts


@dataclass(frozen=True, slots=True)
class ReviewedProvider:
    part: InstallationPart
    in_use: bool


@dataclass(frozen=True, slots=True)
class ReviewedCaller:
    """A subject that a row or a provider names. `roles` are all, also inherited ones; `positions` are its rows."""

    name: str
    roles: tuple[str, ...]
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class ReviewedApproval:
    """A rule that needs approvals. `approvers` are the known subjects; `None` if an issuer may name others."""

    rule: str
    mode: str
    needed: int
    names: tuple[str, ...]
    approvers: tuple[str, ...] | None
    problem: str | None
    position: Position


@dataclass(frozen=True, slots=True)
class IdentitiesSection:
    common_subject: str | None
    """The one principal that every caller is, if no provider distinguishes callers."""
    providers: tuple[ReviewedProvider, ...]
    callers: tuple[ReviewedCaller, ...]
    approvals: tuple[ReviewedApproval, ...]


def build_identities(source: ReportInput) -> IdentitiesSection:
    in_use = {
        name
        for gateway in source.project.documents.get("Gateway", {}).values()
        for name in gateway.data.get("spec", {}).get("identity", ())
    }
    return IdentitiesSection(
        find_common_subject(source.snapshot),
        tuple(ReviewedProvider(part, part.name in in_use) for part in list_parts(source, ["IdentityProvider"])),
        tuple(_callers(source)),
        tuple(_approvals(source)),
    )


def _callers(source: ReportInput) -> Iterator[ReviewedCaller]:
    links = [row for row in source.project.rows if isinstance(row, GroupingRow) and row.section == "g"]
    for name, principal in sorted(list_callers(source.snapshot, source.project.rows).items()):
        if not name.startswith("role:"):
            roles = source.access.roles_of(principal) - {principal.subject}
            places = tuple(link.position for link in links if link.member == principal.subject)
            yield ReviewedCaller(name, tuple(sorted(roles)), places)


def _approvals(source: ReportInput) -> Iterator[ReviewedApproval]:
    links = [
        (row.member, row.group) for row in source.project.rows if isinstance(row, GroupingRow) and row.section == "g"
    ]
    everyone = build_approver_directory(source.snapshot, links)
    people = build_active_approver_directory(source.snapshot, links, today=source.day) or everyone
    for _, rule in sorted(source.snapshot.gates.items()):
        if (check := rule.approval) is None or rule.mode == "disabled":
            continue
        problems = [*check_approvers([rule], everyone), *check_approvers([rule], people)]
        found = find_approvers(check.approvers, people)
        yield ReviewedApproval(
            rule.name,
            rule.mode,
            check.count,
            check.approvers,
            None if found is None else tuple(sorted(found)),
            problems[0].message if problems else None,
            source.place(rule.position),
        )

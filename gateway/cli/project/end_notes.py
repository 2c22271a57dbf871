"""What `gateway explain call` says about time: rows and memberships that end, and grants of the project's store."""

from collections.abc import Iterator
from datetime import datetime

from gateway.app import LoadedProject, Secrets, list_project_grants
from gateway.errors import GatewayError
from gateway.model import Principal, glob_matches
from gateway.policy import Access, AccessAnswer, Grant, GrantedRoles, GrantLedger, PermissionRow, RowEnd
from gateway.registries import Position


def add_stored_grants(found: LoadedProject, access: Access, secrets: Secrets, at: datetime) -> tuple[Access, str]:
    """Return the access with the grants of the store as of a moment, and a note if they cannot be read."""
    policies = access.snapshot.grants
    if not policies:
        return access, ""
    try:
        ledger = GrantLedger.of(list_project_grants(found, secrets))
    except GatewayError as error:
        return access, f"grants are not considered: {error.message}"
    roles_of = access.at(at).authoriser.roles_of
    return access.with_grants(GrantedRoles(policies, ledger, roles_of, clock=lambda: at).find), ""


def list_time_notes(
    found: LoadedProject, access: Access, answer: AccessAnswer, principal: Principal, at: datetime, tool: str | None
) -> Iterator[str]:
    """Yield a note for each grant of the caller, and each row about the caller that ends or has ended."""
    grants = access.list_grants(principal)
    for grant in grants:
        yield _describe_grant(grant)
    names = access.at(datetime.min.replace(tzinfo=at.tzinfo)).roles_of(principal)  # when no row had ended yet
    for row in found.policies.ending:
        if row.end is None:
            continue
        if isinstance(row, PermissionRow):
            if _decided(answer, row.position) or (row.subject.text in names and _is_about(row, tool)):
                yield f"{_place(row.position)} {_verb(row.end, at, 'is in force', 'was in force')} {row.end.describe}"
        elif row.member.text in names:
            words = _verb(row.end, at, "is", "was")
            yield f"{row.member.text} {words} {row.group.text} {row.end.describe}, by {_place(row.position)}"


def _describe_grant(grant: Grant) -> str:
    until = "" if grant.until is None else f" until {grant.until.isoformat(timespec='seconds')}"
    return f"{grant.subject} is {grant.role}{until}, by grant {grant.id} of {grant.policy}: {grant.reason}"


def _decided(answer: AccessAnswer, position: Position) -> bool:
    return position in answer.rows


def _is_about(row: PermissionRow, tool: str | None) -> bool:
    return tool is not None and glob_matches(tool, row.object.text)


def _verb(end: RowEnd, at: datetime, now: str, then: str) -> str:
    return then if end.is_over(at) else now


def _place(position: Position) -> str:
    return f"{position.file}:{position.line}"

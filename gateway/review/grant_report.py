"""What ends by itself: policy rows with an end, and grants in force with what each of them adds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from gateway.model import Principal
from gateway.policy import Access, Grant, PermissionRow, PolicySet
from gateway.registries import DeclaredTool, GrantPolicy, Position

_ACTIONS: Final = ("invoke", "read")
"""What a granted role can add to a tool; it never lets its holder approve."""


@dataclass(frozen=True, slots=True)
class EndingRow:
    """A policy row with an end. It is in force up to, not including, `until`."""

    text: str
    kind: Literal["permission", "membership"]
    is_deny: bool
    until: datetime
    ticket: str
    is_over: bool
    position: Position
    """The row; the comment with the end is in the line above."""


@dataclass(frozen=True, slots=True)
class AddedAccess:
    """An action that a caller may do only because of a grant, and the policy row that allows it to the role."""

    catalogue: str
    action: str
    tool: str
    """The advertised name."""
    row: Position | None


@dataclass(frozen=True, slots=True)
class GrantAccess:
    """A grant that is approved and not over, and what it adds. `is_in_force`: the served policy still allows it."""

    grant: Grant
    is_in_force: bool
    policy: Position | None
    """The grant policy, if it still exists."""
    adds: tuple[AddedAccess, ...]


def list_ending_rows(policies: PolicySet, at: datetime) -> list[EndingRow]:
    """Return the rows that end or have ended, in the order of their ends."""
    found = []
    for row in policies.ending:
        if row.end is None:
            continue
        is_permission = isinstance(row, PermissionRow)
        text = ", ".join(row.texts) if isinstance(row, PermissionRow) else f"{row.member.text}, {row.group.text}"
        found.append(
            EndingRow(
                text,
                "permission" if is_permission else "membership",
                isinstance(row, PermissionRow) and row.effect.text == "deny",
                row.end.until,
                row.end.ticket,
                row.end.is_over(at),
                row.position,
            )
        )
    return sorted(found, key=lambda each: (each.until, each.position))


def list_grant_access(access: Access, grants: Iterable[Grant], at: datetime) -> list[GrantAccess]:
    """Return the running grants, oldest first. `access` has the grants of the store; its snapshot has the policies.

    Roles that only an identity provider gives to a recipient are unknown here, so the recipient is taken to have those
    that the grant policy requires: too much is shown rather than too little.
    """
    running = sorted((each for each in grants if each.is_running(at)), key=lambda each: (each.since or at, each.id))
    return [_describe_grant(access, grant) for grant in running]


def _describe_grant(access: Access, grant: Grant) -> GrantAccess:
    policy = access.snapshot.grants.get(grant.policy)
    recipient = Principal(grant.subject, _required_roles(policy), grant.tenant)
    is_in_force = any(each.id == grant.id for each in access.list_grants(recipient))
    adds = _list_added(access, grant)
    return GrantAccess(grant, is_in_force, None if policy is None else policy.position, tuple(adds))


def _required_roles(policy: GrantPolicy | None) -> frozenset[str]:
    return frozenset() if policy is None else frozenset(each for each in policy.recipients if each.startswith("role:"))


def _list_added(access: Access, grant: Grant) -> Sequence[AddedAccess]:
    """Return what the role adds to the rights that policy rows give the recipient."""
    plain = access.without_grants()
    alone, with_role = (
        Principal(grant.subject, roles, grant.tenant) for roles in (frozenset(), frozenset({grant.role}))
    )
    found = []
    for catalogue in plain.snapshot.catalogues:
        if not plain.is_in_audience(with_role, catalogue):
            continue
        was_inside = plain.is_in_audience(alone, catalogue)
        for name, tool in _tools_of(plain, catalogue):
            for action in _ACTIONS:
                decision = plain.decide_action(with_role, action, catalogue, tool)
                is_new = not was_inside or not plain.decide_action(alone, action, catalogue, tool).allowed
                if decision.allowed and is_new:
                    found.append(AddedAccess(catalogue, action, name, decision.row))
    return found


def _tools_of(access: Access, catalogue: str) -> list[tuple[str, DeclaredTool]]:
    named = [(name, access.snapshot.tool_in(catalogue, name)) for name in access.snapshot.catalogues[catalogue].tools]
    return [(name, tool) for name, tool in named if tool is not None]

"""The grant service: callers request grants, approvers decide, and the parties revoke; every change is durable.

The caller of each method is an authenticated principal. Rights are taken from the revision that is served now.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Protocol

from gateway.model import Principal, new_token
from gateway.policy.forward_clock import forward_now
from gateway.policy.grants import lifecycle
from gateway.policy.grants.grant import (
    REQUEST_LIFETIME,
    Grant,
    GrantSource,
    UnknownGrant,
    require_duration,
    require_reason,
    require_role,
    require_subject,
)
from gateway.policy.grants.grant_limits import RolesOf
from gateway.policy.grants.lifecycle import Policies

GrantAction = Literal["request", "approve", "refuse", "revoke"]

MAX_LISTED: Final = 1_000

_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class GrantChange:
    """For the audit log. `by` made the change, for the `reason`."""

    action: GrantAction
    grant: Grant
    by: Principal
    reason: str
    at: datetime


GrantHook = Callable[[Any, GrantChange], None]
"""Writes something else in the same transaction, on the store's own connection."""


class GrantStore(GrantSource, Protocol):
    """Stores grants. A change returns when it is durable and every process will notice it."""

    async def change(self, work: Callable[[Sequence[Grant]], GrantChange]) -> Grant:
        """Store the grant that `work` makes of all stored grants, alone in its transaction."""
        ...

    async def list_grants(self) -> list[Grant]:
        """Return requests and grants, newest first."""
        ...


@dataclass(frozen=True, slots=True)
class GrantRights:
    """What decides about rights on grants, of the revision that is served now. Granted roles do not count."""

    policies: Callable[[], Policies]
    roles_of: RolesOf
    is_operator: Callable[[Principal], bool]


class GrantService:
    """One per process."""

    def __init__(self, store: GrantStore, rights: GrantRights, *, clock: Callable[[], datetime] = forward_now) -> None:
        self._store = store
        self._rights = rights
        self._clock = clock

    async def request(
        self, requester: Principal, *, subject: str, role: str, duration: timedelta, reason: str
    ) -> Grant:
        """Request a role for a caller of the requester's tenant. Raises `InvalidGrant` or `GrantRefused`."""
        at = self._clock()
        new = Grant(
            f"grant_{new_token(_ID_BYTES)}",
            require_subject(subject),
            requester.tenant,
            require_role(role),
            "",
            require_duration(duration),
            require_reason(reason),
            requester,
            at,
            at + REQUEST_LIFETIME,
        )
        rights = self._rights
        policies, may_ask = rights.policies(), rights.is_operator(requester)

        def work(grants: Sequence[Grant]) -> GrantChange:
            grant = lifecycle.request_grant(grants, new, policies, may_ask_for_others=may_ask, roles_of=rights.roles_of)
            return GrantChange("request", grant, requester, reason, at)

        return await self._store.change(work)

    async def approve(self, id: str, decider: Principal) -> Grant:
        """Approve a request; the grant is in force from now on. Raises as `approve_grant`."""
        policies = self._rights.policies()

        def work(grants: Sequence[Grant]) -> GrantChange:
            at = self._clock()
            grant = lifecycle.approve_grant(grants, id, decider, policies, at, self._rights.roles_of)
            return GrantChange("approve", grant, decider, grant.reason, at)

        return await self._store.change(work)

    async def refuse(self, id: str, decider: Principal) -> Grant:
        policies = self._rights.policies()

        def work(grants: Sequence[Grant]) -> GrantChange:
            at = self._clock()
            grant = lifecycle.refuse_grant(grants, id, decider, policies, at, self._rights.roles_of)
            return GrantChange("refuse", grant, decider, grant.reason, at)

        return await self._store.change(work)

    async def revoke(self, id: str, by: Principal) -> Grant:
        """End a grant or a request at once, in every process: its requester, recipient, an approver or an operator."""
        policies, is_operator = self._rights.policies(), self._rights.is_operator(by)

        def work(grants: Sequence[Grant]) -> GrantChange:
            at = self._clock()
            seen = lifecycle.find_grant(grants, id)
            if not lifecycle.may_see(seen, by, policies, self._rights.roles_of, is_operator=is_operator):
                raise UnknownGrant()
            grant = lifecycle.revoke_grant(grants, id, by.subject, at)
            return GrantChange("revoke", grant, by, grant.reason, at)

        return await self._store.change(work)

    async def list_visible(self, viewer: Principal) -> list[Grant]:
        """Return the newest grants that the viewer may know of, newest first."""
        policies, is_operator = self._rights.policies(), self._rights.is_operator(viewer)
        found = [
            each
            for each in await self._store.list_grants()
            if lifecycle.may_see(each, viewer, policies, self._rights.roles_of, is_operator=is_operator)
        ]
        return found[:MAX_LISTED]

    def now(self) -> datetime:
        """Return the moment by which grants begin and end."""
        return self._clock()

"""The life of a grant: request, approve, refuse, revoke. Pure functions over the grants of a store.

Each returns the grant as it becomes, or raises; they run in a transaction that excludes all other changes of grants.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from gateway.model import Principal
from gateway.policy.grants.grant import Grant, GrantClosed, GrantRefused, UnknownGrant
from gateway.policy.grants.grant_limits import RolesOf, is_one_of, may_decide, similar_grants, total_within
from gateway.registries import GrantPolicy

MAX_PENDING: Final = 20
"""Pending requests of one requester: with more of them, approvers approve without reading."""

MAX_OF_REQUESTER: Final = 200
"""Stored requests and grants of one requester, ended ones included: no caller alone can fill the store."""

MAX_GRANTS: Final = 10_000
"""Stored requests and grants of all callers."""

Policies = Mapping[str, GrantPolicy]


def request_grant(
    grants: Sequence[Grant], new: Grant, policies: Policies, *, may_ask_for_others: bool, roles_of: RolesOf
) -> Grant:
    """Return the request under the first policy that allows it. Raises `GrantRefused`."""
    if not (new.requester.subject == new.subject and new.requester.tenant == new.tenant) and not may_ask_for_others:
        raise GrantRefused("only operators request grants for others", help="a row has to allow administer on config")
    policy = _choose_policy(new, policies, roles_of)
    at = new.requested_at
    pending = [each for each in grants if each.status(at) == "pending"]
    own, own_pending = (_count_of(new.requester, some) for some in (grants, pending))
    if own_pending >= MAX_PENDING or own >= MAX_OF_REQUESTER or len(grants) >= MAX_GRANTS:
        raise GrantRefused("too many grants are requested already", help="wait until approvers have decided")
    if any(each.recipient == new.recipient and each.role == new.role for each in pending):
        raise GrantRefused(f"{new.role} is requested for {new.subject} already", help="wait for the decision")
    return replace(new, policy=policy.name)


def approve_grant(
    grants: Sequence[Grant], id: str, decider: Principal, policies: Policies, at: datetime, roles_of: RolesOf
) -> Grant:
    """Raises `UnknownGrant`, `GrantRefused` or `GrantClosed`."""
    grant = _find_pending(grants, id, decider, policies, at, roles_of)
    policy = policies[grant.policy]
    approved = replace(grant, state="approved", decider=decider, decided_at=at, since=at, until=at + grant.duration)
    if grant.role not in policy.roles or grant.duration > policy.max_duration:
        raise GrantRefused(f"the policy {policy.name} has changed and does not allow this grant any more")
    if total_within([*similar_grants(grants, grant), approved], at + grant.duration, policy) > policy.max_total:
        raise GrantRefused(
            f"{grant.subject} would hold {grant.role} for longer than {policy.name} allows",
            help="request a shorter time, or wait",
        )
    if sum(each.policy == policy.name and each.is_running(at) for each in grants) >= policy.max_active:
        raise GrantRefused(f"{policy.name} allows {policy.max_active} grants at once", help="revoke one, or wait")
    return approved


def refuse_grant(
    grants: Sequence[Grant], id: str, decider: Principal, policies: Policies, at: datetime, roles_of: RolesOf
) -> Grant:
    """Raises `UnknownGrant`, `GrantRefused` or `GrantClosed`."""
    grant = _find_pending(grants, id, decider, policies, at, roles_of)
    return replace(grant, state="refused", decider=decider, decided_at=at)


def revoke_grant(grants: Sequence[Grant], id: str, by: str, at: datetime) -> Grant:
    """End a grant or a request. Raises `UnknownGrant`, or `GrantClosed` if it is over."""
    grant = find_grant(grants, id)
    if grant.status(at) not in ("pending", "in-force"):
        raise GrantClosed(f"the grant is {grant.status(at)} already")
    return replace(grant, state="revoked", revoked_by=by, revoked_at=at)


def find_grant(grants: Sequence[Grant], id: str) -> Grant:
    grant = next((each for each in grants if each.id == id), None)
    if grant is None:
        raise UnknownGrant()
    return grant


def may_see(grant: Grant, viewer: Principal, policies: Policies, roles_of: RolesOf, *, is_operator: bool) -> bool:
    """Whether a principal may know of a grant: its requester, its recipient, an approver, or an operator."""
    if viewer.tenant != grant.tenant:
        return False
    if is_operator or viewer.subject in (grant.requester.subject, grant.subject):
        return True
    policy = policies.get(grant.policy)
    return policy is not None and is_one_of(policy.approvers, viewer, roles_of)


def _find_pending(
    grants: Sequence[Grant], id: str, decider: Principal, policies: Policies, at: datetime, roles_of: RolesOf
) -> Grant:
    """Return a request that the principal may decide now."""
    grant = find_grant(grants, id)
    if not may_see(grant, decider, policies, roles_of, is_operator=False):
        raise UnknownGrant()
    policy = policies.get(grant.policy)
    if policy is None or not may_decide(grant, decider, policy, roles_of):
        raise GrantRefused(
            "you may not decide about this grant",
            help="an approver of its policy decides, never the requester or the recipient",
        )
    if grant.status(at) != "pending":
        raise GrantClosed(f"the grant is {grant.status(at)} already")
    return grant


def _count_of(requester: Principal, grants: Sequence[Grant]) -> int:
    return sum(each.requester.subject == requester.subject for each in grants)


def _choose_policy(new: Grant, policies: Policies, roles_of: RolesOf) -> GrantPolicy:
    """Return the first policy that allows the request. The roles of another recipient are not all known here."""
    granting = [each for _, each in sorted(policies.items()) if new.role in each.roles]
    if new.requester.subject == new.subject:
        granting = [each for each in granting if is_one_of(each.recipients, new.requester, roles_of)]
    if not granting:
        raise GrantRefused(f"no grant policy allows {new.role} for {new.subject}")
    fitting = next((each for each in granting if new.duration <= each.max_duration), None)
    if fitting is None:
        longest = max(each.max_duration for each in granting)
        raise GrantRefused(f"{new.role} is granted for {longest} at most", help="request a shorter time")
    return fitting

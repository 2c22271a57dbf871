"""What a grant policy allows, as pure functions of grants and a moment.

Both sides use these: an approval, so that no grant exceeds its policy, and every decision on a call, so that a grant
that was approved under another policy does not exceed the one that is served now.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from gateway.model import Principal
from gateway.policy.grants.grant import Grant
from gateway.registries import GrantPolicy

RolesOf = Callable[[frozenset[str]], frozenset[str]]
"""Returns names with every role that they inherit from policy rows; granted roles are not among them."""


def why_not_in_force(
    grant: Grant,
    recipient: Principal,
    policy: GrantPolicy | None,
    others: Sequence[Grant],
    at: datetime,
    roles_of: RolesOf,
) -> str | None:
    """Return why a grant adds nothing for its recipient at a moment; `None` if it is in force.

    `others` are all grants that can matter; the grant may be among them.
    """
    if not grant.is_running(at) or grant.since is None:
        return "it is not approved, or it is over"
    if grant.recipient != (recipient.tenant, recipient.subject):
        return "it is for another caller"
    if policy is None or grant.role not in policy.roles:
        return f"no policy {grant.policy!r} allows {grant.role}"
    if at >= grant.since + policy.max_duration:
        return f"{policy.name} allows grants for a shorter time"
    if not is_one_of(policy.recipients, recipient, roles_of):
        return f"{policy.name} does not allow grants to {recipient.subject}"
    if grant.decider is None or not may_decide(grant, grant.decider, policy, roles_of):
        return f"its approver may not approve grants of {policy.name}"
    if total_within(similar_grants(others, grant), at, policy) >= policy.max_total:
        return f"{policy.name} allows less time in {policy.period}"
    if count_before(grant, others, policy, at) >= policy.max_active:
        return f"{policy.name} allows {policy.max_active} grants at once"
    return None


def may_decide(grant: Grant, decider: Principal, policy: GrantPolicy, roles_of: RolesOf) -> bool:
    """Whether a principal may approve or refuse a grant: never its requester or recipient."""
    if decider.tenant != grant.tenant or decider.subject in (grant.requester.subject, grant.subject):
        return False
    return is_one_of(policy.approvers, decider, roles_of)


def is_one_of(names: Iterable[str], principal: Principal, roles_of: RolesOf) -> bool:
    return not roles_of(principal.names).isdisjoint(names)


def similar_grants(grants: Iterable[Grant], grant: Grant) -> list[Grant]:
    """Return the grants of the same role to the same caller, whatever their policy."""
    return [each for each in grants if each.recipient == grant.recipient and each.role == grant.role]


def total_within(grants: Iterable[Grant], at: datetime, policy: GrantPolicy) -> timedelta:
    """Return for how long any of the grants was in force in the period up to a moment."""
    return measure_spans(list_spans(grants), at - policy.period, at)


def list_spans(grants: Iterable[Grant]) -> list[tuple[datetime, datetime]]:
    """Return from when until when grants were or are in force, as far as their own times tell."""
    return [(each.since, each.ends_at) for each in grants if each.since is not None and each.ends_at is not None]


def measure_spans(spans: Iterable[tuple[datetime, datetime]], first: datetime, last: datetime) -> timedelta:
    """Return how much of the time between two moments is in at least one of the spans."""
    total, reached = timedelta(0), first
    for since, until in sorted(spans):
        start, end = max(since, reached), min(until, last)
        if start < end:
            total += end - start
            reached = end
    return total


def count_before(grant: Grant, others: Iterable[Grant], policy: GrantPolicy, at: datetime) -> int:
    """Return how many running grants of the policy began before this one: the oldest ones keep their place."""
    running = (each for each in others if each.policy == policy.name and each.is_running(at))
    return sum(_place(each) < _place(grant) for each in running)


def _place(grant: Grant) -> tuple[datetime, str]:
    return grant.since or grant.requested_at, grant.id

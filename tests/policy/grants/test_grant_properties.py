"""Grants and ends against a reference model: random policies, grants, callers, and a clock that also goes back.

`GRANT_CASES` sets the number of random worlds; each of them is asked some hundred questions.
"""

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

from gateway.model import Principal
from gateway.policy.access import Access
from gateway.policy.authoriser import AccessRequest
from gateway.policy.casbin.period_authoriser import build_authoriser
from gateway.policy.casbin.policy_files import PermissionRow, PolicySet, RoleLink
from gateway.policy.casbin.row_end import RowEnd
from gateway.policy.forward_clock import ForwardClock
from gateway.policy.grants.grant import Grant, GrantLedger
from gateway.policy.grants.granted_roles import GrantedRoles
from gateway.registries import DeclaredTool, EffectiveTrust, GrantPolicy, Position, Tier
from tests.policy.casbin.policy_samples import RANKS, SUBJECTS, permission, random_policies
from tests.policy.casbin.reference import ReferenceAuthoriser, closure
from tests.policy.test_access_properties import snapshot

CASES = int(os.environ.get("GRANT_CASES", "150"))
QUESTIONS = 60
START = datetime(2026, 11, 19, tzinfo=UTC)
HERE = Position("a.yaml", 1)
ROLES = [each for each in SUBJECTS if each.startswith("role:")]
CALLERS = [each for each in SUBJECTS if not each.startswith("role:")]
TIERS = {name: Tier(name, rank, "first-party") for name, rank in RANKS.items()}
TOOLS = ["pay_in", "pay_out", "log", "pay"]


def minutes(random: Random, most: int = 300) -> timedelta:
    return timedelta(minutes=random.randrange(most))


def with_ends(policies: PolicySet, random: Random) -> PolicySet:
    def end() -> RowEnd | None:
        return RowEnd(START + minutes(random), "T-1", HERE) if random.random() < 0.4 else None

    role = random.choice(ROLES)  # one that is worth having
    useful = permission(f"{role}, *, tool:*, invoke|read, quarantine, allow", line=1_000)
    few = [row for row in policies.permissions if row.effect.text == "allow" or random.random() < 0.3]
    rows = tuple(replace(row, end=end()) for row in (*few, useful))
    return PolicySet(rows, tuple(replace(link, end=end()) for link in policies.members), policies.objects)


def random_principal(random: Random) -> Principal:
    roles = frozenset(random.sample(ROLES, random.choice([0, 0, 1, 2])))
    return Principal(random.choice(CALLERS), roles, random.choice([None, None, None, None, "acme"]))


def random_policy(random: Random, name: str) -> GrantPolicy:
    longest = minutes(random, 240)
    return GrantPolicy(
        name,
        tuple(random.sample(ROLES, 3)),
        tuple(random.sample(SUBJECTS, 5)),
        tuple(random.sample(SUBJECTS, 5)),
        longest,
        longest + minutes(random, 120),
        timedelta(minutes=random.choice([60, 240, 1440])),
        random.choice([0, 1, 5, 5, 5]),
        HERE,
    )


def random_grant(random: Random, number: int) -> Grant:
    """Any grant that a store could hold: approved under other policies, by others, for longer."""
    principal, since = random_principal(random), START + minutes(random, 100)
    state = random.choice(["approved", "approved", "approved", "approved", "revoked", "refused", "pending"])
    is_decided = state in ("approved", "revoked")
    return Grant(
        f"g{number}",
        principal.subject,
        principal.tenant,
        random.choice(ROLES),
        random.choice(["one", "one", "two", "two", "gone"]),
        timedelta(hours=1),
        "reason",
        random_principal(random),
        since,
        since,
        state,  # type: ignore[arg-type] # one of the states
        random_principal(random) if random.random() < 0.95 else None,
        since,
        since if is_decided else None,
        since + minutes(random, 200) if is_decided else None,
        None,
        since + minutes(random, 200) if state == "revoked" else None,
    )


# The reference: every rule in plain Python, nothing shared with the code but its data.


def has_ended(row: PermissionRow | RoleLink, at: datetime) -> bool:
    return row.end is not None and row.end.until <= at


def rows_at(policies: PolicySet, at: datetime) -> PolicySet:
    return PolicySet(
        tuple(row for row in policies.permissions if not has_ended(row, at)),
        tuple(link for link in policies.members if not has_ended(link, at)),
        policies.objects,
    )


def held_minutes(grants: list[Grant], first: datetime, last: datetime) -> int:
    """Count the minutes in which one of the grants was in force; all moments are whole minutes."""
    found, minute = 0, first
    while minute < last:
        for each in grants:
            if each.since is None or each.until is None:
                continue
            end = each.until if each.revoked_at is None else min(each.until, each.revoked_at)
            if each.since <= minute < end:
                found += 1
                break
        minute += timedelta(minutes=1)
    return found


def adds_role(
    grant: Grant, who: Principal, grants: list[Grant], named: dict[str, GrantPolicy], rows: PolicySet, at: datetime
) -> bool:
    policy = named.get(grant.policy)
    if grant.state != "approved" or grant.since is None or grant.until is None or policy is None:
        return False
    if (grant.subject, grant.tenant) != (who.subject, who.tenant) or grant.role not in policy.roles:
        return False
    if at < grant.since or at >= grant.until or at >= grant.since + policy.max_duration:
        return False
    if not closure(who.names, rows.members) & set(policy.recipients):
        return False
    by = grant.decider
    if by is None or by.tenant != grant.tenant or by.subject in (grant.subject, grant.requester.subject):
        return False
    if not closure(by.names, rows.members) & set(policy.approvers):
        return False
    same = [each for each in grants if (each.subject, each.tenant, each.role) == (who.subject, who.tenant, grant.role)]
    if timedelta(minutes=held_minutes(same, at - policy.period, at)) >= policy.max_total:
        return False
    older = 0
    for each in grants:
        is_running = each.state == "approved" and each.since and each.until and each.since <= at < each.until
        if each.policy == policy.name and is_running and (each.since, each.id) < (grant.since, grant.id):
            older += 1
    return older < policy.max_active


def test_grants_and_ends_never_widen_access() -> None:
    allowed = granted = 0
    for seed in range(CASES):
        random = Random(seed)
        policies = with_ends(random_policies(random), random)
        named = {name: random_policy(random, name) for name in ("one", "two")}
        grants = [random_grant(random, number) for number in range(random.randrange(16))]
        raw = [START]
        clock = ForwardClock(lambda raw=raw: raw[0])  # type: ignore[misc]
        authoriser = build_authoriser(policies, ranks=RANKS, clock=clock)
        declared = replace(snapshot({}, [], frozenset()), tiers=TIERS, grants=named)
        ledger = GrantLedger.of(grants)
        access = Access(declared, authoriser).with_grants(
            GrantedRoles(named, ledger, authoriser.roles_of, clock=clock).find
        )
        latest = START
        for _ in range(QUESTIONS):
            raw[0] += timedelta(minutes=random.choice([0, 0, 1, 5, 8, -10, -50]))
            latest = max(latest, raw[0])
            who = random_principal(random)
            if grants and random.random() < 0.7:
                grant = random.choice(grants)
                who = replace(who, subject=grant.subject, tenant=grant.tenant)
            tier = TIERS[random.choice(list(TIERS))]
            tool = DeclaredTool(
                random.choice(TOOLS), "It.", EffectiveTrust(tier, frozenset(), False, True), "http", HERE
            )
            action, catalogue = random.choice(["invoke", "read", "discover"]), random.choice(["eng", "ops"])

            decision = access.decide_action(who, action, catalogue, tool)

            rows = rows_at(policies, latest)
            added = {each.role for each in grants if adds_role(each, who, grants, named, rows, latest)}
            expected, _ = ReferenceAuthoriser(rows, RANKS).decide(
                AccessRequest(who.names | added, catalogue, tool.object, action, tier.name)
            )
            alone, _ = ReferenceAuthoriser(rows, RANKS).decide(
                AccessRequest(who.names, catalogue, tool.object, action, tier.name)
            )
            assert decision.allowed is expected, f"seed {seed}: {who} {action} {tool.object} at {latest}"
            assert bool(decision.grants) is (expected and not alone), f"seed {seed}: {decision}"
            assert access.roles_of(who) == closure(who.names, rows.members), f"seed {seed}"
            allowed += decision.allowed
            granted += bool(decision.grants)
    assert allowed > CASES
    assert granted > CASES // 20  # or the worlds would prove nothing about grants

"""Properties of every policy: denies win, nothing is granted by accident, order does not matter."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.policy.authoriser import AccessRequest
from gateway.policy.casbin.enforcer import CasbinAuthoriser
from gateway.policy.casbin.policy_files import PermissionRow, PolicySet
from tests.policy.casbin.policy_samples import RANKS, permission, random_policies, random_request, random_row

seeds = st.integers(0, 2**32)


def allowed(policies: PolicySet, requests: list[AccessRequest]) -> set[AccessRequest]:
    authoriser = CasbinAuthoriser(policies, ranks=RANKS)
    return {request for request in requests if authoriser.decide(request).allowed}


def with_row(policies: PolicySet, row: PermissionRow) -> PolicySet:
    return PolicySet((*policies.permissions, row), policies.members, policies.objects)


def row_with_effect(random: Random, effect: str) -> PermissionRow:
    return permission(f"{random_row(random).rpartition(',')[0]}, {effect}", line=1_000)


def requests(random: Random, count: int = 40) -> list[AccessRequest]:
    return [random_request(random) for _ in range(count)]


@settings(deadline=None)  # a busy machine is not a failure
@given(seeds)
def test_another_allow_removes_no_access(seed: int) -> None:
    random = Random(seed)
    policies, asked = random_policies(random), requests(random)

    assert allowed(policies, asked) <= allowed(with_row(policies, row_with_effect(random, "allow")), asked)


@settings(deadline=None)  # a busy machine is not a failure
@given(seeds)
def test_another_deny_grants_no_access(seed: int) -> None:
    random = Random(seed)
    policies, asked = random_policies(random), requests(random)

    assert allowed(with_row(policies, row_with_effect(random, "deny")), asked) <= allowed(policies, asked)


@settings(deadline=None)  # a busy machine is not a failure
@given(seeds)
def test_deny_beats_any_number_of_allows(seed: int) -> None:
    random = Random(seed)
    policies, asked = random_policies(random), requests(random)
    for request in allowed(policies, asked):
        row = f"{min(request.names)}, *, {request.object}, {request.action}, quarantine, deny"

        assert allowed(with_row(policies, permission(row, line=1_000)), [request]) == set()


@settings(deadline=None)  # a busy machine is not a failure
@given(seeds)
def test_order_of_rows_changes_no_decision(seed: int) -> None:
    random = Random(seed)
    policies, asked = random_policies(random), requests(random)
    shuffled = PolicySet(
        tuple(random.sample(policies.permissions, len(policies.permissions))),
        tuple(random.sample(policies.members, len(policies.members))),
        tuple(random.sample(policies.objects, len(policies.objects))),
    )
    first, second = CasbinAuthoriser(policies, ranks=RANKS), CasbinAuthoriser(shuffled, ranks=RANKS)

    assert [first.decide(one) for one in asked] == [second.decide(one) for one in asked]


@settings(deadline=None)  # a busy machine is not a failure
@given(seeds)
def test_names_no_row_knows_are_denied(seed: int) -> None:
    random = Random(seed)
    policies = random_policies(random)
    strangers = [
        AccessRequest(frozenset({"user:stranger", "role:stranger"}), one.catalogue, one.object, one.action, one.tier)
        for one in requests(random)
    ]

    assert allowed(policies, strangers) == set()


@settings(deadline=None)  # a busy machine is not a failure
@given(seeds)
def test_empty_policy_denies_everything(seed: int) -> None:
    random = Random(seed)
    policies = random_policies(random)

    assert allowed(PolicySet((), policies.members, policies.objects), requests(random)) == set()


@settings(deadline=None)  # a busy machine is not a failure
@given(seeds)
def test_rows_of_one_subject_do_not_concern_another(seed: int) -> None:
    random = Random(seed)
    policies, asked = random_policies(random), requests(random)
    other = permission(random.choice(["user:other", "role:other"]) + ", *, tool:*, invoke|read, quarantine, deny")

    assert allowed(with_row(policies, other), asked) == allowed(policies, asked)


@settings(deadline=None)  # a busy machine is not a failure
@given(seeds)
def test_raising_a_tier_only_removes_access(seed: int) -> None:
    random = Random(seed)
    policies = random_policies(random)
    allows = PolicySet(
        tuple(row for row in policies.permissions if row.effect.text == "allow"), policies.members, policies.objects
    )
    asked = requests(random)
    riskier = [AccessRequest(one.names, one.catalogue, one.object, one.action, "quarantine") for one in asked]
    authoriser = CasbinAuthoriser(allows, ranks=RANKS)

    for before, after in zip(asked, riskier, strict=True):
        if before.tier in RANKS:
            assert authoriser.decide(before).allowed or not authoriser.decide(after).allowed

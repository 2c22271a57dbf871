"""Attestations: growth against a model of single rights, digests, and the problems that are reported."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import date, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.registries.diagnostics import Position
from gateway.review.access.access_review import AccessScopes
from gateway.review.access.attestation import (
    Attestation,
    AttestedAccess,
    digest_access,
    find_growth,
    normalise_access,
)
from gateway.review.access.attestation_check import AttestationPolicy, check_attestations, format_growth
from tests.review.access.random_worlds import NOW, OWNERS, World, ask_about_pair, objects_of, random_world

HERE = Position("gateway.yaml", 3)
THERE = Position("attestations/team-a.yaml", 5)
UNTIL = Position("attestations/team-a.yaml", 9)
TODAY = date(2026, 11, 16)
Rights = set[tuple[str, str, str, str]]
"""Caller, catalogue, object and action."""

ACTIONS = ("see", "call", "read", "read:artifact_grep", "approve")
names = st.sampled_from
entries = st.builds(
    AttestedAccess,
    names(["desk", "ops"]),
    st.lists(names(["user:ana", "role:a", "agent:bot"]), min_size=1, max_size=3, unique=True).map(tuple),
    st.lists(names(["tool:pay", "tool:log", "prompt:wiki.review"]), min_size=1, max_size=3, unique=True).map(tuple),
    st.lists(names(ACTIONS), min_size=1, max_size=4, unique=True).map(tuple),
    st.lists(names(["held", "limited"]), max_size=2, unique=True).map(tuple),
)
lists = st.lists(entries, max_size=4)


def expand(access: Iterable[AttestedAccess]) -> Rights:
    return {
        (caller, each.catalogue, object, action)
        for each in access
        for caller in each.callers
        for object in each.objects
        for action in each.actions
    }


def rules_of(access: Iterable[AttestedAccess], right: tuple[str, str, str, str]) -> set[str]:
    """The rules that every entry about a call has: one without a rule is a way around it."""
    caller, catalogue, object, action = right
    found = [
        set(each.gates)
        for each in access
        if catalogue == each.catalogue and caller in each.callers and object in each.objects and action in each.actions
    ]
    return set.intersection(*found) if found else set()


@settings(max_examples=300)
@given(lists, lists)
def test_growth_is_each_right_that_was_not_attested(before: list[AttestedAccess], after: list[AttestedAccess]) -> None:
    old, new = expand(before), expand(after)
    covered = {right for right in new if right[3].startswith("read:") and (*right[:3], "read") in old}
    calls = {right for right in new & old if right[3] == "call"}
    dropped = {(*right[:3], rule) for right in calls for rule in rules_of(before, right) - rules_of(after, right)}

    found = list(find_growth(before, after))

    assert {(each.caller, each.catalogue, each.object, action) for each in found for action in each.actions} == (
        new - old - covered
    )
    assert {(each.caller, each.catalogue, each.object, rule) for each in found for rule in each.without} == dropped
    assert len({(each.caller, each.catalogue, each.object) for each in found}) == len(found)
    assert all(format_growth(each) for each in found)


@given(lists)
def test_less_access_is_no_growth(access: list[AttestedAccess]) -> None:
    assert list(find_growth(access, access[1:])) == [] or access[0].gates or any(each.gates for each in access)
    assert list(find_growth(access, [])) == []


@given(lists, st.randoms(use_true_random=False))
def test_digest_depends_on_the_access_and_not_on_its_grouping(access: list[AttestedAccess], random: object) -> None:
    single = [
        replace(each, callers=(caller,), objects=(object,))
        for each in reversed(access)
        for caller in each.callers
        for object in each.objects
    ]

    assert normalise_access(single) == normalise_access(access)
    assert digest_access(single) == digest_access(access)
    assert normalise_access(normalise_access(access)) == normalise_access(access)
    assert list(find_growth(access, normalise_access(access))) == []


@given(lists, lists)
def test_other_access_has_another_digest(one: list[AttestedAccess], other: list[AttestedAccess]) -> None:
    assert (digest_access(one) == digest_access(other)) == (normalise_access(one) == normalise_access(other))
    if expand(one) != expand(other):
        assert digest_access(one) != digest_access(other)


def ask_about_scope(world: World, owner: str) -> Rights:
    """What an owner attests, by asking about each pair."""
    scopes = AccessScopes(world.access, world.rows, at=NOW)
    callers = scopes.callers.principals
    owned = {"agent:bot"} if owner in _caller_owners(world) else set()
    found: Rights = set()
    for name, principal in callers.items():
        for catalogue in world.snapshot.catalogues.values():
            for object in objects_of(catalogue):
                if _owner_of(world, object) == owner or principal.subject in owned:
                    asked = ask_about_pair(world, principal, catalogue.name, object)
                    found |= {(name, catalogue.name, object, action) for action, _ in asked}
    return found


def _caller_owners(world: World) -> set[str]:
    providers = world.snapshot.documents["IdentityProvider"].values()
    return {team for each in providers for team in each.data["spec"]["owners"].values()}


def _owner_of(world: World, object: str) -> str | None:
    if object in world.snapshot.offers:
        return "team-b"
    return world.snapshot.tools[object.removeprefix("tool:")].owner


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(OWNERS))
def test_attestation_never_hides_growth(random: object, owner: str) -> None:
    """The access of two projects: what only the second has is named, whatever else changed."""
    before, after = random_world(random), random_world(random)  # type: ignore[arg-type]  # hypothesis' own kind of Random
    attested = AccessScopes(before.access, before.rows, at=NOW).find(owner)
    today = AccessScopes(after.access, after.rows, at=NOW).find(owner)
    old, new = ask_about_scope(before, owner), ask_about_scope(after, owner)

    named = {
        (each.caller, each.catalogue, each.object, action)
        for each in find_growth(attested, today)
        for action in each.actions
        if each.catalogue != "*"
    }

    covered = {right for right in new if right[3].startswith("read:") and (*right[:3], "read") in old}
    assert named == new - old - covered


CALL = AttestedAccess("desk", ("user:ana",), ("tool:pay",), ("see", "call"), ("held",))
FULL = (CALL,)


def attestation(access: tuple[AttestedAccess, ...] = FULL) -> Attestation:
    until = TODAY + timedelta(days=30)
    digest = digest_access(access)
    return Attestation("team-a", "team-a", "Ana", TODAY, until, digest, access, THERE, UNTIL)


def problems(
    *attestations: Attestation,
    policy: AttestationPolicy | None = None,
    access: tuple[AttestedAccess, ...] = FULL,
    today: date = TODAY,
) -> list[tuple[str, Position, str]]:
    found = list(check_attestations(attestations, policy, scope_of=lambda owner: access, today=today))
    assert {each.severity for each in found} <= {"warning"}
    assert all(each.help for each in found)
    return [(each.code, each.position, each.message) for each in found]


def test_attestation_of_the_present_access_is_no_problem() -> None:
    assert problems(attestation()) == []
    assert problems() == []


def test_missing_attestation_is_reported_where_it_is_required() -> None:
    policy = AttestationPolicy(("team-a", "team-b"), timedelta(days=90), HERE)

    assert problems(attestation(), policy=policy) == [
        ("attestation-missing", HERE, "'team-b' has not attested the access to what it owns")
    ]


@pytest.mark.parametrize(
    ("policy", "days", "is_over"),
    [
        pytest.param(None, 30, False, id="last-day"),
        pytest.param(None, 31, True, id="day-after"),
        pytest.param(AttestationPolicy(("team-a",), timedelta(days=10), HERE), 10, False, id="oldest-allowed"),
        pytest.param(AttestationPolicy(("team-a",), timedelta(days=10), HERE), 11, True, id="too-old"),
        pytest.param(AttestationPolicy(("team-b",), timedelta(days=10), HERE), 11, False, id="not-required"),
        pytest.param(AttestationPolicy(("team-a",), timedelta(days=900), HERE), 31, True, id="over-before-too-old"),
    ],
)
def test_attestation_is_over_after_its_last_day(policy: AttestationPolicy | None, days: int, is_over: bool) -> None:
    found = problems(attestation(), policy=policy, today=TODAY + timedelta(days=days))

    assert [code for code, place, _ in found if place == UNTIL] == ["attestation-expired"] * is_over


def test_edited_list_is_reported_instead_of_growth() -> None:
    edited = replace(attestation(), access=(replace(CALL, callers=("user:ana", "user:bo")),))

    assert [code for code, *_ in problems(edited)] == ["attestation-altered"]


def test_growth_is_named() -> None:
    grown = (
        replace(CALL, gates=()),
        AttestedAccess("desk", ("agent:bot",), ("tool:pay",), ("see", "call")),
        AttestedAccess("*", ("user:bo",), ("config",), ("administer",)),
        AttestedAccess("ops", ("user:bo", "user:cy"), ("prompt:wiki.review",), ("call",)),
    )

    [(code, place, message)] = problems(attestation(), access=grown)

    assert (code, place) == ("access-grown", THERE)
    assert message == (
        "access has grown since 2026-11-16: agent:bot can see and call pay in desk; "
        "user:ana calls pay in desk without held; user:bo can administer config; and 2 more"
    )

"""Effective trust: tiers require, forbid and add; a contradiction never widens trust."""

from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.registries.effective_trust import DeclaredTrust, EffectiveTrust, Tier, derive_hints, resolve_trust
from gateway.registries.tool_flags import Flag, add_implied_flags

TODAY = date(2026, 11, 16)
FLAGS = {
    "writes": Flag("writes", hints={"readOnly": False}),
    "destructive": Flag("destructive", implies=frozenset({"writes"}), hints={"destructive": True}),
    "untrusted-output": Flag("untrusted-output", hints={"openWorld": True}),
    "loop-a": Flag("loop-a", implies=frozenset({"loop-b"})),
    "loop-b": Flag("loop-b", implies=frozenset({"loop-a"}), hints={"idempotent": True}),
}
INTERNAL = Tier("internal", 0, "first-party", may_be_trusted=True)
COMMUNITY = Tier(
    "community",
    20,
    "third-party-public",
    requires_pinned=True,
    reviewed_within=timedelta(days=60),
    forbidden_backends=frozenset({"command"}),
    forbidden_flags=frozenset({"writes"}),
    adds_flags=frozenset({"untrusted-output"}),
)
QUARANTINE = Tier("quarantine", 90, "third-party-public", callable=False)


def declared(**fields: Any) -> DeclaredTrust:
    return DeclaredTrust(**{"tier": "t", "backend": "http", "flags": frozenset(), **fields})


def test_internal_tool_gets_what_it_declares() -> None:
    trust, problems = resolve_trust(
        declared(flags=frozenset({"destructive"}), trusted=True), INTERNAL, FLAGS, today=TODAY
    )

    assert problems == []
    assert (trust.flags, trust.trusted, trust.callable) == (frozenset({"destructive", "writes"}), True, True)


def test_tier_adds_its_flags() -> None:
    trust, problems = resolve_trust(declared(reviewed=TODAY), COMMUNITY, FLAGS, today=TODAY)

    assert (trust.flags, problems) == (frozenset({"untrusted-output"}), [])


def test_tool_of_an_uncallable_tier_is_not_callable() -> None:
    assert resolve_trust(declared(), QUARANTINE, FLAGS, today=TODAY)[0].callable is False


@pytest.mark.parametrize(
    ("fields", "code", "field", "severity", "callable"),
    [
        ({"flags": frozenset({"destructive"})}, "tier-forbids-flag", "flags", "error", False),
        ({"backend": "command"}, "tier-forbids-backend", "backend", "error", False),
        ({"trusted": True}, "tier-forbids-trusted", "trusted", "error", False),
        ({"imported": True}, "not-pinned", "tier", "warning", True),
        ({"reviewed": None}, "review-missing", "reviewed", "error", False),
        ({"reviewed": date(2026, 11, 17)}, "review-in-future", "reviewed", "error", False),
        ({"reviewed": date(2026, 9, 16)}, "review-overdue", "reviewed", "warning", True),
        ({"reviewed": date(2026, 7, 18)}, "review-expired", "reviewed", "warning", False),
    ],
)
def test_disagreement_with_the_tier_is_a_problem(
    fields: dict[str, Any], code: str, field: str, severity: str, callable: bool
) -> None:
    trust, problems = resolve_trust(declared(**{"reviewed": TODAY, **fields}), COMMUNITY, FLAGS, today=TODAY)

    assert [(found.code, found.field, found.severity) for found in problems] == [(code, field, severity)]
    assert (trust.callable, trust.trusted) == (callable, False)


@pytest.mark.parametrize("age", [60, 61, 120, 121])
def test_review_counts_for_its_period_and_warns_for_another(age: int) -> None:
    trust, problems = resolve_trust(declared(reviewed=TODAY - timedelta(days=age)), COMMUNITY, FLAGS, today=TODAY)

    assert ([found.code for found in problems], trust.callable) == {
        60: ([], True),
        61: (["review-overdue"], True),
        120: (["review-overdue"], True),
        121: (["review-expired"], False),
    }[age]


def test_pinned_import_is_fine() -> None:
    trust = declared(reviewed=TODAY, imported=True, pinned=True)

    assert resolve_trust(trust, COMMUNITY, FLAGS, today=TODAY)[1] == []


def test_implied_flags_are_found_at_any_distance_and_cycles_end() -> None:
    assert add_implied_flags(["destructive"], FLAGS) == {"destructive", "writes"}
    assert add_implied_flags(["loop-a", "unknown"], FLAGS) == {"loop-a", "loop-b", "unknown"}


@pytest.mark.parametrize(
    ("names", "hints"),
    [
        ([], {"readOnly": True, "destructive": False, "openWorld": False}),
        (["writes", "destructive"], {"readOnly": False, "destructive": True, "openWorld": False}),
        (["untrusted-output", "unknown"], {"readOnly": True, "destructive": False, "openWorld": True}),
        (["loop-b"], {"readOnly": True, "destructive": False, "openWorld": False, "idempotent": True}),
    ],
)
def test_hints_come_from_flags_alone(names: list[str], hints: dict[str, bool]) -> None:
    assert derive_hints(EffectiveTrust(INTERNAL, frozenset(names), False, True), FLAGS) == hints


@given(
    st.frozensets(st.sampled_from(sorted(FLAGS))),
    st.booleans(),
    st.sampled_from([INTERNAL, COMMUNITY, QUARANTINE]),
)
def test_no_declaration_gets_more_than_its_tier_gives(flags: frozenset[str], trusted: bool, tier: Tier) -> None:
    trust, _ = resolve_trust(declared(flags=flags, trusted=trusted), tier, FLAGS, today=TODAY)

    assert trust.flags >= flags | tier.adds_flags
    assert trust.callable <= tier.callable
    assert trust.trusted <= tier.may_be_trusted
    assert not (trust.callable and trust.flags & tier.forbidden_flags)

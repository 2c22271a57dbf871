"""Effects: declared, implied by a method, or unknown. Nothing makes a tool look safer than it was declared."""

from datetime import date
from itertools import product
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.registries.effective_trust import DeclaredTrust, EffectiveTrust, Tier, derive_hints, resolve_trust
from gateway.registries.tool_flags import (
    BUILT_IN_FLAGS,
    CHANGES,
    EFFECT_FLAGS,
    Flag,
    Proposal,
    add_implied_flags,
    claims_not_idempotent,
    contradicts_method,
    find_claimed_flags,
    in_effect_order,
    method_flags,
    propose_flags,
)

TODAY: Final = date(2026, 11, 16)
TIERS: Final = (
    Tier("inner", 0, "first-party", may_be_trusted=True),
    Tier("open", 10, "third-party-public", adds_flags=frozenset({"untrusted-output"})),
    Tier("writing", 20, "third-party-public", adds_flags=frozenset({"writes"})),
    Tier("strict", 30, "third-party-public", forbidden_flags=frozenset({"destructive"})),
)
OTHER: Final = frozenset({"private-data"})
DECLARATIONS: Final = (None, *(frozenset(each) for each in ([], ["writes"], ["destructive"], ["egress"], OTHER)))
CLAIMS: Final = tuple(
    dict(zip(("readOnlyHint", "destructiveHint", "openWorldHint"), values, strict=True))
    for values in product((None, True, False), repeat=3)
)
FLAG_SETS: Final[tuple[dict[str, Flag], ...]] = (dict(BUILT_IN_FLAGS), {})
"""With the built-in flags and without them: the worst case must not depend on documents."""


@pytest.mark.parametrize(
    ("method", "flags"),
    [
        *(("GET", ()), ("HEAD", ()), ("OPTIONS", ()), ("get", ())),
        *(("POST", ["writes"]), ("PUT", ["writes"]), ("PATCH", ["writes"]), ("delete", ["writes", "destructive"])),
        *(("DELETE", ["writes", "destructive"]), ("TRACE", ["writes"]), ("PURGE", ["writes"]), ("", ["writes"])),
    ],
)
def test_method_implies_flags(method: str, flags: list[str]) -> None:
    assert method_flags(method) == frozenset(flags)


@pytest.mark.parametrize(
    ("method", "flags", "is_contradicted"),
    [
        ("DELETE", [], True),
        ("put", ["egress"], True),
        ("PATCH", ["private-data"], True),
        ("DELETE", ["writes"], False),
        ("DELETE", ["destructive"], False),
        ("POST", [], False),
        ("GET", [], False),
        ("GET", ["writes"], False),
    ],
)
def test_flags_that_a_method_speaks_against(method: str, flags: list[str], is_contradicted: bool) -> None:
    """A search by POST is common, so only methods that always change something count."""
    assert contradicts_method(method, flags) == is_contradicted


@pytest.mark.parametrize(
    ("annotations", "flags"),
    [
        ({}, []),
        ({"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False}, []),
        ({"readOnlyHint": None, "destructiveHint": None}, []),
        ({"readOnlyHint": False}, ["writes"]),
        ({"destructiveHint": True}, ["writes", "destructive"]),
        ({"readOnlyHint": True, "destructiveHint": True}, ["writes", "destructive"]),
        ({"openWorldHint": True}, ["egress"]),
        ({"readOnlyHint": "yes", "destructiveHint": 0, "openWorldHint": []}, ["writes", "destructive", "egress"]),
        ({"readOnlyHint": 1}, ["writes"]),
    ],
)
def test_only_alarming_claims_count(annotations: dict[str, Any], flags: list[str]) -> None:
    assert find_claimed_flags(annotations) == frozenset(flags)


@pytest.mark.parametrize(("claim", "matters"), [(None, False), (True, False), (False, True), ("no", True), (0, True)])
def test_server_may_claim_that_repeats_matter(claim: object, matters: bool) -> None:
    assert claims_not_idempotent({"idempotentHint": claim}) == matters
    assert not claims_not_idempotent({})


def resolve(
    declared: frozenset[str] | None,
    claims: frozenset[str],
    tier: Tier,
    flags: dict[str, Flag],
    *,
    implied: bool = False,
) -> EffectiveTrust:
    given = DeclaredTrust(tier.name, "mcp", declared, is_implied=implied, claims=claims)
    return resolve_trust(given, tier, flags, today=TODAY)[0]


@pytest.mark.parametrize("flags", FLAG_SETS, ids=["with built-in flags", "without any"])
def test_no_combination_is_less_cautious_than_the_declaration(flags: dict[str, Flag]) -> None:
    """Every declaration, claim and tier only adds effects, and no declaration at all is the worst case."""
    seen = 0
    for declared, annotations, tier in product(DECLARATIONS, CLAIMS, TIERS):
        claims = find_claimed_flags(annotations)
        trust = resolve(declared, claims, tier, flags)
        least = add_implied_flags((declared or frozenset()) | claims | tier.adds_flags, flags)
        assert least <= trust.flags
        assert trust.effects == ("unknown" if declared is None else "declared")
        if declared is None:
            assert trust.flags >= EFFECT_FLAGS
            assert derive_hints(trust, flags) == {}
        else:
            assert trust.flags == least
            assert trust.assumed == frozenset()
        assert trust.known_flags == trust.flags - trust.assumed
        assert trust.claimed <= add_implied_flags(claims, flags)
        assert trust.callable == trust.flags.isdisjoint(tier.forbidden_flags)
        seen += 1
    assert seen == len(DECLARATIONS) * len(CLAIMS) * len(TIERS) == 6 * 27 * 4


@given(
    st.one_of(st.none(), st.frozensets(st.sampled_from(["writes", "destructive", "egress", "private-data", "x"]))),
    st.dictionaries(
        st.sampled_from(["readOnlyHint", "destructiveHint", "openWorldHint", "idempotentHint", "title"]),
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=1)),
    ),
    st.sampled_from(TIERS),
)
def test_hostile_claims_never_lower_caution(
    declared: frozenset[str] | None, annotations: dict[str, Any], tier: Tier
) -> None:
    flags = dict(BUILT_IN_FLAGS)
    quiet, claimed = (
        resolve(declared, claims, tier, flags) for claims in (frozenset(), find_claimed_flags(annotations))
    )

    assert quiet.flags <= claimed.flags
    assert claimed.effects == quiet.effects
    assert not claimed.callable or quiet.callable
    if declared is not None:
        before, after = derive_hints(quiet, flags), derive_hints(claimed, flags)
        assert not (after["readOnly"] and not before["readOnly"])
        assert not (before["destructive"] and not after["destructive"])
        assert not (before["openWorld"] and not after["openWorld"])


def test_hints_follow_flags_of_effects_without_any_document() -> None:
    for flags, hints in [
        (["writes"], (False, False, False)),
        (["destructive"], (False, True, False)),
        (["egress"], (True, False, True)),
        ([], (True, False, False)),
    ]:
        trust = resolve(frozenset(flags), frozenset(), TIERS[0], dict(BUILT_IN_FLAGS))
        derived = derive_hints(trust, BUILT_IN_FLAGS)
        assert (derived["readOnly"], derived["destructive"], derived["openWorld"]) == hints


def test_implied_effects_are_distinguished() -> None:
    assert resolve(frozenset(), frozenset(), TIERS[0], {}, implied=True).effects == "implied"


def test_flags_of_effects_come_first() -> None:
    assert in_effect_order(["b", "egress", "a", "writes", "destructive"]) == [
        *("writes", "destructive", "egress"),
        *("a", "b"),
    ]


@pytest.mark.parametrize(
    ("tool", "annotations", "method", "flags"),
    [
        ("get_order", {}, None, []),
        ("getOrder", {}, None, []),
        ("get_and_delete", {}, None, []),  # a name is only a name: claims and methods add to it
        ("get_order", {"destructiveHint": True}, None, ["writes", "destructive"]),
        ("get_order", {}, "DELETE", ["writes", "destructive"]),
        ("order", {"readOnlyHint": True}, None, ["writes"]),
        ("weather", {"readOnlyHint": True}, None, []),
        ("weather", {}, None, ["writes", "destructive", "egress"]),
        ("weather", {}, "GET", []),
        ("deleteOrder", {}, None, ["writes", "destructive"]),
        ("create-order", {"readOnlyHint": True}, None, ["writes"]),
        ("send.mail", {}, None, ["writes", "egress"]),
        ("___", {}, None, ["writes", "destructive", "egress"]),
    ],
)
def test_proposal_takes_the_most_alarming_of_what_is_known(
    tool: str, annotations: dict[str, Any], method: str | None, flags: list[str]
) -> None:
    proposal = propose_flags(tool, annotations=annotations, method=method)

    assert (proposal.tool, list(proposal.flags)) == (tool, flags)
    assert proposal.because
    assert find_claimed_flags(annotations) <= set(proposal.flags)


def test_proposal_is_a_line_of_yaml_whatever_the_name() -> None:
    assert Proposal("on", ("writes",), "x").line == '"on": {flags: [writes]}'


def test_what_changes_something_is_an_effect() -> None:
    assert CHANGES < EFFECT_FLAGS == frozenset(BUILT_IN_FLAGS)

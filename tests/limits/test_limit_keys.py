"""What is counted together and what apart."""

from dataclasses import replace
from datetime import timedelta
from itertools import combinations

import pytest
from counted import ADA, BOB, quota, rate
from hypothesis import given
from hypothesis import strategies as st

from gateway.governance.limits import CountBy, CountedCall, Limit
from gateway.governance.principals import Principal
from gateway.limits.keys import key_of

ALL: tuple[CountBy, ...] = ("subject", "tenant", "tool", "catalogue")
TEXTS = st.text(st.characters(exclude_categories=()), max_size=8)  # with NUL and lone surrogates
CALLS = st.builds(
    CountedCall, st.builds(Principal, TEXTS, st.just(frozenset()), st.none() | TEXTS), tool=TEXTS, catalogue=TEXTS
)


@given(first=CALLS, second=CALLS)
def test_only_equal_names_share_a_key(first: CountedCall, second: CountedCall) -> None:
    limit = rate(by=ALL)

    assert (key_of(limit, first) == key_of(limit, second)) == (first == second)


@pytest.mark.parametrize(
    ("by", "others"),
    [
        (("subject",), [BOB, replace(ADA, principal=Principal("user:ada")), replace(ADA, principal=Principal(""))]),
        (("tenant",), [replace(ADA, principal=Principal("user:ada", tenant="umbrella"))]),
        (("tool",), [replace(ADA, tool="other")]),
        (("catalogue",), [replace(ADA, catalogue="other")]),
    ],
    ids=["subject", "tenant", "tool", "catalogue"],
)
def test_each_name_is_counted_apart(by: tuple[CountBy, ...], others: list[CountedCall]) -> None:
    limit = quota(by=by)

    assert key_of(limit, ADA) not in [key_of(limit, other) for other in others]


def test_what_is_not_named_is_counted_together() -> None:
    assert key_of(rate(by=("tenant",)), ADA) == key_of(rate(by=("tenant",)), BOB)


def test_roles_do_not_tell_callers_apart() -> None:
    promoted = replace(ADA, principal=replace(ADA.principal, roles=frozenset({"role:admin"})))

    assert key_of(rate(), promoted) == key_of(rate(), ADA)


def test_rules_never_share_a_count() -> None:
    limits: list[Limit] = [rate(), rate(4), rate(burst=9), rate(rule="other"), rate(per=timedelta(minutes=1))]
    limits += [rate(by=("tenant",)), quota(), quota(rule="other"), quota(per=timedelta(hours=1)), quota(by=("tool",))]

    assert [pair for pair in combinations(limits, 2) if key_of(pair[0], ADA) == key_of(pair[1], ADA)] == []


def test_larger_budget_keeps_what_was_counted() -> None:
    assert key_of(quota(5000), ADA) == key_of(quota(6000), ADA)

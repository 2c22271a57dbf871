"""Which calls share a counter and which do not."""

from dataclasses import replace
from datetime import timedelta
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.caller import Principal
from gateway.policy.limits import CountBy, Limit, LimitKey, encode_limit_key
from tests.policy.limits.samples import ADA, BOB, quota, rate

ALL: tuple[CountBy, ...] = ("subject", "tenant", "tool", "catalogue")
TEXTS = st.text(st.characters(exclude_categories=()), max_size=8)  # including NUL and lone surrogates
CALLERS = st.builds(Principal, TEXTS, st.just(frozenset()), st.none() | TEXTS)
CALLS = st.builds(lambda caller, tool, catalogue: LimitKey(caller, tool, catalogue), CALLERS, TEXTS, TEXTS)


@given(first=CALLS, second=CALLS)
def test_only_equal_names_share_a_key(first: LimitKey, second: LimitKey) -> None:
    limit = rate(by=ALL)

    assert (encode_limit_key(limit, first) == encode_limit_key(limit, second)) == (first == second)


@pytest.mark.parametrize(
    ("by", "others"),
    [
        (("subject",), [BOB, ADA._replace(principal=Principal("user:ada")), ADA._replace(principal=Principal(""))]),
        (("tenant",), [ADA._replace(principal=Principal("user:ada", tenant="umbrella"))]),
        (("tool",), [ADA._replace(tool="other")]),
        (("catalogue",), [ADA._replace(catalogue="other")]),
    ],
    ids=["subject", "tenant", "tool", "catalogue"],
)
def test_each_name_is_counted_apart(by: tuple[CountBy, ...], others: list[LimitKey]) -> None:
    limit = quota(by=by)

    assert encode_limit_key(limit, ADA) not in [encode_limit_key(limit, other) for other in others]


def test_what_is_not_named_is_counted_together() -> None:
    assert encode_limit_key(rate(by=("tenant",)), ADA) == encode_limit_key(rate(by=("tenant",)), BOB)


def test_roles_do_not_distinguish_callers() -> None:
    promoted = ADA._replace(principal=replace(ADA.principal, roles=frozenset({"role:admin"})))

    assert encode_limit_key(rate(), promoted) == encode_limit_key(rate(), ADA)


def test_rules_never_share_a_count() -> None:
    limits: list[Limit] = [rate(), rate(4), rate(burst=9), rate(rule="other"), rate(per=timedelta(minutes=1))]
    limits += [rate(by=("tenant",)), quota(), quota(rule="other"), quota(per=timedelta(hours=1)), quota(by=("tool",))]

    assert [
        pair for pair in combinations(limits, 2) if encode_limit_key(pair[0], ADA) == encode_limit_key(pair[1], ADA)
    ] == []


def test_larger_budget_keeps_what_was_counted() -> None:
    assert encode_limit_key(quota(5000), ADA) == encode_limit_key(quota(6000), ADA)

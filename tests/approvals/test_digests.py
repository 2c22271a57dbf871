"""An approval is bound to every part of the action, to the last digit."""

import json
from math import inf, nan
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.approvals.approval_store import hash_text
from gateway.approvals.lifecycle import diff_actions
from gateway.model.caller import Principal
from gateway.model.primitives.json_fingerprint import exact_json
from tests.approvals.held_calls import ADA, action

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


def test_digest_is_of_the_canonical_text_of_the_whole_action() -> None:
    text = (
        '{"arguments":{"amount":700,"order":"A-1"},"catalogue":"support","definition":"d1",'
        '"principal":{"roles":["role:agent"],"subject":"user:ada","tenant":"acme"},'
        '"revision":"r1","tool":"payments/refund"}'
    )

    assert action().digest == hash_text(text)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        pytest.param({"principal": Principal("user:bob", ADA.roles, "acme")}, "principal", id="subject"),
        pytest.param({"principal": Principal("user:ada", ADA.roles, "umbrella")}, "principal", id="tenant"),
        pytest.param({"principal": Principal("user:ada", ADA.roles)}, "principal", id="no-tenant"),
        pytest.param({"principal": Principal("user:ada", frozenset(), "acme")}, "principal", id="roles"),
        pytest.param({"catalogue": "other"}, "catalogue", id="catalogue"),
        pytest.param({"tool": "payments/pay"}, "tool", id="tool"),
        pytest.param({"definition": "d2"}, "definition", id="definition"),
        pytest.param({"revision": "r2"}, "revision", id="revision"),
        pytest.param({"arguments": {"amount": 701, "order": "A-1"}}, "arguments", id="argument"),
        pytest.param({"arguments": {"amount": "700", "order": "A-1"}}, "arguments", id="type-of-an-argument"),
        pytest.param({"arguments": {"amount": 700}}, "arguments", id="argument-left-out"),
    ],
)
def test_digest_changes_with_every_part(changes: dict[str, Any], part: str) -> None:
    changed = action(**changes)

    assert changed.digest != action().digest
    assert diff_actions(action(), changed) == (part,)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(2**53, 2**53 + 1, id="just-past-the-safe-integers"),
        pytest.param(12345678901234567890, 12345678901234567891, id="account-numbers"),
        pytest.param(2.0**60, 1152921504606847000, id="float-and-how-javascript-prints-it"),
        pytest.param(10**400, 10**400 + 1, id="past-every-float"),
        pytest.param(0.1, 0.10000000000000002, id="neighbouring-floats"),
    ],
)
def test_numbers_that_javascript_would_round_stay_apart(one: float, other: float) -> None:
    assert action(arguments={"n": one}).digest != action(arguments={"n": other}).digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param({"a": 1, "b": 2}, {"b": 2, "a": 1}, id="order-of-keys"),
        pytest.param({"n": 1}, {"n": 1.0}, id="whole-float"),
        pytest.param({"n": 2**60}, {"n": 2.0**60}, id="large-whole-float"),
        pytest.param({"l": [1]}, MappingProxyType({"l": (1,)}), id="other-containers"),
    ],
)
def test_equal_arguments_have_equal_digests(one: Any, other: Any) -> None:
    assert action(arguments=one).digest == action(arguments=other).digest


@given(VALUES)
def test_exact_text_is_json_of_the_same_value(value: Any) -> None:
    assert json.loads(exact_json(value)) == value


@given(VALUES, VALUES)
def test_different_values_have_different_texts(one: Any, other: Any) -> None:
    # JSON has one number where Python has 1 and True, so the test compares both after reading them back.
    same = json.dumps(json.loads(exact_json(one)), sort_keys=True) == json.dumps(
        json.loads(exact_json(other)), sort_keys=True
    )

    assert (exact_json(one) == exact_json(other)) == same


@pytest.mark.parametrize(
    ("value", "error"),
    [
        pytest.param(inf, ValueError, id="infinity"),
        pytest.param([nan], ValueError, id="not-a-number"),
        pytest.param({"a": b"bytes"}, TypeError, id="bytes"),
        pytest.param({1: "a"}, TypeError, id="key-that-is-no-text"),
        pytest.param({"\U0001f600": 1, "\ud83d\ude00": 2}, ValueError, id="one-key-written-two-ways"),
    ],
)
def test_values_without_json_text_are_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        exact_json(value)


def test_nesting_has_an_end() -> None:
    deep: Any = 0
    for _ in range(514):
        deep = [deep]

    with pytest.raises(ValueError, match="nested deeper"):
        exact_json(deep)


def test_no_argument_shows_in_the_text_of_an_action() -> None:
    assert "A-1" not in repr(action())

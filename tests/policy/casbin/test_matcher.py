"""The matcher's five functions and the alphabet of names."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.policy.casbin.policy_index import (
    has_role,
    is_name,
    is_object,
    is_pattern,
    is_subject,
    is_within_tier,
    matches_action,
    matches_catalogue,
    matches_object,
)

GLOBS = [
    ("deploy", "deploy", True),
    ("deploy", "deplo", False),
    ("deploy", "deploy_all", False),
    ("deploy", "*", True),
    ("", "*", True),
    ("deploy_start", "deploy_*", True),
    ("deploy_", "deploy_*", True),
    ("deploy", "deploy_*", False),
    ("my_deploy_start", "deploy_*", False),
    ("pay_out", "*_out", True),
    ("pay_out_all", "*_out", False),
    ("aXbXc", "a*b*c", True),
    ("abc", "a*b*c", True),
    ("acb", "a*b*c", False),
    ("ab", "a*ab", False),
    ("aab", "a*ab", True),
    ("aba", "ab*ba", False),
    ("axbxb", "a*b*b", True),
    ("axb", "a*b*b", False),
    ("a.c", "a.c", True),
    ("abc", "a.c", False),
    ("abc", "a?c", False),
    ("abc", "[a]bc", False),
    ("deploy\n", "deploy", False),
]


@pytest.mark.parametrize(("name", "pattern", "fits"), GLOBS)
def test_star_is_the_only_special_character(name: str, pattern: str, fits: bool) -> None:
    assert matches_catalogue(name, pattern) is fits


@settings(deadline=None)  # a busy machine is not a failure
@given(st.text("ab*", max_size=8), st.text("ab", max_size=10))
def test_glob_means_what_the_anchored_expression_means(pattern: str, name: str) -> None:
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))

    assert matches_catalogue(name, pattern) is (re.fullmatch(expression, name) is not None)


def test_hostile_pattern_is_answered() -> None:
    assert not matches_catalogue("a" * 100_000, "a*" * 1_000 + "b")
    assert not matches_catalogue("a" * 100_000, "a*" * 1_000 + "b*")


def test_subject_is_held_only_if_it_is_in_the_set() -> None:
    assert has_role(frozenset({"user:ana", "role:reader"}), "role:reader") is True
    assert has_role(frozenset({"user:ana"}), "role:reader") is False
    assert has_role(frozenset({"user:ana"}), "*") is False
    assert has_role(frozenset({"user:ana"}), "") is False


@pytest.mark.parametrize(
    ("pattern", "covered"),
    [
        ("tool:refund", True),
        ("tool:*", True),
        ("class:payment", True),
        ("class:pay*", True),
        ("class:money", True),
        ("class:ticket", False),
        ("tool:other", False),
    ],
)
def test_object_is_covered_by_name_or_by_group(pattern: str, covered: bool) -> None:
    groups = {"tool:refund": frozenset({"class:payment", "class:money"})}

    assert matches_object("tool:refund", pattern, groups) is covered


def test_object_without_group_is_covered_by_its_name_alone() -> None:
    assert matches_object("tool:log", "tool:log", {}) is True
    assert matches_object("tool:log", "class:log", {}) is False


@pytest.mark.parametrize(
    ("actions", "done"),
    [("invoke", True), ("read|invoke", True), ("invoked", False), ("", False), ("*", False), ("read| invoke", False)],
)
def test_action_is_one_of_the_list(actions: str, done: bool) -> None:
    assert matches_action("invoke", actions) is done


@pytest.mark.parametrize(
    ("tier", "ceiling", "inside"),
    [
        ("internal", "partner", True),
        ("partner", "partner", True),
        ("partner", "vendor", True),
        ("quarantine", "partner", False),
        ("unheard", "partner", False),
        ("internal", "unheard", False),
        ("unheard", "unheard", False),
    ],
)
def test_tier_is_within_a_ceiling_by_rank(tier: str, ceiling: str, inside: bool) -> None:
    assert is_within_tier(tier, ceiling, {"internal": 0, "partner": 1, "vendor": 1, "quarantine": 2}) is inside


@pytest.mark.parametrize("text", ["", "a b", "a/b", "../a", "a\n", "a*", "é", "ａ", "a\x00", "x" * 129])
def test_such_texts_are_no_names(text: str) -> None:
    assert not is_name(text)
    assert not is_object(f"tool:{text}")


def test_names_use_the_alphabet_of_tool_names() -> None:
    assert is_name("Ticket_create-2.0")
    assert is_name("x" * 128)
    assert is_pattern("ticket_*-*")
    assert not is_pattern("ticket_**")
    assert is_pattern("*" + "x" * 127)
    assert not is_pattern("")
    assert not is_pattern("ticket_?")
    assert not is_pattern("*" + "x" * 128)


@pytest.mark.parametrize(
    "text",
    [
        "user:ana",
        "agent:release-bot",
        "service:billing",
        "role:a",
        "user:ana@example.com",
        "user:https://i/1",
        "user:auth0|5f7c8ec7c33c6c004bbafe82",
        "user:" + "x" * 256,
    ],
)
def test_such_texts_are_subjects(text: str) -> None:
    assert is_subject(text)


@pytest.mark.parametrize(
    "text", ["", "ana", "user:", "User:ana", "group:a", "role:*", "role:a b", "user:a\n", ":a", "user:" + "x" * 257]
)
def test_such_texts_are_no_subjects(text: str) -> None:
    assert not is_subject(text)


@pytest.mark.parametrize(
    ("text", "legal"),
    [
        ("config", True),
        ("tool:a", True),
        ("approval:a", True),
        ("prompt:a", True),
        ("resource:a", True),
        ("config:a", False),
        ("tools:a", False),
        ("tool", False),
        ("*", False),
    ],
)
def test_objects_have_a_kind_or_are_the_configuration(text: str, legal: bool) -> None:
    assert is_object(text) is legal

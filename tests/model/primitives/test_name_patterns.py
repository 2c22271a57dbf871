"""Patterns over names."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.primitives.name_patterns import glob_matches


@pytest.mark.parametrize(
    ("text", "pattern", "matches"),
    [
        ("ticket_create", "ticket_*", True),
        ("ticket_create", "*", True),
        ("", "*", True),
        ("", "", True),
        ("ticket", "ticket", True),
        ("tickets", "ticket", False),
        ("aba", "ab*ba", False),
        ("abba", "ab*ba", True),
        ("a.b", "a?b", False),
        ("a[x]", "a[x]", True),
        ("x/../admin", "x/*", True),
        ("payment_refund", "*_re*nd", True),
        ("abc", "a*c*c", False),
        (None, "*", False),
        ("a", 1, False),
    ],
)
def test_star_is_the_only_special_character(text: str, pattern: str, matches: bool) -> None:
    assert glob_matches(text, pattern) is matches


@given(st.text("ab*", max_size=8), st.text("ab*", max_size=6))
def test_pattern_means_what_an_anchored_expression_means(text: str, pattern: str) -> None:
    expression = ".*".join(re.escape(piece) for piece in pattern.split("*"))

    assert glob_matches(text, pattern) is (re.fullmatch(expression, text, re.DOTALL) is not None)

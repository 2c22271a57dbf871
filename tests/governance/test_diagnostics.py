"""Diagnostics as data: order, identity and suggestions."""

import pytest

from gateway.governance.diagnostics import Diagnostic, Position, did_you_mean, in_order


def test_position_reads_as_editors_expect_it() -> None:
    assert str(Position("configs/a.yaml", 3, 7)) == "configs/a.yaml:3:7"


def test_problems_are_sorted_by_position_and_told_once() -> None:
    first = Diagnostic("unknown-field", "a", Position("a.yaml", 2))
    second = Diagnostic("unknown-field", "b", Position("a.yaml", 10))
    other = Diagnostic("unknown-field", "a", Position("b.yaml", 1), severity="warning")

    assert in_order([other, second, first, first]) == [first, second, other]
    assert [found.is_error for found in in_order([other, first])] == [True, False]


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("max_output", "did you mean 'maxOutput'?"),
        ("Max-Output", "did you mean 'maxOutput'?"),
        ("timeuot", "did you mean 'timeout'?"),
        ("zebra", None),
        ("x" * 100_000, None),
    ],
)
def test_nearest_known_name_is_suggested(given: str, answer: str | None) -> None:
    assert did_you_mean(given, ["maxOutput", "timeout"]) == answer

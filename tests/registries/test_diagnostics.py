"""Diagnostics as data: order, identity and suggestions."""

import pytest

from gateway.registries.diagnostics import Diagnostic, Position, sort_diagnostics, suggest_name


def test_position_reads_as_editors_expect_it() -> None:
    assert str(Position("configs/a.yaml", 3, 7)) == "configs/a.yaml:3:7"


def test_problems_are_sorted_by_position_and_reported_once() -> None:
    first = Diagnostic("unknown-field", "a", Position("a.yaml", 2))
    second = Diagnostic("unknown-field", "b", Position("a.yaml", 10))
    other = Diagnostic("unknown-field", "a", Position("b.yaml", 1), severity="warning")

    assert sort_diagnostics([other, second, first, first]) == [first, second, other]
    assert [found.is_error for found in sort_diagnostics([other, first])] == [True, False]


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
    assert suggest_name(given, ["maxOutput", "timeout"]) == answer

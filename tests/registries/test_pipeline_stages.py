"""Stages of a pipeline: known, in their phase, at most once, and in a sensible order."""

from itertools import combinations

import pytest

from gateway.registries.pipeline_stages import BUILT_IN_STAGES, PHASES, Phase, check_stage_order

IN_ORDER = ["gates", "cache", "idempotency", "timeout", "retry", "circuit-breaker", "concurrency"]


@pytest.mark.parametrize("size", range(len(IN_ORDER) + 1))
def test_any_choice_of_stages_in_the_right_order_is_fine(size: int) -> None:
    for chosen in combinations(IN_ORDER, size):
        assert check_stage_order("call", chosen) == []


@pytest.mark.parametrize(("inner", "outer"), [(b, a) for a, b in combinations(IN_ORDER, 2)])
def test_stage_that_wraps_another_stands_before_it(inner: str, outer: str) -> None:
    [problem] = check_stage_order("call", [inner, outer])

    assert (problem.code, problem.index) == ("stage-order", 1)
    assert problem.message == f"stage {outer!r} must come before {inner!r}"


@pytest.mark.parametrize(
    ("phase", "names", "code", "index", "help"),
    [
        ("call", ["gates", "timeuot"], "unknown-stage", 1, "did you mean 'timeout'?"),
        ("call", ["zebra"], "unknown-stage", 0, None),
        ("turnInput", ["gates"], "stage-phase", 0, None),
        ("call", ["gates", "gates"], "stage-repeated", 1, None),
        ("dispatchOutput", ["redact", "inline-small-results"], "stage-order", 1, None),
    ],
)
def test_wrong_stage_is_a_problem_at_its_place(
    phase: Phase, names: list[str], code: str, index: int, help: str | None
) -> None:
    [problem] = check_stage_order(phase, names)

    assert (problem.code, problem.phase, problem.index) == (code, phase, index)
    assert help is None or problem.help == help


def test_all_problems_are_reported_at_once() -> None:
    problems = check_stage_order("call", ["retry", "nope", "timeout", "retry"])

    assert [problem.code for problem in problems] == ["unknown-stage", "stage-order", "stage-repeated"]


def test_every_stage_has_a_phase_and_wraps_only_stages_of_it() -> None:
    for stage in BUILT_IN_STAGES.values():
        assert stage.phase in PHASES
        assert {BUILT_IN_STAGES[name].phase for name in stage.outside} <= {stage.phase}

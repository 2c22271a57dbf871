"""Stages: what a pipeline may be made of, where each belongs, and in which order they make sense.

A wrong order is found when a pipeline is declared, not when a call goes wrong. Validation, events and
authorisation are no stages: no pipeline can leave them out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from gateway.governance.diagnostics import did_you_mean

Phase = Literal["turnInput", "dispatchInput", "call", "dispatchOutput", "turnOutput"]
PHASES: Final[tuple[Phase, ...]] = ("turnInput", "dispatchInput", "call", "dispatchOutput", "turnOutput")
_PLUG_INS: Final = "gateway.stages"


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage by name. It stands in one phase, once, and outside (before) the stages it wraps."""

    name: str
    phase: Phase
    description: str
    outside: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class StageProblem:
    """What is wrong with the stage at `index` of a phase."""

    code: str
    message: str
    phase: Phase
    index: int
    help: str | None = None


def _stage(name: str, phase: Phase, description: str, *outside: str) -> Stage:
    return Stage(name, phase, description, frozenset(outside))


_AROUND_BACKEND: Final = ("cache", "idempotency", "timeout", "retry", "circuit-breaker", "concurrency")

BUILT_IN: Final[Mapping[str, Stage]] = {
    stage.name: stage
    for stage in (
        _stage("select-tools", "turnInput", "Chooses the tools of the turn's catalogue."),
        _stage("loop-guard", "dispatchInput", "Stops a turn that repeats the same call."),
        _stage("gates", "call", "Applies the gate rules.", *_AROUND_BACKEND),
        _stage("cache", "call", "Answers equal calls from memory.", *_AROUND_BACKEND[1:]),
        _stage("idempotency", "call", "Answers a repeated key with the first outcome.", *_AROUND_BACKEND[2:]),
        _stage("timeout", "call", "Gives up after a while.", "retry", "circuit-breaker", "concurrency"),
        _stage("retry", "call", "Tries again where that is safe.", "circuit-breaker", "concurrency"),
        _stage("circuit-breaker", "call", "Stops asking a backend that keeps failing.", "concurrency"),
        _stage("concurrency", "call", "Bounds how many calls run at once."),
        _stage("inline-small-results", "dispatchOutput", "Shows small results, keeps large ones.", "redact"),
        _stage("redact", "dispatchOutput", "Masks what an artifact class says must be masked."),
        _stage("audit-summary", "turnOutput", "Writes one summary per turn."),
    )
}


def plug_in_group(phase: Phase) -> str:
    """The entry point group in which installed packages name stages of theirs for a phase."""
    return _PLUG_INS if phase == "call" else f"{_PLUG_INS}.{phase}"


def with_plug_ins(brought: Mapping[Phase, Iterable[str]]) -> dict[str, Stage]:
    """The built-in stages and installed ones, which stand inside the gates and replace no built-in one."""
    found = {
        name: _stage(name, phase, "Brought by an installed package.")
        for phase, names in brought.items()
        for name in names
        if name not in BUILT_IN
    }
    gates = BUILT_IN["gates"]
    inside = {name for name, stage in found.items() if stage.phase == "call"}
    return {**found, **BUILT_IN, "gates": replace(gates, outside=gates.outside | inside)}


def check_phase(phase: Phase, names: Sequence[str], stages: Mapping[str, Stage] = BUILT_IN) -> list[StageProblem]:
    """Every problem of one phase of a pipeline, in its order."""
    problems: list[StageProblem] = []
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        if name not in stages:
            help = did_you_mean(name, stages)
            problems.append(StageProblem("unknown-stage", f"there is no stage {name!r}", phase, index, help))
        elif stages[name].phase != phase:
            message = f"stage {name!r} belongs in {stages[name].phase}, not in {phase}"
            problems.append(StageProblem("stage-phase", message, phase, index))
        elif name in seen:
            problems.append(StageProblem("stage-repeated", f"stage {name!r} is given twice", phase, index))
        else:
            problems += _misplaced(phase, index, name, before=seen, stages=stages)
            seen[name] = index
    return problems


def _misplaced(
    phase: Phase, index: int, name: str, *, before: Mapping[str, int], stages: Mapping[str, Stage]
) -> list[StageProblem]:
    wrapped = [earlier for earlier in before if earlier in stages[name].outside]
    return [
        StageProblem(
            "stage-order",
            f"stage {name!r} must stand before {earlier!r}",
            phase,
            index,
            f"move {name!r} up: a stage wraps those that come after it",
        )
        for earlier in wrapped[:1]
    ]

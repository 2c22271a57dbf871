"""The stages of a pipeline, their phases, and their valid order.

The order is checked when a pipeline is loaded. Validation, events and authorisation are not stages, so that no pipeline
can leave them out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from gateway.registries.diagnostics import suggest_name

Phase = Literal["turnInput", "dispatchInput", "call", "dispatchOutput", "turnOutput"]
PHASES: Final[tuple[Phase, ...]] = ("turnInput", "dispatchInput", "call", "dispatchOutput", "turnOutput")
_PLUG_INS: Final = "gateway.stages"


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage. It may occur once, in its phase, and must come before the stages that it wraps (`outside`)."""

    name: str
    phase: Phase
    description: str
    outside: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class StageProblem:
    """A problem of the stage at `index` of a phase."""

    code: str
    message: str
    phase: Phase
    index: int
    help: str | None = None


def _stage(name: str, phase: Phase, description: str, *outside: str) -> Stage:
    return Stage(name, phase, description, frozenset(outside))


_AROUND_BACKEND: Final = ("cache", "idempotency", "timeout", "retry", "circuit-breaker", "concurrency")

BUILT_IN_STAGES: Final[Mapping[str, Stage]] = {
    stage.name: stage
    for stage in (
        _stage("select-tools", "turnInput", "Selects the tools of the turn's catalogue."),
        _stage("loop-guard", "dispatchInput", "Stops a turn that repeats the same call."),
        _stage("gates", "call", "Applies the gate rules.", *_AROUND_BACKEND),
        _stage("cache", "call", "Returns cached results for equal calls.", *_AROUND_BACKEND[1:]),
        _stage("idempotency", "call", "Returns the first outcome for a repeated key.", *_AROUND_BACKEND[2:]),
        _stage("timeout", "call", "Cancels a call after a time limit.", "retry", "circuit-breaker", "concurrency"),
        _stage("retry", "call", "Retries calls if that is safe.", "circuit-breaker", "concurrency"),
        _stage("circuit-breaker", "call", "Stops calls to a failing backend.", "concurrency"),
        _stage("concurrency", "call", "Limits concurrent calls."),
        _stage("inline-small-results", "dispatchOutput", "Shows small results inline.", "redact"),
        _stage("redact", "dispatchOutput", "Masks the fields that an artifact class lists."),
        _stage("audit-summary", "turnOutput", "Writes one summary per turn."),
    )
}


def plug_in_group(phase: Phase) -> str:
    """Return the entry point group in which installed packages register stages of a phase."""
    return _PLUG_INS if phase == "call" else f"{_PLUG_INS}.{phase}"


def add_plug_in_stages(plug_ins: Mapping[Phase, Iterable[str]]) -> dict[str, Stage]:
    """Return built-in and installed stages. Installed ones come after the gates and never replace a built-in one."""
    found = {
        name: _stage(name, phase, "Provided by an installed package.")
        for phase, names in plug_ins.items()
        for name in names
        if name not in BUILT_IN_STAGES
    }
    gates = BUILT_IN_STAGES["gates"]
    inside = {name for name, stage in found.items() if stage.phase == "call"}
    return {**found, **BUILT_IN_STAGES, "gates": replace(gates, outside=gates.outside | inside)}


def check_stage_order(
    phase: Phase, names: Sequence[str], stages: Mapping[str, Stage] = BUILT_IN_STAGES
) -> list[StageProblem]:
    """Return all problems of one phase of a pipeline, in its order."""
    problems: list[StageProblem] = []
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        if name not in stages:
            help = suggest_name(name, stages)
            problems.append(StageProblem("unknown-stage", f"there is no stage {name!r}", phase, index, help))
        elif stages[name].phase != phase:
            message = f"stage {name!r} belongs in {stages[name].phase}, not in {phase}"
            problems.append(StageProblem("stage-phase", message, phase, index))
        elif name in seen:
            problems.append(StageProblem("stage-repeated", f"stage {name!r} is listed twice", phase, index))
        else:
            problems += _find_misplaced(phase, index, name, before=seen, stages=stages)
            seen[name] = index
    return problems


def _find_misplaced(
    phase: Phase, index: int, name: str, *, before: Mapping[str, int], stages: Mapping[str, Stage]
) -> list[StageProblem]:
    wrapped = [earlier for earlier in before if earlier in stages[name].outside]
    return [
        StageProblem(
            "stage-order",
            f"stage {name!r} must come before {earlier!r}",
            phase,
            index,
            f"move {name!r} up: a stage wraps the stages after it",
        )
        for earlier in wrapped[:1]
    ]

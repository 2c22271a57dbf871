"""Stages that other packages bring, found by name in entry point groups: `gateway.stages` for those around calls,
`gateway.stages.turnInput` and the like for those of the other phases.

A factory is given the options as written, for `call` with the tool, and answers a stage. Names of built-in stages are
never looked up here. What is wrong with a plug-in is told when a pipeline is built, not when a call arrives.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from gateway.core.pipeline import Middleware
from gateway.errors import ProgramError, message_of
from gateway.governance.stages import Phase, plug_in_group
from gateway.middleware.chain import CallStage
from gateway.snapshot import DeclaredTool

StageFactory = Callable[[Mapping[str, Any], DeclaredTool], CallStage]
PhaseFactory = Callable[[Mapping[str, Any]], Middleware]


class StageUnusable(ProgramError):
    code = "E_STAGE_UNUSABLE"
    default_message = "a stage cannot be used"


def installed_stage(name: str, options: Mapping[str, Any], *, tool: DeclaredTool) -> CallStage:
    """The stage that an installed package makes for the calls of a tool. Raises `StageUnusable`."""
    stage: CallStage = _made(name, "call", (options, tool), purpose=tool.name)
    return stage


def installed_phase_stage(name: str, options: Mapping[str, Any], *, phase: Phase) -> Middleware:
    """The stage that an installed package makes for another phase. Raises `StageUnusable`."""
    stage: Middleware = _made(name, phase, (options,), purpose=phase)
    return stage


def _made(name: str, phase: Phase, given: tuple[Any, ...], *, purpose: str) -> Any:
    entry = _entry(name, plug_in_group(phase))
    whose = f"stage {name!r} of {_package(entry)}"
    try:
        factory = entry.load()
    except Exception as error:  # importing runs the package's own code
        raise StageUnusable(f"{whose} cannot be loaded: {_reason(error)}", help="repair or remove it") from error
    try:
        stage = factory(*given)
    except Exception as error:  # the factory is the package's own code, too
        raise StageUnusable(f"{whose} cannot be made for {purpose}: {_reason(error)}") from error
    if not callable(stage):
        raise StageUnusable(f"{whose} gives {type(stage).__name__}, which is no stage", help="give a callable")
    return stage


def _entry(name: str, group: str) -> EntryPoint:
    found = tuple(entry_points(group=group, name=name))
    if not found:
        raise StageUnusable(f"there is no stage {name!r}", help="install the package that brings it")
    if len(found) > 1:
        packages = " and ".join(sorted(map(_package, found)))
        raise StageUnusable(f"stage {name!r} is brought by {packages}", help="remove all but one of them")
    return found[0]


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {''.join(message_of(error).splitlines()[:1])}"

"""Stages that other packages bring, found by name in the entry point group `gateway.stages`.

A factory is given the options as written and the tool, and answers a `call` stage. Names of built-in stages are never
looked up here. What is wrong with a plug-in is told when a chain is built, not when a call arrives.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from gateway.errors import ProgramError, message_of
from gateway.governance.stages import PLUG_IN_GROUP
from gateway.middleware.chain import CallStage
from gateway.snapshot import DeclaredTool

StageFactory = Callable[[Mapping[str, Any], DeclaredTool], CallStage]


class StageUnusable(ProgramError):
    code = "E_STAGE_UNUSABLE"
    default_message = "a stage cannot be used"


def installed_stage(name: str, options: Mapping[str, Any], *, tool: DeclaredTool) -> CallStage:
    """The stage that an installed package makes for a tool. Raises `StageUnusable`."""
    entry = _entry(name)
    whose = f"stage {name!r} of {_package(entry)}"
    try:
        factory = entry.load()
    except Exception as error:  # importing runs the package's own code
        raise StageUnusable(f"{whose} cannot be loaded: {_reason(error)}", help="repair or remove it") from error
    try:
        stage: CallStage = factory(options, tool)
    except Exception as error:  # the factory is the package's own code, too
        raise StageUnusable(f"{whose} cannot be made for {tool.name}: {_reason(error)}") from error
    if not callable(stage):
        raise StageUnusable(f"{whose} gives {type(stage).__name__}, which is no stage", help="give a callable")
    return stage


def _entry(name: str) -> EntryPoint:
    found = tuple(entry_points(group=PLUG_IN_GROUP, name=name))
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

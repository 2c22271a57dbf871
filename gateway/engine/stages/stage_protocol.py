"""The protocol of `call` stages, their chain around a backend, and stages of installed packages.

A stage wraps the stages after it: it may refuse, wait, repeat or answer itself. A call is authorised and has passed its
gates before the chain is entered.

Plug-ins are found by name in entry point groups: `gateway.stages` for stages around calls, `gateway.stages.turnInput`
and the like for the other phases. A factory receives the options as written, for `call` also the tool, and returns a
stage. Names of built-in stages are never looked up. Problems of a plug-in are reported when a pipeline is built, not
when a call arrives.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

from gateway.errors import ProgramError, message_of
from gateway.model import Backend, Invocation, Middleware
from gateway.registries import DeclaredTool, Phase, plug_in_group

CallPipeline = Callable[[Invocation], Awaitable[Any]]


class CallStage(Protocol):
    async def __call__(self, call: Invocation, run: CallPipeline) -> Any:
        """Return the call's result. `run` runs everything the stage wraps, and may be called any number of times."""
        ...


def chain_stages(stages: Sequence[CallStage], backend: Backend) -> CallPipeline:
    """Return all stages and the backend as one pipeline; the first stage is the outermost."""
    run: CallPipeline = backend.run
    for stage in reversed(stages):
        run = _around(stage, run)
    return run


def _around(stage: CallStage, run: CallPipeline) -> CallPipeline:
    begin = stage.__call__  # looked up once, not in every call

    def run_stage(call: Invocation) -> Awaitable[Any]:
        return begin(call, run)

    return run_stage


StageFactory = Callable[[Mapping[str, Any], DeclaredTool], CallStage]
PhaseFactory = Callable[[Mapping[str, Any]], Middleware]


class InvalidStage(ProgramError):
    code = "E_STAGE_UNUSABLE"
    default_message = "a stage cannot be used"


def load_call_stage(name: str, options: Mapping[str, Any], *, tool: DeclaredTool) -> CallStage:
    """Return the stage of an installed package for the calls of a tool. Raise `InvalidStage`."""
    stage: CallStage = _make_stage(name, "call", (options, tool), purpose=tool.name)
    return stage


def load_phase_stage(name: str, options: Mapping[str, Any], *, phase: Phase) -> Middleware:
    """Return the stage of an installed package for another phase. Raise `InvalidStage`."""
    stage: Middleware = _make_stage(name, phase, (options,), purpose=phase)
    return stage


def _make_stage(name: str, phase: Phase, given: tuple[Any, ...], *, purpose: str) -> Any:
    entry = _entry(name, plug_in_group(phase))
    whose = f"stage {name!r} of {_package(entry)}"
    try:
        factory = entry.load()
    except Exception as error:  # importing runs the package's code
        raise InvalidStage(f"{whose} cannot be loaded: {_reason(error)}", help="repair or remove it") from error
    try:
        stage = factory(*given)
    except Exception as error:  # the factory is the package's code, too
        raise InvalidStage(f"{whose} cannot be created for {purpose}: {_reason(error)}") from error
    if not callable(stage):
        raise InvalidStage(f"{whose} returns {type(stage).__name__}, not a stage", help="return a callable")
    return stage


def _entry(name: str, group: str) -> EntryPoint:
    found = tuple(entry_points(group=group, name=name))
    if not found:
        raise InvalidStage(f"there is no stage {name!r}", help="install the package that provides it")
    if len(found) > 1:
        packages = " and ".join(sorted(map(_package, found)))
        raise InvalidStage(f"stage {name!r} is provided by {packages}", help="remove all but one of them")
    return found[0]


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {''.join(message_of(error).splitlines()[:1])}"

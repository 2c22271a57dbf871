"""Build the stages of a pipeline: the chain around a tool's backend, and the stages of other phases.

Options arrive checked and with their defaults. Gate rules and idempotency keys are applied before the chain is entered:
the `gates` stage adds nothing here, and `idempotency` at most names the header in which a backend receives the key.

Plug-ins are found by name in entry point groups: `gateway.stages` for stages around calls, `gateway.stages.turnInput`
and the like for the other phases. A factory receives the options as written, for `call` also the tool, and returns a
stage. Names of built-in stages are never looked up. Problems of a plug-in are reported when a pipeline is built, not
when a call arrives.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from random import SystemRandom
from time import monotonic
from typing import Any, Final
from weakref import WeakValueDictionary

from gateway.engine.stages.resilience import Bulkhead, CircuitBreaker, CircuitState, Clock, Retry, Timeout
from gateway.engine.stages.result_cache import NEVER_CACHED, CacheStage, IdempotencyHeaderStage, ResultCache
from gateway.engine.stages.result_stages import FindArtifactClass, InlineSmallResults, RedactionStage, SizeLimit
from gateway.engine.stages.turn_stages import (
    FindDecision,
    LoopGuard,
    Proposed,
    ToolSelectionStage,
    TurnSummaryStage,
    get_proposed_checksums,
)
from gateway.errors import ProgramError, message_of
from gateway.model import IDEMPOTENCY_HEADER, Backend, CallPipeline, CallStage, Invocation, Middleware, ToolRegistry
from gateway.registries import BUILT_IN_STAGES, CHANGES, DeclaredTool, Phase, Pipeline, plug_in_group

Options = Mapping[str, Any]

_BEFORE_DEADLINE: Final = frozenset({"gates", "cache", "idempotency"})
_PASSING: Final = (SizeLimit, Timeout, Retry, IdempotencyHeaderStage)
"""Stages that always run the stages they wrap."""
_random: Final = SystemRandom().random


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """Limits of a call of one tool, whatever its pipeline. `max_size` is that of its artifact class."""

    timeout: timedelta | None = None
    concurrent: int | None = None
    max_size: int | None = None


class StageState:
    """The state that chains share: circuits per upstream or tool, bulkheads per tool, cached results per snapshot.

    Circuits and bulkheads live as long as a chain uses them; those with equal options are shared.
    """

    def __init__(self) -> None:
        self._circuits: WeakValueDictionary[tuple[Any, ...], CircuitBreaker] = WeakValueDictionary()
        self._bulkheads: WeakValueDictionary[tuple[str, int], Bulkhead] = WeakValueDictionary()
        self.answers = ResultCache()

    def for_next_revision(self) -> "StageState":
        """Return the state for the next snapshot: circuits and bulkheads stay, cached results do not."""
        state = StageState()
        state._circuits, state._bulkheads = self._circuits, self._bulkheads
        return state

    def circuit(self, key: str, options: Options, *, clock: Clock) -> CircuitBreaker:
        settings = (options["openAfter"], options["within"], options["probeAfter"])
        made = CircuitBreaker(settings[0], within=settings[1], probe_after=settings[2], clock=clock)
        return self._circuits.setdefault((key, *settings), made)

    def bulkhead(self, tool: str, limit: int) -> Bulkhead:
        return self._bulkheads.setdefault((tool, limit), Bulkhead(limit))

    def circuit_states(self) -> dict[str, CircuitState]:
        """Return the state of every circuit by its key; of several with one key, the one furthest from closed."""
        found: dict[str, CircuitState] = {}
        for (key, *_), circuit in sorted(self._circuits.items(), key=lambda item: _GRAVITY[item[1].state]):
            found[key] = circuit.state
        return found


_GRAVITY: Final[Mapping[CircuitState, int]] = {"closed": 0, "half-open": 1, "open": 2}


def call_stages(
    pipeline: Pipeline,
    tool: DeclaredTool,
    *,
    shared: StageState,
    limits: ToolLimits = ToolLimits(),  # noqa: B008 - immutable
    clock: Clock = monotonic,
    random: Callable[[], float] = _random,
    catalogue: str | None = None,
) -> list[CallStage]:
    """Return the `call` stages of a pipeline, outermost first. Raise `InvalidStage` for an unusable plug-in.

    A tool's own limits apply if the pipeline has no such stage; otherwise the shorter or smaller limit does. Tools that
    change something are never answered from the cache, and retried only if they are idempotent.
    """
    builder = _StageBuilder(tool, limits, shared, clock, random, catalogue)
    stages = [stage for name, options in _uses(pipeline, limits) for stage in builder.stages(name, options)]
    if limits.max_size is not None:
        stages.insert(0, SizeLimit(limits.max_size, of=tool.artifact))
    return stages


def refusal_before(stages: Sequence[CallStage]) -> Callable[[], None] | None:
    """Return a function that raises `CallRejected` while these stages refuse calls; `None` if they never do.

    It is called before a call is recorded as started. A stage that may answer itself, such as a cache, ends the search:
    a call that it answers needs no backend.
    """
    refusing: list[Callable[[], None]] = []
    for stage in stages:
        if isinstance(stage, CircuitBreaker | Bulkhead):
            refusing.append(stage.refuse)
        elif not isinstance(stage, _PASSING):
            break
    if len(refusing) < 2:
        return refusing[0] if refusing else None

    def refuse() -> None:
        for each in refusing:
            each()

    return refuse


def build_phase_stages(
    pipeline: Pipeline,
    phase: Phase,
    *,
    registry: ToolRegistry,
    class_of: FindArtifactClass,
    decision_of: FindDecision = lambda call: None,
    proposed: Proposed = get_proposed_checksums,
) -> list[Middleware]:
    """Return the stages of a phase other than `call`, in order. Raise `InvalidStage` for an unusable plug-in."""
    made: dict[str, Callable[[Options], Middleware]] = {
        "select-tools": lambda options: ToolSelectionStage(registry),
        "loop-guard": lambda options: LoopGuard(options["sameCall"], proposed),
        "inline-small-results": lambda options: InlineSmallResults(options["below"], class_of),
        "redact": lambda options: RedactionStage(class_of),
        "audit-summary": lambda options: TurnSummaryStage(decision_of),
    }
    uses = pipeline.phases.get(phase, ())
    if strange := [use.name for use in uses if use.name in BUILT_IN_STAGES and use.name not in made]:
        raise InvalidStage(f"stage {strange[0]!r} has no place in {phase}")
    load = partial(load_phase_stage, phase=phase)
    return [made[use.name](use.options) if use.name in made else load(use.name, use.options) for use in uses]


def find_loop_guard(pipeline: Pipeline) -> LoopGuard | None:
    """Return the loop guard of a pipeline, for code that knows a call before its dispatch does."""
    use = pipeline.stage("loop-guard")
    return None if use is None else LoopGuard(use.options["sameCall"])


def _uses(pipeline: Pipeline, limits: ToolLimits) -> Sequence[tuple[str, Options]]:
    """Return the stages by name, with those for the tool's own limits inserted at their place."""
    uses: list[tuple[str, Options]] = [(use.name, use.options) for use in pipeline.phases.get("call", ())]
    names = [name for name, _ in uses]
    if limits.timeout is not None and "timeout" not in names:
        place = max((index + 1 for index, name in enumerate(names) if name in _BEFORE_DEADLINE), default=0)
        uses.insert(place, ("timeout", {"after": limits.timeout}))
    if limits.concurrent is not None and "concurrency" not in names:
        uses.append(("concurrency", {"limit": limits.concurrent}))
    return uses


@dataclass(frozen=True, slots=True)
class _StageBuilder:
    """Builds the stages of one chain."""

    tool: DeclaredTool
    limits: ToolLimits
    shared: StageState
    clock: Clock
    random: Callable[[], float]
    catalogue: str | None

    def stages(self, name: str, options: Options) -> list[CallStage]:
        """Return one stage, or none if it is applied elsewhere or does not fit the tool."""
        match name:
            case "timeout":
                return [Timeout(options["after"], self.limits.timeout, clock=self.clock)]
            case "retry":
                return self._retry(options)
            case "circuit-breaker":
                return [self.shared.circuit(self._backend, options, clock=self.clock)]
            case "concurrency":
                limit = min(options["limit"], self.limits.concurrent or options["limit"])
                return [self.shared.bulkhead(self.tool.name, limit)]
            case "cache":
                return self._cache(options)
            case "idempotency":
                header = options["header"].lower()
                return [] if header == IDEMPOTENCY_HEADER else [IdempotencyHeaderStage(header)]
            case _ if name in BUILT_IN_STAGES:
                return []
            case _:
                return [load_call_stage(name, options, tool=self.tool)]

    @property
    def _backend(self) -> str:
        """The key of the circuit: the tools of an upstream share one."""
        return f"upstream:{self.tool.upstream}" if self.tool.upstream else self.tool.object

    def _retry(self, options: Options) -> list[CallStage]:
        flags = self.tool.trust.flags
        is_safe = self.tool.idempotent or flags.isdisjoint(CHANGES)
        if not is_safe or not flags.isdisjoint(options["unlessFlags"]):
            return []
        causes, delay = options["causes"], options["delay"]
        return [Retry(options["attempts"], causes, is_safe=is_safe, delay=delay, clock=self.clock, random=self.random)]

    def _cache(self, options: Options) -> list[CallStage]:
        flags = self.tool.trust.flags
        if not flags.isdisjoint(NEVER_CACHED):
            return []
        return [
            CacheStage(
                options["for"],
                options["by"],
                tool=self.tool.name,
                flags=flags,
                answers=self.shared.answers,
                clock=self.clock,
                catalogue=self.catalogue,
            )
        ]


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

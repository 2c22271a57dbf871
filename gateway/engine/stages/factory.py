"""Build the stages of a pipeline: the chain around a tool's backend, and the stages of other phases.

Options arrive checked and with their defaults. Gate rules and idempotency keys are applied before the chain is entered:
the `gates` stage adds nothing here, and `idempotency` at most names the header in which a backend receives the key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from random import SystemRandom
from time import monotonic
from typing import Any, Final
from weakref import WeakValueDictionary

from gateway.engine.stages.resilience import Bulkhead, CircuitBreaker, CircuitState, Clock, Retry, Timeout
from gateway.engine.stages.result_cache import NEVER_CACHED, CacheStage, IdempotencyHeaderStage, ResultCache
from gateway.engine.stages.result_redaction import FindArtifactClass, InlineSmallResults, RedactionStage, SizeLimit
from gateway.engine.stages.stage_protocol import CallStage, InvalidStage, load_call_stage, load_phase_stage
from gateway.engine.stages.turn_stages import (
    FindDecision,
    LoopGuard,
    Proposed,
    ToolSelectionStage,
    TurnSummaryStage,
    get_proposed_checksums,
)
from gateway.model import IDEMPOTENCY_HEADER, Middleware, ToolRegistry
from gateway.registries import BUILT_IN_STAGES, CHANGES, DeclaredTool, Phase, Pipeline

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
    if not refusing:
        return None

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

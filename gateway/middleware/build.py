"""From a pipeline of a snapshot to what runs: the chain around a tool's backend, and the stages of every other phase.

Options arrive checked and with their defaults. Gate rules and idempotency keys are applied before the chain is entered:
the stage of the former adds nothing here, that of the latter says at most in which header a backend is told the key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from random import SystemRandom
from time import monotonic
from typing import Any, Final
from weakref import WeakValueDictionary

from gateway.core.pipeline import Middleware
from gateway.core.tool_registry import ToolRegistry
from gateway.governance.effects import CHANGES
from gateway.governance.ports import IDEMPOTENCY_HEADER
from gateway.governance.stages import BUILT_IN, Phase
from gateway.middleware.chain import CallStage
from gateway.middleware.loops import LoopGuard, Proposed, announced
from gateway.middleware.plug_ins import StageUnusable, installed_phase_stage, installed_stage
from gateway.middleware.redaction import ClassOf, Redact
from gateway.middleware.resilience import CircuitBreaker, CircuitState, Clock, Concurrency, Retry, Timeout
from gateway.middleware.results import InlineSmallResults, SizeLimit
from gateway.middleware.reuse import NEVER_CACHED, Answers, Cache, KeyHeader
from gateway.middleware.selection import SelectTools
from gateway.middleware.summary import AuditSummary, DecisionOf
from gateway.snapshot import DeclaredTool, Pipeline

Options = Mapping[str, Any]

_BEFORE_DEADLINE: Final = frozenset({"gates", "cache", "idempotency"})
_PASSING: Final = (SizeLimit, Timeout, Retry, KeyHeader)
"""Stages that ask what they wrap whatever the call is."""
_random: Final = SystemRandom().random


@dataclass(frozen=True, slots=True)
class Limits:
    """What a call of one tool may cost, whatever its pipeline says. `max_size` is that of its artifact class."""

    timeout: timedelta | None = None
    concurrent: int | None = None
    max_size: int | None = None


class SharedState:
    """What chains have in common: circuits per upstream or tool, bulkheads per tool, answers per snapshot.

    Circuits and bulkheads last as long as a chain uses them, and those with equal options are one.
    """

    def __init__(self) -> None:
        self._circuits: WeakValueDictionary[tuple[Any, ...], CircuitBreaker] = WeakValueDictionary()
        self._bulkheads: WeakValueDictionary[tuple[str, int], Concurrency] = WeakValueDictionary()
        self.answers = Answers()

    def renewed(self) -> "SharedState":
        """For the next snapshot: what is known of backends stays, remembered answers do not."""
        renewed = SharedState()
        renewed._circuits, renewed._bulkheads = self._circuits, self._bulkheads
        return renewed

    def circuit(self, key: str, options: Options, *, clock: Clock) -> CircuitBreaker:
        settings = (options["openAfter"], options["within"], options["probeAfter"])
        made = CircuitBreaker(settings[0], within=settings[1], probe_after=settings[2], clock=clock)
        return self._circuits.setdefault((key, *settings), made)

    def bulkhead(self, tool: str, limit: int) -> Concurrency:
        return self._bulkheads.setdefault((tool, limit), Concurrency(limit))

    def circuit_states(self) -> dict[str, CircuitState]:
        """The state of every circuit by its key; of several with one key, the one that is furthest from closed."""
        found: dict[str, CircuitState] = {}
        for (key, *_), circuit in sorted(self._circuits.items(), key=lambda item: _GRAVITY[item[1].state]):
            found[key] = circuit.state
        return found


_GRAVITY: Final[Mapping[CircuitState, int]] = {"closed": 0, "half-open": 1, "open": 2}


def call_stages(
    pipeline: Pipeline,
    tool: DeclaredTool,
    *,
    shared: SharedState,
    limits: Limits = Limits(),  # noqa: B008 - immutable
    clock: Clock = monotonic,
    random: Callable[[], float] = _random,
    catalogue: str | None = None,
) -> list[CallStage]:
    """The `call` stages of a pipeline, outermost first. Raises `StageUnusable` for a plug-in that cannot be used.

    A tool's own limits hold where the pipeline has no such stage, and the shorter or smaller one where it has. Tools
    that change something are never answered from memory, and tried again only if they are idempotent.
    """
    parts = _Parts(tool, limits, shared, clock, random, catalogue)
    stages = [stage for name, options in _uses(pipeline, limits) for stage in parts.stages(name, options)]
    if limits.max_size is not None:
        stages.insert(0, SizeLimit(limits.max_size, of=tool.artifact))
    return stages


def refusal_before(stages: Sequence[CallStage]) -> Callable[[], None] | None:
    """What raises `NotAsked` if these stages would spare the backend now; `None` if they never do.

    It is asked before a call is written down as started. A stage that may answer by itself, such as a cache, ends the
    search: a call that it answers needs no backend.
    """
    refusing: list[Callable[[], None]] = []
    for stage in stages:
        if isinstance(stage, CircuitBreaker | Concurrency):
            refusing.append(stage.refuse)
        elif not isinstance(stage, _PASSING):
            break
    if not refusing:
        return None

    def refuse() -> None:
        for each in refusing:
            each()

    return refuse


def phase_stages(
    pipeline: Pipeline,
    phase: Phase,
    *,
    registry: ToolRegistry,
    class_of: ClassOf,
    decision_of: DecisionOf = lambda call: None,
    proposed: Proposed = announced,
) -> list[Middleware]:
    """The stages of a phase other than `call`, in order. Raises `StageUnusable` for a plug-in that cannot be used."""
    made: dict[str, Callable[[Options], Middleware]] = {
        "select-tools": lambda options: SelectTools(registry),
        "loop-guard": lambda options: LoopGuard(options["sameCall"], proposed),
        "inline-small-results": lambda options: InlineSmallResults(options["below"], class_of),
        "redact": lambda options: Redact(class_of),
        "audit-summary": lambda options: AuditSummary(decision_of),
    }
    uses = pipeline.phases.get(phase, ())
    if strange := [use.name for use in uses if use.name in BUILT_IN and use.name not in made]:
        raise StageUnusable(f"stage {strange[0]!r} has no place in {phase}")
    brought = partial(installed_phase_stage, phase=phase)
    return [made[use.name](use.options) if use.name in made else brought(use.name, use.options) for use in uses]


def loop_guard(pipeline: Pipeline) -> LoopGuard | None:
    """The loop guard of a pipeline, for whoever knows a call before its dispatch does."""
    use = pipeline.stage("loop-guard")
    return None if use is None else LoopGuard(use.options["sameCall"])


def _uses(pipeline: Pipeline, limits: Limits) -> Sequence[tuple[str, Options]]:
    """The stages by name, with those that the tool's own limits ask for where they belong."""
    uses: list[tuple[str, Options]] = [(use.name, use.options) for use in pipeline.phases.get("call", ())]
    names = [name for name, _ in uses]
    if limits.timeout is not None and "timeout" not in names:
        place = max((index + 1 for index, name in enumerate(names) if name in _BEFORE_DEADLINE), default=0)
        uses.insert(place, ("timeout", {"after": limits.timeout}))
    if limits.concurrent is not None and "concurrency" not in names:
        uses.append(("concurrency", {"limit": limits.concurrent}))
    return uses


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the stages of one chain are made of."""

    tool: DeclaredTool
    limits: Limits
    shared: SharedState
    clock: Clock
    random: Callable[[], float]
    catalogue: str | None

    def stages(self, name: str, options: Options) -> list[CallStage]:
        """One stage, or none where it is applied elsewhere or does not fit the tool."""
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
                return [] if header == IDEMPOTENCY_HEADER else [KeyHeader(header)]
            case _ if name in BUILT_IN:
                return []
            case _:
                return [installed_stage(name, options, tool=self.tool)]

    @property
    def _backend(self) -> str:
        """What is down when it is down: the tools of an upstream share one fate."""
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
            Cache(
                options["for"],
                options["by"],
                tool=self.tool.name,
                flags=flags,
                answers=self.shared.answers,
                clock=self.clock,
                catalogue=self.catalogue,
            )
        ]

"""Stages of turns: the loop guard, the selection of tools, and the summary of a turn.

The summary is one event per turn with its calls, decisions and bytes; it contains no arguments and no values.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final, Protocol

from gateway.engine.stages.result_stages import measure_results
from gateway.errors import LoopStopped
from gateway.model import CallContext, CallTotals, Next, ToolCall, ToolRegistry, TurnEvent, now
from gateway.policy import Decision

PROPOSED_CALLS: Final = "gateway.proposedCalls"
"""Key in a dispatch's stash: exact digests of the calls that are about to be made, as a list."""

EARLIER_CALLS: Final = "gateway.earlierCalls"
"""Key in a dispatch's stash: how often calls were made of which the turn has no record, by digest."""

Proposed = Callable[[CallContext], Sequence[str]]


class WarningSink(Protocol):
    def emit_warning(self, kind: str, message: str, error: BaseException | None = None) -> None: ...


def get_proposed_checksums(ctx: CallContext) -> Sequence[str]:
    """Return the digests in the stash; empty if there are none."""
    fingerprints: list[str] = ctx.stash.get(PROPOSED_CALLS, [])
    return fingerprints


class LoopGuard:
    """Refuses a call once it was made `same_call` times in its turn, whatever its results.

    Calls are equal if tool and raw arguments are, to the last digit. As a stage it checks the calls that `proposed`
    returns for a dispatch; code that knows a call earlier uses `check` itself.
    """

    def __init__(self, same_call: int, proposed: Proposed = get_proposed_checksums) -> None:
        self._same_call = same_call
        self._proposed = proposed

    def check(self, ctx: CallContext, fingerprint: str, *, pending: int = 0) -> None:
        """Raise `LoopStopped` if the call was made too often in the turn, counting `pending`, not yet settled ones."""
        earlier: Mapping[str, int] = ctx.stash.get(EARLIER_CALLS, {})
        self.check_count(ctx.equal_call_count(fingerprint) + earlier.get(fingerprint, 0) + pending, ctx)

    def stops(self, made: int) -> bool:
        """Whether a call that was made so often in its turn may not be made again."""
        return made >= self._same_call

    def check_count(self, made: int, ctx: WarningSink) -> None:
        """Raise `LoopStopped` if a call that was made so often in its turn may not be made again."""
        if self.stops(made):
            times = "once" if made == 1 else f"{made} times"
            error = LoopStopped(
                f"this call was already made {times} in this turn with the same arguments; "
                "use what it answered, or call with other arguments"
            )
            ctx.emit_warning("loop-stopped", error.message, error)
            try:
                raise error
            finally:
                del error  # an exception refers to the frame that raises it

    async def __call__(self, ctx: CallContext, next: Next) -> None:
        """Check the proposed calls, counting equal ones among them."""
        proposed = list(self._proposed(ctx))
        for index, fingerprint in enumerate(proposed):
            self.check(ctx, fingerprint, pending=proposed[:index].count(fingerprint))
        await next()


class ToolSelectionStage:
    """Replaces the tools of a turn by a copy of a registry; hidden tools stay hidden."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry

    async def __call__(self, ctx: CallContext, next: Next) -> None:
        ctx.tools = self._registry.copy()
        await next()


FindDecision = Callable[[ToolCall], Decision | None]


@dataclass(slots=True)
class TurnSummary(TurnEvent):
    """Counts of a turn. `byte_length` omits results without a known size."""

    name: ClassVar[str] = "turnSummary"
    turn_id: str
    emitted_at: datetime
    calls: dict[str, int]
    errors: dict[str, int]
    decisions: dict[str, int]
    byte_length: int


class TurnSummaryStage:
    """Emits a `TurnSummary` after all other stages of the turn, also when they fail."""

    def __init__(self, decision_of: FindDecision = lambda call: None) -> None:
        self._decision_of = decision_of

    async def __call__(self, ctx: CallContext, next: Next) -> None:
        await next()
        if ctx.has_listener(TurnSummary):
            ctx.emit(await self.summarize(ctx))

    async def summarize(self, ctx: CallContext) -> TurnSummary:
        calls, older = ctx.turn_tool_calls, ctx.older_calls or CallTotals()
        decided = [decision for decision in map(self._decision_of, calls) if decision is not None]
        sizes = [await measure_results(call.results, ctx) for call in calls]
        return TurnSummary(
            ctx.turn_id,
            now(),
            calls=dict(older.calls + Counter(call.tool for call in calls)),
            errors=dict(older.errors + Counter(call.tool for call in calls if call.is_error)),
            decisions=dict(Counter(decided)),
            byte_length=older.byte_length + sum(size for size in sizes if size is not None),
        )

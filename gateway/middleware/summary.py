"""One event per turn that says what was called, what was decided and how much came back; no arguments, no values."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from gateway.core.calls import ToolCall
from gateway.core.context import Context
from gateway.core.events import Event, now
from gateway.core.pipeline import Next
from gateway.governance.rules import Decision
from gateway.middleware.results import size_of

DecisionOf = Callable[[ToolCall], Decision | None]


@dataclass(slots=True)
class TurnSummary(Event):
    """Counts of a turn. `byte_length` leaves out what no longer has a size, or never had one."""

    name: ClassVar[str] = "turnSummary"
    turn_id: str
    emitted_at: datetime
    calls: dict[str, int]
    errors: dict[str, int]
    decisions: dict[str, int]
    byte_length: int


class AuditSummary:
    """Emits a `TurnSummary` once everything else about the turn is done, also when that fails."""

    def __init__(self, decision_of: DecisionOf = lambda call: None) -> None:
        self._decision_of = decision_of

    async def __call__(self, ctx: Context, next: Next) -> None:
        await next()
        ctx.emit(await self.of(ctx))

    async def of(self, ctx: Context) -> TurnSummary:
        calls = ctx.turn_tool_calls
        decided = [decision for decision in map(self._decision_of, calls) if decision is not None]
        sizes = [await size_of(call.results, ctx) for call in calls]
        return TurnSummary(
            ctx.turn_id,
            now(),
            calls=dict(Counter(call.tool for call in calls)),
            errors=dict(Counter(call.tool for call in calls if call.is_error)),
            decisions=dict(Counter(decided)),
            byte_length=sum(size for size in sizes if size is not None),
        )

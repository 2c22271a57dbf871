"""Spans of what is told on the event buses: turns, dispatches, tools that run, and gates.

For whoever runs turns with the library. A gateway that serves listens to turns and gates alone: its calls are observed
where they are served, and listening to dispatches would cost every one of them.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from gateway.core.events import (
    Buses,
    DispatchEnd,
    DispatchStart,
    Event,
    ToolExecutionEnd,
    TurnEnd,
    TurnGateClosed,
    TurnGateOpen,
    TurnStart,
)
from gateway.core.ids import new_salt
from gateway.telemetry import names
from gateway.telemetry.observing import Telemetry
from gateway.telemetry.silence import silently
from gateway.telemetry.spans import Context
from gateway.telemetry.wire_format import FAILED, INTERNAL, Value, span_name

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MOST_OPEN: Final = 10_000

Unsubscribe = Callable[[], None]


class EventSpans:
    """A dispatch belongs to its turn, and a tool that runs to its dispatch, as far as their starts were heard."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._open: dict[str, tuple[Context, datetime]] = {}

    def listen(self, buses: Buses) -> Unsubscribe:
        """To everything there is a span for."""
        heard = (TurnStart, DispatchStart, DispatchEnd, ToolExecutionEnd)
        ended = [buses.observability.on(kind.name, self._told) for kind in heard]
        ended.append(self.listen_to_turns(buses))
        return lambda: [end() for end in ended].clear()

    def listen_to_turns(self, buses: Buses) -> Unsubscribe:
        """To the end of turns, and to gates."""
        heard = (TurnEnd, TurnGateOpen, TurnGateClosed)
        ended = [buses.observability.on(kind.name, self._told) for kind in heard]
        return lambda: [end() for end in ended].clear()

    @silently
    def _told(self, event: Event) -> None:
        match event:
            case TurnStart(turn_id=id, started_at=at):
                self._begin(id, self._telemetry.root(), at)
            case DispatchStart(dispatch_id=id, started_at=at):
                self._begin(id, self._telemetry.root(), at)
            case TurnGateOpen(gate=gate):
                self._begin(gate.id, self._below(gate.turn_id), datetime.now(UTC))
            case TurnEnd(turn_id=id, started_at=since, ended_at=until):
                self._end("turn", self._taken(id), since, until, {names.TURN_ID: id})
            case DispatchEnd(dispatch_id=id, started_at=since, ended_at=until):
                told: dict[str, Value] = {names.DISPATCH_ID: id, names.DISPATCH_STATUS: event.status}
                told[names.DISPATCH_ITERATIONS] = event.iterations
                error = None if event.error is None else type(event.error).__name__
                self._end(names.DISPATCH, self._taken(id), since, until, told, error=error)
            case ToolExecutionEnd(tool_name=tool, started_at=since, ended_at=until):
                told = {names.OPERATION: names.EXECUTE_TOOL, names.TOOL_NAME: tool, names.TURN_ID: event.turn_id}
                told |= {names.DISPATCH_ID: event.dispatch_id, names.TOOL_CALL_ID: event.call_id}
                error = names.TOOL_ERROR if event.is_error else None
                self._end(names.execute_span(tool), self._below(event.dispatch_id), since, until, told, error=error)
            case TurnGateClosed(gate_id=id, turn_id=turn, settled_at=until, result=result):
                since = self._open[id][1] if id in self._open else until
                told = {names.GATE_ID: id, names.TURN_ID: turn, names.GATE_OUTCOME: result}
                self._end("gate", self._taken(id), since, until, told)

    def _begin(self, id: str, context: Context, at: datetime) -> None:
        if len(self._open) >= _MOST_OPEN:
            self._open.pop(next(iter(self._open)))
        self._open[id] = (context, at)

    def _taken(self, id: str) -> Context:
        found = self._open.pop(id, None)
        return self._telemetry.root() if found is None else found[0]

    def _below(self, id: str) -> Context:
        found = self._open.get(id)
        return self._telemetry.root() if found is None else found[0].child(new_salt())

    def _end(
        self,
        name: str,
        context: Context,
        since: datetime,
        until: datetime,
        told: dict[str, Value],
        *,
        error: str | None = None,
    ) -> None:
        telemetry = self._telemetry
        if not (context.is_sampled or (error is not None and telemetry.keeps_errors)):
            return
        if error is not None:
            told[names.ERROR_TYPE] = error
        head = context.head(INTERNAL, _nanoseconds(since), _nanoseconds(until))
        named = span_name(name, telemetry.settings.longest_value)
        telemetry.spans_out(b"".join((head, named, telemetry.attributes_of(told), b"" if error is None else FAILED)))


def _nanoseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND * 1_000

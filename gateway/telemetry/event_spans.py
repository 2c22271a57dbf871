"""Spans of turn events.

Applications that run turns with the library have spans of turns, dispatches, tool executions and gates from the event
buses. A serving gateway listens only to turns and gates: its calls have spans already, and listening to dispatches
would slow down each of them.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from gateway.model import (
    DispatchEnd,
    DispatchStart,
    EventBuses,
    ToolExecutionEnd,
    TurnEnd,
    TurnEvent,
    TurnGateClosed,
    TurnGateOpen,
    TurnStart,
)
from gateway.telemetry import names
from gateway.telemetry.finished_span import INTERNAL, SpanContent, Value
from gateway.telemetry.observer import TelemetryObserver
from gateway.telemetry.spans import SpanPosition, log_errors, start_span

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MOST_OPEN: Final = 10_000

Unsubscribe = Callable[[], None]


class EventSpans:
    """Spans of turn events. A tool execution is a child of its dispatch if the start of that was observed."""

    def __init__(self, telemetry: TelemetryObserver) -> None:
        self._telemetry = telemetry
        self._open: dict[str, tuple[SpanPosition, datetime]] = {}

    def listen(self, buses: EventBuses) -> Unsubscribe:
        """Listen to all events that have a span."""
        kinds = (TurnStart, DispatchStart, DispatchEnd, ToolExecutionEnd)
        unsubscribes = [buses.observability.on(kind.name, self._handle_event) for kind in kinds]
        unsubscribes.append(self.listen_to_turns(buses))
        return lambda: [unsubscribe() for unsubscribe in unsubscribes].clear()

    def listen_to_turns(self, buses: EventBuses) -> Unsubscribe:
        """Listen to the end of turns, and to gates."""
        kinds = (TurnEnd, TurnGateOpen, TurnGateClosed)
        unsubscribes = [buses.observability.on(kind.name, self._handle_event) for kind in kinds]
        return lambda: [unsubscribe() for unsubscribe in unsubscribes].clear()

    @log_errors
    def _handle_event(self, event: TurnEvent) -> None:
        match event:
            case TurnStart(turn_id=id, started_at=at):
                self._begin(id, self._root(), at)
            case DispatchStart(dispatch_id=id, started_at=at):
                self._begin(id, self._root(), at)
            case TurnGateOpen(gate=gate):
                self._begin(gate.id, self._below(gate.turn_id), datetime.now(UTC))
            case TurnEnd(turn_id=id, started_at=since, ended_at=until):
                self._end("turn", self._take(id), since, until, {names.TURN_ID: id})
            case DispatchEnd(dispatch_id=id, started_at=since, ended_at=until):
                told: dict[str, Value] = {names.DISPATCH_ID: id, names.DISPATCH_STATUS: event.status}
                told[names.DISPATCH_ITERATIONS] = event.iterations
                error = None if event.error is None else type(event.error).__name__
                self._end(names.DISPATCH, self._take(id), since, until, told, error=error)
            case ToolExecutionEnd(tool_name=tool, started_at=since, ended_at=until):
                told = {names.OPERATION: names.EXECUTE_TOOL, names.TOOL_NAME: tool, names.TURN_ID: event.turn_id}
                told |= {names.DISPATCH_ID: event.dispatch_id, names.TOOL_CALL_ID: event.call_id}
                error = names.TOOL_ERROR if event.is_error else None
                self._end(names.execute_span(tool), self._below(event.dispatch_id), since, until, told, error=error)
            case TurnGateClosed(gate_id=id, turn_id=turn, settled_at=until, result=result):
                since = self._open[id][1] if id in self._open else until
                told = {names.GATE_ID: id, names.TURN_ID: turn, names.GATE_OUTCOME: result}
                self._end("gate", self._take(id), since, until, told)

    def _begin(self, id: str, context: SpanPosition, at: datetime) -> None:
        if len(self._open) >= _MOST_OPEN:
            self._open.pop(next(iter(self._open)))
        self._open[id] = (context, at)

    def _root(self) -> SpanPosition:
        ids, group, is_sampled = self._telemetry.new_root()
        return SpanPosition(ids, group, is_sampled=is_sampled)

    def _take(self, id: str) -> SpanPosition:
        found = self._open.pop(id, None)
        return self._root() if found is None else found[0]

    def _below(self, id: str) -> SpanPosition:
        found = self._open.get(id)
        return self._root() if found is None else found[0].child(self._telemetry.new_span_id())

    def _end(
        self,
        name: str,
        at: SpanPosition,
        since: datetime,
        until: datetime,
        told: dict[str, Value],
        *,
        error: str | None = None,
    ) -> None:
        telemetry, times = self._telemetry, (_nanoseconds(since), _nanoseconds(until))
        if error is not None:
            told[names.ERROR_TYPE] = error
        start_span(telemetry, at, name, INTERNAL, since=times[0], attributes=told)
        failed = error is not None
        content = SpanContent([told])
        telemetry.end_span(at, name, INTERNAL, times, content, is_error=failed, why=("error",) if failed else ())


def _nanoseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND * 1_000

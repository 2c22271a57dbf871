"""Spans of turn events.

Applications that run turns with the library have spans of turns, dispatches, tool executions and gates from the event
buses. A serving gateway listens only to turns and gates: its calls have spans already, and listening to dispatches
would slow down each of them.
"""

from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Final

from gateway.engine import find_current_call
from gateway.model import (
    DispatchEnd,
    DispatchStart,
    EventBuses,
    IterationEnd,
    IterationStart,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnEnd,
    TurnEvent,
    TurnGateClosed,
    TurnGateOpen,
    TurnStart,
)
from gateway.telemetry import names
from gateway.telemetry.gateway_span import FAILED, GatewaySpan, Value
from gateway.telemetry.observer import TelemetryObserver
from gateway.telemetry.spans import end_span, find_turn_address, log_errors, start_span

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MOST_OPEN: Final = 10_000

Unsubscribe = Callable[[], None]


class EventSpans:
    """Spans of turn events, each below the one in which it happens."""

    def __init__(self, telemetry: TelemetryObserver) -> None:
        self._telemetry = telemetry
        self._open: dict[str, tuple[GatewaySpan, datetime, GatewaySpan | None]] = {}

    def listen(self, buses: EventBuses) -> Unsubscribe:
        """Listen to all events that have a span."""
        kinds = (TurnStart, DispatchStart, DispatchEnd, IterationStart, IterationEnd, ToolExecutionStart)
        unsubscribes = [buses.observability.on(kind.name, self._handle_event) for kind in (*kinds, ToolExecutionEnd)]
        unsubscribes.append(self.listen_to_turns(buses))
        return lambda: [unsubscribe() for unsubscribe in unsubscribes].clear()

    def listen_to_turns(self, buses: EventBuses) -> Unsubscribe:
        """Listen to the end of turns, and to gates."""
        kinds = (TurnEnd, TurnGateOpen, TurnGateClosed)
        unsubscribes = [buses.observability.on(kind.name, self._handle_event) for kind in kinds]
        return lambda: [unsubscribe() for unsubscribe in unsubscribes].clear()

    @log_errors
    def _handle_event(self, event: TurnEvent) -> None:
        attributes: dict[str, Value]
        match event:
            case TurnStart(turn_id=id, started_at=at):
                self._begin(f"turn {id}", names.TURN, at, self._of_turn(id))
            case DispatchStart(dispatch_id=id, started_at=at):
                self._begin(f"dispatch {id}", names.DISPATCH, at)
            case IterationStart(dispatch_id=id, iteration=number, started_at=at):
                self._begin(f"iteration {id} {number}", names.ITERATION, at)
            case ToolExecutionStart(tool_name=tool, dispatch_id=id, call_id=call, started_at=at):
                self._begin(f"tool {id} {call}", names.execute_span(tool), at)
            case TurnGateOpen(gate=gate):
                self._begin(f"gate {gate.id}", names.GATE, datetime.now(UTC), _within_call(self._telemetry))
            case TurnEnd(turn_id=id, started_at=since, ended_at=until):
                self._end(f"turn {id}", names.TURN, (since, until), {names.TURN_ID: id}, at=self._of_turn(id))
            case DispatchEnd(dispatch_id=id, started_at=since, ended_at=until):
                attributes = {names.DISPATCH_ID: id, names.DISPATCH_STATUS: event.status}
                attributes[names.DISPATCH_ITERATIONS] = event.iterations
                error = None if event.error is None else type(event.error).__name__
                self._end(f"dispatch {id}", names.DISPATCH, (since, until), attributes, error=error)
            case IterationEnd(dispatch_id=id, iteration=number, started_at=since, ended_at=until):
                attributes = {names.DISPATCH_ID: id}
                self._end(f"iteration {id} {number}", names.ITERATION, (since, until), attributes)
            case ToolExecutionEnd(tool_name=tool, started_at=since, ended_at=until):
                attributes = {names.OPERATION: names.EXECUTE_TOOL, names.TOOL_NAME: tool, names.TURN_ID: event.turn_id}
                attributes |= {names.DISPATCH_ID: event.dispatch_id, names.TOOL_CALL_ID: event.call_id}
                error = names.TOOL_ERROR if event.is_error else None
                key = f"tool {event.dispatch_id} {event.call_id}"
                self._end(key, names.execute_span(tool), (since, until), attributes, error=error)
            case TurnGateClosed(gate_id=id, turn_id=turn, settled_at=until, result=result):
                key = f"gate {id}"
                since = self._open[key][1] if key in self._open else until
                attributes = {names.GATE_ID: id, names.TURN_ID: turn, names.GATE_OUTCOME: result}
                self._end(key, names.GATE, (since, until), attributes)

    def _begin(self, key: str, name: str, since: datetime, at: GatewaySpan | None = None) -> None:
        """Begin a span, below the one in which the event happens if it is not given where."""
        if len(self._open) >= _MOST_OPEN:
            self._open.pop(next(iter(self._open)))
        above = _CURRENT.get()
        at = at or (self._root() if above is None else above.child(self._telemetry.new_span_id()))
        start_span(self._telemetry, at, name, _nanoseconds(since))
        self._open[key] = at, since, above
        if name != names.GATE:
            _CURRENT.set(at)

    def _root(self) -> GatewaySpan:
        ids = self._telemetry.new_ids()
        is_sampled, group = self._telemetry.sample(ids[0])
        return GatewaySpan(ids, group, is_sampled=is_sampled)

    def _of_turn(self, id: str) -> GatewaySpan:
        address = find_turn_address(id)
        is_sampled, group = self._telemetry.sample(address[0])
        return GatewaySpan(address, group, is_sampled=is_sampled)

    def _end(
        self,
        key: str,
        name: str,
        moments: tuple[datetime, datetime],
        attributes: dict[str, Value],
        *,
        error: str | None = None,
        at: GatewaySpan | None = None,
    ) -> None:
        """End a span. If its start was not observed, it is a span of its own, or `at` the given place."""
        telemetry, (since, until) = self._telemetry, map(_nanoseconds, moments)
        found = self._open.pop(key, None)
        if found is None:
            at = at or self._root()
            start_span(telemetry, at, name, since, attributes=attributes)
        else:
            at, _, above = found
            if _CURRENT.get() is at:
                _CURRENT.set(above)
            at._start_time = since
        end_span(telemetry, at, attributes, until=until, error=error, why=FAILED if error else ())


_CURRENT: Final[ContextVar[GatewaySpan | None]] = ContextVar("observed_event", default=None)


def _within_call(telemetry: TelemetryObserver) -> GatewaySpan | None:
    """Return a place below the call that is being served, if there is one."""
    call = find_current_call()
    seen = None if call is None else call.seen
    return seen.child(telemetry.new_span_id()) if isinstance(seen, GatewaySpan) else None


def _nanoseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND * 1_000

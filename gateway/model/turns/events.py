"""The events of turns, and the two buses that deliver them.

The *functional* bus (`message`, `thought`, `toolCall`) is product output. The *observability*
bus is telemetry: removing every observer changes no behaviour, and exceptions of an observer
are logged. Event names are camelCase because they are sent to clients.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from gateway.errors import GatewayError

if TYPE_CHECKING:
    from gateway.model.turns.turn_gate import TurnGate

Listener = Callable[[Any], object]
GateResult = Literal["resolved", "rejected", "aborted", "timeout"]
DispatchStatus = Literal["ack", "nack", "aborted"]

_log = logging.getLogger(__name__)


now: Final[Callable[[], datetime]] = partial(datetime.now, UTC)


def from_time_ns(nanoseconds: int) -> datetime:
    """Convert a result of `time_ns` to a datetime. `time_ns` takes a fifth of the time of `now`."""
    return datetime.fromtimestamp(nanoseconds // 1_000 / 1_000_000, UTC)


def elapsed_milliseconds(start: datetime, end: datetime) -> float:
    """Return the milliseconds between two times; 0 if the clock was set back in between."""
    return max(0.0, (end - start).total_seconds() * 1000)


@dataclass(slots=True)
class TurnEvent:
    """Base of all events. Listeners subscribe by `name`.

    Not frozen: a frozen dataclass takes four times as long to create, and every call creates several.
    So the gateway never reads an event again after listeners have received it.
    """

    name: ClassVar[str] = ""
    functional: ClassVar[bool] = False

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by their Python names, without optional fields that are not set."""
        pairs = ((field, getattr(self, field.name)) for field in fields(self))
        return {field.name: value for field, value in pairs if value is not None or field.default is MISSING}


@dataclass(slots=True)
class MessageEvent(TurnEvent):
    name: ClassVar[str] = "message"
    functional: ClassVar[bool] = True
    id: str
    created_at: datetime
    updated_at: datetime
    full: str
    a_delta: str
    is_complete: bool
    completed_at: datetime | None = None


@dataclass(slots=True)
class ThoughtEvent(MessageEvent):
    name: ClassVar[str] = "thought"


@dataclass(slots=True)
class ToolCallEvent(TurnEvent):
    """A call in progress. `checksum` is empty until both tool and arguments are known."""

    name: ClassVar[str] = "toolCall"
    functional: ClassVar[bool] = True
    id: str
    tool: str
    args: dict[str, Any] | None
    checksum: str
    created_at: datetime
    updated_at: datetime
    is_complete: bool
    is_error: bool
    results: Any = None
    completed_at: datetime | None = None


@dataclass(slots=True)
class TurnStart(TurnEvent):
    name: ClassVar[str] = "turnStart"
    turn_id: str
    started_at: datetime


@dataclass(slots=True)
class TurnEnd(TurnEvent):
    name: ClassVar[str] = "turnEnd"
    turn_id: str
    started_at: datetime
    ended_at: datetime
    duration_ms: float


@dataclass(slots=True)
class DispatchStart(TurnEvent):
    name: ClassVar[str] = "dispatchStart"
    dispatch_id: str
    started_at: datetime


@dataclass(slots=True)
class DispatchEnd(TurnEvent):
    name: ClassVar[str] = "dispatchEnd"
    dispatch_id: str
    status: DispatchStatus
    iterations: int
    started_at: datetime
    ended_at: datetime
    duration_ms: float
    error: BaseException | None = None


@dataclass(slots=True)
class IterationStart(TurnEvent):
    name: ClassVar[str] = "iterationStart"
    dispatch_id: str
    iteration: int
    started_at: datetime


@dataclass(slots=True)
class IterationEnd(TurnEvent):
    name: ClassVar[str] = "iterationEnd"
    dispatch_id: str
    iteration: int
    started_at: datetime
    ended_at: datetime
    duration_ms: float


@dataclass(slots=True)
class ToolExecutionStart(TurnEvent):
    name: ClassVar[str] = "toolExecutionStart"
    tool_name: str
    turn_id: str
    dispatch_id: str
    call_id: str
    args: dict[str, Any]
    started_at: datetime


@dataclass(slots=True)
class ToolExecutionEnd(TurnEvent):
    name: ClassVar[str] = "toolExecutionEnd"
    tool_name: str
    turn_id: str
    dispatch_id: str
    call_id: str
    started_at: datetime
    ended_at: datetime
    duration_ms: float
    is_error: bool


@dataclass(slots=True)
class TurnGateOpen(TurnEvent):
    """Contains the live gate: a listener in this process may settle it directly."""

    name: ClassVar[str] = "turnGateOpen"
    gate: "TurnGate"

    def to_dict(self) -> dict[str, Any]:
        """Return the gate as data, for receivers outside of this process."""
        return self.gate.describe()


@dataclass(slots=True)
class TurnGateClosed(TurnEvent):
    name: ClassVar[str] = "turnGateClosed"
    gate_id: str
    turn_id: str
    result: GateResult
    settled_at: datetime


@dataclass(slots=True)
class LogEvent(TurnEvent):
    name: ClassVar[str] = "log"
    dispatch_id: str
    iteration: int
    emitted_at: datetime
    level: Literal["trace", "debug", "info", "warn", "error"]
    kind: str
    message: str
    payload: Any = None


@dataclass(slots=True)
class WarningEvent(TurnEvent):
    name: ClassVar[str] = "warning"
    emitted_at: datetime
    source: str
    kind: str
    message: str
    error: BaseException | None = None
    payload: Any = None
    dispatch_id: str | None = None
    iteration: int | None = None


@dataclass(slots=True)
class GenerationStats(TurnEvent):
    name: ClassVar[str] = "generationStats"
    dispatch_id: str
    iteration: int
    emitted_at: datetime
    stats: dict[str, Any]


@dataclass(slots=True)
class ErrorEvent(TurnEvent):
    name: ClassVar[str] = "error"
    error: GatewayError


class EventBus:
    """Listeners by event name. `emit` never raises and never waits: async listeners run in the background.

    Listeners of the event's name are called first, then those of `"*"`, each in the order of
    subscription.
    """

    def __init__(self) -> None:
        self._listeners: dict[str, dict[object, Listener]] = {}
        self._tasks: set[asyncio.Future[object]] = set()

    def on(self, name: str, listener: Listener) -> Callable[[], None]:
        """Subscribe to one event name, or to all with `"*"`; return an unsubscribe function."""
        if not callable(listener):
            raise TypeError(f"a listener must be a function of one event, not {type(listener).__name__}")
        key = object()  # the same function may be subscribed twice
        self._listeners.setdefault(name, {})[key] = listener

        def unsubscribe() -> None:
            subscribed = self._listeners.get(name, {})
            subscribed.pop(key, None)
            if not subscribed:
                self._listeners.pop(name, None)

        return unsubscribe

    @property
    def has_no_listeners(self) -> bool:
        return not self._listeners

    def has_listener(self, name: str) -> bool:
        return name in self._listeners or "*" in self._listeners

    def emit(self, event: TurnEvent) -> None:
        if not self._listeners:
            return
        for listener in (*self._listeners_of(event.name), *self._listeners_of("*")):
            try:
                answer = listener(event)
                if inspect.isawaitable(answer):
                    self._run_in_background(answer, event.name)
            # A listener that reads the result of a cancelled future must not appear to cancel this task.
            except (Exception, asyncio.CancelledError):
                _log.exception("a listener of %r failed", event.name)

    def _listeners_of(self, name: str) -> Iterable[Listener]:
        return self._listeners.get(name, {}).values()

    def _run_in_background(self, answer: Any, name: str) -> None:
        if not _has_running_loop():
            if inspect.iscoroutine(answer):
                answer.close()
            raise RuntimeError("an async listener was not run: this thread has no running event loop")
        task = asyncio.ensure_future(answer)
        self._tasks.add(task)  # the loop holds weak references only

        def finish(done: asyncio.Future[object]) -> None:
            self._tasks.discard(done)
            if not done.cancelled() and done.exception() is not None:
                _log.error("a listener of %r failed", name, exc_info=done.exception())

        task.add_done_callback(finish)


class EventBuses:
    """The two buses of a turn: `emit` chooses the bus by the event."""

    def __init__(self, functional: EventBus | None = None, observability: EventBus | None = None) -> None:
        self.functional = EventBus() if functional is None else functional
        self.observability = EventBus() if observability is None else observability

    def emit(self, event: TurnEvent) -> None:
        (self.functional if event.functional else self.observability).emit(event)

    def has_any_listener(self, names: frozenset[str]) -> bool:
        """Whether a listener receives one of these events; `names` must include `"*"`."""
        observed, functional = self.observability._listeners, self.functional._listeners
        if observed and not names.isdisjoint(observed):
            return True
        return bool(functional) and not names.isdisjoint(functional)

    def has_listener(self, kind: type[TurnEvent]) -> bool:
        """Whether a listener receives events of that type; without one, the event need not be created."""
        listeners = (self.functional if kind.functional else self.observability)._listeners
        return bool(listeners) and (kind.name in listeners or "*" in listeners)


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

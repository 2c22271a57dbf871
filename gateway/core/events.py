"""Every event as data, and the two buses that carry them.

The *functional* bus (`message`, `thought`, `toolCall`) is product output. The *observability*
bus is telemetry: removing every observer changes no behaviour, and an observer that raises
is logged and passed over. Event names are camelCase because they are data on the wire.
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
    from gateway.core.gates import TurnGate

Listener = Callable[[Any], object]
GateResult = Literal["resolved", "rejected", "aborted", "timeout"]
DispatchStatus = Literal["ack", "nack", "aborted"]

_log = logging.getLogger(__name__)


now: Final[Callable[[], datetime]] = partial(datetime.now, UTC)


def moment_of(nanoseconds: int) -> datetime:
    """The moment that `time_ns` told, as `now` would have: asking for that costs a fifth of making it."""
    return datetime.fromtimestamp(nanoseconds // 1_000 / 1_000_000, UTC)


def milliseconds(start: datetime, end: datetime) -> float:
    """Never less than nothing: a clock may be set back in between."""
    return max(0.0, (end - start).total_seconds() * 1000)


@dataclass(slots=True)
class Event:
    """Base of all events. `name` is the key listeners subscribe to.

    Not frozen, because making a frozen one takes four times as long and every call makes several;
    so nobody in the core reads back an event that listeners have seen.
    """

    name: ClassVar[str] = ""
    functional: ClassVar[bool] = False

    def to_dict(self) -> dict[str, Any]:
        """The fields by their Python names; optional ones only where they are set."""
        pairs = ((field, getattr(self, field.name)) for field in fields(self))
        return {field.name: value for field, value in pairs if value is not None or field.default is MISSING}


@dataclass(slots=True)
class MessageEvent(Event):
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
class ToolCallEvent(Event):
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
class TurnStart(Event):
    name: ClassVar[str] = "turnStart"
    turn_id: str
    started_at: datetime


@dataclass(slots=True)
class TurnEnd(Event):
    name: ClassVar[str] = "turnEnd"
    turn_id: str
    started_at: datetime
    ended_at: datetime
    duration_ms: float


@dataclass(slots=True)
class DispatchStart(Event):
    name: ClassVar[str] = "dispatchStart"
    dispatch_id: str
    started_at: datetime


@dataclass(slots=True)
class DispatchEnd(Event):
    name: ClassVar[str] = "dispatchEnd"
    dispatch_id: str
    status: DispatchStatus
    iterations: int
    started_at: datetime
    ended_at: datetime
    duration_ms: float
    error: BaseException | None = None


@dataclass(slots=True)
class IterationStart(Event):
    name: ClassVar[str] = "iterationStart"
    dispatch_id: str
    iteration: int
    started_at: datetime


@dataclass(slots=True)
class IterationEnd(Event):
    name: ClassVar[str] = "iterationEnd"
    dispatch_id: str
    iteration: int
    started_at: datetime
    ended_at: datetime
    duration_ms: float


@dataclass(slots=True)
class ToolExecutionStart(Event):
    name: ClassVar[str] = "toolExecutionStart"
    tool_name: str
    turn_id: str
    dispatch_id: str
    call_id: str
    args: dict[str, Any]
    started_at: datetime


@dataclass(slots=True)
class ToolExecutionEnd(Event):
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
class TurnGateOpen(Event):
    """Carries the live gate: a listener in this process may settle it right there."""

    name: ClassVar[str] = "turnGateOpen"
    gate: "TurnGate"

    def to_dict(self) -> dict[str, Any]:
        """The gate as it is published to those who cannot hold the object."""
        return self.gate.describe()


@dataclass(slots=True)
class TurnGateClosed(Event):
    name: ClassVar[str] = "turnGateClosed"
    gate_id: str
    turn_id: str
    result: GateResult
    settled_at: datetime


@dataclass(slots=True)
class LogEvent(Event):
    name: ClassVar[str] = "log"
    dispatch_id: str
    iteration: int
    emitted_at: datetime
    level: Literal["trace", "debug", "info", "warn", "error"]
    kind: str
    message: str
    payload: Any = None


@dataclass(slots=True)
class WarningEvent(Event):
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
class GenerationStats(Event):
    name: ClassVar[str] = "generationStats"
    dispatch_id: str
    iteration: int
    emitted_at: datetime
    stats: dict[str, Any]


@dataclass(slots=True)
class ErrorEvent(Event):
    name: ClassVar[str] = "error"
    error: GatewayError


class EventBus:
    """Listeners by event name. `emit` never raises and never waits: async listeners run in the background.

    Listeners of the event's own name are called first, then those of `"*"`, each in the order of
    subscription.
    """

    def __init__(self) -> None:
        self._listeners: dict[str, dict[object, Listener]] = {}
        self._tasks: set[asyncio.Future[object]] = set()

    def on(self, name: str, listener: Listener) -> Callable[[], None]:
        """Subscribe to one event name, or to all with `"*"`; returns an unsubscribe function."""
        if not callable(listener):
            raise TypeError(f"a listener is a function of one event, not {type(listener).__name__}")
        key = object()  # the same function may be subscribed twice
        self._listeners.setdefault(name, {})[key] = listener

        def unsubscribe() -> None:
            subscribed = self._listeners.get(name, {})
            subscribed.pop(key, None)
            if not subscribed:
                self._listeners.pop(name, None)

        return unsubscribe

    @property
    def is_quiet(self) -> bool:
        """Whether nobody listens to anything."""
        return not self._listeners

    def listens(self, name: str) -> bool:
        return name in self._listeners or "*" in self._listeners

    def emit(self, event: Event) -> None:
        if not self._listeners:
            return
        for listener in (*self._subscribed(event.name), *self._subscribed("*")):
            try:
                answer = listener(event)
                if inspect.isawaitable(answer):
                    self._run_in_background(answer, event.name)
            # A listener that asks a cancelled future for its result must not look like our own cancellation.
            except (Exception, asyncio.CancelledError):
                _log.exception("a listener of %r failed", event.name)

    def _subscribed(self, name: str) -> Iterable[Listener]:
        return self._listeners.get(name, {}).values()

    def _run_in_background(self, answer: Any, name: str) -> None:
        if not _has_running_loop():
            if inspect.iscoroutine(answer):
                answer.close()
            raise RuntimeError("an async listener was not run: this thread has no running event loop")
        task = asyncio.ensure_future(answer)
        self._tasks.add(task)  # the loop keeps weak references only

        def finish(done: asyncio.Future[object]) -> None:
            self._tasks.discard(done)
            if not done.cancelled() and done.exception() is not None:
                _log.error("a listener of %r failed", name, exc_info=done.exception())

        task.add_done_callback(finish)


class Buses:
    """The pair handed to a turn: emit once, the event knows which bus it belongs to."""

    def __init__(self, functional: EventBus | None = None, observability: EventBus | None = None) -> None:
        self.functional = EventBus() if functional is None else functional
        self.observability = EventBus() if observability is None else observability

    def emit(self, event: Event) -> None:
        (self.functional if event.functional else self.observability).emit(event)

    def hears_any(self, names: frozenset[str]) -> bool:
        """Whether anybody would notice one of these events; `"*"` is to be among them."""
        observed, functional = self.observability._listeners, self.functional._listeners
        if observed and not names.isdisjoint(observed):
            return True
        return bool(functional) and not names.isdisjoint(functional)

    def hears(self, kind: type[Event]) -> bool:
        """Whether anybody would notice such an event: one that nobody hears need not be made."""
        heard = (self.functional if kind.functional else self.observability)._listeners
        return bool(heard) and (kind.name in heard or "*" in heard)


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

"""The span of a call as the current span of OpenTelemetry, while its tool runs.

Instrumented libraries and the tool's own spans become its children. What the tool sets on the current span is exported
with the span of the call; names and the end stay the gateway's.
"""

from collections.abc import Callable, Mapping
from time import time_ns
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import baggage as otel_baggage
from opentelemetry import context as otel_context
from opentelemetry.trace import Span, SpanContext, set_span_in_context
from opentelemetry.trace.status import Status, StatusCode

from gateway.errors import GatewayError
from gateway.model import BackendError
from gateway.telemetry import names
from gateway.telemetry.gateway_span import SpanEvent, Value
from gateway.telemetry.trace_context import to_otel

if TYPE_CHECKING:
    from gateway.telemetry.gateway_span import GatewaySpan

MOST_ATTRIBUTES: Final = 128
"""Of a tool, on one span, and on one of its events: the default of OpenTelemetry."""
MOST_EVENTS: Final = 128
_MOST_PLACES: Final = 12
_RESERVED: Final = ("gateway.", "gen_ai.", "mcp.")
_MOST_CAUSES: Final = 8
_LARGE: Final = 1 << 63


class CurrentSpan(Span):
    """A view of the span of a call for the code that runs in it."""

    def __init__(self, at: "GatewaySpan") -> None:
        # Not the span itself: each would refer to the other.
        self._position = at.trace, at.span, at.state, at.is_sampled
        self._context: SpanContext | None = None
        self._is_over = False
        self.attributes: dict[str, Any] = {}
        self.events: list[SpanEvent] = []

    def get_span_context(self) -> SpanContext:
        if self._context is None:
            trace, span, state, is_sampled = self._position
            self._context = to_otel(trace, span, is_sampled=is_sampled, is_remote=False, state=state)
        return self._context

    def is_recording(self) -> bool:
        return not self._is_over

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def set_attribute(self, key: str, value: Any) -> None:
        """Set an attribute, unless its name is one of the gateway's."""
        if self._is_over or key.startswith(_RESERVED):
            return
        if key in self.attributes or len(self.attributes) < MOST_ATTRIBUTES:
            self.attributes[key] = value

    def add_event(self, name: str, attributes: Mapping[str, Any] | None = None, timestamp: int | None = None) -> None:
        if not self._is_over and len(self.events) < MOST_EVENTS:
            some = list((attributes or {}).items())[:MOST_ATTRIBUTES]
            self.events.append(SpanEvent(name, timestamp or time_ns(), dict(some)))

    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Record type and place of an exception. Its text may contain data of the call, and is left out."""
        found = {names.EXCEPTION_TYPE: name_error(exception), names.EXCEPTION_PLACES: format_places(exception)}
        self.add_event(names.EXCEPTION, {**found, **(attributes or {})}, timestamp)

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Do nothing: the outcome of the call is the status of its span."""

    def update_name(self, name: str) -> None:
        """Do nothing: the name tells which tool runs."""

    def end(self, end_time: int | None = None) -> None:
        """Do nothing: the span ends when the outcome of the call is recorded."""

    def close(self) -> bool:
        """Take no more attributes and events: the span is exported now. Return whether there are any."""
        self._is_over = True
        return bool(self.attributes or self.events)


def activate(span: Span, baggage: Mapping[str, str] | None = None) -> Callable[[], None]:
    """Make a span the current one of this context, with baggage. The returned function undoes that."""
    context = set_span_in_context(span)
    for key, value in (baggage or {}).items():
        context = otel_baggage.set_baggage(key, value, context)
    token = otel_context.attach(context)
    return lambda: otel_context.detach(token)


def find_failure(error: BaseException) -> tuple[str, str]:
    """Return the kind of a failure, for `error.type`, and its places: of the tool, not of the gateway."""
    for _ in range(_MOST_CAUSES):
        if not isinstance(error, GatewayError):
            return name_error(error), format_places(error)
        if isinstance(error, BackendError) and error.kind is not None:
            cause = error.__cause__
            return error.kind, error.places or ("" if cause is None else format_places(cause))
        following = error.cause or error.__cause__
        if not isinstance(following, Exception):
            break
        error = following
    return error.code if isinstance(error, GatewayError) else name_error(error), ""


def name_error(error: BaseException) -> str:
    """Return the name of an error's class as OpenTelemetry writes it; a deadline that passed is a `timeout`."""
    if isinstance(error, TimeoutError):
        return "timeout"
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def format_places(error: BaseException) -> str:
    """Return the places of a traceback as Python prints them, without the lines of source; the innermost last."""
    frames = [
        f'  File "{frame.f_code.co_filename}", line {line}, in {frame.f_code.co_qualname}'
        for frame, line in walk_tb(error.__traceback__)
    ]
    return "\n".join(frames[-_MOST_PLACES:])


def to_values(attributes: Mapping[str, Any]) -> dict[str, Value]:
    """Return attributes that can be exported: texts, numbers, flags, and sequences of them as texts."""
    return {str(key): _to_value(value) for key, value in attributes.items()}


def _to_value(value: Any) -> Value:
    if type(value) in (str, bool, float):
        return value  # type: ignore[no-any-return]  # one of these types
    if type(value) is int and -_LARGE <= value < _LARGE:
        return value
    if isinstance(value, list | tuple):
        return [str(each) for each in value]
    return str(value)

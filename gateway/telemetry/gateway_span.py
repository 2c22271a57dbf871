"""A span of the gateway, and its form that processors and exporters of the SDK read. That is put together when it is
read: a plain call has two spans, and an exporter of the gateway reads their fields.

An ended span refers to nothing of its call, however long it waits to be exported.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, Span, SpanContext, SpanKind
from opentelemetry.trace.status import Status, StatusCode

from gateway.telemetry.names import DECISION_CACHED, STEP_SECONDS
from gateway.telemetry.trace_context import format_traceparent, to_otel

if TYPE_CHECKING:
    from typing import Self

Value = str | bool | int | float | Sequence[str]
KeepReasons = tuple[Literal["error", "denied", "held", "cancelled", "decided"], ...]
"""Why a span is kept whatever the ratio: as the settings list them, and always the last two."""

SpanAddress = tuple[bytes, bytes]
"""Ids of a trace and a span."""

Step = tuple[str, int, int, bool | None]
"""A stage or a wait: its name, when it began and ended in nanoseconds, and whether its result was cached, if known."""

SERVER: Final = SpanKind.SERVER
CLIENT: Final = SpanKind.CLIENT
INTERNAL: Final = SpanKind.INTERNAL

FAILED: Final[KeepReasons] = ("error",)
_ERROR: Final = Status(StatusCode.ERROR)
_UNSET: Final = Status(StatusCode.UNSET)
_NOTHING: Final[Mapping[str, Any]] = {}


class SharedAttributes(dict[str, Any]):
    """Attributes that many spans share. Never changed, so that an exporter encodes them once, into `encoded`."""

    __slots__ = ("encoded",)

    def __init__(self, attributes: Mapping[str, Any] = _NOTHING) -> None:
        super().__init__(attributes)
        self.encoded: bytes | None = None


class SpanEvent:
    """Something that happened during a span: a name, a time in nanoseconds, and attributes."""

    __slots__ = ("at", "attributes", "name")

    def __init__(self, name: str, at: int, attributes: Mapping[str, Any] = _NOTHING) -> None:
        self.name = name
        self.at = at
        self.attributes = attributes


class SpanGroup:
    """The spans that are kept or dropped together: those of one request. `waiting` are those that ended before that
    was decided.
    """

    __slots__ = ("is_kept", "waiting")

    def __init__(self, *, is_kept: bool = False) -> None:
        self.is_kept = is_kept
        self.waiting: list[ReadableSpan] = []


KEPT: Final = SpanGroup(is_kept=True)
"""The group of all spans that the ratio samples."""


class SpanSource(Protocol):
    """What the spans of a gateway have in common."""

    resource: Resource
    scope: InstrumentationScope
    limits: SpanLimits


class GatewaySpan(ReadableSpan):
    """A span, from its start to its export. The base class is not initialised: most of its fields are computed."""

    source: SpanSource
    """Set when it ends."""
    trace: bytes
    span: bytes
    group: SpanGroup
    is_sampled: bool
    # Most spans have none of these, so that they need not be set:
    above: bytes = b""
    """The id of its parent."""
    is_remote = False
    """Whether the parent is a span of another party."""
    state: str = ""
    baggage: Mapping[str, str] = _NOTHING
    live: Span | None = None
    """The span of the SDK that it is, if something has to see spans when they start."""
    parts: Sequence[Mapping[str, Any]] = ()
    """Its attributes. The parts have no key in common."""
    own_events: Sequence[SpanEvent] = ()
    steps: Sequence[Step] = ()
    targets: tuple[SpanAddress, ...] = ()
    """Those of its links."""
    is_error = False
    why: KeepReasons = ()
    _name: str
    _kind: SpanKind = INTERNAL
    _start_time: int
    _end_time: int

    def __init__(self, ids: SpanAddress, group: SpanGroup, *, is_sampled: bool = True) -> None:
        self.trace, self.span = ids
        self.group = group
        self.is_sampled = is_sampled

    @property
    def traceparent(self) -> str:
        return format_traceparent(self.trace, self.span, is_sampled=self.is_sampled)

    def place_below(self, other: "GatewaySpan", id: bytes) -> "Self":
        """Become a child of the other span, and return itself."""
        self.trace, self.span, self.above = other.trace, id, other.span
        self.group, self.is_sampled = other.group, other.is_sampled
        self.state, self.baggage = other.state, other.baggage
        return self

    def child(self, id: bytes) -> "GatewaySpan":
        return GatewaySpan.__new__(GatewaySpan).place_below(self, id)

    def list_events(self) -> Sequence[SpanEvent]:
        """Return the events with those of the steps, in their order."""
        steps = [
            SpanEvent(name, at, {STEP_SECONDS: (until - at) / 1e9, **describe_step(is_cached)})
            for name, at, until, is_cached in self.steps
        ]
        return sorted([*self.own_events, *steps], key=lambda event: event.at)

    # What the base class reads:

    @cached_property
    def _context(self) -> SpanContext:  # type: ignore[override]  # a field there
        return to_otel(self.trace, self.span, is_sampled=True, is_remote=False, state=self.state)

    @cached_property
    def _parent(self) -> SpanContext | None:  # type: ignore[override]
        if not self.above:
            return None
        return to_otel(self.trace, self.above, is_sampled=True, is_remote=self.is_remote, state=self.state)

    @cached_property
    def _attributes(self) -> BoundedAttributes:  # type: ignore[override]
        limits = self.source.limits
        merged = {key: value for part in self.parts for key, value in part.items()}
        return _bound(merged, limits.max_span_attributes, limits.max_span_attribute_length)

    @cached_property
    def _events(self) -> tuple[Event, ...]:  # type: ignore[override]
        limits = self.source.limits
        most, longest = limits.max_event_attributes, limits.max_attribute_length
        events = self.list_events()[: limits.max_events]
        return tuple(Event(e.name, _bound(e.attributes, most, longest), e.at) for e in events)

    @cached_property
    def _links(self) -> tuple[Link, ...]:  # type: ignore[override]
        links = self.targets[: self.source.limits.max_links]
        return tuple(Link(to_otel(*each, is_sampled=True, is_remote=True)) for each in links)

    @property
    def _status(self) -> Status:  # type: ignore[override]
        return _ERROR if self.is_error else _UNSET

    @property
    def _resource(self) -> Resource:  # type: ignore[override]
        return self.source.resource

    @property
    def _instrumentation_scope(self) -> InstrumentationScope:  # type: ignore[override]
        return self.source.scope

    _instrumentation_info = None  # deprecated, and replaced by the scope

    @property
    def dropped_events(self) -> int:
        return len(self.own_events) + len(self.steps) - len(self._events)

    @property
    def dropped_links(self) -> int:
        return len(self.targets) - len(self._links)


def describe_step(is_cached: bool | None) -> dict[str, Value]:
    return {} if is_cached is None else {DECISION_CACHED: is_cached}


def _bound(attributes: Mapping[str, Any], most: int | None, longest: int | None) -> BoundedAttributes:
    """Bound attributes as the SDK does, which logs a line for each text that it truncates."""
    shortened = {key: value[:longest] if type(value) is str else value for key, value in attributes.items()}
    return BoundedAttributes(most, shortened, True, longest)

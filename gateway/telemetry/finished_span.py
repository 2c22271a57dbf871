"""A span that ended, in the form that processors and exporters of the SDK read. It is put together when it is read.

It refers to nothing of its call, however long it waits to be exported.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, Protocol

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind
from opentelemetry.trace.status import Status, StatusCode

from gateway.telemetry.names import DECISION_CACHED, STEP_SECONDS
from gateway.telemetry.trace_context import to_otel

Value = str | bool | int | float | Sequence[str]
KeepReasons = tuple[Literal["error", "denied", "held", "cancelled", "decided"], ...]
"""Why a span is kept whatever the ratio: as the settings list them, and always the last two."""

SERVER: Final = SpanKind.SERVER
CLIENT: Final = SpanKind.CLIENT
INTERNAL: Final = SpanKind.INTERNAL

_FAILED: Final = Status(StatusCode.ERROR)
_UNSET: Final = Status(StatusCode.UNSET)
_NO_ATTRIBUTES: Final[Mapping[str, Any]] = {}


class SharedAttributes(dict[str, Any]):
    """Attributes that many spans share. Never changed, so that an exporter encodes them once, into `encoded`."""

    __slots__ = ("encoded",)

    def __init__(self, attributes: Mapping[str, Any] = _NO_ATTRIBUTES) -> None:
        super().__init__(attributes)
        self.encoded: bytes | None = None


class SpanEvent:
    """Something that happened during a span: a name, a time in nanoseconds, and attributes."""

    __slots__ = ("at", "attributes", "name")

    def __init__(self, name: str, at: int, attributes: Mapping[str, Any] = _NO_ATTRIBUTES) -> None:
        self.name = name
        self.at = at
        self.attributes = attributes


SpanAddress = tuple[bytes, bytes]
"""Ids of a trace and a span."""


Step = tuple[str, int, int, bool | None]
"""A stage or a wait: its name, when it began and ended in nanoseconds, and whether its result was cached, if known."""


def describe_step(is_cached: bool | None) -> dict[str, Value]:
    return {} if is_cached is None else {DECISION_CACHED: is_cached}


class SpanContent:
    """Attributes, events and links of a span. The parts of its attributes have no key in common."""

    __slots__ = ("_events", "_steps", "links", "parts")

    def __init__(
        self,
        parts: Sequence[Mapping[str, Any]],
        events: Sequence[SpanEvent] = (),
        links: Sequence[SpanAddress] = (),
        steps: Sequence[Step] = (),
    ) -> None:
        self.parts = parts
        self.links = links
        self._events = events
        self._steps = steps

    @property
    def events(self) -> Sequence[SpanEvent]:
        """The events with those of the steps, in their order."""
        if not self._steps:
            return self._events
        steps = [
            SpanEvent(name, at, {STEP_SECONDS: (until - at) / 1e9, **describe_step(is_cached)})
            for name, at, until, is_cached in self._steps
        ]
        return sorted([*self._events, *steps], key=lambda event: event.at)


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


class SpanAt(Protocol):
    """Where in which trace a span is, and what it is kept or dropped with."""

    trace: bytes
    span: bytes
    parent: bytes
    is_remote: bool
    state: str
    group: SpanGroup


class SpanSource(Protocol):
    """What the spans of a gateway have in common."""

    resource: Resource
    scope: InstrumentationScope
    limits: SpanLimits


class FinishedSpan(ReadableSpan):
    """A span that ended. Unlike with the base class, most of its fields are computed."""

    def __init__(
        self,
        source: SpanSource,
        at: SpanAt,
        name: str,
        kind: SpanKind,
        times: tuple[int, int],
        content: SpanContent,
        *,
        is_error: bool = False,
        why: KeepReasons = (),
    ) -> None:
        # The base class is not initialised: that takes as long as everything else.
        self.source = source
        self.trace = at.trace
        self.span = at.span
        self.above = at.parent
        self.is_below_remote = at.is_remote
        self.state = at.state
        self.group = at.group
        self.is_error = is_error
        self.why = why
        self.since, until = times
        self.until = max(self.since, until)  # a clock may be set back in between
        self._name = name
        self._kind = kind
        self._start_time = self.since
        self._end_time = self.until
        self.content = content

    # What the base class reads:

    @cached_property
    def _context(self) -> SpanContext:  # type: ignore[override]  # a field there
        return to_otel(self.trace, self.span, is_sampled=True, is_remote=False, state=self.state)

    @cached_property
    def _parent(self) -> SpanContext | None:  # type: ignore[override]
        if not self.above:
            return None
        return to_otel(self.trace, self.above, is_sampled=True, is_remote=self.is_below_remote, state=self.state)

    @cached_property
    def _attributes(self) -> BoundedAttributes:  # type: ignore[override]
        limits = self.source.limits
        merged = {key: value for part in self.content.parts for key, value in part.items()}
        return _bound(merged, limits.max_span_attributes, limits.max_span_attribute_length)

    @cached_property
    def _events(self) -> tuple[Event, ...]:  # type: ignore[override]
        limits = self.source.limits
        most, longest = limits.max_event_attributes, limits.max_attribute_length
        events = self.content.events[: limits.max_events]
        return tuple(Event(e.name, _bound(e.attributes, most, longest), e.at) for e in events)

    @cached_property
    def _links(self) -> tuple[Link, ...]:  # type: ignore[override]
        links = self.content.links[: self.source.limits.max_links]
        return tuple(Link(to_otel(*each, is_sampled=True, is_remote=True)) for each in links)

    @property
    def _status(self) -> Status:  # type: ignore[override]
        return _FAILED if self.is_error else _UNSET

    @property
    def _resource(self) -> Resource:  # type: ignore[override]
        return self.source.resource

    @property
    def _instrumentation_scope(self) -> InstrumentationScope:  # type: ignore[override]
        return self.source.scope

    @property
    def _instrumentation_info(self) -> None:  # type: ignore[override]
        """Deprecated, and replaced by the scope."""

    @property
    def dropped_events(self) -> int:
        return len(self.content.events) - len(self._events)

    @property
    def dropped_links(self) -> int:
        return len(self.content.links) - len(self._links)


def _bound(attributes: Mapping[str, Any], most: int | None, longest: int | None) -> BoundedAttributes:
    """Bound attributes as the SDK does, which logs a line for each text that it truncates."""
    shortened = {key: value[:longest] if type(value) is str else value for key, value in attributes.items()}
    return BoundedAttributes(most, shortened, True, longest)

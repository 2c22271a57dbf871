"""Trace context and baggage of other parties: what is read from a request, and what is sent with one.

The propagators of OpenTelemetry parse and write. The gateway bounds what they see: malformed trace context is ignored,
and only listed keys of baggage are accepted, in a limited amount.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from opentelemetry import baggage as otel_baggage
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import NonRecordingSpan, TraceFlags, TraceState, set_span_in_context
from opentelemetry.trace import SpanContext as OtelSpanContext

MOST_BAGGAGE: Final = 32
LARGEST_BAGGAGE: Final = 8 << 10
_LARGEST_FIELD: Final = 512
_MOST_STATES: Final = 32

_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_VALUE: Final = r"\x21-\x2b\x2d-\x3c\x3e-\x7e"
_STATE: Final = re.compile(rf"[a-z0-9][a-z0-9_\-*/@]{{0,255}}=[\x20{_VALUE}]{{0,255}}[{_VALUE}]")
_MEMBER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+=[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")
_NOWHERE: Final = ("0" * 32, "0" * 16)

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_UNSAMPLED: Final = TraceFlags(TraceFlags.DEFAULT)
_EMPTY: Final = Context()
_NO_STATE: Final = TraceState()


@dataclass(slots=True)
class RemoteSpanContext:
    """The context of a span of another party."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool
    state: str = ""


@dataclass(slots=True)
class RemoteContext:
    """What a request says about traces: the span that it belongs to, if any, and baggage."""

    span: RemoteSpanContext | None = None
    baggage: Mapping[str, str] = field(default_factory=dict)


def parse_traceparent(traceparent: object, tracestate: object = None) -> RemoteSpanContext | None:
    """Parse a trace context of W3C; `None` if it is invalid."""
    if not isinstance(traceparent, str) or len(traceparent) > _LARGEST_FIELD:
        return None
    found = _PARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or trace_id == _NOWHERE[0] or span_id == _NOWHERE[1]:
        return None
    state = bound_state(tracestate)
    return RemoteSpanContext(bytes.fromhex(trace_id), bytes.fromhex(span_id), bool(int(flags, 16) & 1), state)


def format_traceparent(trace_id: bytes, span_id: bytes, *, is_sampled: bool) -> str:
    return f"00-{trace_id.hex()}-{span_id.hex()}-{'01' if is_sampled else '00'}"


def filter_baggage(given: object, allowed: frozenset[str]) -> str:
    """Return the allowed members without their properties; "" if the baggage is too large."""
    if not allowed or not isinstance(given, str) or len(given) > LARGEST_BAGGAGE:
        return ""
    members = given.split(",")
    if len(members) > MOST_BAGGAGE:
        return ""
    kept = {}
    for member in members:
        pair = member.partition(";")[0].strip(" \t")
        key, _, value = pair.partition("=")
        name = key.strip(" \t")
        if name in allowed and _MEMBER.fullmatch(f"{name}={value.strip(' ')}"):
            kept[name] = value.strip(" \t")
    return ",".join(f"{name}={value}" for name, value in kept.items())


def bound_state(given: object) -> str:
    """Return the trace state; "" if any part is invalid, because a part alone could have another meaning."""
    if not isinstance(given, str) or len(given) > _LARGEST_FIELD:
        return ""
    members = [each.strip(" \t") for each in given.split(",")]
    members = [each for each in members if each]
    if len(members) > _MOST_STATES or not all(_STATE.fullmatch(each) for each in members):
        return ""
    return ",".join(members)


def get_process_propagator() -> TextMapPropagator:
    """Return the propagator that the process has set, or that of W3C."""
    from opentelemetry.propagate import get_global_textmap  # it reads variables, and raises for unknown names

    return get_global_textmap()


class Propagation:
    """Reads and writes trace context with a propagator. Only the baggage keys in `allowed` are read."""

    def __init__(self, propagator: TextMapPropagator, allowed: frozenset[str] = frozenset()) -> None:
        self._propagator = propagator
        self._allowed = allowed
        self.fields: Mapping[bytes, str] = {name.encode(): name for name in sorted(map(str.lower, propagator.fields))}
        """Names of the headers that it reads, as they are in a request and as text."""
        self._names = frozenset(self.fields.values())

    def is_silent(self, fields: Mapping[str, object]) -> bool:
        """Whether the fields say nothing about traces."""
        return self._names.isdisjoint(fields)

    def extract(self, fields: Mapping[str, object]) -> RemoteContext:
        carrier = self._bound(fields)
        if not carrier:
            return RemoteContext()
        context = self._propagator.extract(carrier, _EMPTY)
        given = otel_baggage.get_all(context)
        kept = {key: str(value) for key, value in given.items() if key in self._allowed}
        found = trace.get_current_span(context).get_span_context()
        if not found.is_valid:
            return RemoteContext(None, kept)
        ids = found.trace_id.to_bytes(16), found.span_id.to_bytes(8)
        span = RemoteSpanContext(*ids, found.trace_flags.sampled, found.trace_state.to_header())
        return RemoteContext(span, kept if len(kept) <= MOST_BAGGAGE else {})

    def _bound(self, fields: Mapping[str, object]) -> dict[str, str]:
        """Return the fields that the propagator may read, without what is malformed or too large."""
        carrier: dict[str, str] = {}
        for name in self._names.intersection(fields):
            value = fields[name]
            if name == "baggage":
                value = filter_baggage(value, self._allowed)
            elif name == "tracestate":
                value = bound_state(value)
            elif name == "traceparent" and parse_traceparent(value) is None:
                continue
            if isinstance(value, str) and 0 < len(value) <= (LARGEST_BAGGAGE if name == "baggage" else _LARGEST_FIELD):
                carrier[name] = value
        return carrier

    def inject(self, context: OtelSpanContext, baggage: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of a request that the span sends."""
        at = set_span_in_context(NonRecordingSpan(context), _EMPTY)
        for key, value in baggage.items():
            at = otel_baggage.set_baggage(key, value, at)
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, at)
        return carrier


def to_otel(trace_id: bytes, span_id: bytes, *, is_sampled: bool, is_remote: bool, state: str = "") -> OtelSpanContext:
    states = TraceState.from_header([state]) if state else _NO_STATE
    flags = _SAMPLED if is_sampled else _UNSAMPLED
    return OtelSpanContext(int.from_bytes(trace_id), int.from_bytes(span_id), is_remote, flags, states)

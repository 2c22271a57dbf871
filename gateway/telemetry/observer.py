"""The telemetry observer of a gateway, which creates the spans of requests and calls, and spans of turn events.

Spans of turns, dispatches, tool executions and gates come from the event buses, for applications that run turns with
the library. A serving gateway listens only to turns and gates: its calls have spans already, and listening to
dispatches would slow down each of them.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from time import time_ns
from typing import Any, Final

from gateway.engine import Call, PeerAddress, RequestObservation
from gateway.model import (
    DispatchEnd,
    DispatchStart,
    EventBuses,
    Principal,
    ToolExecutionEnd,
    TurnEnd,
    TurnEvent,
    TurnGateClosed,
    TurnGateOpen,
    TurnStart,
    new_random_64,
    new_random_128,
)
from gateway.registries import DeclaredTool
from gateway.storage import StoredCall
from gateway.telemetry import names
from gateway.telemetry.attribute_cache import CommonAttributes, ContentHashes, ToolAttributes
from gateway.telemetry.call_spans import CallSpan
from gateway.telemetry.export.signal_exporter import Queue, RecordSink
from gateway.telemetry.export.wire_format import (
    FAILED,
    INTERNAL,
    OF_SPAN,
    WARN,
    Attributes,
    Value,
    event_name,
    link,
    log_head,
    of_log,
    span_name,
)
from gateway.telemetry.settings import CaptureSettings, TelemetrySettings
from gateway.telemetry.spans import (
    RequestSpan,
    SpanContext,
    extract_trace_headers,
    filter_baggage,
    log_errors,
    log_telemetry_error,
    parse_traceparent,
)

Contents = Callable[[dict[str, Any], Any, ToolAttributes], Awaitable[dict[str, Value]]]
"""Returns the captured arguments and results, masked."""

Sharing = Callable[[DeclaredTool], tuple[CaptureSettings, tuple[str, ...]]]
"""Returns what the artifact class of a tool lets telemetry capture, and the paths that it masks."""

_UNKNOWN: Final = event_name(names.CALL_UNKNOWN)
_NO_TRACE: Final = b"\0" * 16
_NO_SPAN: Final = b"\0" * 8
_MOST_TOOLS: Final = 50_000
_NOTHING: Final[Mapping[str, object]] = {}


def _share_nothing(tool: DeclaredTool) -> tuple[CaptureSettings, tuple[str, ...]]:
    return CaptureSettings("none", "none"), ()


def _drop_span(encoded: bytes) -> None:
    """Drop a span: no exporter is configured."""


async def _no_contents(args: dict[str, Any], results: Any, parts: ToolAttributes) -> dict[str, Value]:
    return {}


class TelemetryObserver:
    """Implements `gateway.engine.observer.Observer`."""

    def __init__(
        self,
        settings: TelemetrySettings,
        *,
        spans: Queue | None,
        logs: RecordSink | None,
        hashes: ContentHashes,
        shares: Sharing = _share_nothing,
        contents: Contents = _no_contents,
    ) -> None:
        self.settings = settings
        self.contents = contents
        self.spans = spans
        self.spans_out = _drop_span if spans is None else spans.put
        self.logs = logs
        self._encoder = Attributes(settings.longest_value)
        self.hashes = hashes
        self.common = CommonAttributes(self._encoder, hashes)
        self.attributes_of = self.common.all
        self.attribute = Attributes(settings.longest_value, tag=OF_SPAN).encode
        """One attribute of a span."""
        self._shares = shares
        self._parts: dict[tuple[str, str, str], ToolAttributes] = {}
        self._bound = round(settings.sampling.ratio * 2**64)
        self._keeps_all = self._bound == 2**64
        self._follows = settings.sampling.follows_caller
        always = settings.sampling.always
        self.keeps_errors = "error" in always
        self._kept = frozenset({"hold"} if "held" in always else ()) | ({"deny"} if "denied" in always else set())
        self._tells_starts = settings.start_records and logs is not None

    # --- observer interface ---

    def start_request(
        self,
        method: str,
        principal: Principal,
        fields: Mapping[str, str],
        meta: object = None,
        peer: PeerAddress | None = None,
        id: object = None,
        version: str | None = None,
        session: str | None = None,
        route: str | None = None,
    ) -> RequestSpan | None:
        try:
            if route is None and method not in names.MCP_METHODS:
                method = names.OTHER
            kind = (method, version, route)
            span = RequestSpan(self, kind, principal, self._new_ids(), peer, id, session)
            said = meta if isinstance(meta, dict) else _NOTHING
            if fields or "traceparent" in said or "baggage" in said:  # most callers send no trace context
                self._join(span, fields, said)
        except Exception as error:
            log_telemetry_error(error, "TelemetryObserver.start_request")
            return None
        return span

    def start_call(self, call: Call, tool: DeclaredTool | None, request: RequestObservation | None) -> CallSpan | None:
        try:
            parts = self._parts.get((call.catalogue, call.tool, call.revision)) or self._build_attributes(call, tool)
            if isinstance(request, RequestSpan):
                request.parts = parts
                ids = request.trace, new_random_64(), request.is_sampled
                span = CallSpan(self, call, parts, request, ids)
            else:
                span = CallSpan(self, call, parts, None, self._new_ids())
            if self._tells_starts and span.is_sampled:
                span.emit_start()
        except Exception as error:
            log_telemetry_error(error, "TelemetryObserver.start_call")
            return None
        return span

    @log_errors
    def report_abandoned(self, call: StoredCall) -> None:
        if self.logs is None:
            return
        told: dict[str, Value] = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: call.tool,
            names.CATALOGUE: call.catalogue,
            names.CONFIG_REVISION: call.revision,
            names.TOOL_CALL_ID: call.id,
            names.CALL_ID: call.id,
            names.TURN_ID: call.turn_id,
        }
        trace_id = _NO_TRACE if call.trace_id is None else bytes.fromhex(call.trace_id)
        span_id = _NO_SPAN if call.span_id is None else bytes.fromhex(call.span_id)
        self.logs.put(log_head(trace_id, span_id, time_ns(), WARN) + _UNKNOWN + of_log(self._encoder.all(told)))

    # --- for spans ---

    def is_sampled(self, decision: str, error: str | None) -> bool:
        """Whether spans with this end are exported whatever the ratio."""
        return decision in self._kept or (error is not None and self.keeps_errors)

    # --- trace context ---

    def root(self) -> SpanContext:
        trace, span, is_sampled = self._new_ids()
        return SpanContext(trace, span, is_sampled=is_sampled)

    def _new_ids(self) -> tuple[bytes, bytes, bool]:
        """Return new ids of a trace and a span, and whether the ratio samples the trace."""
        trace = new_random_128()
        return trace, new_random_64(), self._keeps_all or self._is_sampled(trace)

    def _join(self, request: RequestSpan, fields: Mapping[str, str], meta: Mapping[str, object]) -> None:
        """Join the caller's trace. That of the body precedes that of the headers, which then becomes a link.

        Callers that may not continue traces, because their provider does not allow it, are only linked: they could name
        any trace.
        """
        if self.settings.baggage:
            request.baggage = self._baggage(fields, meta)
        inside, outside = (
            parse_traceparent(*extract_trace_headers(meta)),
            parse_traceparent(*extract_trace_headers(fields)),
        )
        caller = inside or outside
        if caller is None:
            return
        if inside is not None and outside is not None and outside.span_id != inside.span_id:
            request.links = link(outside.trace_id, outside.span_id)
        if not request.principal.joins_traces:
            request.links = link(caller.trace_id, caller.span_id) + request.links
            return
        request.joins(caller)
        request.is_sampled = caller.is_sampled if self._follows else self._is_sampled(caller.trace_id)

    def _baggage(self, fields: Mapping[str, str], meta: Mapping[str, object]) -> str:
        given = meta["baggage"] if "baggage" in meta else fields.get("baggage")
        return filter_baggage(given, self.settings.baggage)

    def _is_sampled(self, trace_id: bytes) -> bool:
        """Whether the ratio samples the trace, by the last half of its id."""
        return int.from_bytes(trace_id[8:], "big") < self._bound

    # --- cached attributes ---

    def _build_attributes(self, call: Call, tool: DeclaredTool | None) -> ToolAttributes:
        allowed, redact = (CaptureSettings("none", "none"), ()) if tool is None else self._shares(tool)
        made = ToolAttributes(
            call.tool,
            tool,
            catalogue=call.catalogue,
            revision=call.revision,
            capture=self.settings.capture.tighten(allowed),
            redact=redact,
            attributes=self._encoder,
        )
        if len(self._parts) >= _MOST_TOOLS:
            self._parts.clear()
        self._parts[call.catalogue, call.tool, call.revision] = made
        return made


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MOST_OPEN: Final = 10_000

Unsubscribe = Callable[[], None]


class EventSpans:
    """Spans of turn events. A tool execution is a child of its dispatch if the start of that was observed."""

    def __init__(self, telemetry: TelemetryObserver) -> None:
        self._telemetry = telemetry
        self._open: dict[str, tuple[SpanContext, datetime]] = {}

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
                self._begin(id, self._telemetry.root(), at)
            case DispatchStart(dispatch_id=id, started_at=at):
                self._begin(id, self._telemetry.root(), at)
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

    def _begin(self, id: str, context: SpanContext, at: datetime) -> None:
        if len(self._open) >= _MOST_OPEN:
            self._open.pop(next(iter(self._open)))
        self._open[id] = (context, at)

    def _take(self, id: str) -> SpanContext:
        found = self._open.pop(id, None)
        return self._telemetry.root() if found is None else found[0]

    def _below(self, id: str) -> SpanContext:
        found = self._open.get(id)
        return self._telemetry.root() if found is None else found[0].child(new_random_64())

    def _end(
        self,
        name: str,
        context: SpanContext,
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

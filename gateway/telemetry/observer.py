"""The telemetry observer of a gateway, which creates the spans of requests and calls."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import time_ns
from typing import Any, Final

from gateway.engine import Call, PeerAddress, RequestObservation
from gateway.model import Principal, new_random_64, new_random_128
from gateway.registries import DeclaredTool
from gateway.storage import StoredCall
from gateway.telemetry import names
from gateway.telemetry.attribute_cache import CommonAttributes, ContentHashes, ToolAttributes
from gateway.telemetry.call_spans import CallSpan
from gateway.telemetry.export.delivery import RecordSink
from gateway.telemetry.export.wire_format import INFO, OF_LOG, WARN, Attributes, event_body, event_name, log_head
from gateway.telemetry.gateway_span import KEPT, SpanAddress, SpanGroup, Value
from gateway.telemetry.settings import CaptureSettings, TelemetrySettings
from gateway.telemetry.span_pipeline import SpanPipeline
from gateway.telemetry.spans import CURRENT_REQUEST, RefreshSpan, RequestSpan, log_errors, log_telemetry_error
from gateway.telemetry.trace_context import Propagation, RemoteContext, RemoteSpanContext, get_process_propagator

Contents = Callable[[dict[str, Any], Any, ToolAttributes], Awaitable[dict[str, Value]]]
"""Returns the captured arguments and results, masked."""

Sharing = Callable[[DeclaredTool], tuple[CaptureSettings, tuple[str, ...]]]
"""Returns what the artifact class of a tool lets telemetry capture, and the paths that it masks."""

_UNKNOWN: Final = event_name(names.CALL_UNKNOWN)
_STARTED: Final = event_name(names.CALL_STARTED)
_NO_TRACE: Final = b"\0" * 16
_NO_SPAN: Final = b"\0" * 8
_MOST_TOOLS: Final = 50_000
_NOTHING: Final[Mapping[str, object]] = {}
_NO_CONTEXT: Final = RemoteContext()


def _share_nothing(tool: DeclaredTool) -> tuple[CaptureSettings, tuple[str, ...]]:
    return CaptureSettings("none", "none"), ()


async def _no_contents(args: dict[str, Any], results: Any, parts: ToolAttributes) -> dict[str, Value]:
    return {}


class TelemetryObserver:
    """Implements `gateway.engine.observer.Observer`. Without a `pipeline`, no span is made."""

    def __init__(
        self,
        settings: TelemetrySettings,
        *,
        pipeline: SpanPipeline | None,
        logs: RecordSink | None,
        hashes: ContentHashes,
        propagation: Propagation | None = None,
        shares: Sharing = _share_nothing,
        contents: Contents = _no_contents,
    ) -> None:
        self.settings = settings
        self.contents = contents
        self.pipeline = pipeline
        self.logs = logs
        self.propagation = propagation or Propagation(get_process_propagator(), settings.baggage)
        self.trace_fields = self.propagation.fields
        self._encoder = Attributes(OF_LOG, settings.longest_value)
        self.hashes = hashes
        self.common = CommonAttributes(settings.longest_value, hashes, names_callers=settings.capture.callers == "name")
        self._shares = shares
        self._parts: dict[tuple[str, str, str], ToolAttributes] = {}
        self._bound = round(settings.sampling.ratio * 2**64)
        self._keeps_all = self._bound == 2**64
        self.detail = settings.detail
        self.is_live = pipeline is not None and pipeline.is_live
        self._follows = settings.sampling.follows_caller
        self._logs_starts = settings.start_records and logs is not None
        uses_own_ids = pipeline is not None and pipeline.makes_ids
        self.new_ids: Callable[[], SpanAddress] = pipeline.new_ids if uses_own_ids and pipeline else _new_ids
        self.new_span_id: Callable[[], bytes] = pipeline.new_span_id if uses_own_ids and pipeline else new_random_64

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
            span = RequestSpan(self, (method, version, route), principal, peer)
            if id is not None or session is not None:
                span.identify(id, session)
            given = meta if isinstance(meta, dict) else _NOTHING
            if fields or not self.propagation.is_silent(given):  # most callers send no trace context
                outside = self.propagation.extract(fields) if fields else _NO_CONTEXT
                span.join(self.propagation.extract(given), outside)
            CURRENT_REQUEST.set(span)
            if self.is_live:
                span.begin()
        except Exception as error:
            log_telemetry_error(error, "TelemetryObserver.start_request")
            return None
        return span

    def start_call(self, call: Call, tool: DeclaredTool | None, request: RequestObservation | None) -> CallSpan | None:
        try:
            parts = self._parts.get((call.catalogue, call.tool, call.revision)) or self._build_attributes(call, tool)
            if isinstance(request, RequestSpan):
                request.tool = parts
                if request.is_in_turn and call.turn is not None:
                    request.enter_turn(call.turn.id)
            else:
                request = None
            span = CallSpan(self, call, parts, request)
            if self._logs_starts and span.is_sampled:
                self._log_start(span, call)
        except Exception as error:
            log_telemetry_error(error, "TelemetryObserver.start_call")
            return None
        return span

    @log_errors
    def start_read(self, call: Call) -> CallSpan | None:
        request = CURRENT_REQUEST.get()
        if request is None or request.is_over:
            return None
        kind = call.tool.partition(":")[0]  # what follows is chosen by a server or a caller
        parts = self._parts.get((call.catalogue, kind, call.revision)) or self._build_attributes(call, None, kind)
        request.read = CallSpan(self, call, parts, request, is_read=True)
        return request.read

    @log_errors
    def start_refresh(self, upstream: str) -> RefreshSpan | None:
        return None if self.pipeline is None else RefreshSpan(self, upstream)

    @log_errors
    def report_abandoned(self, call: StoredCall) -> None:
        if self.logs is None:
            return
        attributes: dict[str, Value] = {
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
        head = log_head(trace_id, span_id, time_ns(), WARN)
        self.logs.put(lambda: head + _UNKNOWN + self._encoder.join(attributes))

    # --- start and unknown end of calls, as log records ---

    def _log_start(self, span: CallSpan, call: Call) -> None:
        if self.logs is not None:
            turn = None if call.turn is None else call.turn.id
            self.logs.put(
                partial(self._encode_start, span.trace, span.span, span._start_time, span.tool, call.id, turn)
            )

    def _encode_start(
        self, trace: bytes, span: bytes, at: int, tool: ToolAttributes, call: str, turn: str | None
    ) -> bytes:
        if tool.started is None:
            body = event_body(f"{tool.name} was called", self.settings.longest_value)
            tool.started = _STARTED + body + self._encoder.join(tool.execution)
        return b"".join((log_head(trace, span, at, INFO), tool.started, self._encode_ids(call, turn)))

    def log_unknown(self, span: CallSpan, call: Call) -> None:
        if self.logs is not None:
            head, tool = log_head(span.trace, span.span, time_ns(), WARN), span.tool
            own = self._encode_ids(call.id, None if call.turn is None else call.turn.id)
            self.logs.put(lambda: head + _UNKNOWN + self._encoder.join(tool.execution) + own)

    def _encode_ids(self, call: str, turn: str | None) -> bytes:
        own: dict[str, Value] = {names.CALL_ID: call, names.TOOL_CALL_ID: call}
        if turn is not None:
            own[names.TURN_ID] = turn
        return self._encoder.join(own)

    # --- for spans ---

    def sample(self, trace_id: bytes) -> tuple[bool, SpanGroup]:
        """Return whether the ratio samples a trace, and the group of spans that begins with its root."""
        if self._keeps_all or self._is_in_ratio(trace_id):
            return True, KEPT
        return False, SpanGroup()

    def samples(self, caller: RemoteSpanContext) -> bool:
        """Whether a trace of a caller is sampled."""
        return caller.is_sampled if self._follows else self._is_in_ratio(caller.trace_id)

    def _is_in_ratio(self, trace_id: bytes) -> bool:
        """Whether the ratio samples the trace, by the last half of its id."""
        return int.from_bytes(trace_id[8:], "big") < self._bound

    # --- cached attributes ---

    def _build_attributes(self, call: Call, tool: DeclaredTool | None, name: str = "") -> ToolAttributes:
        name = name or call.tool
        allowed, redact = (CaptureSettings("none", "none"), ()) if tool is None else self._shares(tool)
        made = ToolAttributes(
            name,
            tool,
            catalogue=call.catalogue,
            revision=call.revision,
            capture=self.settings.capture.tighten(allowed),
            redact=redact,
        )
        if len(self._parts) >= _MOST_TOOLS:
            self._parts.clear()
        self._parts[call.catalogue, name, call.revision] = made
        return made


def _new_ids() -> SpanAddress:
    return new_random_128(), new_random_64()

"""Telemetry: the observer of a gateway. It gives requests and calls their place in a trace, and sends what ended."""

from collections.abc import Awaitable, Callable, Mapping
from time import time_ns
from typing import Any, Final

from gateway.core.ids import new_number, new_salt
from gateway.governance.principals import Principal
from gateway.governance.records import StoredCall
from gateway.serving.current import ServedCall
from gateway.serving.observing import Peer, SeenRequest
from gateway.snapshot import DeclaredTool
from gateway.telemetry import names
from gateway.telemetry.calls import CallSpan
from gateway.telemetry.contexts import baggage, carried, remote
from gateway.telemetry.exporting import Queue
from gateway.telemetry.parts import CommonParts, Hashes, ToolParts
from gateway.telemetry.settings import Capture, Settings
from gateway.telemetry.silence import silently, unnoticed
from gateway.telemetry.spans import Context, RequestSpan
from gateway.telemetry.wire_format import (
    OF_SPAN,
    WARN,
    Attributes,
    Value,
    event_name,
    link,
    log_head,
    of_log,
)

Contents = Callable[[dict[str, Any], Any, ToolParts], Awaitable[dict[str, Value]]]
"""What may be shown of arguments and results, masked."""

Sharing = Callable[[DeclaredTool], tuple[Capture, tuple[str, ...]]]
"""What the class of a tool's results lets telemetry have, and which paths it masks."""

_UNKNOWN: Final = event_name(names.CALL_UNKNOWN)
_NO_TRACE: Final = b"\0" * 16
_NO_SPAN: Final = b"\0" * 8
_MOST_TOOLS: Final = 50_000
_NOTHING: Final[Mapping[str, object]] = {}


def _nothing(tool: DeclaredTool) -> tuple[Capture, tuple[str, ...]]:
    return Capture("none", "none"), ()


def _nowhere(encoded: bytes) -> None:
    """Where spans go that nobody wants."""


async def _no_contents(args: dict[str, Any], results: Any, parts: ToolParts) -> dict[str, Value]:
    return {}


class Telemetry:
    """Implements `gateway.serving.observing.Observer`."""

    def __init__(
        self,
        settings: Settings,
        *,
        spans: Queue | None,
        logs: Queue | None,
        hashes: Hashes,
        shares: Sharing = _nothing,
        contents: Contents = _no_contents,
    ) -> None:
        self.settings = settings
        self.contents = contents
        self.spans = spans
        self.spans_out = _nowhere if spans is None else spans.put
        self.logs = logs
        self._encoder = Attributes(settings.longest_value)
        self.hashes = hashes
        self.common = CommonParts(self._encoder, hashes)
        self.attributes_of = self.common.all
        self.attribute = Attributes(settings.longest_value, tag=OF_SPAN).encoded
        """One attribute of a span."""
        self._shares = shares
        self._parts: dict[tuple[str, str, str], ToolParts] = {}
        self._bound = round(settings.sampling.ratio * 2**64)
        self._keeps_all = self._bound == 2**64
        self._follows = settings.sampling.follows_caller
        always = settings.sampling.always
        self.keeps_errors = "error" in always
        self._kept = frozenset({"hold"} if "held" in always else ()) | ({"deny"} if "denied" in always else set())
        self._tells_starts = settings.start_records and logs is not None

    # --- the seam ---

    def received(
        self,
        method: str,
        principal: Principal,
        fields: Mapping[str, str],
        meta: object = None,
        peer: Peer | None = None,
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
            if fields or "traceparent" in said or "baggage" in said:  # most callers say nothing of a trace
                self._join(span, fields, said)
        except Exception as error:
            unnoticed(error, "Telemetry.received")
            return None
        return span

    def called(self, call: ServedCall, tool: DeclaredTool | None, request: SeenRequest | None) -> CallSpan | None:
        try:
            parts = self._parts.get((call.catalogue, call.tool, call.revision)) or self._made(call, tool)
            if isinstance(request, RequestSpan):
                request.parts = parts
                ids = request.trace, new_salt(), request.is_sampled
                span = CallSpan(self, call, parts, request, ids)
            else:
                span = CallSpan(self, call, parts, None, self._new_ids())
            if self._tells_starts and span.is_sampled:
                span.started()
        except Exception as error:
            unnoticed(error, "Telemetry.called")
            return None
        return span

    @silently
    def abandoned(self, call: StoredCall) -> None:
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

    def keeps(self, decision: str, error: str | None) -> bool:
        """Whether what ended like this is kept whatever the ratio."""
        return decision in self._kept or (error is not None and self.keeps_errors)

    # --- where in which trace ---

    def root(self) -> Context:
        trace, span, is_sampled = self._new_ids()
        return Context(trace, span, is_sampled=is_sampled)

    def _new_ids(self) -> tuple[bytes, bytes, bool]:
        """Of a trace and a span, and whether the ratio keeps the trace."""
        trace = new_number()
        return trace, new_salt(), self._keeps_all or self._is_sampled(trace)

    def _join(self, request: RequestSpan, fields: Mapping[str, str], meta: Mapping[str, object]) -> None:
        """What the body says comes before what the headers say, which is then a link.

        Callers whose provider does not say that they may continue traces are linked: they could name any trace.
        """
        if self.settings.baggage:
            request.baggage = self._baggage(fields, meta)
        inside, outside = remote(*carried(meta)), remote(*carried(fields))
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
        return baggage(given, self.settings.baggage)

    def _is_sampled(self, trace_id: bytes) -> bool:
        """Ratios look at the last half of an id."""
        return int.from_bytes(trace_id[8:], "big") < self._bound

    # --- what comes again ---

    def _made(self, call: ServedCall, tool: DeclaredTool | None) -> ToolParts:
        allowed, redact = (Capture("none", "none"), ()) if tool is None else self._shares(tool)
        made = ToolParts(
            call.tool,
            tool,
            catalogue=call.catalogue,
            revision=call.revision,
            capture=self.settings.capture.tightened(allowed),
            redact=redact,
            attributes=self._encoder,
        )
        if len(self._parts) >= _MOST_TOOLS:
            self._parts.clear()
        self._parts[call.catalogue, call.tool, call.revision] = made
        return made

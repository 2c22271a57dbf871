"""Spans of requests, decisions, requests to services, and rounds in which the gateway asks an upstream.

Errors of the observation never affect a call; they go to the operator's log only.
"""

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from hashlib import blake2b
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from opentelemetry.trace import SpanKind

from gateway.approvals import ApprovalRecord
from gateway.model import Principal
from gateway.telemetry import names
from gateway.telemetry.attribute_cache import ToolAttributes
from gateway.telemetry.gateway_span import (
    CLIENT,
    FAILED,
    INTERNAL,
    KEPT,
    SERVER,
    GatewaySpan,
    KeepReasons,
    SpanAddress,
    SpanGroup,
    Step,
    Value,
)
from gateway.telemetry.trace_context import RemoteContext, parse_traceparent, to_otel

if TYPE_CHECKING:
    from gateway.telemetry.call_spans import CallSpan
    from gateway.telemetry.observer import TelemetryObserver

P = ParamSpec("P")
R = TypeVar("R")

_log: Final = logging.getLogger(__name__)
CALL_IN_TURN: Final = "/v1/turns/{turn}/calls"
"""The route of calls in a turn that a client has opened."""
_NO_ATTRIBUTES: Final[Mapping[str, Any]] = {}


def log_errors(observe: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that it logs exceptions and returns `None` for them."""

    @wraps(observe)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return observe(*args, **kwargs)
        except Exception as error:
            log_telemetry_error(error, observe.__qualname__)
            nothing: Any = None
            return nothing  # type: ignore[no-any-return]  # callers accept None

    return run


def log_telemetry_error(error: Exception, where: str) -> None:
    """Log an error without its text, which may be content. Functions of every call use this: a wrapper is slower."""
    _log.error("an observer failed: %s in %s", type(error).__name__, where)


def find_turn_address(turn_id: str) -> SpanAddress:
    """Return the address of the span of a turn. Every process finds the same one."""
    digest = blake2b(turn_id.encode(), digest_size=24).digest()
    return digest[:16], digest[16:]


def start_span(
    telemetry: "TelemetryObserver",
    span: GatewaySpan,
    name: str,
    since: int,
    kind: SpanKind = INTERNAL,
    *,
    attributes: Mapping[str, Any] = _NO_ATTRIBUTES,
) -> None:
    """Start a span. It becomes one of the SDK at once if something has to see spans when they start."""
    span._name, span._kind, span._start_time = name, kind, since
    pipeline = telemetry.pipeline
    if pipeline is not None and pipeline.is_live:
        is_sampled = pipeline.open(span, attributes)
        if not pipeline.samples_at_end:
            span.is_sampled = is_sampled


def end_span(
    telemetry: "TelemetryObserver",
    span: GatewaySpan,
    attributes: Mapping[str, Any],
    *,
    until: int | None = None,
    error: str | None = None,
    why: KeepReasons = (),
) -> None:
    """End a span with its attributes. `error` is what failed."""
    pipeline = telemetry.pipeline
    if pipeline is None:
        return
    span.why = why
    span._end_time = until or time_ns()
    span.parts = (attributes,) if error is None else (attributes, {names.ERROR_TYPE: error})
    span.is_error = error is not None
    pipeline.end(span)


class RequestSpan(GatewaySpan):
    """The span of a received request. It starts a trace, unless it joins that of its caller."""

    _kind = SERVER
    _id: object = None
    _session: str | None = None
    is_over = False
    read: "CallSpan | None" = None
    """A read that is no call, until it ends."""
    decision: Mapping[str, Any] | None = None
    """That about its call."""
    tool: ToolAttributes | None = None
    error: str | None = None

    def __init__(
        self,
        telemetry: "TelemetryObserver",
        request: tuple[str, str | None, str | None],
        principal: Principal,
        peer: tuple[str, int] | None,
    ) -> None:
        """`request`: its method, the version of MCP, and the route of REST."""
        self.trace, self.span = ids = telemetry.new_ids()
        self.is_sampled, self.group = telemetry.sample(ids[0])
        self.steps: list[Step] = []
        self.principal = principal
        self._telemetry = telemetry
        self._request = request
        self._peer = peer
        self._start_time = time_ns()

    def identify(self, id: object, session: str | None) -> None:
        """Set the id of the JSON-RPC request and the session of its client."""
        self._id, self._session = id, session

    def join(self, inside: RemoteContext, outside: RemoteContext) -> None:
        """Join the caller's trace. That of the body precedes that of the headers, which then becomes a link.

        Callers that may not continue traces, because their provider does not allow it, are only linked: they could name
        any trace.
        """
        self.baggage = inside.baggage or outside.baggage
        caller = inside.span or outside.span
        if caller is None:
            return
        if inside.span is not None and outside.span is not None and outside.span.span_id != inside.span.span_id:
            self.targets = ((outside.span.trace_id, outside.span.span_id),)
        if not self.principal.joins_traces:
            self.targets = ((caller.trace_id, caller.span_id), *self.targets)
            return
        self.trace, self.above = caller.trace_id, caller.span_id
        self.is_remote = True
        self.state = caller.state
        self.is_sampled = self._telemetry.samples(caller)
        self.group = KEPT if self.is_sampled else SpanGroup()

    def enter_turn(self, turn_id: str) -> None:
        """Become a child of the turn that a client has opened, or link to it if the client has a trace of its own."""
        if self.live is not None:  # the SDK has given it a place, and gives one to the turn
            return
        trace, span = find_turn_address(turn_id)
        if self.above:
            self.targets = (*self.targets, (trace, span))
            return
        self.trace, self.above = trace, span
        self.is_sampled, self.group = self._telemetry.sample(trace)

    @property
    def is_in_turn(self) -> bool:
        """Whether its client has opened a turn before, which it names."""
        return self._request[2] == CALL_IN_TURN

    def begin(self) -> None:
        """Make it a span of the SDK, once it is known which trace it belongs to."""
        common = self._telemetry.common.requests[self._request]
        start_span(self._telemetry, self, self._describe(), self._start_time, SERVER, attributes=common)

    def end(self, *, code: int | None = None, status: int | None = None) -> None:
        try:
            self._finish(code, status)
        except Exception as error:
            log_telemetry_error(error, "RequestSpan.end")

    @log_errors
    def abandon(self) -> None:
        self._finish(None, None, is_cancelled=True)

    def _finish(self, code: int | None, status: int | None, *, is_cancelled: bool = False) -> None:
        if self.is_over:
            return
        self.is_over = True
        if self.read is not None:
            self.read.end_read()
        if code is not None and code not in names.CALLER_FAULTS:
            self.error = str(code)
        elif status is not None and status >= 500:
            self.error = str(status)
        pipeline = self._telemetry.pipeline
        if self.error is not None:
            self.is_error, self.why = True, FAILED
        if pipeline is None or not pipeline.keeps(self):
            return
        own, common, tool = dict[str, Value](), self._telemetry.common, self.tool
        parts: list[Mapping[str, Any]] = [common.requests[self._request], own]
        if tool is not None:
            parts.append(tool.of_request)
        self._name = tool.receiving if tool is not None and self._request[2] is None else self._describe()
        if self.decision is not None:
            parts.append(self.decision)
        if self._peer is not None:
            own[names.CLIENT_ADDRESS], own[names.CLIENT_PORT] = self._peer
        if self._id is not None:
            own[names.REQUEST_ID] = str(self._id)[: common.longest_id]
        if self._session is not None:
            own[names.MCP_SESSION] = self._session
        if code is not None:
            own[names.RESPONSE_CODE] = str(code)
        if status is not None:
            own[names.HTTP_STATUS] = status
        if is_cancelled:
            own[names.IS_CANCELLED] = True
        if self.error is not None:
            own[names.ERROR_TYPE] = self.error
        self.parts = parts
        self._end_time = time_ns()
        pipeline.end(self)

    @log_errors
    def observe_decision(self) -> "DecisionSpan":
        return DecisionSpan(self._telemetry, self)

    def _describe(self) -> str:
        method, _, route = self._request
        return method if route is None else f"{method} {route}"


CURRENT_REQUEST: Final[ContextVar[RequestSpan | None]] = ContextVar("observed_request", default=None)
"""The request that is being served. It may be over: a connection has one context for all its requests."""


class DecisionSpan(GatewaySpan):
    """The span of a decision about a held call, in the trace of the approver's request."""

    def __init__(self, telemetry: "TelemetryObserver", request: RequestSpan) -> None:
        self._telemetry = telemetry
        self._by = request.principal
        request.is_sampled = True  # decisions of approvers are always exported
        request.group.is_kept = True
        self.place_below(request, telemetry.new_span_id())
        start_span(telemetry, self, names.DECIDE, time_ns())

    @log_errors
    def end(self, record: ApprovalRecord) -> None:
        request = record.request
        attributes: dict[str, Any] = {
            names.GATE_NAME: request.rule,
            names.GATE_OUTCOME: record.entries[-1].decision,
            names.APPROVAL_ID: [record.id],
            names.APPROVAL_STATE: record.state,
            names.TOOL: request.advertised,
            names.CATALOGUE: request.action.catalogue,
            **({names.CALL_ID: request.call_id} if request.call_id is not None else {}),
            **({names.TURN_ID: request.turn_id} if request.turn_id is not None else {}),
            **self._telemetry.common.principals[self._by.subject, self._by.tenant],
        }
        self.targets = read_links(request.trace)
        self._name = names.decide_span(request.rule)
        end_span(self._telemetry, self, attributes, why=("decided",))


class UpstreamRequestSpan(GatewaySpan):
    """The span of a request to an upstream service. It is exported if its call is."""

    def __init__(
        self, telemetry: "TelemetryObserver", above: GatewaySpan, name: str, attributes: dict[str, Value]
    ) -> None:
        self._telemetry = telemetry
        self._sent = attributes
        self._is_over = False
        self.place_below(above, telemetry.new_span_id())
        start_span(telemetry, self, name, time_ns(), CLIENT, attributes=attributes)
        self.fields = inject_headers(telemetry, self)

    def identify(self, id: int, version: str | None) -> None:
        if self._is_over:
            return
        self._sent[names.REQUEST_ID] = str(id)
        if version is not None:
            self._sent[names.MCP_VERSION] = version

    @log_errors
    def end(self, *, status: int | None = None, error: str | None = None, code: int | None = None) -> None:
        if self._is_over:
            return
        self._is_over = True
        if code is not None:
            error = self._sent[names.RESPONSE_CODE] = names.code_word(code)
        if status is not None:
            self._sent[names.HTTP_STATUS] = status
            if status >= 400:
                error = error or str(status)
        end_span(self._telemetry, self, self._sent, error=error)


class RefreshSpan(GatewaySpan):
    """The root span of a round in which the gateway asks an upstream by itself."""

    def __init__(self, telemetry: "TelemetryObserver", upstream: str) -> None:
        self._telemetry = telemetry
        self._upstream = upstream
        self._is_over = False
        self.trace, self.span = telemetry.new_ids()
        self.is_sampled, self.group = telemetry.sample(self.trace)
        start_span(telemetry, self, names.REFRESH, time_ns(), attributes={names.UPSTREAM: upstream})

    @log_errors
    def http(self, method: str, *, scheme: str, host: str, port: int) -> UpstreamRequestSpan | None:
        sent: dict[str, Value] = {names.HTTP_METHOD: method, names.URL_SCHEME: scheme}
        return self._start_request(method, sent, host, port)

    @log_errors
    def mcp(self, method: str, *, host: str | None = None, port: int | None = None) -> UpstreamRequestSpan | None:
        transport = "pipe" if host is None else "tcp"
        return self._start_request(method, {names.MCP_METHOD: method, names.NETWORK_TRANSPORT: transport}, host, port)

    def _start_request(
        self, name: str, sent: dict[str, Value], host: str | None, port: int | None
    ) -> UpstreamRequestSpan | None:
        if self._is_over:  # a task that the round has started goes on
            return None
        sent[names.UPSTREAM] = self._upstream
        if host is not None:
            sent[names.SERVER_ADDRESS] = host
        if port is not None:
            sent[names.SERVER_PORT] = port
        return UpstreamRequestSpan(self._telemetry, self, name, sent)

    @log_errors
    def end(self, error: str | None = None) -> None:
        self._is_over = True
        self.why = FAILED if error else ()
        pipeline = self._telemetry.pipeline
        if pipeline is not None and pipeline.keeps(self):
            end_span(self._telemetry, self, {names.UPSTREAM: self._upstream}, error=error, why=self.why)


def inject_headers(telemetry: "TelemetryObserver", span: GatewaySpan) -> Mapping[str, str]:
    """Return the trace headers of a request that the span sends."""
    context = to_otel(span.trace, span.span, is_sampled=span.is_sampled, is_remote=False, state=span.state)
    return telemetry.propagation.inject(context, span.baggage)


def read_links(*traceparents: str | None, but: bytes = b"") -> tuple[SpanAddress, ...]:
    """Return links to the spans of the given traceparents, except to the span `but`."""
    found = (parse_traceparent(each) for each in traceparents)
    return tuple({(each.trace_id, each.span_id): None for each in found if each is not None and each.span_id != but})

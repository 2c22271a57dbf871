"""Lightweight spans of requests, decisions and requests to services. They become spans of the SDK when they end.

Errors of the observation never affect a call; they go to the operator's log only.
"""

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from hashlib import blake2b
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from opentelemetry.trace import Span, SpanKind

from gateway.approvals import ApprovalRecord
from gateway.model import Principal
from gateway.telemetry import names
from gateway.telemetry.attribute_cache import ToolAttributes
from gateway.telemetry.finished_span import (
    CLIENT,
    INTERNAL,
    KEPT,
    SERVER,
    FinishedSpan,
    KeepReasons,
    SpanAddress,
    SpanContent,
    SpanGroup,
    Step,
    Value,
)
from gateway.telemetry.trace_context import RemoteContext, format_traceparent, parse_traceparent, to_otel

if TYPE_CHECKING:
    from gateway.telemetry.call_spans import CallSpan
    from gateway.telemetry.observer import TelemetryObserver

P = ParamSpec("P")
R = TypeVar("R")

_log: Final = logging.getLogger(__name__)
CALL_IN_TURN: Final = "/v1/turns/{turn}/calls"
"""The route of calls in a turn that a client has opened."""
_FAILED: Final[KeepReasons] = ("error",)
_NO_BAGGAGE: Final[Mapping[str, str]] = {}


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


class SpanPosition:
    """Where in which trace a span is. With `live`, it is a span of the SDK already."""

    __slots__ = ("baggage", "group", "is_remote", "is_sampled", "live", "parent", "span", "state", "trace")

    def __init__(
        self,
        ids: SpanAddress,
        group: SpanGroup,
        parent: bytes = b"",
        *,
        is_sampled: bool = True,
        state: str = "",
        baggage: Mapping[str, str] = _NO_BAGGAGE,
    ) -> None:
        self.trace, self.span = ids
        self.group = group
        self.parent = parent
        self.is_remote = False
        """Whether the parent is a span of another party."""
        self.is_sampled = is_sampled
        self.state = state
        self.baggage = baggage
        self.live: Span | None = None

    @property
    def traceparent(self) -> str:
        return format_traceparent(self.trace, self.span, is_sampled=self.is_sampled)

    def child(self, span: bytes) -> "SpanPosition":
        return SpanPosition(
            (self.trace, span),
            self.group,
            self.span,
            is_sampled=self.is_sampled,
            state=self.state,
            baggage=self.baggage,
        )


def find_turn_address(turn_id: str) -> SpanAddress:
    """Return the address of the span of a turn. Every process finds the same one."""
    digest = blake2b(turn_id.encode(), digest_size=24).digest()
    return digest[:16], digest[16:]


def start_span(
    telemetry: "TelemetryObserver",
    at: SpanPosition,
    name: str,
    kind: SpanKind,
    *,
    since: int,
    attributes: Mapping[str, Any],
    links: tuple[SpanAddress, ...] = (),
) -> None:
    """Make `at` a span of the SDK if something has to see spans when they start."""
    pipeline = telemetry.pipeline
    if pipeline is not None and pipeline.is_live:
        at.live, is_sampled = pipeline.open(
            at,
            name,
            kind,
            since=since,
            attributes=attributes,
            links=links,
            is_parent_sampled=at.is_sampled,
        )
        if not pipeline.samples_at_end:
            at.is_sampled = is_sampled


class RequestSpan(SpanPosition):
    """The span of a received request. It starts a trace, unless it joins that of its caller."""

    __slots__ = (
        *("_id", "_kind", "_peer", "_session", "_telemetry"),
        *("decision", "error", "is_over", "links", "parts", "principal", "read", "since", "steps"),
    )

    def __init__(
        self,
        telemetry: "TelemetryObserver",
        kind: tuple[str, str | None, str | None],
        principal: Principal,
        peer: tuple[str, int] | None,
        id: object,
        session: str | None,
    ) -> None:
        """`kind`: its method, the version of MCP, and the route of REST."""
        (self.trace, self.span), self.group, self.is_sampled = telemetry.new_root()
        self.parent = b""
        self.state = ""
        self.baggage = _NO_BAGGAGE
        self.is_remote = self.is_over = False
        self.live = None
        self.links: tuple[SpanAddress, ...] = ()
        self.steps: list[Step] = []
        self.read: CallSpan | None = None
        """A read that is no call, until it ends."""
        self.decision: Mapping[str, Any] | None = None
        """That about its call."""
        self.principal = principal
        self.parts: ToolAttributes | None = None
        self.error: str | None = None
        self._telemetry = telemetry
        self._kind = kind
        self._peer = peer
        self._id = id
        self._session = session
        self.since = time_ns()

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
            self.links = ((outside.span.trace_id, outside.span.span_id),)
        if not self.principal.joins_traces:
            self.links = ((caller.trace_id, caller.span_id), *self.links)
            return
        self.trace, self.parent = caller.trace_id, caller.span_id
        self.is_remote = True
        self.state = caller.state
        self.is_sampled = self._telemetry.samples(caller)
        self.group = KEPT if self.is_sampled else SpanGroup()

    def enter_turn(self, turn_id: str) -> None:
        """Become a child of the turn that a client has opened, or link to it if the client has a trace of its own."""
        if self.live is not None:  # the SDK has given it a place, and gives one to the turn
            return
        trace, span = find_turn_address(turn_id)
        if self.parent:
            self.links = (*self.links, (trace, span))
            return
        self.trace, self.parent = trace, span
        self.is_sampled, self.group = self._telemetry.sample(trace)

    @property
    def is_in_turn(self) -> bool:
        """Whether its client has opened a turn before, which it names."""
        return self._kind[2] == CALL_IN_TURN

    def begin(self) -> None:
        """Make it a span of the SDK, once it is known which trace it belongs to."""
        common = self._telemetry.common
        start_span(
            *(self._telemetry, self, self._name(), SERVER),
            since=self.since,
            attributes=common.requests[self._kind],
            links=self.links,
        )

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
        why: KeepReasons = () if self.error is None else ("error",)
        if pipeline is None or not pipeline.keeps(self.group, why):
            self.group.waiting.clear()
            return
        is_call = self.parts is not None and self._kind[2] is None
        name = self.parts.receiving if self.parts is not None and is_call else self._name()
        content = SpanContent(self._list_attributes(code, status, is_cancelled), (), self.links, self.steps)
        is_error, times = self.error is not None, (self.since, time_ns())
        pipeline.end(FinishedSpan(pipeline, self, name, SERVER, times, content, is_error=is_error, why=why), self.live)

    @log_errors
    def observe_decision(self) -> "DecisionSpan":
        return DecisionSpan(self._telemetry, self)

    def _list_attributes(self, code: int | None, status: int | None, is_cancelled: bool) -> list[Mapping[str, Any]]:
        common, own = self._telemetry.common, dict[str, Value]()
        parts: list[Mapping[str, Any]] = [common.requests[self._kind], own]
        if self.parts is not None:
            parts.append(self.parts.of_request)
        if self.decision is not None:
            parts.append(self.decision)
        if self._peer is not None:
            parts.append(common.peers[self._peer])
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
        return parts

    def _name(self) -> str:
        method, _, route = self._kind
        return method if route is None else f"{method} {route}"


CURRENT_REQUEST: Final[ContextVar[RequestSpan | None]] = ContextVar("observed_request", default=None)
"""The request that is being served. It may be over: a connection has one context for all its requests."""


class DecisionSpan:
    """The span of a decision about a held call, in the trace of the approver's request."""

    __slots__ = ("_at", "_request", "_since", "_telemetry")

    def __init__(self, telemetry: "TelemetryObserver", request: RequestSpan) -> None:
        self._telemetry = telemetry
        self._request = request
        self._since = time_ns()
        request.is_sampled = True  # decisions of approvers are always exported
        request.group.is_kept = True
        self._at = request.child(telemetry.new_span_id())
        start_span(telemetry, self._at, names.DECIDE, INTERNAL, since=self._since, attributes={})

    @property
    def traceparent(self) -> str:
        return self._at.traceparent

    @log_errors
    def end(self, record: ApprovalRecord) -> None:
        request, telemetry = record.request, self._telemetry
        attributes: dict[str, Value] = {
            names.GATE_NAME: request.rule,
            names.GATE_OUTCOME: record.entries[-1].decision,
            names.APPROVAL_ID: [record.id],
            names.APPROVAL_STATE: record.state,
            names.TOOL: request.advertised,
            names.CATALOGUE: request.action.catalogue,
            **({names.CALL_ID: request.call_id} if request.call_id is not None else {}),
            **({names.TURN_ID: request.turn_id} if request.turn_id is not None else {}),
        }
        by = self._request.principal
        content = SpanContent(
            [attributes, telemetry.common.principals[by.subject, by.tenant]], links=read_links(request.trace)
        )
        name, times = names.decide_span(request.rule), (self._since, time_ns())
        telemetry.end_span(self._at, name, INTERNAL, times, content, why=("decided",))


class UpstreamRequestSpan:
    """The span of a request to an upstream service. It is exported if its call is."""

    __slots__ = ("_at", "_attributes", "_is_over", "_name", "_since", "_telemetry", "fields")

    def __init__(
        self, telemetry: "TelemetryObserver", at: SpanPosition, name: str, attributes: dict[str, Value]
    ) -> None:
        self._telemetry = telemetry
        self._at = at
        self._name = name
        self._attributes = attributes
        self._since = time_ns()
        self._is_over = False
        start_span(telemetry, at, name, CLIENT, since=self._since, attributes=attributes)
        self.fields = inject_headers(telemetry, at)

    def identify(self, id: int, version: str | None) -> None:
        if self._is_over:
            return
        self._attributes[names.REQUEST_ID] = str(id)
        if version is not None:
            self._attributes[names.MCP_VERSION] = version

    @log_errors
    def end(self, *, status: int | None = None, error: str | None = None, code: int | None = None) -> None:
        if self._is_over:
            return
        self._is_over = True
        attributes = self._attributes
        if code is not None:
            error = attributes[names.RESPONSE_CODE] = names.code_word(code)
        if status is not None:
            attributes[names.HTTP_STATUS] = status
            if status >= 400:
                error = error or str(status)
        if error is not None:
            attributes[names.ERROR_TYPE] = error
        times = self._since, time_ns()
        self._telemetry.end_span(
            self._at, self._name, CLIENT, times, SpanContent([attributes]), is_error=error is not None
        )


class RefreshSpan:
    """The root span of a round in which the gateway asks an upstream by itself."""

    __slots__ = ("_at", "_is_over", "_since", "_telemetry", "_upstream")

    def __init__(self, telemetry: "TelemetryObserver", upstream: str) -> None:
        self._telemetry = telemetry
        self._upstream = upstream
        self._since = time_ns()
        self._is_over = False
        ids, group, is_sampled = telemetry.new_root()
        self._at = SpanPosition(ids, group, is_sampled=is_sampled)
        told = {names.UPSTREAM: upstream}
        start_span(telemetry, self._at, names.REFRESH, INTERNAL, since=self._since, attributes=told)

    @log_errors
    def http(self, method: str, *, scheme: str, host: str, port: int) -> UpstreamRequestSpan | None:
        told: dict[str, Value] = {names.HTTP_METHOD: method, names.URL_SCHEME: scheme}
        return self._start_request(method, told, host, port)

    @log_errors
    def mcp(self, method: str, *, host: str | None = None, port: int | None = None) -> UpstreamRequestSpan | None:
        transport = "pipe" if host is None else "tcp"
        return self._start_request(method, {names.MCP_METHOD: method, names.NETWORK_TRANSPORT: transport}, host, port)

    def _start_request(
        self, name: str, told: dict[str, Value], host: str | None, port: int | None
    ) -> UpstreamRequestSpan | None:
        if self._is_over:  # a task that the round has started goes on
            return None
        told[names.UPSTREAM] = self._upstream
        if host is not None:
            told[names.SERVER_ADDRESS] = host
        if port is not None:
            told[names.SERVER_PORT] = port
        return UpstreamRequestSpan(self._telemetry, self._at.child(self._telemetry.new_span_id()), name, told)

    @log_errors
    def end(self, error: str | None = None) -> None:
        self._is_over = True
        told: dict[str, Value] = {names.UPSTREAM: self._upstream}
        if error is not None:
            told[names.ERROR_TYPE] = error
        pipeline, why, times = self._telemetry.pipeline, _FAILED if error else (), (self._since, time_ns())
        if pipeline is None or not pipeline.keeps(self._at.group, why):
            self._at.group.waiting.clear()
            return
        content, is_error = SpanContent([told]), error is not None
        self._telemetry.end_span(self._at, names.REFRESH, INTERNAL, times, content, is_error=is_error, why=why)


def inject_headers(telemetry: "TelemetryObserver", at: SpanPosition) -> Mapping[str, str]:
    """Return the trace headers of a request that the span sends."""
    context = to_otel(at.trace, at.span, is_sampled=at.is_sampled, is_remote=False, state=at.state)
    return telemetry.propagation.inject(context, at.baggage)


def read_links(*traceparents: str | None, but: bytes = b"") -> tuple[SpanAddress, ...]:
    """Return links to the spans of the given traceparents, except to the span `but`."""
    found = (parse_traceparent(each) for each in traceparents)
    return tuple({(each.trace_id, each.span_id): None for each in found if each is not None and each.span_id != but})

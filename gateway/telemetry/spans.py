"""Lightweight spans of requests and calls, encoded once at their end, and W3C trace context and baggage.

Spans that are not exported are not encoded. The end of a call decides whether it is exported: by the ratio or by its
outcome. Malformed trace context is ignored; only listed keys of baggage are accepted, and only a limited amount.

Errors of the observation never affect a call; they go to the operator's log only.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from gateway.approvals import ApprovalRecord
from gateway.model import Principal, new_random_64
from gateway.telemetry import names
from gateway.telemetry.attribute_cache import ToolAttributes
from gateway.telemetry.export.wire_format import FAILED, INTERNAL, SERVER, Value, link, span_head, span_name, text

if TYPE_CHECKING:
    from gateway.telemetry.observer import TelemetryObserver

MOST_BAGGAGE: Final = 32
LARGEST_BAGGAGE: Final = 8 << 10
_LARGEST_STATE: Final = 512
_MOST_STATES: Final = 32

_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_VALUE: Final = r"\x21-\x2b\x2d-\x3c\x3e-\x7e"
_STATE: Final = re.compile(rf"[a-z0-9][a-z0-9_\-*/@]{{0,255}}=[\x20{_VALUE}]{{0,255}}[{_VALUE}]")
_MEMBER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+=[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")
_NOWHERE: Final = ("0" * 32, "0" * 16)


@dataclass(slots=True)
class RemoteSpanContext:
    """The context of a caller's span."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool
    state: str = ""


def parse_traceparent(traceparent: object, tracestate: object = None) -> RemoteSpanContext | None:
    """Parse a trace context; `None` if it is invalid."""
    if not isinstance(traceparent, str) or len(traceparent) > _LARGEST_STATE:
        return None
    found = _PARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or trace_id == _NOWHERE[0] or span_id == _NOWHERE[1]:
        return None
    return RemoteSpanContext(
        bytes.fromhex(trace_id), bytes.fromhex(span_id), bool(int(flags, 16) & 1), _state(tracestate)
    )


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


def extract_trace_headers(fields: Mapping[str, object]) -> tuple[object, object]:
    """Return traceparent and tracestate of a mapping."""
    return fields.get("traceparent"), fields.get("tracestate")


def _state(given: object) -> str:
    """Return the trace state; "" if any part is invalid, because a part alone could have another meaning."""
    if not isinstance(given, str) or len(given) > _LARGEST_STATE:
        return ""
    members = [each.strip(" \t") for each in given.split(",")]
    members = [each for each in members if each]
    if len(members) > _MOST_STATES or not all(_STATE.fullmatch(each) for each in members):
        return ""
    return ",".join(members)


P = ParamSpec("P")
R = TypeVar("R")

_log: Final = logging.getLogger(__name__)


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


class SpanContext:
    """The position of a span in a trace."""

    __slots__ = ("baggage", "is_remote", "is_sampled", "links", "parent", "span", "state", "trace")

    def __init__(
        self,
        trace: bytes,
        span: bytes,
        parent: bytes = b"",
        is_sampled: bool = True,
        state: str = "",
        baggage: str = "",
        links: bytes = b"",
    ) -> None:
        self.trace = trace
        self.span = span
        self.parent = parent
        self.is_remote = False
        self.is_sampled = is_sampled
        self.state = state
        self.baggage = baggage
        self.links = links

    @property
    def traceparent(self) -> str:
        return format_traceparent(self.trace, self.span, is_sampled=self.is_sampled)

    def child(self, span: bytes) -> "SpanContext":
        return SpanContext(self.trace, span, self.span, self.is_sampled, self.state, self.baggage)

    def joins(self, caller: RemoteSpanContext) -> None:
        """Become a child of the caller's span."""
        self.trace = caller.trace_id
        self.parent = caller.span_id
        self.is_remote = True
        self.state = caller.state

    def head(self, kind: int, since: int, until: int = 0) -> bytes:
        """Return the first fields of the span; it ends now unless `until` is given."""
        return span_head(self, kind, since, until or time_ns())


class RequestSpan(SpanContext):
    """The span of a received request. It starts a trace, unless it `joins` one."""

    __slots__ = (
        *("_id", "_is_over", "_kind", "_peer", "_session", "_telemetry"),
        *("decision", "error", "is_kept", "parts", "principal", "since"),
    )

    def __init__(
        self,
        telemetry: "TelemetryObserver",
        kind: tuple[str, str | None, str | None],
        principal: Principal,
        ids: tuple[bytes, bytes, bool],
        peer: tuple[str, int] | None,
        id: object,
        session: str | None,
    ) -> None:
        """`kind`: its method, the version of MCP, and the route of REST."""
        self.trace, self.span, self.is_sampled = ids
        self.parent = self.links = self.decision = b""
        """`decision` is that about its call."""
        self.state = self.baggage = ""
        self.is_remote = self.is_kept = self._is_over = False
        self.principal = principal
        self.parts: ToolAttributes | None = None
        self.error: str | None = None
        self._telemetry = telemetry
        self._kind = kind
        self._peer = peer
        self._id = id
        self._session = session
        self.since = time_ns()

    def end(self, *, code: int | None = None, status: int | None = None) -> None:
        try:
            self._finish(code, status, b"")
        except Exception as error:
            log_telemetry_error(error, "RequestSpan.end")

    def _finish(self, code: int | None, status: int | None, more: bytes) -> None:
        if self._is_over:
            return
        self._is_over = True
        if code is not None and code not in names.CALLER_FAULTS:
            self.error = str(code)
        elif status is not None and status >= 500:
            self.error = str(status)
        if self.is_sampled or self.is_kept or (self.error is not None and self._telemetry.keeps_errors):
            self._telemetry.spans_out(b"".join(self._span_parts(code, status, more)))

    @log_errors
    def abandon(self) -> None:
        self._finish(None, None, self._telemetry.attribute(names.IS_CANCELLED, True))

    @log_errors
    def observe_decision(self) -> "DecisionSpan":
        return DecisionSpan(self._telemetry, self)

    def _span_parts(self, code: int | None, status: int | None, more: bytes) -> list[bytes]:
        telemetry, parts = self._telemetry, self.parts
        attribute, common = telemetry.attribute, telemetry.common
        head = span_head(self, SERVER, self.since, time_ns())
        of_kind = common.requests[self._kind]
        if parts is None:
            told = [head, self._name(), of_kind, self.decision, more]
        else:
            told = [head, parts.receiving, of_kind, self.decision, more, parts.of_request]
        if self._id is not None:
            id = text(str(self._id), common.longest_id)
            told += (common.request_id[len(id)], id)
        if self._session is not None:
            told.append(attribute(names.MCP_SESSION, self._session))
        if self._peer is not None:
            told.append(common.peers[self._peer])
        if code is not None:
            told.append(attribute(names.RESPONSE_CODE, str(code)))
        if status is not None:
            told.append(attribute(names.HTTP_STATUS, status))
        if self.error is not None:
            told += (attribute(names.ERROR_TYPE, self.error), self.links, FAILED)
        else:
            told.append(self.links)
        return told

    def _name(self) -> bytes:
        method, _, route = self._kind
        return span_name(method if route is None else f"{method} {route}", self._telemetry.settings.longest_value)


class DecisionSpan:
    """The span of a decision about a held call, in the trace of the approver's request."""

    __slots__ = ("_context", "_request", "_since", "_telemetry")

    def __init__(self, telemetry: "TelemetryObserver", request: RequestSpan) -> None:
        self._telemetry = telemetry
        self._request = request
        self._context = request.child(new_random_64())
        self._context.is_sampled = request.is_sampled = True  # decisions of approvers are always exported
        self._since = time_ns()

    @property
    def traceparent(self) -> str:
        return self._context.traceparent

    @log_errors
    def end(self, record: ApprovalRecord) -> None:
        request, telemetry = record.request, self._telemetry
        told: dict[str, Value] = {
            names.GATE_NAME: request.rule,
            names.GATE_OUTCOME: record.entries[-1].decision,
            names.APPROVAL_ID: [record.id],
            names.APPROVAL_STATE: record.state,
            names.TOOL_NAME: request.advertised,
            names.CATALOGUE: request.action.catalogue,
            **({names.TOOL_CALL_ID: request.call_id} if request.call_id is not None else {}),
            **({names.TURN_ID: request.turn_id} if request.turn_id is not None else {}),
        }
        name = span_name(names.decide_span(request.rule), telemetry.settings.longest_value)
        by = self._request.principal
        attributes = telemetry.attributes_of(told) + telemetry.common.principals[by.subject, by.tenant]
        telemetry.spans_out(self._context.head(INTERNAL, self._since) + name + attributes + span_links([request.trace]))


class UpstreamRequestSpan:
    """The span of a request to an upstream service. It is exported if its call is."""

    __slots__ = ("_attributes", "_context", "_is_over", "_name", "_since", "_wait", "fields")

    def __init__(self, context: SpanContext, name: str, told: dict[str, Value], wait: Any) -> None:
        self._context = context
        self._name = name
        self._attributes = told
        self._wait = wait
        self._since = time_ns()
        self._is_over = False
        self.fields = inject_headers(context)

    @log_errors
    def end(self, *, status: int | None = None, error: str | None = None, code: int | None = None) -> None:
        if self._is_over:
            return
        self._is_over = True
        if code is not None:
            error = self._attributes[names.RESPONSE_CODE] = names.code_word(code)
        if status is not None:
            self._attributes[names.HTTP_STATUS] = status
            if status >= 400:
                error = error or str(status)
        if error is not None:
            self._attributes[names.ERROR_TYPE] = error
        self._wait(self._context, self._name, self._attributes, self._since, error is not None)


def inject_headers(context: SpanContext) -> Mapping[str, str]:
    """Return the trace headers of a request to an upstream service."""
    fields = {"traceparent": context.traceparent}
    if context.state:
        fields["tracestate"] = context.state
    if context.baggage:
        fields["baggage"] = context.baggage
    return fields


def span_links(traceparents: list[str | None], *, but: bytes = b"") -> bytes:
    """Return links to the spans of the given traceparents, except to the span `but`."""
    found: dict[tuple[bytes, bytes], None] = {}
    for each in traceparents:
        known = parse_traceparent(each)
        if known is not None and known.span_id != but:
            found[known.trace_id, known.span_id] = None
    return b"".join(link(*each) for each in found)

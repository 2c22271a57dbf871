"""Light spans: what is known of a request, a call or a hop while it runs, and one encoding when it is over.

Nothing is made of what is not exported. Whether a call is kept is decided at its end: by the ratio, or by how it ended.
"""

from collections.abc import Mapping
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

from gateway.governance.approvals import ApprovalRecord
from gateway.governance.principals import Principal
from gateway.telemetry import names
from gateway.telemetry.contexts import remote, traceparent
from gateway.telemetry.parts import ToolParts
from gateway.telemetry.silence import silently
from gateway.telemetry.wire_format import INTERNAL, SERVER, Value, link, span, span_name

if TYPE_CHECKING:
    from gateway.telemetry.observing import Telemetry

_TOOL_CALL: Final = "tools/call"
_LONGEST_ID: Final = 128


class Context:
    """Where in which trace something happens."""

    __slots__ = ("baggage", "is_remote", "is_sampled", "links", "parent", "span_id", "state", "trace_id")

    def __init__(
        self,
        trace_id: bytes,
        span_id: bytes,
        *,
        parent: bytes = b"",
        is_remote: bool = False,
        is_sampled: bool = True,
        state: str = "",
        baggage: str = "",
        links: bytes = b"",
    ) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent = parent
        self.is_remote = is_remote
        self.is_sampled = is_sampled
        self.state = state
        self.baggage = baggage
        self.links = links

    @property
    def traceparent(self) -> str:
        return traceparent(self.trace_id, self.span_id, is_sampled=self.is_sampled)

    def child(self, span_id: bytes) -> "Context":
        return Context(
            self.trace_id,
            span_id,
            parent=self.span_id,
            is_sampled=self.is_sampled,
            state=self.state,
            baggage=self.baggage,
        )

    def ended(
        self, name: bytes, kind: int, *, since: int, until: int = 0, attributes: bytes, is_error: bool = False
    ) -> bytes:
        return span(
            self.trace_id,
            self.span_id,
            parent=self.parent,
            is_remote=self.is_remote,
            state=self.state,
            name=name,
            kind=kind,
            times=(since, max(since, until or time_ns())),  # a clock may be set back in between
            rest=attributes + self.links,
            is_error=is_error,
        )


class RequestSpan:
    """A request as it was received."""

    __slots__ = (
        *("_id", "_is_over", "_method", "_peer", "_route", "_session", "_telemetry", "_version"),
        *("context", "error", "is_kept", "more", "parts", "principal", "since"),
    )

    def __init__(
        self,
        telemetry: "Telemetry",
        method: str,
        principal: Principal,
        *,
        context: Context,
        peer: tuple[str, int] | None,
        id: object,
        version: str | None,
        session: str | None,
        route: str | None,
    ) -> None:
        self.since = time_ns()
        self.context = context
        self.principal = principal
        self.parts: ToolParts | None = None
        self.error: str | None = None
        self.is_kept = False
        self.more = b""
        """Attributes that its call brings."""
        self._telemetry = telemetry
        self._method = method
        self._peer = peer
        self._id = id
        self._version = version
        self._session = session
        self._route = route
        self._is_over = False

    @silently
    def answered(self, *, code: int | None = None, status: int | None = None) -> None:
        if self._is_over:
            return
        self._is_over = True
        if code is not None and code not in names.CALLER_FAULTS:
            self.error = str(code)
        elif status is not None and status >= 500:
            self.error = str(status)
        telemetry = self._telemetry
        if self.context.is_sampled or self.is_kept or (self.error is not None and telemetry.keeps_errors):
            attributes = self._attributes(code, status)
            is_error = self.error is not None
            telemetry.spans_out(
                self.context.ended(self._name(), SERVER, since=self.since, attributes=attributes, is_error=is_error)
            )

    @silently
    def abandoned(self) -> None:
        self.more += self._telemetry.attribute(names.IS_CANCELLED, True)
        self.answered()

    @silently
    def deciding(self) -> "DecisionSpan":
        return DecisionSpan(self._telemetry, self)

    def _name(self) -> bytes:
        if self.parts is not None:
            return self.parts.receiving
        limit = self._telemetry.settings.longest_value
        return span_name(self._method if self._route is None else f"{self._method} {self._route}", limit)

    def _attributes(self, code: int | None, status: int | None) -> bytes:
        telemetry = self._telemetry
        key = (self._method, self._version, self._route)
        parts = [telemetry.remembered.get(key, self._constant), self.more]
        if self.parts is not None:
            parts.append(self.parts.of_request)
        if self._id is not None:
            parts.append(telemetry.attribute(names.REQUEST_ID, str(self._id)[:_LONGEST_ID]))
        if self._session is not None:
            parts.append(telemetry.attribute(names.MCP_SESSION, self._session))
        if self._peer is not None:
            parts.append(telemetry.remembered.get(self._peer, self._of_peer))
        if code is not None:
            parts.append(telemetry.attribute(names.RESPONSE_CODE, str(code)))
        if status is not None:
            parts.append(telemetry.attribute(names.HTTP_STATUS, status))
        if self.error is not None:
            parts.append(telemetry.attribute(names.ERROR_TYPE, self.error))
        return b"".join(parts)

    def _of_peer(self) -> bytes:
        """Made once for each connection."""
        assert self._peer is not None  # noqa: S101 - asked before
        host, port = self._peer
        return self._telemetry.attributes_of({names.CLIENT_ADDRESS: host, names.CLIENT_PORT: port})

    def _constant(self) -> bytes:
        told: dict[str, Value] = {names.NETWORK_TRANSPORT: "tcp", names.NETWORK_PROTOCOL: "http"}
        if self._route is not None:
            told |= {names.HTTP_METHOD: self._method, names.HTTP_ROUTE: self._route}
        else:
            told |= {names.MCP_METHOD: self._method}
            told |= {} if self._version is None else {names.MCP_VERSION: self._version}
        return self._telemetry.attributes_of(told)


class DecisionSpan:
    """Somebody decides about a held call, in the trace of their own request."""

    __slots__ = ("_context", "_request", "_since", "_telemetry")

    def __init__(self, telemetry: "Telemetry", request: RequestSpan) -> None:
        self._telemetry = telemetry
        self._request = request
        self._context = request.context.child(telemetry.new_span_id())
        self._context.is_sampled = request.context.is_sampled = True  # what people decide is always kept
        self._since = time_ns()

    @property
    def traceparent(self) -> str:
        return self._context.traceparent

    @silently
    def decided(self, record: ApprovalRecord) -> None:
        request, telemetry = record.request, self._telemetry
        self._context.links = links_to([request.trace])
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
        attributes = telemetry.attributes_of(told) + telemetry.principal(self._request.principal)
        telemetry.spans_out(self._context.ended(name, INTERNAL, since=self._since, attributes=attributes))


class HopSpan:
    """A request to somebody else. It waits with its call until it is clear whether that is kept."""

    __slots__ = ("_context", "_is_over", "_name", "_since", "_told", "_wait", "fields")

    def __init__(self, context: Context, name: str, told: dict[str, Value], wait: Any) -> None:
        self._context = context
        self._name = name
        self._told = told
        self._wait = wait
        self._since = time_ns()
        self._is_over = False
        self.fields = fields_of(context)

    @silently
    def end(self, *, status: int | None = None, error: str | None = None, code: int | None = None) -> None:
        if self._is_over:
            return
        self._is_over = True
        if code is not None:
            error = self._told[names.RESPONSE_CODE] = names.code_word(code)
        if status is not None:
            self._told[names.HTTP_STATUS] = status
            if status >= 400:
                error = error or str(status)
        if error is not None:
            self._told[names.ERROR_TYPE] = error
        self._wait(self._context, self._name, self._told, self._since, error is not None)


def fields_of(context: Context) -> Mapping[str, str]:
    """What goes with a request to somebody else."""
    fields = {"traceparent": context.traceparent}
    if context.state:
        fields["tracestate"] = context.state
    if context.baggage:
        fields["baggage"] = context.baggage
    return fields


def links_to(traceparents: list[str | None], *, but: bytes = b"") -> bytes:
    """Links to spans that others have told of; none to oneself."""
    found: dict[tuple[bytes, bytes], None] = {}
    for each in traceparents:
        known = remote(each)
        if known is not None and known.span_id != but:
            found[known.trace_id, known.span_id] = None
    return b"".join(link(*each) for each in found)

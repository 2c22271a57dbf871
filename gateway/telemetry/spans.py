"""Light spans: what is known of a request, a call or a hop while it runs, and one encoding when it is over.

Nothing is made of what is not exported. Whether a call is kept is decided at its end: by the ratio, or by how it ended.
"""

from collections.abc import Mapping
from time import time_ns
from typing import TYPE_CHECKING, Any

from gateway.core.ids import new_salt
from gateway.governance.approvals import ApprovalRecord
from gateway.governance.principals import Principal
from gateway.telemetry import names
from gateway.telemetry.contexts import Remote, remote, traceparent
from gateway.telemetry.parts import ToolParts
from gateway.telemetry.silence import silently, unnoticed
from gateway.telemetry.wire_format import FAILED, INTERNAL, SERVER, Value, link, span_head, span_name, text

if TYPE_CHECKING:
    from gateway.telemetry.observing import Telemetry


class Context:
    """Where in which trace something happens."""

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
        return traceparent(self.trace, self.span, is_sampled=self.is_sampled)

    def child(self, span: bytes) -> "Context":
        return Context(self.trace, span, self.span, self.is_sampled, self.state, self.baggage)

    def joins(self, caller: Remote) -> None:
        """Happen below a span of somebody else."""
        self.trace = caller.trace_id
        self.parent = caller.span_id
        self.is_remote = True
        self.state = caller.state

    def head(self, kind: int, since: int, until: int = 0) -> bytes:
        """What its span begins with; it ends now if it has not ended before."""
        return span_head(self, kind, since, until or time_ns())


class RequestSpan(Context):
    """A request as it was received. It begins a trace, as long as it `joins` none."""

    __slots__ = (
        *("_id", "_is_over", "_kind", "_peer", "_session", "_telemetry"),
        *("decision", "error", "is_kept", "parts", "principal", "since"),
    )

    def __init__(
        self,
        telemetry: "Telemetry",
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
        """The decision is about its call."""
        self.state = self.baggage = ""
        self.is_remote = self.is_kept = self._is_over = False
        self.principal = principal
        self.parts: ToolParts | None = None
        self.error: str | None = None
        self._telemetry = telemetry
        self._kind = kind
        self._peer = peer
        self._id = id
        self._session = session
        self.since = time_ns()

    def answered(self, *, code: int | None = None, status: int | None = None) -> None:
        try:
            self._ended(code, status, b"")
        except Exception as error:
            unnoticed(error, "RequestSpan.answered")

    def _ended(self, code: int | None, status: int | None, more: bytes) -> None:
        if self._is_over:
            return
        self._is_over = True
        if code is not None and code not in names.CALLER_FAULTS:
            self.error = str(code)
        elif status is not None and status >= 500:
            self.error = str(status)
        if self.is_sampled or self.is_kept or (self.error is not None and self._telemetry.keeps_errors):
            self._telemetry.spans_out(b"".join(self._told(code, status, more)))

    @silently
    def abandoned(self) -> None:
        self._ended(None, None, self._telemetry.attribute(names.IS_CANCELLED, True))

    @silently
    def deciding(self) -> "DecisionSpan":
        return DecisionSpan(self._telemetry, self)

    def _told(self, code: int | None, status: int | None, more: bytes) -> list[bytes]:
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
    """Somebody decides about a held call, in the trace of their own request."""

    __slots__ = ("_context", "_request", "_since", "_telemetry")

    def __init__(self, telemetry: "Telemetry", request: RequestSpan) -> None:
        self._telemetry = telemetry
        self._request = request
        self._context = request.child(new_salt())
        self._context.is_sampled = request.is_sampled = True  # what people decide is always kept
        self._since = time_ns()

    @property
    def traceparent(self) -> str:
        return self._context.traceparent

    @silently
    def decided(self, record: ApprovalRecord) -> None:
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
        telemetry.spans_out(self._context.head(INTERNAL, self._since) + name + attributes + links_to([request.trace]))


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

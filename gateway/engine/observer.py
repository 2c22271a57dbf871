"""Protocols for observing and measuring calls; an implementation changes nothing, raises nothing, never blocks.

Transports report requests, the service reports calls; a meter is called once, when a request or call is over. Without
an observer or meter nothing is measured, and nothing else differs. Times are seconds.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from gateway.approvals import ApprovalRecord
from gateway.model import OutboundTracer, Principal, RefreshTracer
from gateway.storage import StoredCall

if TYPE_CHECKING:
    from gateway.engine.call import Call
    from gateway.engine.result_content import CallOutcome
    from gateway.registries import DeclaredTool


class CallMeter(Protocol):
    def count_call(self, call: "Call", tool: "DeclaredTool | None", is_error: bool, seconds: float) -> None:
        """Count a call whose record is durable. `tool` is `None` for query tools."""
        ...

    def record_failure(
        self, call: "Call", tool: "DeclaredTool | None", error: BaseException, *, seconds: float
    ) -> None:
        """Count a call without a record of its end, or whose caller did not wait for it."""
        ...

    def record_refusal(self, call: "Call", reason: str) -> None:
        """Count a request for something that does not exist for its caller."""
        ...

    def record_result_size(self, catalogue: str, size: int) -> None:
        """Record the bytes of a result."""
        ...

    def record_write(self, seconds: float) -> None:
        """Record that a record became durable."""
        ...

    def record_write_failure(self) -> None:
        """Count a record that could not be written."""
        ...

    def record_mcp_request(
        self,
        method: str | None,
        seconds: float,
        version: str | None = None,
        tool: str | None = None,
        code: int | None = None,
        is_error: bool = False,
    ) -> None:
        """Count an MCP request. `None` stands for an unknown method or tool; `code` is that of an error."""
        ...

    def record_rest_request(self, method: str, *, route: str, status: int, seconds: float) -> None:
        """Count a REST request. `route` is the path of its operation; status 0 means that no response was sent."""
        ...

    def count_rejection(self, status: int) -> None:
        """Count an HTTP request that was answered with an error."""
        ...

    def record_session_end(self, version: str, seconds: float) -> None:
        """Record the end of a client's session."""
        ...


PeerAddress = tuple[str, int]


class DecisionObservation(Protocol):
    """Observes one decision about a held call, from its start."""

    @property
    def traceparent(self) -> str: ...

    def end(self, record: ApprovalRecord) -> None: ...


class RequestObservation(Protocol):
    """One request, from when it was read until its response."""

    def end(self, *, code: int | None = None, status: int | None = None) -> None:
        """`code` is of a JSON-RPC error, `status` of an HTTP response. Only the first call counts."""
        ...

    def abandon(self) -> None:
        """End the observation of a request whose client left before the response."""
        ...

    def observe_decision(self) -> DecisionObservation | None: ...


class CallObservation(OutboundTracer, Protocol):
    """One call, from when its tool is known until its record is durable."""

    @property
    def trace_id(self) -> str: ...

    @property
    def span_id(self) -> str: ...

    @property
    def traceparent(self) -> str: ...

    @property
    def is_sampled(self) -> bool:
        """Whether its span is exported whatever the outcome of the call."""
        ...

    @property
    def shows_content(self) -> bool:
        """Whether `capture_content` is wanted: only if content capture is configured."""
        ...

    async def capture_content(self, settled: "CallOutcome") -> None: ...

    def add_wait(self, rules: str, *, since: int, outcome: str) -> None:
        """Record a wait for approvers, from `since` (nanoseconds since 1970) until now."""
        ...

    @property
    def has_dispatch(self) -> bool:
        """Whether the dispatch of the call is observed: it is one among others of its turn, or stages run around it."""
        ...

    def record_execution(self, since: int, until: int) -> None:
        """Record when the tool was executed, in nanoseconds since 1970."""
        ...

    def record_dispatch(self, id: str | None, *, since: int, is_acked: bool) -> None:
        """Record the dispatch of the call, which ends now. `id` is `None` if a stage refused it."""
        ...

    def end_read(self, error: BaseException | None = None) -> None:
        """End the observation of a read."""
        ...

    def end(self, settled: "CallOutcome") -> None: ...

    def end_with_error(self, error: BaseException) -> None:
        """End the observation of a call without a record, or with one that this caller may not see."""
        ...


class Observer(Protocol):
    @property
    def trace_fields(self) -> Mapping[bytes, str]:
        """The headers that it reads, by their lower-case names in requests."""
        ...

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
    ) -> RequestObservation | None:
        """Start observing a request. `fields` are its headers by lower-case name, `meta` is the `_meta` of its body.

        With a `route` it is a REST request, and `method` is the HTTP method.
        """
        ...

    def start_call(
        self, call: "Call", tool: "DeclaredTool | None", request: RequestObservation | None
    ) -> CallObservation | None: ...

    def start_read(self, call: "Call") -> CallObservation | None:
        """Start observing a read that is no call, in the request that is being served."""
        ...

    def start_refresh(self, upstream: str) -> RefreshTracer | None:
        """Start observing a round in which the gateway asks an upstream by itself."""
        ...

    def report_abandoned(self, call: StoredCall) -> None:
        """Report a call whose process is gone. Called from the thread that writes."""
        ...


def get_trace_headers(headers: Any, names: Mapping[bytes, str]) -> dict[str, str]:
    """Return the trace headers of raw headers; one that occurs twice becomes empty."""
    found: dict[str, str] = {}
    for name, value in headers:
        if name in names:
            key = names[name]
            found[key] = "" if key in found else value.decode("latin-1")
    return found

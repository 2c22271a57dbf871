"""The span of a call, from when its tool is known until its record is durable."""

from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

from gateway.approvals import ApprovalRecord
from gateway.engine import Call, CallOutcome, Turn
from gateway.errors import GatewayError
from gateway.storage import StoredResult
from gateway.telemetry import names
from gateway.telemetry.attribute_cache import ToolAttributes
from gateway.telemetry.current_span import CurrentSpan, activate, find_failure, to_values
from gateway.telemetry.gateway_span import GatewaySpan, KeepReasons, SpanAddress, SpanEvent, Step, Value, describe_step
from gateway.telemetry.spans import (
    RequestSpan,
    UpstreamRequestSpan,
    end_span,
    inject_headers,
    log_errors,
    log_telemetry_error,
    read_links,
    start_span,
)

if TYPE_CHECKING:
    from gateway.telemetry.observer import TelemetryObserver


_DISPATCH: Final = (names.DISPATCH, names.ITERATION)


class CallSpan(GatewaySpan):
    _content: Mapping[str, Value] | None = None
    _current: CurrentSpan | None = None
    _failure: str | None = None
    """Why the tool failed, if it did."""
    _outer: Sequence[GatewaySpan] = ()
    """The spans around it that are still to be ended, the outermost first."""
    _is_executed = False
    _request: RequestSpan | None
    has_dispatch = False
    _end_time = 0

    def __init__(
        self,
        telemetry: "TelemetryObserver",
        call: Call,
        tool: ToolAttributes,
        request: RequestSpan | None,
        *,
        is_read: bool = False,
    ) -> None:
        self._start_time = time_ns()
        if request is None:
            self.trace, self.span = ids = telemetry.new_ids()
            self.is_sampled, self.group = telemetry.sample(ids[0])
        else:
            self.trace, self.span, self.above = request.trace, telemetry.new_span_id(), request.span
            self.group, self.is_sampled = request.group, request.is_sampled
            if request.is_remote or request.baggage:  # most callers send no trace context
                self.state, self.baggage = request.state, request.baggage
        self._telemetry = telemetry
        self._call = call
        self._request = request
        self.tool = tool
        self.call_id = call.id
        turn = None if is_read else call.turn
        is_full = telemetry.detail == "full"
        if turn is not None and (is_full or not _is_alone(turn)):
            self.has_dispatch = True
            has_turn = is_full and turn.is_single_call and turn.is_unused
            self._open_outer((names.TURN, names.DISPATCH, names.ITERATION) if has_turn else _DISPATCH)
        if telemetry.is_live:
            start_span(telemetry, self, tool.executing, self._start_time, attributes=tool.execution)
        self._name = tool.executing
        self.steps: list[Step] = []
        self.trace_id = self.trace.hex()
        self.span_id = self.span.hex()
        self.shows_content = tool.shows_content

    def _open_outer(self, found: Sequence[str]) -> None:
        outer = []
        for name in found:
            span = GatewaySpan((self.trace, self._telemetry.new_span_id()), self.group, is_sampled=self.is_sampled)
            span.above, span.state = self.above, self.state
            start_span(self._telemetry, span, name, self._start_time)
            outer.append(span)
            self.trace, self.above = span.trace, span.span
        self._outer = outer

    # --- while the tool runs ---

    @property
    def fields(self) -> Mapping[str, str]:
        return inject_headers(self._telemetry, self)

    def activate(self) -> Callable[[], None]:
        if self._current is None:
            self._current = CurrentSpan(self)
        return activate(self._current, self.baggage)

    def record_execution(self, since: int, until: int) -> None:
        self._start_time, self._end_time = since, until
        self._is_executed = True

    def record_step(self, name: str, *, since: int, is_cached: bool | None = None) -> None:
        detail = self._telemetry.detail
        if detail == "normal":
            # After the execution of the tool, the request is what goes on.
            span = self if self._request is None or not self._is_executed else self._request
            span.steps.append((name, since, time_ns(), is_cached))
        elif detail == "full":
            self._add_step_span(name, since, is_cached)

    @log_errors
    def _add_step_span(self, name: str, since: int, is_cached: bool | None) -> None:
        self._end_child(name, describe_step(is_cached), since, is_beside=self._is_executed)

    @log_errors
    def record_failure(self, error: BaseException) -> None:
        self._failure, places = find_failure(error)
        attributes = {names.EXCEPTION_TYPE: self._failure, **({names.EXCEPTION_PLACES: places} if places else {})}
        if self._current is not None:
            self._current.add_event(names.EXCEPTION, attributes)

    # --- child spans ---

    @log_errors
    def http(self, method: str, *, scheme: str, host: str, port: int) -> UpstreamRequestSpan:
        attributes: dict[str, Value] = {
            names.HTTP_METHOD: method,
            names.URL_SCHEME: scheme,
            names.SERVER_ADDRESS: host,
            names.SERVER_PORT: port,
            names.CALL_ID: self.call_id,
        }
        return UpstreamRequestSpan(self._telemetry, self, method, attributes)

    @log_errors
    def mcp(
        self, method: str, *, tool: str, upstream: str, host: str | None = None, port: int | None = None
    ) -> UpstreamRequestSpan:
        attributes: dict[str, Value] = {names.MCP_METHOD: method, names.TOOL: tool, names.UPSTREAM: upstream}
        attributes[names.NETWORK_TRANSPORT] = "pipe" if host is None else "tcp"
        if host is not None:
            attributes[names.SERVER_ADDRESS] = host
        if port is not None:
            attributes[names.SERVER_PORT] = port
        attributes[names.CALL_ID] = self.call_id
        return UpstreamRequestSpan(self._telemetry, self, f"{method} {tool}", attributes)

    @log_errors
    def add_wait(self, rules: str, *, since: int, outcome: str) -> None:
        attributes: dict[str, Value] = {names.GATE_NAME: rules, names.GATE_OUTCOME: outcome}
        decided = read_links(*(entry.trace for each in self._call.approvals for entry in each.entries))
        self._end_child(names.gate_span(rules), attributes, since, links=decided)

    @log_errors
    def record_dispatch(self, id: str | None, *, since: int, is_acked: bool) -> None:
        attributes: dict[str, Value] = {names.CALL_ID: self.call_id}
        if id is not None:
            attributes[names.DISPATCH_ID] = id
        if self._call.turn is not None:
            attributes[names.TURN_ID] = self._call.turn.id
        self._end_outer(names.ITERATION, dict(attributes), since)
        attributes[names.DISPATCH_STATUS] = "ack" if is_acked else "aborted"
        attributes[names.DISPATCH_ITERATIONS] = int(is_acked)
        self._end_outer(names.DISPATCH, attributes, since)

    def _end_outer(self, name: str, attributes: dict[str, Value], since: int | None = None) -> None:
        *self._outer, span = self._outer
        assert span.name == name, "the innermost span ends first"  # noqa: S101 - they are opened together
        span._start_time = since or span._start_time
        end_span(self._telemetry, span, attributes)

    def _end_child(
        self,
        name: str,
        attributes: dict[str, Value],
        since: int,
        *,
        links: tuple[SpanAddress, ...] = (),
        is_beside: bool = False,
    ) -> None:
        """End a span below this one, or with `is_beside` next to it."""
        span = self.child(self._telemetry.new_span_id())
        span.targets = links
        if is_beside and self.above:
            span.above, span.is_remote = self.above, self.is_remote
        attributes[names.CALL_ID] = self.call_id
        start_span(self._telemetry, span, name, since, attributes=attributes)
        end_span(self._telemetry, span, attributes)

    # --- end ---

    async def capture_content(self, settled: CallOutcome) -> None:
        """Capture the content that may be exported, masked; unreadable content is omitted."""
        try:
            self._content = await self._telemetry.contents(self._call.args, settled.record.results, self.tool)
        except Exception:  # a result may raise anything, and capturing must not affect the call
            self._content = None

    def end(self, settled: CallOutcome) -> None:
        try:
            self._settle(settled.record.is_error, settled.is_replay)
        except Exception as error:
            log_telemetry_error(error, "CallSpan.end")

    def _settle(self, is_error: bool, is_replay: bool) -> None:
        call = self._call
        decision, reason = call.decision, call.reason
        if is_replay:
            self._end("", "", names.TOOL_ERROR if is_error else None, names.IS_REPLAYED)
            return
        if decision is None:  # as in the decision log: the arguments reached no handler
            decision, reason = "deny", "arguments-invalid"
        error = None
        if is_error and decision == "allow":
            error = self._failure or call.error or names.TOOL_ERROR
        self._end(decision, reason or "check-failed", error)

    @log_errors
    def end_with_error(self, error: BaseException) -> None:
        call = self._call
        decision = call.decision or ""
        if isinstance(error, CancelledError):
            if call.is_unknown:
                self._telemetry.log_unknown(self, call)
            self._end(decision, call.reason, None, names.IS_CANCELLED)
        elif isinstance(error, GatewayError):
            self._end(decision, call.reason, error.code if error.status >= 500 else None)
        else:
            self._end(decision, call.reason, type(error).__name__)

    @log_errors
    def end_read(self, error: BaseException | None = None) -> None:
        request = self._request
        if request is not None and request.read is self:
            request.read = None  # breaks a reference cycle
            call, code = self._call, None
            if isinstance(error, GatewayError) and error.status >= 500:
                code = error.code
            self._end(call.decision or "", call.reason, code, names.READ)

    def _end(self, decision: str, reason: str, error: str | None, flag: str | None = None) -> None:
        telemetry, request, pipeline = self._telemetry, self._request, self._telemetry.pipeline
        decided = telemetry.common.decisions[decision, reason] if decision else None
        if request is not None:
            request.decision = decided
            if error is not None:
                request.error = names.TOOL_ERROR
        if self._outer:
            self._close_outer()
        if flag is not None or error is not None or decision != "allow":
            self.is_error, self.why = error is not None, _find_reasons(decision, error, flag)
        if pipeline is not None and pipeline.keeps(self):
            self._end_time = self._end_time or time_ns()
            self.parts = self._list_parts(decided, error, flag)
            self._request = None
            del self._call  # it may have large arguments
            pipeline.end(self)

    def _close_outer(self) -> None:
        """End the span of the turn, and leave those out that did not begin: the outcome was that of an earlier call."""
        if self._outer[-1].name != names.TURN:
            if self.live is None:
                self.above, self._outer = self._outer[0].above, ()
            while len(self._outer) > 1:
                self._end_outer(self._outer[-1].name, {})
        if self._outer and self._call.turn is not None:
            self._end_outer(self._outer[0].name, {names.TURN_ID: self._call.turn.id})

    def _list_parts(
        self, decided: Mapping[str, Any] | None, error: str | None, flag: str | None
    ) -> list[Mapping[str, Any]]:
        call, common, tool = self._call, self._telemetry.common, self.tool
        own: dict[str, Any] = {names.CALL_ID: call.id, names.TOOL_CALL_ID: call.id, names.ARGUMENT_BYTES: _size(call)}
        if flag is not None:
            own[flag] = True
        if error is not None:
            own[names.ERROR_TYPE] = error
        if call.turn is not None:
            own[names.TURN_ID] = call.turn.id
        if call.checksum and tool.capture.arguments != "none":
            own[names.CHECKSUM] = call.checksum
        if call.is_logged and call.fingerprint:
            own[names.ARGUMENT_DIGEST] = self._telemetry.hashes.arguments(call.fingerprint.encode())
        if call.approvals:
            self._add_approvals(own, call.approvals)
        if call.stored is not None:
            self._add_results(own, call.stored.results)
        if self._content:
            own |= self._content
        if self._current is not None and self._current.close():
            own = {**to_values(self._current.attributes), **own}
            self.own_events = [
                SpanEvent(each.name, each.at, to_values(each.attributes)) for each in self._current.events
            ]
        rules = call.rules or call.checked
        standing = common.standings[call.principal.subject, call.principal.tenant, call.definition, call.row, rules]
        parts = [tool.execution, own, standing, tool.argument_keys[tuple(call.args)]]
        if decided is not None:
            parts.append(decided)
        return parts

    def _add_approvals(self, own: dict[str, Any], approvals: Sequence[ApprovalRecord]) -> None:
        """The id of the tool call is that of the first call for a held call and the call that continues it."""
        own[names.APPROVAL_ID] = [each.id for each in approvals]
        own[names.TOOL_CALL_ID] = approvals[0].request.call_id or self.call_id
        traces = [trace for each in approvals for trace in (each.request.trace, *(one.trace for one in each.entries))]
        self.targets = read_links(*traces, but=self.span)

    def _add_results(self, own: dict[str, Any], results: Sequence[StoredResult]) -> None:
        size, key, is_spooled, content = 0, "", False, None
        for piece in results:
            size += piece.byte_length or 0
            if piece.key is not None:
                key = key or piece.key
                is_spooled = is_spooled or piece.content is None
            if content is None:
                content = piece.content
        own[names.RESULT_BYTES] = size
        own[names.RESULT_SPOOLED] = is_spooled
        if key:
            own[names.ARTIFACT_ID] = key
        if content is not None and self._call.is_logged:
            own[names.RESULT_DIGEST] = self._telemetry.hashes.result(content)


def _is_alone(turn: Turn) -> bool:
    """Whether a call has its turn to itself, and no stages run around it."""
    return turn.is_unused and not turn.is_stored and turn.catalogue.has_no_stages


def _find_reasons(decision: str, error: str | None, flag: str | None) -> KeepReasons:
    return (
        *(("cancelled",) if flag == names.IS_CANCELLED else ()),
        *(("error",) if error is not None else ()),
        *(("held",) if decision == "hold" else ("denied",) if decision == "deny" else ()),
    )


def _size(call: Call) -> int:
    text = call.args_text
    if text is None:  # not JSON: use the size of its repr
        return len(repr(call.args))
    return len(text) if text.isascii() else len(text.encode())

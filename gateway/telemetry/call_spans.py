"""The span of a call, from when its tool is known until its record is durable."""

from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import SpanKind

from gateway.approvals import ApprovalRecord
from gateway.engine import Call, CallOutcome, Turn
from gateway.errors import GatewayError
from gateway.storage import StoredResult
from gateway.telemetry import names
from gateway.telemetry.attribute_cache import ToolAttributes
from gateway.telemetry.current_span import CurrentSpan, activate, find_failure, to_values
from gateway.telemetry.finished_span import (
    INTERNAL,
    FinishedSpan,
    KeepReasons,
    SpanAddress,
    SpanContent,
    SpanEvent,
    Step,
    Value,
    describe_step,
)
from gateway.telemetry.spans import (
    RequestSpan,
    SpanPosition,
    UpstreamRequestSpan,
    inject_headers,
    log_errors,
    log_telemetry_error,
    read_links,
    start_span,
)

if TYPE_CHECKING:
    from gateway.telemetry.observer import TelemetryObserver


_DISPATCH: Final = (names.DISPATCH, names.ITERATION)


class CallSpan(SpanPosition):
    __slots__ = (
        *("_call", "_content", "_current", "_failure", "_is_read", "_outer", "_parts", "_request", "_since"),
        *("_steps", "_telemetry", "_times", "has_dispatch", "shows_content", "span_id", "trace_id"),
    )

    def __init__(
        self,
        telemetry: "TelemetryObserver",
        call: Call,
        parts: ToolAttributes,
        request: RequestSpan | None,
        *,
        is_read: bool = False,
    ) -> None:
        self._since = time_ns()
        self._times: tuple[int, int] | None = None
        """When the tool was executed."""
        self.is_remote = False
        self.live = None
        if request is None:
            (self.trace, self.span), self.group, self.is_sampled = telemetry.new_root()
            self.parent = b""
            self.state = ""
            self.baggage = {}
        else:
            self.trace, self.span = request.trace, telemetry.new_span_id()
            self.group = request.group
            self.is_sampled = request.is_sampled
            self.parent = request.span
            self.state = request.state
            self.baggage = request.baggage
        self._is_read = is_read
        self._telemetry = telemetry
        self._call = call
        turn = None if is_read else call.turn
        is_full = telemetry.detail == "full"
        self._outer: list[tuple[str, SpanPosition]] = []
        """The spans around it that are still to be ended, the outermost first."""
        self.has_dispatch = turn is not None and (is_full or not _is_alone(turn))
        if self.has_dispatch and turn is not None:
            has_turn = is_full and turn.is_single_call and turn.is_unused
            self._open_outer((names.TURN, names.DISPATCH, names.ITERATION) if has_turn else _DISPATCH)
        self._steps: list[Step] = []
        if telemetry.is_live:
            start_span(telemetry, self, parts.executing, INTERNAL, since=self._since, attributes=parts.execution)
        self._parts = parts
        self._request = request
        self._content: dict[str, Value] | None = None
        self._current: CurrentSpan | None = None
        self._failure: str | None = None
        """Why the tool failed, if it did."""
        self.trace_id = self.trace.hex()
        self.span_id = self.span.hex()
        self.shows_content = parts.shows_content

    def _open_outer(self, found: Sequence[str]) -> None:
        telemetry = self._telemetry
        for name in found:
            at = SpanPosition(
                (self.trace, telemetry.new_span_id()),
                self.group,
                self.parent,
                is_sampled=self.is_sampled,
                state=self.state,
            )
            start_span(telemetry, at, name, INTERNAL, since=self._since, attributes={})
            self._outer.append((name, at))
            self.trace, self.parent = at.trace, at.span

    def emit_start(self) -> None:
        """Emit the start record at once."""
        self._telemetry.log_start(self, self._call, self._parts, self._since)

    # --- while the tool runs ---

    @property
    def fields(self) -> Mapping[str, str]:
        return inject_headers(self._telemetry, self)

    def activate(self) -> Callable[[], None]:
        if self._current is None:
            self._current = CurrentSpan(self)
        return activate(self._current, self.baggage)

    def record_execution(self, since: int, until: int) -> None:
        self._times = since, until

    def record_step(self, name: str, *, since: int, is_cached: bool | None = None) -> None:
        detail, until = self._telemetry.detail, time_ns()
        if detail == "full":
            self._add_step_span(name, since, is_cached)
        elif detail == "normal":
            # After the execution of the tool, the request is what goes on.
            is_outside = self._times is not None and self._request is not None
            (self._request.steps if is_outside and self._request else self._steps).append(
                (name, since, until, is_cached)
            )

    @log_errors
    def _add_step_span(self, name: str, since: int, is_cached: bool | None) -> None:
        self._end_child(name, INTERNAL, describe_step(is_cached), since, is_beside=self._times is not None)

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
        }
        return self._start_upstream(method, attributes)

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
        return self._start_upstream(f"{method} {tool}", attributes)

    @log_errors
    def add_wait(self, rules: str, *, since: int, outcome: str) -> None:
        attributes: dict[str, Value] = {names.GATE_NAME: rules, names.GATE_OUTCOME: outcome}
        decided = read_links(*(entry.trace for each in self._call.approvals for entry in each.entries))
        self._end_child(names.gate_span(rules), INTERNAL, attributes, since, links=decided)

    @log_errors
    def record_dispatch(self, id: str | None, *, since: int, is_acked: bool) -> None:
        attributes: dict[str, Value] = {names.CALL_ID: self._call.id}
        if id is not None:
            attributes[names.DISPATCH_ID] = id
        if self._call.turn is not None:
            attributes[names.TURN_ID] = self._call.turn.id
        times = since, time_ns()
        self._end_outer(names.ITERATION, times, dict(attributes))
        attributes[names.DISPATCH_STATUS] = "ack" if is_acked else "aborted"
        attributes[names.DISPATCH_ITERATIONS] = int(is_acked)
        self._end_outer(names.DISPATCH, times, attributes)

    def _end_outer(self, name: str, times: tuple[int, int], attributes: dict[str, Value]) -> None:
        found, at = self._outer.pop()
        assert found == name, "the innermost span ends first"  # noqa: S101 - they are opened together
        self._telemetry.end_span(at, name, INTERNAL, times, SpanContent([attributes]))

    def _start_upstream(self, name: str, attributes: dict[str, Value]) -> UpstreamRequestSpan:
        attributes[names.CALL_ID] = self._call.id
        return UpstreamRequestSpan(self._telemetry, self.child(self._telemetry.new_span_id()), name, attributes)

    def _end_child(
        self,
        name: str,
        kind: SpanKind,
        attributes: dict[str, Value],
        since: int,
        *,
        links: tuple[SpanAddress, ...] = (),
        is_beside: bool = False,
    ) -> None:
        """End a span below this one, or with `is_beside` next to it."""
        telemetry, at = self._telemetry, self.child(self._telemetry.new_span_id())
        if is_beside and self.parent:
            at.parent, at.is_remote = self.parent, self.is_remote
        attributes[names.CALL_ID] = self._call.id
        start_span(telemetry, at, name, kind, since=since, attributes=attributes, links=links)
        telemetry.end_span(at, name, kind, (since, time_ns()), SpanContent([attributes], links=links))

    # --- end ---

    async def capture_content(self, settled: CallOutcome) -> None:
        """Capture the content that may be exported, masked; unreadable content is omitted."""
        try:
            self._content = await self._telemetry.contents(self._call.args, settled.record.results, self._parts)
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
                self._telemetry.log_unknown(self, call, self._parts)
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
        self._close_outer()
        why = _find_reasons(decision, error, flag)
        if pipeline is None or not pipeline.keeps(self.group, why):
            self.group.waiting.clear()
            return

        own: dict[str, Value] = {}
        if flag is not None:
            own[flag] = True
        if error is not None:
            own[names.ERROR_TYPE] = error
        content = self._build_content(decided, own)
        is_error, name, times = error is not None, self._parts.executing, self._times or (self._since, time_ns())
        pipeline.end(
            FinishedSpan(pipeline, self, name, INTERNAL, times, content, is_error=is_error, why=why), self.live
        )

    def _close_outer(self) -> None:
        """End the span of the turn, and leave those out that did not begin: the outcome was that of an earlier call."""
        if self._outer and self._outer[-1][0] != names.TURN:
            if self.live is None:
                self.parent = self._outer[0][1].parent
                self._outer.clear()
            while len(self._outer) > 1:
                self._end_outer(self._outer[-1][0], (self._since, time_ns()), {})
        if self._outer and self._call.turn is not None:
            self._end_outer(self._outer[0][0], (self._since, time_ns()), {names.TURN_ID: self._call.turn.id})

    @property
    def _id(self) -> str:
        """The id of the first call for a held call and the call that continues it, so both have the same."""
        approvals = self._call.approvals
        return (approvals[0].request.call_id if approvals else None) or self._call.id

    def _build_content(self, decided: Mapping[str, Any] | None, own: dict[str, Value]) -> SpanContent:
        call, common = self._call, self._telemetry.common
        own[names.CALL_ID] = call.id
        own[names.TOOL_CALL_ID] = self._id
        own[names.ARGUMENT_BYTES] = _size(call)
        if call.turn is not None:
            own[names.TURN_ID] = call.turn.id
        if call.checksum and self._parts.capture.arguments != "none":
            own[names.CHECKSUM] = call.checksum
        if call.row is not None:
            own[names.POLICY_ROW] = str(call.row)
        if call.is_logged and call.fingerprint:
            own[names.ARGUMENT_DIGEST] = self._telemetry.hashes.arguments(call.fingerprint.encode())
        links: tuple[SpanAddress, ...] = ()
        if call.approvals:
            own[names.APPROVAL_ID] = [each.id for each in call.approvals]
            links = self._link_approvals(call.approvals)
        if call.stored is not None:
            self._add_results(own, call.stored.results)
        if self._content:
            own |= self._content
        events: list[SpanEvent] = []
        if self._current is not None:
            self._current.close()
            if self._current.attributes:
                own = {**to_values(self._current.attributes), **own}
            for each in self._current.events:
                events.append(SpanEvent(each.name, each.at, to_values(each.attributes)))
        rules = call.rules or call.checked
        standing = common.standings[call.principal.subject, call.principal.tenant, call.definition, rules]
        parts = [self._parts.execution, own, standing, self._parts.argument_keys[tuple(call.args)]]
        if decided is not None:
            parts.append(decided)
        return SpanContent(parts, events, links, self._steps)

    def _link_approvals(self, approvals: Sequence[ApprovalRecord]) -> tuple[SpanAddress, ...]:
        traces = [trace for each in approvals for trace in (each.request.trace, *(one.trace for one in each.entries))]
        return read_links(*traces, but=self.span)

    def _add_results(self, own: dict[str, Value], results: Sequence[StoredResult]) -> None:
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
    if flag is None and error is None and decision == "allow":
        return ()
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

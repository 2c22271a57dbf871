"""The span of a call, from when its tool is known until its record is durable."""

from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import time_ns
from typing import TYPE_CHECKING

from gateway.approvals import ApprovalRecord
from gateway.engine import Call, CallOutcome
from gateway.errors import GatewayError
from gateway.model import new_random_64
from gateway.storage import StoredResult
from gateway.telemetry import names
from gateway.telemetry.attribute_cache import ToolAttributes
from gateway.telemetry.current_span import CurrentSpan, activate, find_failure, to_values
from gateway.telemetry.export.wire_format import (
    CLIENT,
    FAILED,
    INFO,
    INTERNAL,
    WARN,
    Value,
    log_head,
    span_head,
    span_name,
    text,
)
from gateway.telemetry.spans import (
    RequestSpan,
    SpanContext,
    UpstreamRequestSpan,
    inject_headers,
    log_errors,
    log_telemetry_error,
    span_links,
)

if TYPE_CHECKING:
    from gateway.telemetry.observer import TelemetryObserver


class CallSpan(SpanContext):
    __slots__ = (
        *("_call", "_content", "_current", "_failure", "_ids", "_others", "_parts", "_request", "_since", "_telemetry"),
        *("shows_content", "span_id", "trace_id"),
    )

    def __init__(
        self,
        telemetry: "TelemetryObserver",
        call: Call,
        parts: ToolAttributes,
        request: RequestSpan | None,
        ids: tuple[bytes, bytes, bool],
    ) -> None:
        self._since = time_ns()
        self.trace, self.span, self.is_sampled = ids
        self.is_remote = False
        self.links = b""
        if request is None:
            self.parent = b""
            self.state = self.baggage = ""
        else:
            self.parent = request.span
            self.state = request.state
            self.baggage = request.baggage
        self._telemetry = telemetry
        self._call = call
        self._parts = parts
        self._request = request
        self._others: list[bytes] | None = None
        """Child spans, held until it is decided whether they are exported."""
        self._content: dict[str, Value] | None = None
        self._current: CurrentSpan | None = None
        self._failure: str | None = None
        """Why the tool failed, if it did."""
        self._ids: tuple[bytes, bytes] | None = None
        """Encoded ids of the call and its turn. Encoded on first use: spans that are not exported need none."""
        self.trace_id = self.trace.hex()
        self.span_id = self.span.hex()
        self.shows_content = parts.shows_content

    def emit_start(self) -> None:
        """Emit the start record at once."""
        self._record(self._parts.started, self._since, INFO)

    def _record(self, told: bytes, at: int, severity: int) -> None:
        logs = self._telemetry.logs
        if logs is not None:
            own, turn = self._ids or self._encode_ids()
            before, between, last = self._telemetry.common.before_ids_of_log[len(own), len(turn)]
            head = log_head(self.trace, self.span, at, severity)
            logs.put(b"".join((head, told, before, own, between, own, last, turn)))

    def _encode_ids(self) -> tuple[bytes, bytes]:
        call, limit = self._call, self._telemetry.common.limit
        self._ids = found = text(call.id, limit), b"" if call.turn is None else text(call.turn.id, limit)
        return found

    # --- while the tool runs ---

    @property
    def fields(self) -> Mapping[str, str]:
        return inject_headers(self)

    def activate(self) -> Callable[[], None]:
        if self._current is None:
            self._current = CurrentSpan(self)
        return activate(self._current)

    @log_errors
    def record_failure(self, error: BaseException) -> None:
        self._failure, places = find_failure(error)
        told = {names.EXCEPTION_TYPE: self._failure, **({names.EXCEPTION_PLACES: places} if places else {})}
        if self._current is not None:
            self._current.add_event(names.EXCEPTION, told)

    # --- child spans ---

    @log_errors
    def http(self, method: str, *, scheme: str, host: str, port: int) -> UpstreamRequestSpan:
        told: dict[str, Value] = {
            names.HTTP_METHOD: method,
            names.URL_SCHEME: scheme,
            names.SERVER_ADDRESS: host,
            names.SERVER_PORT: port,
        }
        return self._start_upstream(method, told)

    @log_errors
    def mcp(
        self, method: str, *, tool: str, upstream: str, host: str | None = None, port: int | None = None
    ) -> UpstreamRequestSpan:
        told: dict[str, Value] = {names.MCP_METHOD: method, names.TOOL_NAME: tool, names.UPSTREAM: upstream}
        if method == names.TOOLS_CALL:
            told[names.OPERATION] = names.EXECUTE_TOOL
        told[names.NETWORK_TRANSPORT] = "pipe" if host is None else "tcp"
        if host is not None:
            told[names.SERVER_ADDRESS] = host
        if port is not None:
            told[names.SERVER_PORT] = port
        return self._start_upstream(f"{method} {tool}", told)

    @log_errors
    def add_wait(self, rules: str, *, since: int, outcome: str) -> None:
        told: dict[str, Value] = {names.GATE_NAME: rules, names.GATE_OUTCOME: outcome}
        context = self.child(new_random_64())
        self._emit_child(context, names.gate_span(rules), told, since, False, kind=INTERNAL)

    @log_errors
    def record_dispatch(self, id: str | None, *, since: int, is_acked: bool) -> None:
        told: dict[str, Value] = {names.DISPATCH_STATUS: "ack" if is_acked else "aborted"}
        told[names.DISPATCH_ITERATIONS] = int(is_acked)
        if id is not None:
            told[names.DISPATCH_ID] = id
        if self._call.turn is not None:
            told[names.TURN_ID] = self._call.turn.id
        context = self.child(new_random_64())
        self._emit_child(context, names.DISPATCH, told, since, False, kind=INTERNAL)

    def _start_upstream(self, name: str, told: dict[str, Value]) -> UpstreamRequestSpan:
        return UpstreamRequestSpan(self.child(new_random_64()), name, told, self._emit_child)

    def _emit_child(
        self, context: SpanContext, name: str, told: dict[str, Value], since: int, is_error: bool, *, kind: int = CLIENT
    ) -> None:
        telemetry = self._telemetry
        named = span_name(name, telemetry.settings.longest_value)
        attributes = telemetry.attributes_of({**told, names.TOOL_CALL_ID: self._id})
        encoded = b"".join((context.head(kind, since), named, attributes, FAILED if is_error else b""))
        if self.is_sampled:
            telemetry.spans_out(encoded)
        elif self._others is None:
            self._others = [encoded]
        else:
            self._others.append(encoded)

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
                self._record(self._parts.ended_unseen, time_ns(), WARN)
            self._end(decision, call.reason, None, names.IS_CANCELLED)
        elif isinstance(error, GatewayError):
            self._end(decision, call.reason, error.code if error.status >= 500 else None)
        else:
            self._end(decision, call.reason, type(error).__name__)

    def _end(self, decision: str, reason: str, error: str | None, flag: str | None = None) -> None:
        telemetry, request = self._telemetry, self._request
        decided = telemetry.common.decisions[decision, reason] if decision else b""
        if request is not None:
            request.decision = decided
            if error is not None:
                request.error = names.TOOL_ERROR
        if not (self.is_sampled or flag == names.IS_CANCELLED or telemetry.is_sampled(decision, error)):
            return
        if request is not None:
            request.is_kept = True
        for each in self._others or ():
            telemetry.spans_out(each)
        told = self._span_parts(decided)
        if flag is not None:
            told.append(telemetry.attribute(flag, True))
        if error is not None:
            told.append(telemetry.attribute(names.ERROR_TYPE, error))
        told.append(self.links)
        if error is not None:
            told.append(FAILED)
        telemetry.spans_out(b"".join(told))

    @property
    def _id(self) -> str:
        """The id of the first call for a held call and the call that continues it, so both have the same."""
        approvals = self._call.approvals
        return (approvals[0].request.call_id if approvals else None) or self._call.id

    def _span_parts(self, decided: bytes) -> list[bytes]:
        call, parts, common = self._call, self._parts, self._telemetry.common
        own, turn = self._ids or self._encode_ids()
        before, between, last = common.before_ids_of_span[len(own), len(turn)]
        digest = self._argument_digest()
        told = [
            span_head(self, INTERNAL, self._since, time_ns()),
            parts.executing,
            decided,
            before,
            own,
            between,
            own,
            last,
            turn,
            common.standings[call.principal.subject, call.principal.tenant, call.definition, call.rules],
            common.argument_bytes[_size(call)],
            parts.argument_keys[tuple(call.args)],
            common.argument_digest[len(digest)],
            digest,
        ]
        if call.approvals:
            told[5:9] = [last, turn, self._telemetry.attribute(names.TOOL_CALL_ID, self._id)]
            told.insert(9, self._link_approvals(call.approvals))
        if call.stored is not None:
            told += self._results(call.stored.results)
        if self._content:
            told.append(common.all(self._content))
        if self._current is not None:
            self._current.close()
            told += self._of_tool(self._current)
        return told

    def _of_tool(self, current: CurrentSpan) -> Iterator[bytes]:
        """Yield what the tool has set on its current span."""
        common = self._telemetry.common
        if current.attributes:
            yield common.all(to_values(current.attributes))
        for event in current.events:
            yield common.event(event.name, event.at, to_values(event.attributes))

    def _link_approvals(self, approvals: Sequence[ApprovalRecord]) -> bytes:
        """Link to the spans of the approvals; return their ids as an attribute."""
        traces = [trace for each in approvals for trace in (each.request.trace, *(one.trace for one in each.entries))]
        self.links += span_links(traces, but=self.span)
        return self._telemetry.attribute(names.APPROVAL_ID, [each.id for each in approvals])

    def _argument_digest(self) -> bytes:
        call, telemetry = self._call, self._telemetry
        if not (call.is_logged and call.fingerprint):
            return b""
        return telemetry.hashes.arguments(call.fingerprint.encode()).encode()[: telemetry.common.limit]

    def _results(self, results: Sequence[StoredResult]) -> tuple[bytes, ...]:
        size, key, is_spooled, content = 0, "", False, None
        for piece in results:
            size += piece.byte_length or 0
            if piece.key is not None:
                key = key or piece.key
                is_spooled = is_spooled or piece.content is None
            if content is None:
                content = piece.content
        common = self._telemetry.common
        artifact, digest = text(key, common.limit), b""
        if content is not None and self._call.is_logged:
            digest = self._telemetry.hashes.result(content).encode()[: common.limit]
        return (
            common.result_bytes[size],
            common.spooled[is_spooled],
            common.artifact_id[len(artifact)],
            artifact,
            common.result_digest[len(digest)],
            digest,
        )


def _size(call: Call) -> int:
    text = call.args_text
    if text is None:  # not JSON: use the size of its repr
        return len(repr(call.args))
    return len(text) if text.isascii() else len(text.encode())

"""A call as it is observed: from when its tool is known until its record is durable."""

from asyncio import CancelledError
from collections.abc import Sequence
from time import time_ns
from typing import TYPE_CHECKING

from gateway.errors import GatewayError
from gateway.governance.records import StoredResult
from gateway.serving.current import ServedCall
from gateway.serving.service import Settled
from gateway.telemetry import names
from gateway.telemetry.parts import ToolParts
from gateway.telemetry.silence import silently
from gateway.telemetry.spans import Context, HopSpan, RequestSpan, links_to
from gateway.telemetry.wire_format import CLIENT, INTERNAL, Value, of_span, span_name

if TYPE_CHECKING:
    from gateway.telemetry.observing import Telemetry


class CallSpan:
    __slots__ = ("_call", "_content", "_context", "_ids", "_others", "_parts", "_request", "_since", "_telemetry")

    def __init__(
        self,
        telemetry: "Telemetry",
        call: ServedCall,
        parts: ToolParts,
        context: Context,
        request: RequestSpan | None,
    ) -> None:
        self._since = time_ns()
        self._telemetry = telemetry
        self._call = call
        self._parts = parts
        self._context = context
        self._request = request
        self._ids: Sequence[bytes] | None = None
        self._others: list[bytes] | None = None
        """Spans of what the call did, until it is clear whether they are kept."""
        self._content: dict[str, Value] | None = None

    @property
    def since(self) -> int:
        return self._since

    @property
    def ids(self) -> Sequence[bytes]:
        """Encoded when they are first needed: what is not sent needs none."""
        if self._ids is None:
            self._ids = self._telemetry.ids_of(self._call)
        return self._ids

    @property
    def trace_id(self) -> str:
        return self._context.trace_id.hex()

    @property
    def span_id(self) -> str:
        return self._context.span_id.hex()

    @property
    def traceparent(self) -> str:
        return self._context.traceparent

    @property
    def is_sampled(self) -> bool:
        return self._context.is_sampled

    # --- what the call does ---

    @silently
    def http(self, method: str, *, scheme: str, host: str, port: int) -> HopSpan:
        told: dict[str, Value] = {
            names.HTTP_METHOD: method,
            names.URL_SCHEME: scheme,
            names.SERVER_ADDRESS: host,
            names.SERVER_PORT: port,
        }
        return self._hop(method, told)

    @silently
    def mcp(
        self, method: str, *, tool: str, upstream: str, host: str | None = None, port: int | None = None
    ) -> HopSpan:
        told: dict[str, Value] = {names.MCP_METHOD: method, names.TOOL_NAME: tool, names.UPSTREAM: upstream}
        if method == names.TOOLS_CALL:
            told[names.OPERATION] = names.EXECUTE_TOOL
        told[names.NETWORK_TRANSPORT] = "pipe" if host is None else "tcp"
        if host is not None:
            told[names.SERVER_ADDRESS] = host
        if port is not None:
            told[names.SERVER_PORT] = port
        return self._hop(f"{method} {tool}", told)

    @silently
    def waited(self, rules: str, *, since: int, outcome: str) -> None:
        told: dict[str, Value] = {names.GATE_NAME: rules, names.GATE_OUTCOME: outcome}
        context = self._context.child(self._telemetry.new_span_id())
        self._did(context, names.gate_span(rules), told, since, False, kind=INTERNAL)

    @silently
    def dispatched(self, id: str | None, *, since: int, is_acked: bool) -> None:
        told: dict[str, Value] = {names.DISPATCH_STATUS: "ack" if is_acked else "aborted"}
        told[names.DISPATCH_ITERATIONS] = int(is_acked)
        if id is not None:
            told[names.DISPATCH_ID] = id
        if self._call.turn is not None:
            told[names.TURN_ID] = self._call.turn.id
        context = self._context.child(self._telemetry.new_span_id())
        self._did(context, names.DISPATCH, told, since, False, kind=INTERNAL)

    def _hop(self, name: str, told: dict[str, Value]) -> HopSpan:
        return HopSpan(self._context.child(self._telemetry.new_span_id()), name, told, self._did)

    def _did(
        self, context: Context, name: str, told: dict[str, Value], since: int, is_error: bool, *, kind: int = CLIENT
    ) -> None:
        telemetry = self._telemetry
        named = span_name(name, telemetry.settings.longest_value)
        attributes = telemetry.attributes_of({**told, names.TOOL_CALL_ID: self._id})
        encoded = context.ended(named, kind, since=since, attributes=attributes, is_error=is_error)
        if self._context.is_sampled:
            telemetry.spans_out(encoded)
        elif self._others is None:
            self._others = [encoded]
        else:
            self._others.append(encoded)

    # --- how it ends ---

    @property
    def shows_content(self) -> bool:
        capture = self._parts.capture
        return capture.results == "values" or capture.arguments == "values"

    async def look_at(self, settled: Settled) -> None:
        """Read what may be shown of contents, masked; what cannot be read is not shown."""
        try:
            self._content = await self._telemetry.contents(self._call.args, settled.record.results, self._parts)
        except Exception:  # whatever a result is made of: nobody may notice that it was looked at
            self._content = None

    @silently
    def settled(self, settled: Settled) -> None:
        call = self._call
        is_error = settled.record.is_error
        decision, reason = call.decision, call.reason
        if settled.is_replay:
            self._end(("", ""), error=names.TOOL_ERROR if is_error else None, is_replay=True)
            return
        if decision is None:  # as the decision log has it: query tools are permitted, others had invalid arguments
            decision, reason = ("allow", "permitted") if self._parts.tool is None else ("deny", "arguments-invalid")
        error = None
        if is_error and decision == "allow":
            error = call.error if call.error is not None and call.error.startswith("E_") else names.TOOL_ERROR
        self._end((decision, reason or "check-failed"), error=error)

    @silently
    def failed(self, error: BaseException) -> None:
        call = self._call
        decision = (call.decision or "", call.reason)
        if isinstance(error, CancelledError):
            if call.is_unknown:
                self._telemetry.outcome_unknown(self._context, self._parts, self.ids)
            self._end(decision, error=None, is_cancelled=True)
        elif isinstance(error, GatewayError):
            self._end(decision, error=error.code if error.status >= 500 else None)
        else:
            self._end(decision, error=type(error).__name__)

    def _end(
        self, decided: tuple[str, str], *, error: str | None, is_replay: bool = False, is_cancelled: bool = False
    ) -> None:
        telemetry, request = self._telemetry, self._request
        decision = telemetry.decision(*decided) if decided[0] else b""
        if request is not None:
            request.more = decision
            if error is not None:
                request.error = names.TOOL_ERROR
        if not (self._context.is_sampled or is_cancelled or telemetry.keeps(decided[0], error)):
            return
        if request is not None:
            request.is_kept = True
        for each in self._others or ():
            telemetry.spans_out(each)
        approvals = self._call.approvals
        if approvals:
            traces = [
                trace for each in approvals for trace in (each.request.trace, *(one.trace for one in each.entries))
            ]
            self._context.links += links_to(traces, but=self._context.span_id)
        attributes = [self._parts.of_execution, decision, self._details()]
        if is_replay:
            attributes.append(telemetry.attribute(names.IS_REPLAYED, True))
        if is_cancelled:
            attributes.append(telemetry.attribute(names.IS_CANCELLED, True))
        if error is not None:
            attributes.append(telemetry.attribute(names.ERROR_TYPE, error))
        telemetry.spans_out(
            self._context.ended(
                self._parts.executing,
                INTERNAL,
                since=self._since,
                attributes=b"".join(attributes),
                is_error=error is not None,
            )
        )

    @property
    def _id(self) -> str:
        """The same for a call that was held and the one that goes on with it: that of the first."""
        approvals = self._call.approvals
        return (approvals[0].request.call_id if approvals else None) or self._call.id

    def _details(self) -> bytes:
        call, telemetry, parts = self._call, self._telemetry, self._parts
        attribute = telemetry.attribute
        own, _, *turn = self.ids
        if call.approvals:
            found = [of_span((own, *turn)), attribute(names.TOOL_CALL_ID, self._id)]
        else:
            found = [of_span(self.ids)]
        found.append(telemetry.principal(call.principal))
        if call.definition:
            found.append(attribute(names.DEFINITION, call.definition))
        if call.rules:
            found.append(attribute(names.POLICY_RULE, call.rules))
        if call.approvals:
            found.append(attribute(names.APPROVAL_ID, [each.id for each in call.approvals]))
        found.append(self._arguments(call, parts))
        if call.stored is not None:
            found.append(self._results(call.stored.results))
        if self._content:
            found.append(telemetry.attributes_of(self._content))
        return b"".join(found)

    def _arguments(self, call: ServedCall, parts: ToolParts) -> bytes:
        attribute = self._telemetry.attribute
        found = attribute(names.ARGUMENT_BYTES, _size(call))
        if parts.capture.arguments != "none":
            found += parts.argument_keys(call.args)
        return found + (attribute(names.ARGUMENT_DIGEST, call.argument_digest) if call.argument_digest else b"")

    def _results(self, results: Sequence[StoredResult]) -> bytes:
        size, key, is_spooled = 0, None, False
        for piece in results:
            size += piece.byte_length or 0
            if piece.key is not None:
                key = key or piece.key
                is_spooled = is_spooled or piece.content is None
        attribute = self._telemetry.attribute
        found = [attribute(names.RESULT_BYTES, size), attribute(names.RESULT_SPOOLED, is_spooled)]
        if key is not None:
            found.append(attribute(names.ARTIFACT_ID, key))
        if self._call.result_digest:
            found.append(attribute(names.RESULT_DIGEST, self._call.result_digest))
        return b"".join(found)


def _size(call: ServedCall) -> int:
    text = call.args_text
    if text is None:  # what cannot be written as JSON: its size as text is near enough
        return len(repr(call.args))
    return len(text) if text.isascii() else len(text.encode())

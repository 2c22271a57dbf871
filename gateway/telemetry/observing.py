"""Telemetry: the observer of a gateway. It gives requests and calls their place in a trace, and sends what ended."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from secrets import randbits
from time import time_ns
from typing import Any, Final

from gateway.governance.principals import Principal
from gateway.governance.records import StoredCall
from gateway.serving.current import ServedCall
from gateway.serving.observing import Peer, SeenRequest
from gateway.snapshot import DeclaredTool
from gateway.telemetry import names
from gateway.telemetry.calls import CallSpan
from gateway.telemetry.contexts import baggage, carried, remote
from gateway.telemetry.exporting import Queue
from gateway.telemetry.parts import Remembered, ToolParts
from gateway.telemetry.settings import Capture, Settings
from gateway.telemetry.silence import silently
from gateway.telemetry.spans import Context, RequestSpan
from gateway.telemetry.wire_format import (
    INFO,
    OF_SPAN,
    WARN,
    Attributes,
    Value,
    event_name,
    link,
    log_record,
    of_log,
    of_span,
)

Contents = Callable[[dict[str, Any], Any, ToolParts], Awaitable[dict[str, Value]]]
"""What may be shown of arguments and results, masked."""

Sharing = Callable[[DeclaredTool], tuple[Capture, tuple[str, ...]]]
"""What the class of a tool's results lets telemetry have, and which paths it masks."""

_STARTED: Final = event_name(names.CALL_STARTED)
_UNKNOWN: Final = event_name(names.CALL_UNKNOWN)
_NO_TRACE: Final = b"\0" * 16
_NO_SPAN: Final = b"\0" * 8
_MOST_TOOLS: Final = 50_000


def _nothing(tool: DeclaredTool) -> tuple[Capture, tuple[str, ...]]:
    return Capture("none", "none"), ()


async def _no_contents(args: dict[str, Any], results: Any, parts: ToolParts) -> dict[str, Value]:
    return {}


class Telemetry:
    """Implements `gateway.serving.observing.Observer`. `digest` is the keyed hash that names of people go by."""

    def __init__(
        self,
        settings: Settings,
        *,
        spans: Queue | None,
        logs: Queue | None,
        digest: Callable[[str], str],
        shares: Sharing = _nothing,
        contents: Contents = _no_contents,
    ) -> None:
        self.settings = settings
        self.remembered = Remembered()
        self.contents = contents
        self.spans = spans
        self.logs = logs
        self._encoder = Attributes(settings.longest_value)
        self.attribute = Attributes(settings.longest_value, tag=OF_SPAN).encoded
        """One attribute of a span."""
        self._digest = digest
        self._shares = shares
        self._parts: dict[tuple[str, str, str], ToolParts] = {}
        self._random = Random(randbits(256))  # noqa: S311 - ids of spans name, they grant nothing
        self._bits = self._random.getrandbits
        self._bound = round(settings.sampling.ratio * 2**64)
        self._follows = settings.sampling.follows_caller
        always = settings.sampling.always
        self.keeps_errors = "error" in always
        self._kept = frozenset({"hold"} if "held" in always else ()) | ({"deny"} if "denied" in always else set())
        self._tells_starts = settings.start_records and logs is not None

    # --- the seam ---

    @silently
    def received(
        self,
        method: str,
        principal: Principal,
        *,
        fields: Mapping[str, str],
        meta: object = None,
        peer: Peer | None = None,
        id: object = None,
        version: str | None = None,
        session: str | None = None,
        route: str | None = None,
    ) -> RequestSpan:
        if route is None and method not in names.MCP_METHODS:
            method = names.OTHER
        context = self._joined(principal, fields, meta if isinstance(meta, dict) else {})
        return RequestSpan(
            self,
            method,
            principal,
            context=context,
            peer=peer,
            id=id,
            version=version,
            session=session,
            route=route,
        )

    @silently
    def called(self, call: ServedCall, tool: DeclaredTool | None, request: SeenRequest | None) -> CallSpan:
        parts = self._parts_of(call, tool)
        mine = request if isinstance(request, RequestSpan) else None
        if mine is None:
            context = self.root()
        else:
            mine.parts = parts
            context = mine.context.child(self.new_span_id())
        observed = CallSpan(self, call, parts, context, mine)
        if self._tells_starts and context.is_sampled:
            self._told(_STARTED, context, parts, observed.ids, at=observed.since, severity=INFO)
        return observed

    @silently
    def abandoned(self, call: StoredCall) -> None:
        if self.logs is None:
            return
        told: dict[str, Value] = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: call.tool,
            names.CATALOGUE: call.catalogue,
            names.CONFIG_REVISION: call.revision,
            names.TOOL_CALL_ID: call.id,
            names.CALL_ID: call.id,
            names.TURN_ID: call.turn_id,
        }
        record = log_record(
            _UNKNOWN,
            b"",
            trace_id=_NO_TRACE if call.trace_id is None else bytes.fromhex(call.trace_id),
            span_id=_NO_SPAN if call.span_id is None else bytes.fromhex(call.span_id),
            at=time_ns(),
            severity=WARN,
            attributes=of_log(self._encoder.all(told)),
        )
        self.logs.put(record)

    # --- for spans ---

    def spans_out(self, encoded: bytes) -> None:
        if self.spans is not None:
            self.spans.put(encoded)

    def new_span_id(self) -> bytes:
        return self._bits(64).to_bytes(8, "big")

    def attributes_of(self, values: Mapping[str, Value]) -> bytes:
        return of_span(self._encoder.all(values))

    def principal(self, principal: Principal) -> bytes:
        return self.remembered.get(principal, lambda: self._hashed(principal))

    def decision(self, decision: str, reason: str) -> bytes:
        return self.remembered.get(
            (decision, reason),
            lambda: self.attributes_of({names.DECISION: decision, names.DECISION_REASON: reason}),
        )

    def keeps(self, decision: str, error: str | None) -> bool:
        """Whether what ended like this is kept whatever the ratio."""
        return decision in self._kept or (error is not None and self.keeps_errors)

    def ids_of(self, call: ServedCall) -> Sequence[bytes]:
        """The encoded names of a call: its own, the one that goes with all its spans, its turn's."""
        encoded = self._encoder.encoded
        found = [encoded(names.CALL_ID, call.id), encoded(names.TOOL_CALL_ID, call.id)]
        if call.turn is not None:
            found.append(encoded(names.TURN_ID, call.turn.id))
        return found

    def outcome_unknown(self, context: Context, parts: ToolParts, ids: Sequence[bytes]) -> None:
        if self.logs is not None:
            self._told(_UNKNOWN, context, parts, ids, at=time_ns(), severity=WARN)

    def _told(
        self, name: bytes, context: Context, parts: ToolParts, ids: Sequence[bytes], *, at: int, severity: int
    ) -> None:
        assert self.logs is not None  # noqa: S101 - asked before
        self.logs.put(
            log_record(
                name,
                parts.started if severity == INFO else b"",
                trace_id=context.trace_id,
                span_id=context.span_id,
                at=at,
                severity=severity,
                attributes=parts.of_start + of_log(ids),
            )
        )

    # --- where in which trace ---

    def root(self, *, links: bytes = b"", baggage: str = "") -> Context:
        ids = self._bits(192).to_bytes(24, "big")
        trace_id = ids[:16]
        return Context(trace_id, ids[16:], is_sampled=self._is_sampled(trace_id), links=links, baggage=baggage)

    def _joined(self, principal: Principal, fields: Mapping[str, str], meta: Mapping[str, object]) -> Context:
        """What the body says comes before what the headers say, which is then a link.

        Callers whose provider does not say that they may continue traces are linked: they could name any trace.
        """
        if "traceparent" not in fields and "traceparent" not in meta:  # which is what most callers are like
            return self.root(baggage=self._baggage(fields, meta) if self.settings.baggage else "")
        inside, outside = remote(*carried(meta)), remote(*carried(fields))
        if inside is None and outside is None:
            return self.root(baggage=self._baggage(fields, meta))
        caller = inside or outside
        assert caller is not None  # noqa: S101 - one of them is there
        other = outside if inside is not None else None
        links = link(other.trace_id, other.span_id) if other is not None and other.span_id != caller.span_id else b""
        passed = self._baggage(fields, meta)
        if not principal.joins_traces:
            return self.root(links=link(caller.trace_id, caller.span_id) + links, baggage=passed)
        return Context(
            caller.trace_id,
            self.new_span_id(),
            parent=caller.span_id,
            is_remote=True,
            is_sampled=caller.is_sampled if self._follows else self._is_sampled(caller.trace_id),
            state=caller.state,
            baggage=passed,
            links=links,
        )

    def _baggage(self, fields: Mapping[str, str], meta: Mapping[str, object]) -> str:
        allowed = self.settings.baggage
        if not allowed:
            return ""
        return baggage(meta["baggage"] if "baggage" in meta else fields.get("baggage"), allowed)

    def _is_sampled(self, trace_id: bytes) -> bool:
        return int.from_bytes(trace_id[8:], "big") < self._bound

    # --- what comes again ---

    def _parts_of(self, call: ServedCall, tool: DeclaredTool | None) -> ToolParts:
        key = (call.catalogue, call.tool, call.revision)
        found = self._parts.get(key)
        if found is None:
            if len(self._parts) >= _MOST_TOOLS:
                self._parts.clear()
            found = self._parts[key] = self._made(call, tool)
        return found

    def _made(self, call: ServedCall, tool: DeclaredTool | None) -> ToolParts:
        allowed, redact = (Capture("none", "none"), ()) if tool is None else self._shares(tool)
        return ToolParts(
            call.tool,
            tool,
            catalogue=call.catalogue,
            revision=call.revision,
            capture=self.settings.capture.tightened(allowed),
            redact=redact,
            attributes=self._encoder,
        )

    def _hashed(self, principal: Principal) -> bytes:
        told: dict[str, Value] = {names.PRINCIPAL: self._digest(principal.subject)}
        if principal.tenant is not None:
            told[names.TENANT] = self._digest(principal.tenant)
        return self.attributes_of(told)

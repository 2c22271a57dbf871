"""The counters and histograms of a process, and what the operating system knows about it. Other gauges are elsewhere.

No text from callers becomes an attribute: attributes are names from documents and words of closed lists. What a system
does not report about a process is left out.
"""

import asyncio
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from opentelemetry.metrics import Meter

from gateway.approvals import ApprovalEventRecord
from gateway.engine import Call
from gateway.registries import DeclaredTool
from gateway.telemetry import names
from gateway.telemetry.export.wire_format import BoundedCache
from gateway.telemetry.instruments import Counter, Histogram, Read, Values, observe
from gateway.telemetry.names import Metric

_Kind = tuple[str, str, str | None, str | None, str | None, str, tuple[str, ...], bool]
"""Tool, catalogue, backend and tier of a call; decision, reason and rules; and whether it failed."""
_RequestKind = tuple[str | None, str | None, str | None, int | None, bool]
"""Method, version and tool of an MCP request, the code of its error, and whether its tool failed."""

_INVALID: Final = ("deny", "arguments-invalid")
_HTTP_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_NETWORK: Final = ("tcp", "http", "1.1")
_ENDINGS: Final = frozenset({"granted", "refused", "expired"})


class GatewayMetrics:
    """Counters and histograms of one process. Implements `gateway.engine.observer.CallMeter`."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._is_closed = False
        self._calls = Histogram(names.EXECUTE_DURATION, meter)
        self._requests = Histogram(names.SERVER_DURATION, meter)
        self._hops = Histogram(names.CLIENT_DURATION, meter)
        self._sessions = Histogram(names.SERVER_SESSION, meter)
        self._http = Histogram(names.HTTP_DURATION, meter)
        self._records = Histogram(names.RECORDS_DURATION, meter)
        self._waits = Histogram(names.APPROVAL_WAIT, meter)
        self._decisions = Counter(names.DECISIONS, meter)
        self._approvals = Counter(names.APPROVAL_DECISIONS, meter)
        self._bytes = Counter(names.SPOOL_BYTES, meter)
        self._unwritten = Counter(names.RECORDS_UNAVAILABLE, meter)
        self._reloads = Counter(names.RELOADS, meter)
        self._limits = Counter(names.LIMITS, meter)
        self._refused = Counter(names.REFUSED, meter)
        self._unchecked = Counter(names.CHECKS_FAILED, meter)
        self._unknown = Counter(names.UNKNOWN_OUTCOMES, meter)
        self._queued = Histogram(names.ADMISSION_WAIT, meter)
        self._late = Histogram(names.LOOP_LAG, meter)
        self._settled = BoundedCache(self._of_kind)
        self._answered = BoundedCache(self._of_request)
        self._instruments = [each for each in vars(self).values() if isinstance(each, Counter | Histogram)]

    def observe(self, metric: Metric, read: Read) -> None:
        """Let `read` supply the values of a metric whenever a reader collects."""

        def hand_over_and_read() -> Iterable[tuple[Values, float]]:
            if self._is_closed:
                return ()
            for each in self._instruments:
                each.hand_over()
            return read()

        observe(metric, self._meter, hand_over_and_read)

    def start_series(self, catalogues: Iterable[str], gates: Iterable[str]) -> None:
        """Start the series that alerts watch at 0: an alert on an increase does not see one that starts with 1."""
        self._unwritten.add(amount=0)
        self._unknown.add(amount=0)
        for reason in names.FAILED_CHECKS:
            self._unchecked.add((reason,), 0)
        for outcome in ("published", "unchanged", "refused"):
            self._reloads.add((outcome,), 0)
        for status in ("401", "503"):
            self._refused.add((status,), 0)
        for refusal in (("not-in-audience", names.OTHER), *(("unknown-tool", name) for name in catalogues)):
            self._decisions.add(("deny", *refusal, None, None), 0)
        for gate in gates:
            for ending in _ENDINGS:
                self._approvals.add((gate, ending), 0)

    def close(self) -> None:
        """Hand over what waits, and read nothing any more: a provider of the process goes on collecting."""
        for each in self._instruments:
            each.hand_over()
        self._is_closed = True

    # --- calls ---

    def count_call(self, call: Call, tool: DeclaredTool | None, is_error: bool, seconds: float) -> None:
        backend, tier = (None, None) if tool is None else (tool.backend, tool.trust.tier.name)
        kind = (call.tool, call.catalogue, backend, tier, call.decision, call.reason, call.rules, is_error)
        decision, ran = self._settled[kind]
        self._decisions.add(decision)
        if ran is not None:
            self._record_duration(call, ran, seconds, is_error=is_error)
        elif decision[1] in names.FAILED_CHECKS:
            self._unchecked.add((decision[1],))
        elif call.limited is not None:
            self._limits.add((call.limited["kind"], call.catalogue, call.limited["rule"]))

    def record_failure(self, call: Call, tool: DeclaredTool | None, error: BaseException, *, seconds: float) -> None:
        word = "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__name__
        backend, tier = (None, None) if tool is None else (tool.backend, tool.trust.tier.name)
        ran = _values_of_call(call.tool, call.catalogue, backend, tier, word)
        self._record_duration(call, ran, seconds, is_error=True)
        if call.reason in names.FAILED_CHECKS:
            self._unchecked.add((call.reason,))

    def record_refusal(self, call: Call, reason: str) -> None:
        catalogue = names.OTHER if reason == "not-in-audience" else call.catalogue
        self._decisions.add(("deny", reason, catalogue, None, None))

    def record_result_size(self, catalogue: str, size: int) -> None:
        self._bytes.add((catalogue,), size)

    def record_write(self, seconds: float) -> None:
        self._records.record((), seconds)

    def record_write_failure(self) -> None:
        self._unwritten.add()

    def _record_duration(self, call: Call, ran: Values, seconds: float, *, is_error: bool) -> None:
        seen = call.seen
        is_exported = seen is not None and (is_error or seen.is_sampled)
        self._calls.record(ran, seconds, (seen.trace_id, seen.span_id) if seen is not None and is_exported else None)

    def _of_kind(self, kind: _Kind) -> tuple[Values, Values | None]:
        """Return the attributes of the decision about such calls, and those of their duration if they ran."""
        tool, catalogue, backend, tier, decided, why, rules, is_error = kind
        if decided is not None:
            decision, reason = decided, why or "check-failed"
        else:
            decision, reason = _INVALID
        of_decision = (decision, reason, catalogue, tier, ",".join(rules) if rules else None)
        if decision != "allow":
            return of_decision, None
        return of_decision, _values_of_call(tool, catalogue, backend, tier, names.TOOL_ERROR if is_error else None)

    # --- requests ---

    def record_mcp_request(
        self,
        method: str | None,
        seconds: float,
        version: str | None = None,
        tool: str | None = None,
        code: int | None = None,
        is_error: bool = False,
    ) -> None:
        self._requests.record(self._answered[method, version, tool, code, is_error], seconds)

    def _of_request(self, kind: _RequestKind) -> Values:
        method, version, tool, code, is_error = kind
        operation, of = (names.EXECUTE_TOOL, tool or names.OTHER) if method == names.TOOLS_CALL else (None, None)
        error, status = names.TOOL_ERROR if is_error else None, None
        if code is not None:
            status = str(code)
            error = error if code in names.CALLER_FAULTS else status
        return method or names.OTHER, of, operation, error, status, version, *_NETWORK

    def record_rest_request(self, method: str, *, route: str, status: int, seconds: float) -> None:
        error = str(status) if status >= 500 else None
        known = method if method in _HTTP_METHODS else "_OTHER"
        self._http.record((known, route, str(status), error, "http"), seconds)

    def count_rejection(self, status: int) -> None:
        self._refused.add((str(status),))

    def record_session_end(self, version: str, seconds: float) -> None:
        self._sessions.record((None, version, *_NETWORK), seconds)

    def record_upstream_request(
        self,
        method: str,
        *,
        seconds: float,
        tool: str | None = None,
        error: str | None = None,
        code: int | None = None,
        version: str | None = None,
        host: str | None = None,
        port: int | None = None,
        network: tuple[str | None, str | None, str | None] = _NETWORK,
    ) -> None:
        """Record one MCP request to an upstream server. Every error code counts: the gateway may be at fault."""
        operation = names.EXECUTE_TOOL if method == names.TOOLS_CALL else None
        status = None if code is None else names.code_word(code)
        where = (host, None if port is None else str(port))
        self._hops.record((method, tool, operation, status or error, status, version, *network, *where), seconds)

    # --- everything else ---

    def count_approval(self, announcement: ApprovalEventRecord) -> None:
        """Count an approval that was decided or has expired."""
        record = announcement.approval
        if announcement.kind not in ("decided", "expired") or record.state not in _ENDINGS:
            return
        values = (record.request.rule, record.state)
        self._approvals.add(values)
        ended = record.decided_at or record.expires_at
        self._waits.record(values, max((ended - record.created_at).total_seconds(), 0.0))

    def count_unknown(self, calls: int) -> None:
        """Count calls whose process ended before they did."""
        self._unknown.add(amount=calls)

    def record_admission_wait(self, seconds: float) -> None:
        self._queued.record((), seconds)

    def record_loop_lag(self, seconds: float) -> None:
        self._late.record((), max(seconds, 0.0))

    def count_reload(self, outcome: str) -> None:
        """Count a reload by its outcome."""
        self._reloads.add((outcome,))


def _values_of_call(tool: str, catalogue: str, backend: str | None, tier: str | None, error: str | None) -> Values:
    return names.EXECUTE_TOOL, tool, names.tool_type(backend), error, catalogue, tier


_PROC = Path("/proc/self")
_FILES = Path("/dev/fd")


def observe_process(meters: GatewayMetrics) -> None:
    meters.observe(names.PROCESS_CPU, _read_cpu)
    meters.observe(names.PROCESS_MEMORY, _read_memory)
    meters.observe(names.PROCESS_FILES, _count_files)
    meters.observe(names.PROCESS_UPTIME, _read_uptime)


def _read_cpu() -> Iterator[tuple[Values, float]]:
    times = os.times()
    yield ("user",), times.user
    yield ("system",), times.system


def _read_memory() -> Iterator[tuple[Values, float]]:
    with suppress(OSError):
        resident = int((_PROC / "statm").read_text(encoding="ascii").split()[1])
        yield (), resident * os.sysconf("SC_PAGE_SIZE")


def _count_files() -> Iterator[tuple[Values, float]]:
    with suppress(OSError):
        yield (), len(os.listdir(_FILES)) - 1  # one is the folder itself


def _read_uptime() -> Iterator[tuple[Values, float]]:
    with suppress(OSError):
        fields = (_PROC / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        yield (), time.clock_gettime(time.CLOCK_BOOTTIME) - began

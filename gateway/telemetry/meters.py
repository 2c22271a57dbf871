"""Meters: everything that this process counts. It implements `gateway.serving.metering.Meter`.

Nothing that callers make up becomes a label: names are those of documents, words those of closed lists.
"""

import asyncio
from typing import Final

from gateway.approvals.approving import Announcement
from gateway.serving.current import ServedCall
from gateway.snapshot import DeclaredTool
from gateway.telemetry import names
from gateway.telemetry.instruments import Counter, Family, Histogram, Series
from gateway.telemetry.remembered import Remembered

_Kind = tuple[str, str, str | None, str | None, str | None, str, tuple[str, ...], bool]
"""Of a settled call: its tool, catalogue, backend and tier; what was decided, why and by which rules; if it failed."""

_INVALID: Final = ("deny", "arguments-invalid")
_HTTP_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_TCP: Final = "tcp"
_HTTP: Final = "http"
_HTTP_VERSION: Final = "1.1"
_NETWORK: Final = (_TCP, _HTTP, _HTTP_VERSION)
_ENDINGS: Final = frozenset({"granted", "refused", "expired"})


class Meters:
    """One per process. What is not counted but looked up is not here."""

    def __init__(self) -> None:
        self._calls = Histogram(names.EXECUTE_DURATION)
        self._requests = Histogram(names.SERVER_DURATION)
        self._hops = Histogram(names.CLIENT_DURATION)
        self._sessions = Histogram(names.SERVER_SESSION)
        self._http = Histogram(names.HTTP_DURATION)
        self._records = Histogram(names.RECORDS_DURATION)
        self._waits = Histogram(names.APPROVAL_WAIT)
        self._decisions = Counter(names.DECISIONS)
        self._approvals = Counter(names.APPROVAL_DECISIONS)
        self._bytes = Counter(names.SPOOL_BYTES)
        self._unwritten = Counter(names.RECORDS_UNAVAILABLE)
        self._reloads = Counter(names.RELOADS)
        self._limits = Counter(names.LIMITS)
        self._refused = Counter(names.REFUSED)
        self._settled = Remembered(self._of_kind)

    def read(self) -> list[Family]:
        """Everything that was counted since the start."""
        instruments = [each for each in vars(self).values() if isinstance(each, Counter | Histogram)]
        return [each.read() for each in instruments]

    # --- calls ---

    def settled(self, call: ServedCall, tool: DeclaredTool | None, is_error: bool, seconds: float) -> None:
        backend, tier = (None, None) if tool is None else (tool.backend, tool.trust.tier.name)
        kind = (call.tool, call.catalogue, backend, tier, call.decision, call.reason, call.rules, is_error)
        decisions, durations = self._settled[kind]
        decisions[0] += 1
        if durations is not None:
            _measure(call, durations, seconds, is_error=is_error)
        elif call.limited is not None:
            self._limits.add((call.limited["kind"], call.catalogue, call.limited["rule"]))

    def failed(self, call: ServedCall, tool: DeclaredTool | None, error: BaseException, *, seconds: float) -> None:
        word = "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__name__
        backend, tier = (None, None) if tool is None else (tool.backend, tool.trust.tier.name)
        durations = self._durations(call.tool, call.catalogue, backend, tier, word)
        _measure(call, durations, seconds, is_error=True)

    def refused(self, call: ServedCall, reason: str) -> None:
        catalogue = names.OTHER if reason == "not-in-audience" else call.catalogue
        self._decisions.add(("deny", reason, catalogue, None, None))

    def kept(self, catalogue: str, size: int) -> None:
        self._bytes.of[catalogue,][0] += size

    def wrote(self, seconds: float) -> None:
        self._records.of[()].record(seconds)

    def wrote_nothing(self) -> None:
        self._unwritten.add()

    def _of_kind(self, kind: _Kind) -> tuple[list[float], Series | None]:
        """Where such calls are counted; where they are measured, too, if they ran."""
        tool, catalogue, backend, tier, decided, why, rules, is_error = kind
        if decided is not None:
            decision, reason = decided, why or "check-failed"
        else:
            decision, reason = _INVALID
        rule = ",".join(rules) if rules else None
        decisions = self._decisions.of[decision, reason, catalogue, tier, rule]
        if decision != "allow":
            return decisions, None
        return decisions, self._durations(tool, catalogue, backend, tier, names.TOOL_ERROR if is_error else None)

    def _durations(self, tool: str, catalogue: str, backend: str | None, tier: str | None, error: str | None) -> Series:
        return self._calls.of[names.EXECUTE_TOOL, tool, names.tool_type(backend), error, catalogue, tier]

    # --- requests ---

    def answered(
        self,
        method: str | None,
        seconds: float,
        version: str | None = None,
        tool: str | None = None,
        code: int | None = None,
        is_error: bool = False,
    ) -> None:
        operation, of = (names.EXECUTE_TOOL, tool or names.OTHER) if method == names.TOOLS_CALL else (None, None)
        error, status = names.TOOL_ERROR if is_error else None, None
        if code is not None:
            status = str(code)
            error = error if code in names.CALLER_FAULTS else status
        values = (method or names.OTHER, of, operation, error, status, version, _TCP, _HTTP, _HTTP_VERSION)
        self._requests.of[values].record(seconds)

    def responded(self, method: str, *, route: str, status: int, seconds: float) -> None:
        error = str(status) if status >= 500 else None
        known = method if method in _HTTP_METHODS else "_OTHER"
        self._http.record((known, route, str(status), error, "http"), seconds)

    def turned_away(self, status: int) -> None:
        self._refused.add((str(status),))

    def session_ended(self, version: str, seconds: float) -> None:
        self._sessions.record((None, version, *_NETWORK), seconds)

    def hopped(
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
        """One MCP request to an upstream server. Every code of an error is one here: the fault may be ours."""
        operation = names.EXECUTE_TOOL if method == names.TOOLS_CALL else None
        status = None if code is None else names.code_word(code)
        where = (host, None if port is None else str(port))
        self._hops.record((method, tool, operation, status or error, status, version, *network, *where), seconds)

    # --- everything else ---

    def announced(self, announcement: Announcement) -> None:
        """Something has happened to an approval."""
        record = announcement.approval
        if announcement.kind not in ("decided", "expired") or record.state not in _ENDINGS:
            return
        values = (record.request.rule, record.state)
        self._approvals.add(values)
        ended = record.decided_at or record.expires_at
        self._waits.record(values, max((ended - record.created_at).total_seconds(), 0.0))

    def reloaded(self, outcome: str) -> None:
        """Another configuration was published, or refused."""
        self._reloads.add((outcome,))


def _measure(call: ServedCall, durations: Series, seconds: float, *, is_error: bool) -> None:
    seen = call.seen
    if seen is not None and (is_error or seen.is_sampled):  # its span is exported
        durations.record(seconds, seen.trace_id, seen.span_id)
    else:
        durations.record(seconds)

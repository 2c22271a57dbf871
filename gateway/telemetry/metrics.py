"""The metrics of a process, their encoding between the processes of one gateway, and their text for Prometheus.

No text from callers becomes a label: labels are names from documents and words of closed lists.

The text is OpenMetrics with exemplars, or the older format without. Names follow OpenTelemetry's rules for Prometheus:
dots become underscores, and the unit and `_total` are written out.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from re import sub
from typing import Any, Final, Literal

import orjson

from gateway.approvals import ApprovalEventRecord
from gateway.engine import Call
from gateway.registries import DeclaredTool
from gateway.telemetry import names
from gateway.telemetry.metric_instruments import (
    BoundedCache,
    Counter,
    Distribution,
    Exemplar,
    Family,
    Histogram,
    MetricAttributes,
    Point,
    Series,
)
from gateway.telemetry.names import METRICS, Metric

_Kind = tuple[str, str, str | None, str | None, str | None, str, tuple[str, ...], bool]
"""Tool, catalogue, backend and tier of a call; decision, reason and rules; and whether it failed."""
_RequestKind = tuple[str | None, str | None, str | None, int | None, bool]
"""Method, version and tool of an MCP request, the code of its error, and whether its tool failed."""

_INVALID: Final = ("deny", "arguments-invalid")
_HTTP_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_NETWORK: Final = ("tcp", "http", "1.1")
_ENDINGS: Final = frozenset({"granted", "refused", "expired"})


class GatewayMetrics:
    """Counters and histograms of one process; gauges are elsewhere. Implements `gateway.engine.observer.CallMeter`."""

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
        self._settled = BoundedCache(self._of_kind)
        self._answered = BoundedCache(self._of_request)

    def read(self) -> list[Family]:
        """Return all metrics since the start."""
        instruments = [each for each in vars(self).values() if isinstance(each, Counter | Histogram)]
        return [each.read() for each in instruments]

    # --- calls ---

    def count_call(self, call: Call, tool: DeclaredTool | None, is_error: bool, seconds: float) -> None:
        backend, tier = (None, None) if tool is None else (tool.backend, tool.trust.tier.name)
        kind = (call.tool, call.catalogue, backend, tier, call.decision, call.reason, call.rules, is_error)
        decisions, durations = self._settled[kind]
        decisions[0] += 1
        if durations is not None:
            _measure(call, durations, seconds, is_error=is_error)
        elif call.limited is not None:
            self._limits.add((call.limited["kind"], call.catalogue, call.limited["rule"]))

    def record_failure(self, call: Call, tool: DeclaredTool | None, error: BaseException, *, seconds: float) -> None:
        word = "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__name__
        backend, tier = (None, None) if tool is None else (tool.backend, tool.trust.tier.name)
        durations = self._durations(call.tool, call.catalogue, backend, tier, word)
        _measure(call, durations, seconds, is_error=True)

    def record_refusal(self, call: Call, reason: str) -> None:
        catalogue = names.OTHER if reason == "not-in-audience" else call.catalogue
        self._decisions.add(("deny", reason, catalogue, None, None))

    def record_result_size(self, catalogue: str, size: int) -> None:
        self._bytes.of[catalogue,][0] += size

    def record_write(self, seconds: float) -> None:
        self._records.of[()].record(seconds)

    def record_write_failure(self) -> None:
        self._unwritten.add()

    def _of_kind(self, kind: _Kind) -> tuple[list[float], Series | None]:
        """Return the counter of such calls, and the durations if they ran."""
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

    def record_mcp_request(
        self,
        method: str | None,
        seconds: float,
        version: str | None = None,
        tool: str | None = None,
        code: int | None = None,
        is_error: bool = False,
    ) -> None:
        self._answered[method, version, tool, code, is_error].record(seconds)

    def _of_request(self, kind: _RequestKind) -> Series:
        method, version, tool, code, is_error = kind
        operation, of = (names.EXECUTE_TOOL, tool or names.OTHER) if method == names.TOOLS_CALL else (None, None)
        error, status = names.TOOL_ERROR if is_error else None, None
        if code is not None:
            status = str(code)
            error = error if code in names.CALLER_FAULTS else status
        return self._requests.of[method or names.OTHER, of, operation, error, status, version, *_NETWORK]

    def record_rest_request(self, method: str, *, route: str, status: int, seconds: float) -> None:
        error = str(status) if status >= 500 else None
        known = method if method in _HTTP_METHODS else "_OTHER"
        self._http.of[known, route, str(status), error, "http"].record(seconds)

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

    def count_reload(self, outcome: str) -> None:
        """Count a reload by its outcome."""
        self._reloads.add((outcome,))


def _measure(call: Call, durations: Series, seconds: float, *, is_error: bool) -> None:
    seen = call.seen
    if seen is not None and (is_error or seen.is_sampled):  # its span is exported
        durations.record(seconds, seen.trace_id, seen.span_id)
    else:
        durations.record(seconds)


_BY_NAME: Final = {metric.name: metric for metric in METRICS}


def pack_families(families: Iterable[Family]) -> bytes:
    return orjson.dumps({family.metric.name: family.points for family in families}, option=orjson.OPT_NON_STR_KEYS)


def unpack_families(content: bytes) -> list[Family]:
    """Decode metrics. Raises `ValueError` for invalid content."""
    found = orjson.loads(content)
    try:
        return [Family(_BY_NAME[name], [_point(each) for each in points]) for name, points in found.items()]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("the content is not encoded metrics") from error


def _point(found: Any) -> Point:
    attributes = tuple((str(name), str(value)) for name, value in found["attributes"])
    value = found["value"]
    if not isinstance(value, dict):
        return Point(attributes, float(value))
    examples = {int(place): Exemplar(**each) for place, each in (value["exemplars"] or {}).items()}
    return Point(attributes, Distribution(list(value["counts"]), value["sum"], examples or None))


Format = Literal["openmetrics", "text"]

CONTENT_TYPES: Final[dict[Format, str]] = {
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
    "text": "text/plain; version=0.0.4; charset=utf-8",
}
_UNITS: Final = {"s": "seconds", "By": "bytes"}
_KINDS: Final = {"counter": "counter", "updowncounter": "gauge", "gauge": "gauge", "histogram": "histogram"}
_MOST_OF_EXAMPLE: Final = 128
"""Maximum characters of the labels of an exemplar in OpenMetrics."""


def negotiate_format(accept: str) -> Format:
    """Return the format for an Accept header; the default is the older text format."""
    return "openmetrics" if "application/openmetrics-text" in accept else "text"


def prometheus_name(metric: Metric) -> str:
    """Return the name in queries, without the `_bucket`, `_sum` and `_count` of histograms."""
    name = _base_name(metric)
    return f"{name}_total" if metric.instrument == "counter" else name


def label_name(attribute: str) -> str:
    return sub(r"[^a-zA-Z0-9_]", "_", attribute)


def format_exposition(families: Iterable[Family], format: Format, *, about: MetricAttributes = ()) -> bytes:
    """Return the text of all metrics. `about` describes the process, as `target_info`."""
    lines = list(_about(about, format)) if about else []
    for family in families:
        if family.points:
            lines += _family(family, format)
    if format == "openmetrics":
        lines.append("# EOF")
    return ("\n".join(lines) + "\n").encode()


def _base_name(metric: Metric) -> str:
    name = sub(r"[^a-zA-Z0-9_]", "_", metric.name)
    unit = _UNITS.get(metric.unit)
    return name if unit is None or name.endswith(f"_{unit}") else f"{name}_{unit}"


def _about(attributes: MetricAttributes, format: Format) -> Iterator[str]:
    name = "target" if format == "openmetrics" else "target_info"
    yield f"# TYPE {name} {'info' if format == 'openmetrics' else 'gauge'}"
    yield f"# HELP {name} the process that reports these metrics"
    yield f"target_info{_labels(attributes)} 1"


def _family(family: Family, format: Format) -> Iterator[str]:
    metric = family.metric
    told = _base_name(metric) if format == "openmetrics" else prometheus_name(metric)
    yield f"# TYPE {told} {_KINDS[metric.instrument]}"
    if format == "openmetrics" and (unit := _UNITS.get(metric.unit)) and told.endswith(unit):
        yield f"# UNIT {told} {unit}"
    yield f"# HELP {told} {_escape(metric.meaning)}"
    name = prometheus_name(metric)
    for point in sorted(family.points, key=lambda each: each.attributes):
        if isinstance(point.value, Distribution):
            yield from _distribution(name, metric.buckets, point, point.value, format)
        else:
            yield f"{name}{_labels(point.attributes)} {_number(point.value)}"


def _distribution(
    name: str, bounds: Sequence[float], point: Point, found: Distribution, format: Format
) -> Iterator[str]:
    examples = found.exemplars or {} if format == "openmetrics" else {}
    total = 0
    for place, count in enumerate(found.counts):
        total += count
        bound = _number(bounds[place]) if place < len(bounds) else "+Inf"
        labels = _labels((*point.attributes, ("le", bound)))
        yield f"{name}_bucket{labels} {total}{_example(examples.get(place))}"
    labels = _labels(point.attributes)
    yield f"{name}_sum{labels} {_number(found.sum)}"
    yield f"{name}_count{labels} {total}"


def _example(found: Exemplar | None) -> str:
    if found is None:
        return ""
    labels = _labels((("trace_id", found.trace_id), ("span_id", found.span_id)))
    if len(labels) > _MOST_OF_EXAMPLE:
        return ""
    return f" # {labels} {_number(found.value)} {found.at / 1e9:.3f}"


def _labels(attributes: MetricAttributes) -> str:
    if not attributes:
        return ""
    return "{" + ",".join(f'{label_name(name)}="{_escape_label(value)}"' for name, value in attributes) + "}"


def _escape_label(value: str) -> str:
    return _escape(value).replace('"', '\\"')


def _escape(text: str) -> str:
    """Return the text on one line; invalid Unicode is replaced, because it would make the response unreadable."""
    told = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", " ")
    return told.encode("utf-8", "replace").decode()


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))

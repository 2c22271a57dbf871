"""Metrics as text for Prometheus: OpenMetrics with exemplars, or the older format without.

The input are the metrics of the SDK as OTLP messages, of one process or of several: that is what the processes of a
gateway send each other. Names follow OpenTelemetry's rules for Prometheus: dots become underscores, and the unit and
`_total` are written out.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from re import sub
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from gateway.telemetry import names
from gateway.telemetry.names import Metric

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue
    from opentelemetry.proto.metrics.v1 import metrics_pb2

Format = Literal["openmetrics", "text"]
Labels = tuple[tuple[str, str], ...]

CONTENT_TYPES: Final[dict[Format, str]] = {
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
    "text": "text/plain; version=0.0.4; charset=utf-8",
}
_UNITS: Final = {"s": "seconds", "ms": "milliseconds", "By": "bytes", "%": "percent"}
_MOST_OF_EXAMPLE: Final = 128
"""Maximum characters of the labels of an exemplar in OpenMetrics."""
_CUMULATIVE: Final = 2


def negotiate_format(accept: str) -> Format:
    """Return the format for an Accept header; the default is the older text format."""
    return "openmetrics" if "application/openmetrics-text" in accept else "text"


def prometheus_name(metric: Metric) -> str:
    """Return the name in queries, without the `_bucket`, `_sum` and `_count` of histograms."""
    return _name(metric.name, metric.unit, is_counter=metric.instrument == "counter")


def label_name(attribute: str) -> str:
    found = sub(r"[^a-zA-Z0-9_]", "_", attribute)
    return f"key_{found}" if found[:1].isdigit() else found


def parse_metrics(content: bytes) -> "metrics_pb2.MetricsData":
    """Decode metrics. Raises `ValueError` for invalid content."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    try:
        found: metrics_pb2.MetricsData = MetricsData.FromString(content)
    except DecodeError as error:
        raise ValueError("the content is not encoded metrics") from error
    return found


class Exposition:
    """The text of one response. Every process is added with its own labels."""

    def __init__(self, format: Format) -> None:
        self._format = format
        self._families: dict[str, _Family] = {}
        self._shared: set[str] = set()

    def add(self, data: "metrics_pb2.MetricsData", labels: Labels = ()) -> None:
        """Add the metrics of a process. Those that every process reads from the shared store are taken only once."""
        for resource in data.resource_metrics:
            for scoped in resource.scope_metrics:
                scope = () if scoped.scope.name == names.SCOPE else (("otel.scope.name", scoped.scope.name),)
                for metric in scoped.metrics:
                    if metric.name not in names.SHARED:
                        self._add(metric, (*scope, *labels))
                    elif metric.name not in self._shared:
                        self._shared.add(metric.name)
                        self._add(metric, scope)

    def text(self, about: Labels = ()) -> bytes:
        """Return the text. `about` describes the process, as `target_info`."""
        lines = list(_about(about, self._format)) if about else []
        for each in self._families.values():
            lines += each.head(self._format)
            lines += each.lines
        if self._format == "openmetrics":
            lines.append("# EOF")
        return ("\n".join(lines) + "\n").encode()

    def _add(self, metric: "metrics_pb2.Metric", labels: Labels) -> None:
        data: Any = getattr(metric, metric.WhichOneof("data") or "gauge")
        kind = _kind_of(metric)
        if kind is None or not data.data_points:
            return
        name = _name(metric.name, metric.unit, is_counter=kind == "counter")
        family = self._families.setdefault(name, _Family(name, kind, metric))
        if family.kind != kind:  # two instruments with one name: a reader of the text would refuse all of it
            return
        found = sorted((_labels_of(point.attributes, labels), place) for place, point in enumerate(data.data_points))
        for pairs, place in found:
            family.lines += family.samples(pairs, data.data_points[place], self._format)


class _Family:
    """All lines of a metric."""

    def __init__(self, name: str, kind: str, metric: "metrics_pb2.Metric") -> None:
        self.name = name
        self.kind = kind
        self.lines: list[str] = []
        self._unit = _UNITS.get(metric.unit)
        self._help = metric.description

    def head(self, format: Format) -> Iterator[str]:
        of = self.name.removesuffix("_total") if format == "openmetrics" and self.kind == "counter" else self.name
        yield f"# TYPE {of} {self.kind}"
        if format == "openmetrics" and self._unit and of.endswith(self._unit):
            yield f"# UNIT {of} {self._unit}"
        yield f"# HELP {of} {_escape(self._help)}"

    def samples(self, labels: Labels, point: Any, format: Format) -> Iterator[str]:
        if self.kind != "histogram":
            value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
            yield f"{self.name}{_text_of(labels)} {_number(value)}"
            return
        bounds = tuple(getattr(point, "explicit_bounds", ()))  # an exponential histogram has only its whole
        counts = tuple(getattr(point, "bucket_counts", ())) or (point.count,)
        examples = _examples(point.exemplars, bounds) if format == "openmetrics" else {}
        total = 0
        for place, count in enumerate(counts):
            total += count
            bound = _number(bounds[place]) if place < len(bounds) else "+Inf"
            yield f"{self.name}_bucket{_text_of((*labels, ('le', bound)))} {total}{examples.get(place, '')}"
        yield f"{self.name}_sum{_text_of(labels)} {_number(point.sum)}"
        yield f"{self.name}_count{_text_of(labels)} {total}"


def _kind_of(metric: "metrics_pb2.Metric") -> str | None:
    """Return the type in Prometheus; `None` for sums since the last reading, which it cannot express."""
    kind = metric.WhichOneof("data")
    if kind == "gauge":
        return "gauge"
    if kind is None or getattr(metric, kind).aggregation_temporality != _CUMULATIVE:
        return None
    if kind == "sum":
        return "counter" if metric.sum.is_monotonic else "gauge"
    return "histogram"


def _name(name: str, unit: str, *, is_counter: bool) -> str:
    made = sub(r"[^a-zA-Z0-9_:]", "_", name)
    suffix = _UNITS.get(unit)
    if suffix is not None and not made.endswith(f"_{suffix}"):
        made = f"{made}_{suffix}"
    return f"{made}_total" if is_counter and not made.endswith("_total") else made


def _about(labels: Labels, format: Format) -> Iterator[str]:
    name = "target" if format == "openmetrics" else "target_info"
    yield f"# TYPE {name} {'info' if format == 'openmetrics' else 'gauge'}"
    yield f"# HELP {name} the process that reports these metrics"
    yield f"target_info{_text_of(labels)} 1"


def _examples(found: Iterable[Any], bounds: Sequence[float]) -> Mapping[int, str]:
    made = {}
    for each in found:
        labels = _text_of((("trace_id", each.trace_id.hex()), ("span_id", each.span_id.hex())))
        if each.trace_id and len(labels) <= _MOST_OF_EXAMPLE:
            value = each.as_int if each.WhichOneof("value") == "as_int" else each.as_double
            place = bisect_left(bounds, value)
            made[place] = f" # {labels} {_number(value)} {each.time_unix_nano / 1e9:.3f}"
    return made


def _labels_of(pairs: Iterable[Any], more: Labels) -> Labels:
    return (*((each.key, _value_of(each.value)) for each in pairs), *more)


def _value_of(value: "AnyValue") -> str:
    kind = value.WhichOneof("value")
    if kind == "bool_value":
        return "true" if value.bool_value else "false"
    if kind == "array_value":
        return orjson.dumps([_value_of(each) for each in value.array_value.values]).decode()
    return "" if kind is None else str(getattr(value, kind))


def _text_of(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{label_name(name)}="{_escape_label(value)}"' for name, value in labels) + "}"


def _escape_label(value: str) -> str:
    return _escape(value).replace('"', '\\"')


def _escape(text: str) -> str:
    """Return the text on one line; invalid Unicode is replaced, because it would make the response unreadable."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", " ")
    return escaped.encode("utf-8", "replace").decode()


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))

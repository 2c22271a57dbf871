"""Metrics as text for Prometheus: OpenMetrics with exemplars, or the older text format without.

Names follow OpenTelemetry's rules for Prometheus: dots become underscores, and the unit and `_total` are written out.
"""

from collections.abc import Iterable, Iterator, Sequence
from re import sub
from typing import Final, Literal

from gateway.telemetry.instruments import Distribution, Exemplar, Family, MetricAttributes, Point
from gateway.telemetry.names import Metric

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

"""Settings of telemetry, and how they are read from the standard `OTEL_*` variables.

An invalid value is an error that names its variable, never the value.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar
from urllib.parse import unquote, urlsplit

from gateway.errors import ProgramError

Signal = Literal["traces", "logs", "metrics"]
Kept = Literal["error", "denied", "held"]
ArgumentCapture = Literal["none", "keys", "values"]
ResultCapture = Literal["none", "values"]
Detail = Literal["minimal", "normal", "full"]

ALWAYS: Final[frozenset[Kept]] = frozenset({"error", "denied", "held"})
ARGUMENT_ORDER: Final[tuple[ArgumentCapture, ...]] = ("none", "keys", "values")
RESULT_ORDER: Final[tuple[ResultCapture, ...]] = ("none", "values")


LONGEST_VALUE: Final = 1024
SOON: Final = 0.05
"""Seconds that log records wait: start records of calls are useful while the call runs."""


class InvalidTelemetry(ProgramError):
    """Telemetry is configured in a way that cannot work. The gateway does not start, so that no data is missed."""

    code = "E_TELEMETRY_UNUSABLE"
    default_message = "telemetry cannot be set up"


@dataclass(frozen=True, slots=True)
class OtlpExporterSettings:
    """A collector. `headers` is called for every request, because secrets in them may be rotated."""

    protocol: "Protocol"
    endpoint: str
    headers: Callable[[], Mapping[str, str]] = field(default=dict, repr=False)
    timeout: float = 10.0
    compression: Literal["none", "gzip"] = "none"
    certificate: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None


@dataclass(frozen=True, slots=True)
class JsonLinesSettings:
    """JSON lines: in a file, or without one on standard error."""

    path: Path | None = None


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """An exporter of another package, by the name of its entry point. It reads its own variables."""

    name: str


Exporter = OtlpExporterSettings | JsonLinesSettings
AnyExporter = Exporter | PluginSettings


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Which traces are exported. Those that end as listed in `always` are, whatever the ratio or the caller."""

    ratio: float = 1.0
    always: frozenset[Kept] = ALWAYS
    follows_caller: bool = True
    """Whether to use the sampling decision of a caller whose trace is joined."""


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Size of the queue, size of a batch, and seconds that the first item of a batch waits."""

    queue: int = 16_384
    batch: int = 512
    delay: float = 1.0


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    arguments: ArgumentCapture = "keys"
    results: ResultCapture = "none"
    callers: Literal["hash", "name"] = "hash"
    """Whether spans have the names of callers. Artifact classes do not restrict that."""

    def tighten(self, other: "CaptureSettings") -> "CaptureSettings":
        """Return the stricter value of both, for arguments and for results."""
        return CaptureSettings(
            min(self.arguments, other.arguments, key=ARGUMENT_ORDER.index),
            min(self.results, other.results, key=RESULT_ORDER.index),
        )


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """All settings. `resource` describes the sender; `baggage` are keys that are accepted and forwarded."""

    resource: Mapping[str, Any]
    traces: tuple[AnyExporter, ...] = ()
    uses_process: bool = False
    """Whether spans go to the tracer provider that the process has set, or that its configuration file describes."""
    logs: tuple[AnyExporter, ...] = ()
    metrics: tuple[AnyExporter, ...] = ()
    metrics_every: float = 60.0
    """Seconds."""
    metrics_timeout: float = 30.0
    """Seconds that an export may take, with its repetitions."""
    log_lines: bool = False
    """Whether log lines of the gateway are exported, too."""
    start_records: bool = True
    sampling: SamplingSettings = SamplingSettings()
    detail: Detail = "normal"
    """How stages and waits of a call are exported: not at all, as events of its span, or as spans."""
    capture: CaptureSettings = CaptureSettings()
    baggage: frozenset[str] = frozenset()
    longest_value: int = LONGEST_VALUE
    spans: BatchSettings = BatchSettings()
    records: BatchSettings = BatchSettings(delay=SOON)

    @property
    def is_off(self) -> bool:
        return not (self.traces or self.uses_process or self.logs or self.metrics)


Protocol = Literal["http", "http/json", "grpc"]
T = TypeVar("T")

_PROTOCOLS: Final[Mapping[str, Protocol]] = {
    "http/protobuf": "http",
    "http/json": "http/json",
    "grpc": "grpc",
}
_PORTS: Final[Mapping[Protocol, int]] = {"http": 4318, "http/json": 4318, "grpc": 4317}
_PREFIX: Final = "OTEL_EXPORTER_OTLP_"
CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def is_disabled(environ: Mapping[str, str]) -> bool:
    return environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def exporters_from_environment(signal: Signal, environ: Mapping[str, str]) -> tuple[AnyExporter, ...]:
    """Return the exporters that the environment names, each once; a collector alone names `otlp`."""
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    named = [each.strip() for each in environ.get(variable, "").split(",") if each.strip()]
    if not named and _of_signal(signal, "ENDPOINT", environ):
        named = ["otlp"]
    if len(named) > 1 and "none" in map(str.lower, named):
        raise _unreadable(variable, "write none alone")
    return tuple(_exporter_named(each, signal, environ) for each in dict.fromkeys(named) if each.lower() != "none")


def describe_exporter(exporter: AnyExporter) -> str:
    """Return where an exporter sends, for the log: without credentials and without the path of an address."""
    if isinstance(exporter, PluginSettings):
        return f"exporter {exporter.name}"
    if isinstance(exporter, JsonLinesSettings):
        return f"JSON lines in {exporter.path}" if exporter.path else "JSON lines on standard error"
    parts = urlsplit(exporter.endpoint)
    return f"OTLP over {exporter.protocol} to {parts.hostname}:{parts.port or ''}".rstrip(":")


def _exporter_named(name: str, signal: Signal, environ: Mapping[str, str]) -> AnyExporter:
    match name.lower():
        case "otlp":
            return otlp_from_environment(signal, environ)
        case "otlp_proto_http":
            return otlp_from_environment(signal, environ, protocol="http")
        case "otlp_proto_grpc":
            return otlp_from_environment(signal, environ, protocol="grpc")
        case "console":
            return JsonLinesSettings()
        case _:
            return PluginSettings(name)


def otlp_from_environment(
    signal: Signal, environ: Mapping[str, str], *, protocol: Protocol | None = None, endpoint: str | None = None
) -> OtlpExporterSettings:
    """Return a collector; the environment, then the standard, supplies what is not given."""
    named = _of_signal(signal, "PROTOCOL", environ)
    if protocol is None:
        if named and named not in _PROTOCOLS:
            raise _unreadable(f"{_PREFIX}PROTOCOL", "write http/protobuf, http/json or grpc")
        protocol = _PROTOCOLS.get(named, "http")
    headers = _headers(_of_signal(signal, "HEADERS", environ))
    compression = _of_signal(signal, "COMPRESSION", environ)
    if compression not in ("", "none", "gzip"):
        raise _unreadable(f"{_PREFIX}COMPRESSION", "write gzip or none")
    milliseconds = _number(f"{_PREFIX}TIMEOUT", _of_signal(signal, "TIMEOUT", environ), float, 10_000.0)
    return OtlpExporterSettings(
        protocol,
        _address(signal, environ, protocol, endpoint),
        lambda: headers,
        timeout=milliseconds / 1000,
        compression="gzip" if compression == "gzip" else "none",
        certificate=_path(_of_signal(signal, "CERTIFICATE", environ)),
        client_certificate=_path(_of_signal(signal, "CLIENT_CERTIFICATE", environ)),
        client_key=_path(_of_signal(signal, "CLIENT_KEY", environ)),
    )


def read_resource(environ: Mapping[str, str]) -> dict[str, str]:
    """Return OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME."""
    found = _pairs("OTEL_RESOURCE_ATTRIBUTES", environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    if name := environ.get("OTEL_SERVICE_NAME", "").strip():
        found["service.name"] = name
    return found


def read_sampling(environ: Mapping[str, str]) -> SamplingSettings:
    name = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() or "parentbased_always_on"
    if not is_builtin_sampler(name):  # it decides, and reads its own argument
        return SamplingSettings(1.0)
    follows = name.startswith("parentbased_")
    ratio = _ratio("OTEL_TRACES_SAMPLER_ARG", environ)
    match name.removeprefix("parentbased_"):
        case "always_on":
            return SamplingSettings(1.0, follows_caller=follows)
        case "always_off":
            return SamplingSettings(0.0, follows_caller=follows)
        case _:
            return SamplingSettings(ratio, follows_caller=follows)


def is_builtin_sampler(name: str) -> bool:
    """Whether the gateway samples as a sampler of the SDK would, at the end of a call instead of at its start."""
    return name.lower().removeprefix("parentbased_") in ("always_on", "always_off", "traceidratio")


def _ratio(variable: str, environ: Mapping[str, str]) -> float:
    """Return the ratio. It is checked even if the sampler does not use it: an invalid value is a mistake anyway."""
    ratio = _number(variable, environ.get(variable, ""), float, 1.0)
    if not 0 <= ratio <= 1:
        raise _unreadable(variable, "write a number from 0 to 1")
    return ratio


def read_metric_times(environ: Mapping[str, str]) -> tuple[float, float]:
    """Return the seconds between two exports of metrics, and those that one may take."""
    found = []
    for variable, default in (("OTEL_METRIC_EXPORT_INTERVAL", 60_000.0), ("OTEL_METRIC_EXPORT_TIMEOUT", 30_000.0)):
        found.append(_number(variable, environ.get(variable, ""), float, default) / 1000)
        if not found[-1] >= 0.001:
            raise _unreadable(variable, "write a number above 0")
    return found[0], found[1]


_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "OTEL_METRICS_EXEMPLAR_FILTER": ("trace_based", "always_on", "always_off"),
    "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": ("cumulative", "delta", "lowmemory"),
    "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": (
        "explicit_bucket_histogram",
        "base2_exponential_bucket_histogram",
    ),
}


def check_choices(environ: Mapping[str, str]) -> None:
    """Refuse values of variables that the SDK reads itself and would ignore if they are unknown."""
    for variable, choices in _CHOICES.items():
        if environ.get(variable, "").strip().lower() not in ("", *choices):
            raise _unreadable(variable, f"write {', '.join(choices[:-1])} or {choices[-1]}")


def read_capture(environ: Mapping[str, str]) -> CaptureSettings:
    """Return whether spans have content, by the old and new values of the GenAI instrumentations."""
    match environ.get(CAPTURE, "").strip().lower():
        case "" | "false" | "no_content" | "event_only":
            return CaptureSettings()
        case "true" | "span_only" | "span_and_event":
            return CaptureSettings("values", "values")
        case _:
            raise _unreadable(CAPTURE, "write true or false, or one of NO_CONTENT, SPAN_ONLY and SPAN_AND_EVENT")


def attribute_length_limit(environ: Mapping[str, str], default: int) -> int:
    for variable in ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"):
        if environ.get(variable, "").strip():
            return _number(variable, environ[variable], int, default)
    return default


def read_batching(
    prefix: Literal["OTEL_BSP", "OTEL_BLRP"], environ: Mapping[str, str], default: BatchSettings
) -> BatchSettings:
    """Return the settings of the batch processor of spans or of log records."""

    def number(name: str, standard: float) -> float:
        variable = f"{prefix}_{name}"
        found = _number(variable, environ.get(variable, ""), float, standard)
        if found < 1:
            raise _unreadable(variable, "write a number above 0")
        return found

    queue = int(number("MAX_QUEUE_SIZE", default.queue))
    batch = int(number("MAX_EXPORT_BATCH_SIZE", default.batch))
    delay = number("SCHEDULE_DELAY", default.delay * 1000) / 1000
    return BatchSettings(queue, min(batch, queue), delay)


def _of_signal(signal: Signal, name: str, environ: Mapping[str, str]) -> str:
    """Return the variable of the signal, else the one of all signals."""
    own = environ.get(f"{_PREFIX}{signal.upper()}_{name}", "").strip()
    return own or environ.get(f"{_PREFIX}{name}", "").strip()


def _address(signal: Signal, environ: Mapping[str, str], protocol: Protocol, given: str | None) -> str:
    """Return the address; over HTTP with the path of the signal, unless the signal's own variable gives it."""
    own = environ.get(f"{_PREFIX}{signal.upper()}_ENDPOINT", "").strip() if given is None else ""
    base = given or own or environ.get(f"{_PREFIX}ENDPOINT", "").strip() or f"http://localhost:{_PORTS[protocol]}"
    try:
        parts = urlsplit(base)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise _unreadable(f"{_PREFIX}ENDPOINT", "write a full http or https URL")
    return base if protocol == "grpc" or own else f"{base.rstrip('/')}/v1/{signal}"


def _headers(text: str) -> dict[str, str]:
    return {name.lower(): unquote(value) for name, value in _pairs(f"{_PREFIX}HEADERS", text).items()}


def _pairs(variable: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in filter(str.strip, text.split(",")):
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise _unreadable(variable, "write name=value, separated by commas")
        found[name.strip()] = unquote(value.strip())
    return found


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _number(variable: str, text: str, kind: Callable[[str], T], default: T) -> T:
    if not text.strip():
        return default
    try:
        return kind(text.strip())
    except ValueError:
        raise _unreadable(variable, "write a number") from None


def _unreadable(variable: str, help: str) -> InvalidTelemetry:
    return InvalidTelemetry(f"the environment variable {variable} cannot be used", help=help)

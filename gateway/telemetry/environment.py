"""The standard `OTEL_*` variables. A value that cannot be read is an error that names its variable, never itself."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal, TypeVar
from urllib.parse import unquote, urlsplit

from gateway.telemetry.settings import Batching, Capture, Exporter, Lines, Otlp, Sampling, Signal, TelemetryUnusable

Protocol = Literal["http", "grpc"]
T = TypeVar("T")

_PROTOCOLS: Final[Mapping[str, Protocol]] = {"http/protobuf": "http", "grpc": "grpc"}
_PORTS: Final[Mapping[Protocol, int]] = {"http": 4318, "grpc": 4317}
_PREFIX: Final = "OTEL_EXPORTER_OTLP_"
CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def is_disabled(environ: Mapping[str, str]) -> bool:
    return environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def exporter(signal: Signal, environ: Mapping[str, str]) -> Exporter | None:
    """What the environment alone asks for: nothing, unless it names an exporter or a collector."""
    chosen = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip().lower()
    if chosen == "console":
        return Lines()
    if chosen == "none" or (not chosen and not _of_signal(signal, "ENDPOINT", environ)):
        return None
    if chosen not in ("", "otlp"):
        raise _unreadable(f"OTEL_{signal.upper()}_EXPORTER", "write otlp, console or none")
    return collector(signal, environ)


def collector(
    signal: Signal, environ: Mapping[str, str], *, protocol: Protocol | None = None, endpoint: str | None = None
) -> Otlp:
    """A collector; what is not given is as the environment says, or as the standard does."""
    spoken = _of_signal(signal, "PROTOCOL", environ)
    if protocol is None:
        if spoken and spoken not in _PROTOCOLS:
            raise _unreadable(f"{_PREFIX}PROTOCOL", "write http/protobuf or grpc")
        protocol = _PROTOCOLS.get(spoken, "http")
    headers = _headers(_of_signal(signal, "HEADERS", environ))
    compression = _of_signal(signal, "COMPRESSION", environ)
    if compression not in ("", "none", "gzip"):
        raise _unreadable(f"{_PREFIX}COMPRESSION", "write gzip or none")
    milliseconds = _number(f"{_PREFIX}TIMEOUT", _of_signal(signal, "TIMEOUT", environ), float, 10_000.0)
    return Otlp(
        protocol,
        _address(signal, environ, protocol, endpoint),
        lambda: headers,
        timeout=milliseconds / 1000,
        compression="gzip" if compression == "gzip" else "none",
        certificate=_path(_of_signal(signal, "CERTIFICATE", environ)),
        client_certificate=_path(_of_signal(signal, "CLIENT_CERTIFICATE", environ)),
        client_key=_path(_of_signal(signal, "CLIENT_KEY", environ)),
    )


def resource(environ: Mapping[str, str]) -> dict[str, str]:
    """OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME."""
    found = _pairs("OTEL_RESOURCE_ATTRIBUTES", environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    if name := environ.get("OTEL_SERVICE_NAME", "").strip():
        found["service.name"] = name
    return found


def sampling(environ: Mapping[str, str]) -> Sampling:
    name = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() or "parentbased_always_on"
    follows = name.startswith("parentbased_")
    ratio = _ratio("OTEL_TRACES_SAMPLER_ARG", environ)
    match name.removeprefix("parentbased_"):
        case "always_on":
            return Sampling(1.0, follows_caller=follows)
        case "always_off":
            return Sampling(0.0, follows_caller=follows)
        case "traceidratio":
            return Sampling(ratio, follows_caller=follows)
        case _:
            raise _unreadable("OTEL_TRACES_SAMPLER", "write always_on, always_off or traceidratio")


def _ratio(variable: str, environ: Mapping[str, str]) -> float:
    """Read whether or not the sampler has a use for it: a value that says nothing is a slip in either case."""
    ratio = _number(variable, environ.get(variable, ""), float, 1.0)
    if not 0 <= ratio <= 1:
        raise _unreadable(variable, "write a number from 0 to 1")
    return ratio


def metrics_every(environ: Mapping[str, str]) -> float:
    """Seconds between two sendings of metrics."""
    variable = "OTEL_METRIC_EXPORT_INTERVAL"
    milliseconds = _number(variable, environ.get(variable, ""), float, 60_000.0)
    if not milliseconds >= 1:
        raise _unreadable(variable, "write a number above 0")
    return milliseconds / 1000


def capture(environ: Mapping[str, str]) -> Capture:
    """Whether contents are shown on spans: the words are those of the instrumentations for GenAI, of both ages."""
    match environ.get(CAPTURE, "").strip().lower():
        case "" | "false" | "no_content" | "event_only":
            return Capture()
        case "true" | "span_only" | "span_and_event":
            return Capture("values", "values")
        case _:
            raise _unreadable(CAPTURE, "write true or false, or one of NO_CONTENT, SPAN_ONLY and SPAN_AND_EVENT")


def longest_value(environ: Mapping[str, str], default: int) -> int:
    for variable in ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"):
        if environ.get(variable, "").strip():
            return _number(variable, environ[variable], int, default)
    return default


def batching(prefix: Literal["OTEL_BSP", "OTEL_BLRP"], environ: Mapping[str, str], default: Batching) -> Batching:
    """Of the batch processor of spans, or of the one of log records."""

    def number(name: str, standard: float) -> float:
        variable = f"{prefix}_{name}"
        found = _number(variable, environ.get(variable, ""), float, standard)
        if found < 1:
            raise _unreadable(variable, "write a number above 0")
        return found

    queue = int(number("MAX_QUEUE_SIZE", default.queue))
    batch = int(number("MAX_EXPORT_BATCH_SIZE", default.batch))
    delay = number("SCHEDULE_DELAY", default.delay * 1000) / 1000
    return Batching(queue, min(batch, queue), delay)


def _of_signal(signal: Signal, name: str, environ: Mapping[str, str]) -> str:
    """The variable of the signal, else the one of all signals."""
    own = environ.get(f"{_PREFIX}{signal.upper()}_{name}", "").strip()
    return own or environ.get(f"{_PREFIX}{name}", "").strip()


def _address(signal: Signal, environ: Mapping[str, str], protocol: Protocol, given: str | None) -> str:
    """Over HTTP a collector's address has the path of the signal after it; only the signal's own variable is whole."""
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


def _unreadable(variable: str, help: str) -> TelemetryUnusable:
    return TelemetryUnusable(f"the environment variable {variable} cannot be used", help=help)

"""Build telemetry from a Telemetry document and the environment, and configure log output.

The document takes precedence over the standard `OTEL_*` variables; only OTEL_SDK_DISABLED overrides both. Contents of
calls are exported only if a document allows it.
"""

import logging
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Final

from gateway.app.backend_factory import build_auth
from gateway.app.secrets import Secrets
from gateway.app.settings import Settings
from gateway.audit import ContentKey
from gateway.config import (
    CaptureSpec,
    ConsoleExporter,
    ExporterSpec,
    FileExporter,
    NoneExporter,
    OtlpGrpcExporter,
    OtlpHttpExporter,
    TelemetrySpec,
)
from gateway.engine import LiveRevision, find_current_call, redact_json
from gateway.model import is_artifact, new_id
from gateway.registries import DeclaredTool
from gateway.telemetry import (
    LONGEST_VALUE,
    SOON,
    AnyExporter,
    BatchSettings,
    CaptureSettings,
    EventSpans,
    Exporter,
    JsonLinesSettings,
    JsonLogFormatter,
    LogPipeline,
    MeterPipeline,
    OtlpExporterSettings,
    OtlpLogHandler,
    PluginSettings,
    Propagation,
    SamplingSettings,
    Signal,
    SpanExport,
    TelemetryObserver,
    TelemetrySettings,
    TextLogFormatter,
    ToolAttributes,
    Value,
    check_config_file,
    check_exporter,
    configure_by_file,
    detect_resource,
    find_process_provider,
    get_process_propagator,
    grpc_library,
    has_logger_provider,
    has_meter_provider,
    load_components,
    names,
    open_span_export,
)
from gateway.telemetry import settings as environment

_QUIET_LIBRARIES: Final = ("uvicorn", "asyncio", "aiohttp", "alembic", "sqlalchemy")
"""Libraries of which only warnings are logged."""


class _StderrHandler(logging.Handler):
    """Handler that writes to the current `sys.stderr`, which may be replaced while a gateway serves."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:  # a failure of the log cannot be logged
            return


@contextmanager
def configure_log_output(settings: Settings) -> Iterator[None]:
    """Write log records to standard error in the format of the settings, for as long as the context lasts."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    handler = _StderrHandler()
    is_json = settings.log_format == "json" or (settings.log_format is None and not _is_terminal())
    handler.setFormatter(JsonLogFormatter() if is_json else TextLogFormatter())
    level = settings.log_level.upper()
    quiet = [logging.getLogger(name) for name in _QUIET_LIBRARIES] if level != "DEBUG" else []
    levels = [each.level for each in quiet]
    root.handlers[:] = [handler]
    root.setLevel(level)
    for each in quiet:
        each.setLevel(max(logging.WARNING, root.level))
    try:
        yield
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        for each, was in zip(quiet, levels, strict=True):
            each.setLevel(was)


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


MAX_CAPTURED_BYTES: Final = 64 << 10
"""Bytes of the largest result that is captured."""


def telemetry_settings(
    spec: TelemetrySpec | None, *, environ: Mapping[str, str], secrets: Secrets
) -> TelemetrySettings | None:
    """Return the settings, or `None` if nothing is exported. Raises `TelemetryUnusable` for settings that cannot work.

    Without a document, variables apply as with an empty one, except that contents of calls are not captured.
    """
    if environment.is_disabled(environ):
        return None
    spec = _without_document(environ) if spec is None else spec
    environment.check_choices(environ)
    every, timeout = environment.read_metric_times(environ)
    has_file = check_config_file(environ)
    uses_process = has_file or find_process_provider() is not None
    of_traces = spec.traces.exporter if spec.traces else None
    of_logs = (spec.logs.exporter if spec.logs else None) or of_traces
    of_metrics = spec.metrics.exporter if spec.metrics else None
    find = partial(_find_exporters, environ=environ, secrets=secrets)
    settings = TelemetrySettings(
        _resource(spec, environ),
        traces=find("traces", of_traces, is_in_use=uses_process),
        uses_process=uses_process,
        logs=find("logs", of_logs, is_in_use=has_file or has_logger_provider()),
        metrics=find("metrics", of_metrics, is_in_use=has_file or has_meter_provider()),
        metrics_every=spec.metrics.every.total_seconds() if spec.metrics else every,
        metrics_timeout=timeout,
        log_lines=spec.logs is not None,
        start_records=spec.start_records,
        sampling=_build_sampling(spec, environ),
        detail=spec.traces.detail if spec.traces else "normal",
        capture=_capture(spec.capture, environ),
        baggage=frozenset(spec.baggage),
        longest_value=environment.attribute_length_limit(environ, LONGEST_VALUE),
        spans=environment.read_batching("OTEL_BSP", environ, BatchSettings()),
        records=environment.read_batching("OTEL_BLRP", environ, BatchSettings(delay=SOON)),
    )
    if settings.is_off and not has_logger_provider():
        return None
    load_components(environ)  # raises for what cannot be loaded
    return settings


def is_capture_blocked(
    spec: TelemetrySpec | None, settings: TelemetrySettings | None, environ: Mapping[str, str]
) -> bool:
    """Whether a variable asks for contents of calls that are not exported, because there is no document."""
    return spec is None and settings is not None and environment.read_capture(environ) != settings.capture


def _without_document(environ: Mapping[str, str]) -> TelemetrySpec:
    environment.read_capture(environ)  # raises for an invalid value, although the value is ignored
    return TelemetrySpec.model_validate({"capture": {}})


def _exporter(signal: Signal, spec: ExporterSpec, environ: Mapping[str, str], secrets: Secrets) -> Exporter | None:
    match spec:
        case NoneExporter():
            return None
        case ConsoleExporter():
            return JsonLinesSettings()
        case FileExporter(path=path):
            return JsonLinesSettings(Path(path))
        case OtlpHttpExporter() | OtlpGrpcExporter():
            protocol: environment.Protocol = "http" if isinstance(spec, OtlpHttpExporter) else "grpc"
            collector = environment.otlp_from_environment(signal, environ, protocol=protocol, endpoint=spec.endpoint)
            return _with_auth(collector, spec.auth, secrets)


def _find_exporters(
    signal: Signal, spec: ExporterSpec | None, *, is_in_use: bool, environ: Mapping[str, str], secrets: Secrets
) -> tuple[AnyExporter, ...]:
    """Return the exporters, which can be loaded. A provider in use in the process has read the variables already."""
    if spec is not None:
        one = _exporter(signal, spec, environ, secrets)
        found: tuple[AnyExporter, ...] = () if one is None else (one,)
    else:
        found = () if is_in_use else environment.exporters_from_environment(signal, environ)
    for each in found:
        if isinstance(each, PluginSettings):
            check_exporter(signal, each.name)
        elif isinstance(each, OtlpExporterSettings) and each.protocol == "grpc":
            grpc_library()
    return found


def _with_auth(collector: OtlpExporterSettings, auth: Any, secrets: Secrets) -> OtlpExporterSettings:
    found = build_auth(auth, secrets)
    if found is None:
        return collector
    others = collector.headers

    def headers() -> Mapping[str, str]:
        name, value, _ = found.header()
        return {**others(), name.lower(): value}

    return replace(collector, headers=headers)


def _resource(spec: TelemetrySpec, environ: Mapping[str, str]) -> dict[str, Any]:
    named = {"service.name": spec.service} if "service" in spec.model_fields_set else {}
    return {
        **detect_resource(environ),
        "service.name": spec.service,
        "service.version": find_version(),
        "service.instance.id": new_id(),
        "host.name": platform.node() or "gateway",
        "process.pid": os.getpid(),
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry",
        "telemetry.sdk.version": version_of("opentelemetry-sdk"),
        **environment.read_resource(environ),
        **named,
        **spec.resource,
    }


def _build_sampling(spec: TelemetrySpec, environ: Mapping[str, str]) -> SamplingSettings:
    sample = spec.traces.sample if spec.traces else None
    if sample is None:
        return environment.read_sampling(environ)
    return SamplingSettings(sample.ratio, frozenset(sample.always))


def _capture(spec: CaptureSpec | None, environ: Mapping[str, str]) -> CaptureSettings:
    if spec is None:
        return environment.read_capture(environ)
    return CaptureSettings(spec.arguments, spec.results, spec.callers)


@dataclass(frozen=True, slots=True)
class TelemetryPipeline:
    """The telemetry of a running gateway; without `telemetry`, nothing is observed."""

    telemetry: TelemetryObserver | None = None
    spans: SpanExport | None = None
    logs: LogPipeline | None = None
    captures: Callable[[], bool] = lambda: False
    """Whether contents of the current call may be exported."""

    def start(self, closing: AsyncExitStack) -> None:
        """Start the exporters. `closing` ends them after everything that produces telemetry."""
        if self.spans is not None:
            self.spans.start()
            closing.push_async_callback(self.spans.close)
        if self.logs is not None:
            closing.push_async_callback(self.logs.close)

    def attach_logs(self, closing: AsyncExitStack) -> None:
        """Export log records if the settings ask for it."""
        if self.telemetry is not None and self.telemetry.settings.log_lines and self.logs is not None:
            handler = OtlpLogHandler(self.logs, captures=self.captures)
            logging.getLogger().addHandler(handler)
            closing.callback(logging.getLogger().removeHandler, handler)

    def attach_buses(self, buses: Any) -> None:
        """Observe turns and gates through the event buses."""
        if self.telemetry is not None:
            EventSpans(self.telemetry).listen_to_turns(buses)

    def status(self) -> Mapping[str, Any]:
        """Return how many items were accepted, wait, and were dropped by reason."""
        if self.telemetry is None:
            return {}
        queues = {"spans": self.spans, "logRecords": self.logs}
        return {
            "telemetry": {
                name: {"taken": queue.taken, "waiting": len(queue), "dropped": dict(queue.dropped)}
                for name, queue in queues.items()
                if queue is not None
            }
        }


def build_telemetry(
    settings: TelemetrySettings | None,
    *,
    key: ContentKey,
    published: Callable[[], LiveRevision],
    environ: Mapping[str, str],
) -> TelemetryPipeline:
    """Build the pipeline. `published` is not called before the first call of a tool."""
    if settings is None or not (settings.traces or settings.uses_process or settings.logs or has_logger_provider()):
        return TelemetryPipeline()
    if settings.uses_process:
        configure_by_file(environ)
    components = load_components(environ)
    spans: SpanExport | None = None
    if settings.traces or settings.uses_process:
        spans = open_span_export(settings, components, find_version())
    sends_logs = bool(settings.logs) or has_logger_provider()
    logs = LogPipeline(settings, version=find_version()) if sends_logs else None
    telemetry = TelemetryObserver(
        settings,
        pipeline=None if spans is None else spans.pipeline,
        logs=logs,
        hashes=key,
        propagation=Propagation(components.propagator or get_process_propagator(), settings.baggage),
        shares=partial(_tool_policy, published),
        contents=partial(_contents, settings.longest_value),
    )
    captures = partial(_captures_current_call, settings.capture, partial(_tool_policy, published))
    return TelemetryPipeline(telemetry, spans, logs, captures)


def _captures_current_call(
    capture: CaptureSettings, allows: Callable[[DeclaredTool], tuple[CaptureSettings, tuple[str, ...]]]
) -> bool:
    """Whether arguments of the current call may be exported as they are: its class permits it and masks nothing."""
    call = find_current_call()
    if call is None or call.declared is None:
        return False
    allowed, redact = allows(call.declared)
    return capture.tighten(allowed).arguments == "values" and not redact


def build_meter_pipeline(settings: TelemetrySettings | None) -> MeterPipeline:
    """Build the metrics of a gateway, which are served even if nothing is exported. Must run in the event loop."""
    if settings is None:
        settings = TelemetrySettings({"service.name": "agent-gateway"})
    return MeterPipeline(settings, instance=new_id(), version=find_version())


def _tool_policy(published: Callable[[], LiveRevision], tool: DeclaredTool) -> tuple[CaptureSettings, tuple[str, ...]]:
    declared = published().types.get_declared(tool.artifact)
    if declared is None:
        return CaptureSettings("values", "values"), ()
    return CaptureSettings(declared.capture_arguments, declared.capture_results), declared.redact


async def _contents(longest: int, args: dict[str, Any], results: Any, parts: ToolAttributes) -> dict[str, Value]:
    """Return captured contents. The redaction rules of the result class apply to arguments, too."""
    shown: dict[str, Value] = {}
    if parts.capture.arguments == "values":
        shown[names.TOOL_ARGUMENTS] = (await redact_json(args, parts.redact))[:longest]
    if parts.capture.results == "values" and is_artifact(results):
        reader = getattr(results, "stored_reader", None) or getattr(results, "reader", None)
        size = None if reader is None else reader.byte_length()
        if isinstance(size, int) and size <= MAX_CAPTURED_BYTES:
            shown[names.TOOL_RESULT] = (await results.as_string())[:longest]
    return shown


def find_version() -> str:
    try:
        return version_of("agent-gateway")
    except PackageNotFoundError:
        return "0"

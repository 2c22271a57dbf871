"""From a Telemetry document and the environment to an observer with everything behind it that sends.

The document wins where it says something; where it does not, or is not there, the standard `OTEL_*` variables count.
Only OTEL_SDK_DISABLED wins over both, and only a document lets contents of calls out.
"""

import logging
import os
import platform
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Final

from gateway.audit.contents import ContentKey
from gateway.config.specs import gateway as specs
from gateway.core.artifacts import is_artifact
from gateway.core.ids import new_id
from gateway.middleware.redaction import masked_text
from gateway.runtime.backends import auth_of
from gateway.runtime.secrets import Secrets
from gateway.serving.published import Published
from gateway.snapshot import DeclaredTool
from gateway.telemetry import environment, names
from gateway.telemetry.events import EventSpans
from gateway.telemetry.exporting import Exporting, Queue, Transport
from gateway.telemetry.instruments import Family
from gateway.telemetry.json_lines import JsonLines
from gateway.telemetry.log_records import LogRecords
from gateway.telemetry.observing import Telemetry
from gateway.telemetry.otlp_grpc import OtlpGrpc, grpc_library
from gateway.telemetry.otlp_http import OtlpHttp
from gateway.telemetry.parts import ToolParts
from gateway.telemetry.sending_metrics import SendingMetrics
from gateway.telemetry.settings import (
    LONGEST_VALUE,
    SOON,
    Batching,
    Capture,
    Exporter,
    Lines,
    Otlp,
    Sampling,
    Settings,
    Signal,
)
from gateway.telemetry.wire_format import Attributes, Envelope, Value

LARGEST_SHOWN: Final = 64 << 10
"""Bytes of a result that is read to be shown; of larger ones nothing is."""


def telemetry_settings(
    spec: specs.TelemetrySpec | None, *, environ: Mapping[str, str], secrets: Secrets
) -> Settings | None:
    """`None` if nothing is to be sent. Raises `TelemetryUnusable` for what cannot work here.

    Without a document, variables count as with one that says nothing, but for contents of calls.
    """
    if environment.is_disabled(environ):
        return None
    spec = _without_document(environ) if spec is None else spec
    traces = _exporter("traces", spec.traces.exporter if spec.traces else None, environ, secrets)
    asked = spec.logs.exporter if spec.logs and spec.logs.exporter else spec.traces.exporter if spec.traces else None
    settings = Settings(
        _resource(spec, environ),
        traces=traces,
        logs=_exporter("logs", asked, environ, secrets),
        metrics=_exporter("metrics", spec.metrics.exporter if spec.metrics else None, environ, secrets),
        metrics_every=spec.metrics.every.total_seconds() if spec.metrics else environment.metrics_every(environ),
        log_lines=spec.logs is not None,
        start_records=spec.start_records,
        sampling=_sampling(spec, environ),
        capture=_capture(spec.capture, environ),
        baggage=frozenset(spec.baggage),
        longest_value=environment.longest_value(environ, LONGEST_VALUE),
        spans=environment.batching("OTEL_BSP", environ, Batching()),
        records=environment.batching("OTEL_BLRP", environ, Batching(delay=SOON)),
    )
    if settings.is_off:
        return None
    for exporter in (settings.traces, settings.logs, settings.metrics):
        if isinstance(exporter, Otlp) and exporter.protocol == "grpc":
            grpc_library()
    return settings


def contents_held_back(spec: specs.TelemetrySpec | None, settings: Settings | None, environ: Mapping[str, str]) -> bool:
    """Whether a variable asks for contents that are not sent, because no document lets them out."""
    return spec is None and settings is not None and environment.capture(environ) != settings.capture


def _without_document(environ: Mapping[str, str]) -> specs.TelemetrySpec:
    environment.capture(environ)  # what cannot be read is refused, though nobody follows it
    return specs.TelemetrySpec.model_validate({"capture": {}})


def _exporter(
    signal: Signal, spec: specs.Exporter | None, environ: Mapping[str, str], secrets: Secrets
) -> Exporter | None:
    match spec:
        case None:
            return environment.exporter(signal, environ)
        case specs.NoneExporter():
            return None
        case specs.ConsoleExporter():
            return Lines()
        case specs.FileExporter(path=path):
            return Lines(Path(path))
        case specs.OtlpHttpExporter(endpoint=endpoint, auth=auth):
            return _authorised(
                environment.collector(signal, environ, protocol="http", endpoint=endpoint), auth, secrets
            )
        case specs.OtlpGrpcExporter(endpoint=endpoint, auth=auth):
            return _authorised(
                environment.collector(signal, environ, protocol="grpc", endpoint=endpoint), auth, secrets
            )


def _authorised(collector: Otlp, auth: Any, secrets: Secrets) -> Otlp:
    found = auth_of(auth, secrets)
    if found is None:
        return collector
    others = collector.headers

    def headers() -> Mapping[str, str]:
        name, value, _ = found.header()
        return {**others(), name.lower(): value}

    return replace(collector, headers=headers)


def _resource(spec: specs.TelemetrySpec, environ: Mapping[str, str]) -> dict[str, str]:
    version = _version()
    named = {"service.name": spec.service} if "service" in spec.model_fields_set else {}
    return {
        "service.name": spec.service,
        "service.version": version,
        "service.instance.id": new_id(),
        "host.name": platform.node() or "gateway",
        "process.pid": str(os.getpid()),
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": names.SCOPE,
        "telemetry.sdk.version": version,
        **environment.resource(environ),
        **named,
        **spec.resource,
    }


def _sampling(spec: specs.TelemetrySpec, environ: Mapping[str, str]) -> Sampling:
    sample = spec.traces.sample if spec.traces else None
    if sample is None:
        return environment.sampling(environ)
    return Sampling(sample.ratio, frozenset(sample.always))


def _capture(spec: specs.Capture | None, environ: Mapping[str, str]) -> Capture:
    return environment.capture(environ) if spec is None else Capture(spec.arguments, spec.results)


@dataclass(frozen=True, slots=True)
class Observing:
    """Telemetry as a running gateway has it; without a `telemetry` nothing is observed."""

    telemetry: Telemetry | None = None
    exporting: tuple[Exporting, ...] = ()

    def start(self, closing: AsyncExitStack) -> None:
        """Begin to send. It ends after everything that could still tell something."""
        for each in self.exporting:
            each.start()
            closing.push_async_callback(each.close)

    def hear_logs(self, closing: AsyncExitStack) -> None:
        """Send what is logged, where somebody asked for it."""
        telemetry = self.telemetry
        if telemetry is not None and telemetry.settings.log_lines and telemetry.logs is not None:
            handler = LogRecords(telemetry.logs, limit=telemetry.settings.longest_value)
            logging.getLogger().addHandler(handler)
            closing.callback(logging.getLogger().removeHandler, handler)

    def hear(self, buses: Any) -> None:
        """Turns and gates are told of on the buses."""
        if self.telemetry is not None:
            EventSpans(self.telemetry).listen_to_turns(buses)

    def status(self) -> Mapping[str, Any]:
        """What was sent and what was not, by the reason."""
        if self.telemetry is None:
            return {}
        queues = {"spans": self.telemetry.spans, "logRecords": self.telemetry.logs}
        return {
            "telemetry": {
                name: {"taken": queue.taken, "waiting": len(queue), "dropped": dict(queue.dropped)}
                for name, queue in queues.items()
                if queue is not None
            }
        }


def observing(settings: Settings | None, *, key: ContentKey, published: Callable[[], Published]) -> Observing:
    """`published` is asked when a tool is first called, not before."""
    if settings is None or (settings.traces is None and settings.logs is None):
        return Observing()
    spans = Queue(settings.spans) if settings.traces is not None else None
    logs = Queue(settings.records) if settings.logs is not None else None
    told = Attributes(settings.longest_value).all(dict(settings.resource))
    envelope = Envelope(told, scope=names.SCOPE, version=_version(), schema_url=names.SCHEMA_URL)
    exporting = []
    if spans is not None and settings.traces is not None:
        exporting.append(Exporting("traces", spans, envelope, _transport(settings.traces)))
    if logs is not None and settings.logs is not None:
        exporting.append(Exporting("logs", logs, envelope, _transport(settings.logs)))
    telemetry = Telemetry(
        settings,
        spans=spans,
        logs=logs,
        hashes=key,
        shares=partial(_shared, published),
        contents=partial(_contents, settings.longest_value),
    )
    return Observing(telemetry, tuple(exporting))


def sending_metrics(settings: Settings | None, read: Callable[[], Awaitable[list[Family]]]) -> SendingMetrics | None:
    if settings is None or settings.metrics is None:
        return None
    transport = _transport(settings.metrics)
    every, version = settings.metrics_every, _version()
    return SendingMetrics(read, transport, resource=settings.resource, version=version, every=every)


def _transport(exporter: Exporter) -> Transport:
    if isinstance(exporter, Lines):
        return JsonLines(exporter.path)
    return OtlpHttp(exporter) if exporter.protocol == "http" else OtlpGrpc(exporter)


def _shared(published: Callable[[], Published], tool: DeclaredTool) -> tuple[Capture, tuple[str, ...]]:
    declared = published().types.declared(tool.artifact)
    if declared is None:
        return Capture("values", "values"), ()
    return Capture(declared.capture_arguments, declared.capture_results), declared.redact


async def _contents(longest: int, args: dict[str, Any], results: Any, parts: ToolParts) -> dict[str, Value]:
    """Arguments through the masks of the class of results: what must not be read there must not be read here."""
    shown: dict[str, Value] = {}
    if parts.capture.arguments == "values":
        shown[names.TOOL_ARGUMENTS] = (await masked_text(args, parts.redact))[:longest]
    if parts.capture.results == "values" and is_artifact(results):
        reader = getattr(results, "stored_reader", None) or getattr(results, "reader", None)
        size = None if reader is None else reader.byte_length()
        if isinstance(size, int) and size <= LARGEST_SHOWN:
            shown[names.TOOL_RESULT] = (await results.as_string())[:longest]
    return shown


def _version() -> str:
    try:
        return version_of("agent-gateway")
    except PackageNotFoundError:
        return "0"

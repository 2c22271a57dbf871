"""Spans, metrics and logs for the backend that people already run.

May import `approvals`, `engine`, `model`, `registries`, `storage` and `errors`.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.telemetry.attribute_cache import ToolAttributes
    from gateway.telemetry.event_spans import EventSpans
    from gateway.telemetry.export.otlp_exporters import to_message
    from gateway.telemetry.export.otlp_transports import grpc_library
    from gateway.telemetry.export.prometheus_text import CONTENT_TYPES, Exposition, negotiate_format, parse_metrics
    from gateway.telemetry.gateway_span import Value
    from gateway.telemetry.instruments import Values
    from gateway.telemetry.logs import (
        JsonLogFormatter,
        LogPipeline,
        OtlpLogHandler,
        TextLogFormatter,
        has_logger_provider,
    )
    from gateway.telemetry.meter_pipeline import MeterPipeline, has_meter_provider
    from gateway.telemetry.metrics import GatewayMetrics, observe_process
    from gateway.telemetry.observer import TelemetryObserver
    from gateway.telemetry.sdk_components import (
        check_config_file,
        check_exporter,
        configure_by_file,
        detect_resource,
        load_components,
    )
    from gateway.telemetry.settings import (
        CAPTURE,
        LONGEST_VALUE,
        SOON,
        AnyExporter,
        BatchSettings,
        CaptureSettings,
        Exporter,
        JsonLinesSettings,
        OtlpExporterSettings,
        PluginSettings,
        SamplingSettings,
        Signal,
        TelemetrySettings,
    )
    from gateway.telemetry.span_pipeline import SpanExport, find_process_provider, open_span_export
    from gateway.telemetry.trace_context import Propagation, get_process_propagator
else:
    __getattr__ = lazy_exports(__name__)

"""OTLP over gRPC, with the same bytes as over HTTP.

The library is optional: without it, a gateway that is configured to use it does not start.
"""

from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.telemetry.export.otlp_http import LARGEST_ANSWER, read_partial_success
from gateway.telemetry.export.signal_exporter import ExportFailed
from gateway.telemetry.settings import InvalidTelemetry, OtlpExporterSettings, Signal

_METHODS: Final = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}
_AGAIN: Final = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS", "RESOURCE_EXHAUSTED"}
)


class OtlpGrpc:
    """Sends over gRPC. Raises `InvalidTelemetry` if gRPC is not installed."""

    def __init__(self, settings: OtlpExporterSettings) -> None:
        self._settings = settings
        self._grpc = grpc_library()
        self._channel: Any = None

    async def send(self, signal: Signal, payload: bytes) -> int:
        metadata = tuple((name.lower(), value) for name, value in self._settings.headers().items())
        gzip = self._grpc.Compression.Gzip if self._settings.compression == "gzip" else None
        try:
            export = self._get_channel().unary_unary(_METHODS[signal])
            answer: bytes = await export(payload, timeout=self._settings.timeout, metadata=metadata, compression=gzip)
        except self._grpc.aio.AioRpcError as error:
            name = error.code().name
            raise ExportFailed(f"grpc_{name.lower()}", again=name in _AGAIN) from error
        return read_partial_success(signal, answer)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    def _get_channel(self) -> Any:
        if self._channel is None:
            parts = urlsplit(self._settings.endpoint)
            target = f"{parts.hostname}:{parts.port or 4317}"
            options = (("grpc.max_receive_message_length", LARGEST_ANSWER),)
            if parts.scheme == "http":
                self._channel = self._grpc.aio.insecure_channel(target, options=options)
            else:
                self._channel = self._grpc.aio.secure_channel(target, self._credentials(), options=options)
        return self._channel

    def _credentials(self) -> Any:
        settings = self._settings
        return self._grpc.ssl_channel_credentials(
            _read(settings.certificate), _read(settings.client_key), _read(settings.client_certificate)
        )


def grpc_library() -> Any:
    """Import the library. Raises `InvalidTelemetry` if it is not installed."""
    try:
        import grpc
        import grpc.aio
    except ImportError as error:
        raise InvalidTelemetry(
            "OTLP over gRPC needs a package that is not installed",
            help='install it with: pip install "agent-gateway[grpc]", or use type: otlp-http',
        ) from error
    return grpc


def _read(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()

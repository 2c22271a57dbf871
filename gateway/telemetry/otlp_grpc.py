"""OTLP over gRPC. The bytes are the same as over HTTP; only who carries them differs.

The library is an optional one: without it a gateway that is told to use it does not start.
"""

from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.telemetry.exporting import Unsent
from gateway.telemetry.otlp_http import LARGEST_ANSWER
from gateway.telemetry.rejections import rejected
from gateway.telemetry.settings import Otlp, Signal, TelemetryUnusable

_METHODS: Final = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}
_AGAIN: Final = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS", "RESOURCE_EXHAUSTED"}
)


class OtlpGrpc:
    """Raises `TelemetryUnusable` where gRPC is not installed."""

    def __init__(self, told: Otlp) -> None:
        self._told = told
        self._grpc = grpc_library()
        self._channel: Any = None

    async def send(self, signal: Signal, payload: bytes) -> int:
        metadata = tuple((name.lower(), value) for name, value in self._told.headers().items())
        gzip = self._grpc.Compression.Gzip if self._told.compression == "gzip" else None
        try:
            export = self._opened().unary_unary(_METHODS[signal])
            answer: bytes = await export(payload, timeout=self._told.timeout, metadata=metadata, compression=gzip)
        except self._grpc.aio.AioRpcError as error:
            name = error.code().name
            raise Unsent(f"grpc_{name.lower()}", again=name in _AGAIN) from error
        return rejected(signal, answer)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    def _opened(self) -> Any:
        if self._channel is None:
            parts = urlsplit(self._told.endpoint)
            target = f"{parts.hostname}:{parts.port or 4317}"
            options = (("grpc.max_receive_message_length", LARGEST_ANSWER),)
            if parts.scheme == "http":
                self._channel = self._grpc.aio.insecure_channel(target, options=options)
            else:
                self._channel = self._grpc.aio.secure_channel(target, self._credentials(), options=options)
        return self._channel

    def _credentials(self) -> Any:
        told = self._told
        return self._grpc.ssl_channel_credentials(
            _read(told.certificate), _read(told.client_key), _read(told.client_certificate)
        )


def grpc_library() -> Any:
    """Raises `TelemetryUnusable` where it is not installed."""
    try:
        import grpc
        import grpc.aio
    except ImportError as error:
        raise TelemetryUnusable(
            "OTLP over gRPC needs a package that is not installed",
            help='install it with: pip install "agent-gateway[grpc]", or use type: otlp-http',
        ) from error
    return grpc


def _read(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()

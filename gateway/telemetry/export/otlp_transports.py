"""Transports of requests: OTLP over HTTP and over gRPC, with the same bytes.

gRPC is optional: without its library, a gateway that is configured to use it does not start. Size and time
of a collector's response are bounded.
"""

import asyncio
import gzip
import json
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from gateway.http_client import HttpPolicy, HttpSession, ResponseTooLarge, create_tls_context, find_proxy
from gateway.telemetry.export.delivery import ExportFailed, JsonLinesExporter, Transport, as_json
from gateway.telemetry.settings import Exporter, InvalidTelemetry, JsonLinesSettings, OtlpExporterSettings, Signal


def read_partial_success(signal: Signal, answer: bytes) -> int:
    """Return how many items the collector refused; 0 if the response cannot be parsed."""
    if not answer:
        return 0
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    try:
        if signal == "traces":
            return max(0, int(ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans))
        if signal == "metrics":
            return max(0, int(ExportMetricsServiceResponse.FromString(answer).partial_success.rejected_data_points))
        return max(0, int(ExportLogsServiceResponse.FromString(answer).partial_success.rejected_log_records))
    except DecodeError:
        return 0


LARGEST_ANSWER: Final = 64 << 10
_STATUSES_AGAIN: Final = frozenset({429, 502, 503, 504})


class OtlpHttp:
    """Sends over HTTP. Certificates are files; without them the system's authorities are used."""

    def __init__(self, settings: OtlpExporterSettings) -> None:
        self._otlp = settings
        self._policy = HttpPolicy(
            connect=settings.timeout,
            answer=None,
            idle=None,
            total=settings.timeout,
            max_body=LARGEST_ANSWER,
            connections=2,
            tls=_tls(settings),
            proxy=find_proxy(settings.endpoint),
        )
        self._session: HttpSession | None = None

    async def send(self, signal: Signal, payload: bytes) -> int:
        headers = {**self._otlp.headers(), "content-type": "application/x-protobuf"}
        if self._otlp.protocol == "http/json":
            payload = await asyncio.to_thread(lambda: json.dumps(as_json(signal, payload)).encode())
            headers["content-type"] = "application/json"
        if self._otlp.compression == "gzip":
            payload = await asyncio.to_thread(gzip.compress, payload, 5)
            headers["content-encoding"] = "gzip"
        try:
            return await self._post(signal, payload, headers)
        except TimeoutError as error:
            raise ExportFailed("timeout", again=True) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ExportFailed("unreachable", again=True) from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _post(self, signal: Signal, payload: bytes, headers: dict[str, str]) -> int:
        if self._session is None:
            self._session = HttpSession(self._policy)
        async with await self._session.send("POST", self._otlp.endpoint, headers=headers, body=payload) as answer:
            body = b""
            with suppress(ResponseTooLarge):  # the status says whether the batch arrived
                body = await self._session.read(answer)
            if 200 <= answer.status < 300:
                return read_partial_success(signal, body)
            again = answer.status in _STATUSES_AGAIN
            raise ExportFailed(f"http_{answer.status}", again=again, after=_seconds(answer.headers.get("Retry-After")))


def _seconds(text: str | None) -> float | None:
    """Return the seconds of Retry-After; dates are ignored, because clocks may differ."""
    return (
        min(float(text), 30.0) if text is not None and text.isascii() and text.isdecimal() and len(text) < 6 else None
    )


def _tls(settings: OtlpExporterSettings) -> ssl.SSLContext | None:
    if settings.certificate is None and settings.client_certificate is None:
        return None
    try:
        return create_tls_context(settings.certificate, settings.client_certificate, settings.client_key)
    except OSError as error:
        raise InvalidTelemetry(
            "the certificates for the collector cannot be used",
            help="check OTEL_EXPORTER_OTLP_CERTIFICATE, CLIENT_CERTIFICATE and CLIENT_KEY",
        ) from error


_METHODS: Final = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}
_CODES_AGAIN: Final = frozenset(
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
            raise ExportFailed(f"grpc_{name.lower()}", again=name in _CODES_AGAIN) from error
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


def open_transport(exporter: Exporter) -> Transport:
    """Raises `InvalidTelemetry` if it cannot work."""
    if isinstance(exporter, JsonLinesSettings):
        return JsonLinesExporter(exporter.path)
    return OtlpGrpc(exporter) if exporter.protocol == "grpc" else OtlpHttp(exporter)


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

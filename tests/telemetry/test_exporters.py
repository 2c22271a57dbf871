"""Collectors that are gone, slow, full or endless, and the other destinations of spans."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry import context as otel_context
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from gateway.telemetry.export.delivery import FLUSH_SECONDS, ExportFailed, JsonLinesExporter, Transport
from gateway.telemetry.export.otlp_exporters import OtlpSpanExporter, SpanEncoder
from gateway.telemetry.export.otlp_transports import OtlpGrpc, OtlpHttp
from gateway.telemetry.gateway_span import GatewaySpan, SpanGroup
from gateway.telemetry.settings import (
    BatchSettings,
    InvalidTelemetry,
    OtlpExporterSettings,
    SamplingSettings,
    Signal,
    TelemetrySettings,
)
from gateway.telemetry.span_pipeline import MOST_WAITING_SPANS, SpanQueue, TailSampling
from tests.support.finished_spans import build_span, open_pipeline
from tests.support.servers.app_server import serve_aiohttp

pytestmark = pytest.mark.anyio

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
FAST = BatchSettings(queue=1_000, batch=100, delay=0.01)


PIPELINE = open_pipeline(TelemetrySettings({}))


def a_span(name: str = "s") -> GatewaySpan:
    return build_span(PIPELINE, _name=name)


def a_request(name: str = "s") -> bytes:
    return SpanEncoder(PIPELINE).encode([a_span(name)])


@asynccontextmanager
async def serve_collector(answer: Answer) -> AsyncIterator[str]:
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("POST", "/v1/traces", answer)
    async with serve_aiohttp(app) as port:
        yield f"http://127.0.0.1:{port}/v1/traces"


def make_queue(transport: Transport, batching: BatchSettings = FAST) -> SpanQueue:
    return SpanQueue(OtlpSpanExporter(transport), batching)


async def close(queue: SpanQueue, seconds: float = FLUSH_SECONDS) -> None:
    exporter = queue.span_exporter
    assert isinstance(exporter, OtlpSpanExporter)
    exporter.limit(seconds)
    await asyncio.to_thread(queue.shutdown)


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_everything_that_was_put_arrives_once(compression: Any) -> None:
    came: list[str] = []
    headers: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        body = await request.read()
        headers.append(request.headers.get("authorization"))
        if request.headers.get("content-encoding") == "gzip" and body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        spans = TracesData.FromString(body).resource_spans[0].scope_spans[0].spans
        came.extend(each.name for each in spans)
        return web.Response(body=b"")

    async with serve_collector(answer) as url:
        output = OtlpExporterSettings("http", url, lambda: {"authorization": "Bearer x"}, compression=compression)
        sending = make_queue(OtlpHttp(output))
        for number in range(250):
            sending.on_end(a_span(str(number)))
        await close(sending)

    assert came == [str(number) for number in range(250)]
    assert set(headers) == {"Bearer x"}
    assert sending.taken == 250
    assert not sending.dropped


async def test_a_busy_collector_is_retried_after_its_delay() -> None:
    statuses = [503, 429, 200]

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=statuses.pop(0), headers={"retry-after": "0"})

    async with serve_collector(answer) as url:
        sending = make_queue(OtlpHttp(OtlpExporterSettings("http", url)))
        sending.on_end(a_span())
        await asyncio.to_thread(sending.force_flush)
        await close(sending)

    assert statuses == []
    assert not sending.dropped


async def test_what_a_collector_refuses_for_good_is_counted() -> None:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=400)

    async with serve_collector(answer) as url:
        sending = make_queue(OtlpHttp(OtlpExporterSettings("http", url)))
        sending.on_end(a_span())
        await close(sending)

    assert sending.dropped == {"http_400": 1}


async def test_what_a_collector_takes_only_in_part_is_counted() -> None:
    partly = ExportTraceServiceResponse()
    partly.partial_success.rejected_spans = 3

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=partly.SerializeToString())

    async with serve_collector(answer) as url:
        sending = make_queue(OtlpHttp(OtlpExporterSettings("http", url)))
        for _ in range(5):
            sending.on_end(a_span())
        await close(sending)

    assert sending.dropped == {"rejected": 3}


async def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    written = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal written
        await request.read()
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(10_000):
            await response.write(b"x" * (1 << 20))
            written += 1
        return response

    async with serve_collector(answer) as url:
        transport = OtlpHttp(OtlpExporterSettings("http", url, timeout=20))
        rejected = await transport.send("traces", a_request())
        await transport.close()

    assert rejected == 0
    assert written < 100


async def test_a_slow_collector_delays_no_call_and_the_rest_is_counted() -> None:
    arrived, leave = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        arrived.set()
        await leave.wait()
        return web.Response()

    async with serve_collector(answer) as url:
        sending = make_queue(
            OtlpHttp(OtlpExporterSettings("http", url, timeout=60)), BatchSettings(queue=50, batch=10, delay=0.001)
        )
        sending.on_end(a_span())
        await arrived.wait()
        for _ in range(80):
            sending.on_end(a_span())
        assert sending.dropped == {"queue_full": 30}
        await close(sending, 0.05)
        leave.set()

    assert sending.taken == 81
    assert sending.dropped == {"queue_full": 30, "closed": 51}


async def test_a_collector_that_is_gone_is_given_up_at_the_end() -> None:
    sending = make_queue(OtlpHttp(OtlpExporterSettings("http", "http://127.0.0.1:9/v1/traces")))
    sending.on_end(a_span())

    await close(sending)

    assert sending.dropped == {"unreachable": 1}


async def test_a_fault_of_ours_ends_one_batch_and_not_the_sending(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        calls = 0

        async def send(self, signal: Signal, payload: bytes) -> int:
            self.calls += 1
            if self.calls == 1:
                raise ZeroDivisionError
            return 0

        async def close(self) -> None: ...

    sending = make_queue(Broken(), BatchSettings(queue=10, batch=1, delay=0.001))
    sending.on_end(a_span())
    sending.on_end(a_span())
    await close(sending)

    assert sending.dropped == {"failed": 1}


def test_only_so_many_spans_of_a_request_wait_for_its_end() -> None:
    tail, group = TailSampling(SamplingSettings(0.0)), SpanGroup()
    for _ in range(MOST_WAITING_SPANS + 10):
        tail.on_end(build_span(PIPELINE, group=group))

    assert len(group.waiting) == MOST_WAITING_SPANS


async def test_lines_of_a_file_are_requests_in_json(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "spans.jsonl"
    sending = make_queue(JsonLinesExporter(path))
    sending.on_end(a_span("hello"))
    await close(sending)

    [line] = path.read_text(encoding="utf-8").splitlines()
    [span] = json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert (span["name"], span["traceId"], span["spanId"], span["kind"]) == ("hello", "01" * 16, "02" * 8, 1)
    assert path.stat().st_mode & 0o077 == 0


async def test_the_console_is_the_standard_error_output(capsys: pytest.CaptureFixture[str]) -> None:
    await JsonLinesExporter(None).send("traces", a_request("hello"))

    output = capsys.readouterr()
    assert '"hello"' in output.err
    assert output.out == ""


def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(InvalidTelemetry, match="cannot be written"):
        JsonLinesExporter(tmp_path / "file" / "spans.jsonl")


async def test_the_same_bytes_go_over_grpc() -> None:
    grpc = pytest.importorskip("grpc", reason="the extra grpc is not installed")
    came: list[tuple[bytes, dict[str, str]]] = []

    async def export(request: bytes, context: Any) -> bytes:
        came.append((request, dict(context.invocation_metadata())))
        return b""

    handler = grpc.method_handlers_generic_handler(
        "opentelemetry.proto.collector.trace.v1.TraceService",
        {"Export": grpc.unary_unary_rpc_method_handler(export)},
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    payload = a_request()
    transport = OtlpGrpc(OtlpExporterSettings("grpc", f"http://127.0.0.1:{port}", lambda: {"Api-Key": "x"}))

    assert await transport.send("traces", payload) == 0
    with pytest.raises(ExportFailed) as raised:
        await transport.send("logs", payload)
    await transport.close()
    await server.stop(None)

    [(request, metadata)] = came
    assert request == payload
    assert metadata["api-key"] == "x"
    assert raised.value.reason == "grpc_unimplemented"
    assert not raised.value.again


async def test_exports_are_not_instrumented_themselves() -> None:
    is_suppressed: list[object] = []

    class Watched(OtlpHttp):
        async def send(self, signal: Signal, payload: bytes) -> int:
            is_suppressed.append(otel_context.get_value(otel_context._SUPPRESS_INSTRUMENTATION_KEY))
            return 0

    exporter = make_queue(Watched(OtlpExporterSettings("http", "http://127.0.0.1:9/v1/traces")))
    exporter.on_end(a_span())
    await close(exporter)

    assert is_suppressed == [True]
    assert otel_context.get_value(otel_context._SUPPRESS_INSTRUMENTATION_KEY) is None

"""Log records on their way: what is dropped is counted, and a collector that is gone holds nothing up."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from aiohttp import web
from opentelemetry._logs import LogRecord, SeverityNumber

from gateway.telemetry import names
from gateway.telemetry.export.otlp_exporters import decode_record
from gateway.telemetry.export.wire_format import INFO, OF_LOG, Attributes, event_body, event_name, log_head
from gateway.telemetry.gateway_span import Value
from gateway.telemetry.logs import LogPipeline
from gateway.telemetry.settings import BatchSettings, OtlpExporterSettings, TelemetrySettings
from tests.support.servers.otlp_collector import start_collector
from tests.telemetry.test_exporters import serve_collector

pytestmark = pytest.mark.anyio

GONE = "http://127.0.0.1:9/v1/logs"


def make_pipeline(url: str, batching: BatchSettings = BatchSettings(delay=0.01)) -> LogPipeline:  # noqa: B008
    settings = TelemetrySettings({"service.name": "x"}, logs=(OtlpExporterSettings("http", url),), records=batching)
    return LogPipeline(settings, version="0")


def encoded(number: int = 0) -> bytes:
    attributes: dict[str, Value] = {"number": number, "names": ["a", "b"], "share": 0.5, "is": True, "word": "x"}
    head = log_head(b"\x01" * 16, b"\x02" * 8, 4711, INFO)
    return head + event_name(names.CALL_STARTED) + event_body("hello", 100) + Attributes(OF_LOG, 100).join(attributes)


async def test_encoded_and_other_records_arrive_together() -> None:
    async with start_collector() as collector:
        pipeline = make_pipeline(f"{collector.url}/v1/logs")
        pipeline.put(lambda: encoded(1))
        pipeline.emit(
            LogRecord(timestamp=1, severity_number=SeverityNumber.WARN, body="line", attributes={"number": 2})
        )
        await pipeline.close()

    assert [(each.name, each.body, each["number"]) for each in collector.events] == [
        (names.CALL_STARTED, "hello", 1),
        ("", "line", 2),
    ]
    assert (pipeline.taken, len(pipeline), pipeline.dropped.total()) == (2, 0, 0)


def test_decoded_record_has_every_field() -> None:
    found = decode_record(encoded(3))

    assert (found.timestamp, found.observed_timestamp, found.event_name, found.body) == (
        *(4711, 4711),
        *(names.CALL_STARTED, "hello"),
    )
    assert (found.trace_id, found.span_id) == (int("01" * 16, 16), int("02" * 8, 16))
    assert found.severity_number is SeverityNumber.INFO
    assert found.attributes == {"number": 3, "names": ["a", "b"], "share": 0.5, "is": True, "word": "x"}


async def test_collector_that_is_gone_is_given_up_at_the_end() -> None:
    pipeline = make_pipeline(GONE)
    pipeline.put(encoded)

    await pipeline.close()

    assert pipeline.dropped == {"unreachable": 1}


async def test_what_a_collector_refuses_is_counted() -> None:
    async with serve_collector(_answer(400)) as url:
        pipeline = make_pipeline(url)
        pipeline.put(encoded)
        await pipeline.close()

    assert pipeline.dropped == {"http_400": 1}


async def test_slow_collector_delays_nothing_and_the_rest_is_counted() -> None:
    arrived, leave = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        arrived.set()
        await leave.wait()
        return web.Response()

    async with serve_collector(answer) as url:
        pipeline = make_pipeline(url, BatchSettings(queue=50, batch=10, delay=0.001))
        pipeline.put(encoded)
        await arrived.wait()
        for number in range(80):
            pipeline.put(partial(encoded, number))
        assert pipeline.dropped["queue_full"] == 30
        leave.set()
        await pipeline.close()

    assert pipeline.taken == 81
    assert pipeline.dropped == {"queue_full": 30}


def _answer(status: int) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=status)

    return answer

"""Telemetry of real gateways: traces continued from clients, killed processes, missing collectors."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gateway.telemetry import names
from tests.support.gateways.gate_projects import ANA, PEOPLE, approval_client, write
from tests.support.gateways.process import GatewayProcess, start_gateway_process
from tests.support.gateways.projects import CallCounter, Caller, document, environ_of, send_http, start_call_counter
from tests.support.servers.otlp_collector import Collector, sending_to, start_collector, wait_for_spans

pytestmark = pytest.mark.anyio

CLIENT = """
import asyncio, json, sys
import mcp
from mcp.client.streamable_http import streamable_http_client
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

kept = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)

async def main():
    async with mcp.Client(streamable_http_client(sys.argv[1])) as client:
        with trace.get_tracer("agent").start_as_current_span("agent"):
            await client.call_tool("plain", {"text": "hello"})

asyncio.run(main())
ended = kept.get_finished_spans()
print(json.dumps([[s.name, f"{s.context.trace_id:032x}", f"{s.context.span_id:016x}"] for s in ended]))
"""


@asynccontextmanager
async def project(tmp_path: Path, *, is_open: bool = False) -> AsyncIterator[tuple[Path, Collector, CallCounter]]:
    async with start_collector() as collector, start_call_counter() as backend:
        documents = wait_for_spans(approval_client(backend.port))
        if is_open:
            anonymous = {"type": "none", "subject": "user:ana", "roles": ["role:agent"]}
            documents = [
                document("IdentityProvider", "tokens", anonymous) if each["kind"] == "IdentityProvider" else each
                for each in documents
            ]
        yield write(tmp_path / "p", documents), collector, backend


def environ(collector: Collector) -> dict[str, str]:
    return {**environ_of(PEOPLE), **sending_to(collector)}


async def test_the_trace_of_an_mcp_client_goes_through_to_the_service(tmp_path: Path) -> None:
    async with project(tmp_path, is_open=True) as (folder, collector, backend):
        with start_gateway_process(folder, tmp_path / "data", env=environ(collector)) as gateway:
            client = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", CLIENT, gateway.mcp("/desk")), stdout=asyncio.subprocess.PIPE
            )
            output, _ = await client.communicate()
            assert client.returncode == 0
            [server] = await collector.named("tools/call plain")
            [hop] = await collector.named("POST")
    spans = {name: (trace, id) for name, trace, id in json.loads(output.splitlines()[-1])}

    assert server.trace == spans["agent"][0]
    assert (server.trace, server.parent) in set(spans.values()) - {spans["agent"]}
    assert backend.requests[0][1]["traceparent"] == f"00-{server.trace}-{hop.id}-01"


async def test_a_killed_process_leaves_starts_and_the_next_one_reports_the_rest(tmp_path: Path) -> None:
    arrived = asyncio.Event()

    async def never(request: web.Request) -> web.Response:
        arrived.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with project(tmp_path) as (folder, collector, backend):
        silent = web.Application()
        silent.router.add_route("*", "/{path:.*}", never)
        runner = web.AppRunner(silent, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        text = (folder / "configs" / "all.yaml").read_text(encoding="utf-8")
        moved = text.replace(f":{backend.port}/pay", f":{runner.addresses[0][1]}/pay")
        (folder / "configs" / "all.yaml").write_text(moved, encoding="utf-8")
        async with aiohttp.ClientSession() as session:
            with start_gateway_process(folder, tmp_path / "data", env=environ(collector)) as gateway:
                asking = asyncio.create_task(_caller(session, gateway).rest_call("desk", "pay", {"text": "x"}))
                await arrived.wait()
                await collector.until(lambda known: known.events_named(names.CALL_STARTED))
                gateway.stop(signal.SIGKILL)
                with pytest.raises(aiohttp.ClientError):
                    await asking
            with start_gateway_process(folder, tmp_path / "data", env=environ(collector)) as again:
                await collector.until(lambda known: known.events_named(names.CALL_UNKNOWN))
                async with session.get(f"{again.admin_url}/metrics") as answer:
                    counted = [line for line in (await answer.text()).splitlines() if "calls_unknown_total" in line]
                await asyncio.to_thread(again.stop)
        await runner.cleanup()

    [start] = collector.events_named(names.CALL_STARTED)
    [unknown] = collector.events_named(names.CALL_UNKNOWN)
    assert counted[-1] == "gateway_calls_unknown_total 1"
    assert unknown.address == start.address
    assert unknown[names.CALL_ID] == start[names.CALL_ID]
    assert collector.of("execute_tool pay") == []


async def test_a_collector_that_is_gone_changes_nothing_for_callers(tmp_path: Path) -> None:
    async with project(tmp_path) as (folder, _, backend):
        nowhere = {**environ_of(PEOPLE), "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
        async with aiohttp.ClientSession() as session:
            with start_gateway_process(folder, tmp_path / "data", env=nowhere) as gateway:
                answers = [
                    await _caller(session, gateway).rest_call("desk", "plain", {"text": str(number)})
                    for number in range(20)
                ]
                assert gateway.stop() == 0

    assert [each.status for each in answers] == [200] * 20
    assert len(backend.requests) == 20


async def test_what_waits_at_the_end_is_sent(tmp_path: Path) -> None:
    async with project(tmp_path) as (folder, collector, _), aiohttp.ClientSession() as session:
        late = {**environ(collector), "OTEL_BSP_SCHEDULE_DELAY": "600000"}
        with start_gateway_process(folder, tmp_path / "data", env=late) as gateway:
            await _caller(session, gateway).rest_call("desk", "plain", {"text": "x"})
            stopping = asyncio.create_task(asyncio.to_thread(gateway.stop))
            await collector.named("execute_tool plain")
            assert await stopping == 0

    route = "POST /v1/catalogues/{catalogue}/tools/{name}/call"
    assert sorted(each.name for each in collector.spans) == ["POST", route, "execute_tool plain"]


def _caller(session: aiohttp.ClientSession, gateway: GatewayProcess) -> Caller:
    return Caller(send_http(session, gateway.url), ANA.token)

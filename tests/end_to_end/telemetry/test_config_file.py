"""A declarative configuration file of the SDK: its processors, samplers, exporters and views are in force."""

import asyncio
import sys
from pathlib import Path

import aiohttp
import pytest

from gateway.app.app import prepare_app
from gateway.app.settings import Settings
from gateway.telemetry.settings import InvalidTelemetry
from tests.end_to_end.telemetry.test_sdk_components import CALL, package, read_lines
from tests.support.gateways.gate_projects import ANA, PEOPLE, approval_client, write
from tests.support.gateways.process import start_gateway_process
from tests.support.gateways.projects import Caller, environ_of, send_http, start_call_counter
from tests.support.paths import ROOT
from tests.support.servers.otlp_collector import Collector, start_collector

pytestmark = pytest.mark.anyio
assert package  # a fixture

CONFIGURATION = """
file_format: "1.0"
resource:
  attributes: [{name: service.name, value: of the file}]
propagator:
  composite: [{vendor: {}}]
tracer_provider:
  processors:
    - simple: {exporter: {otlp_http: {endpoint: "${COLLECTOR}/v1/traces"}}}
    - batch: {schedule_delay: 50, exporter: {lines: {}}}
  sampler: {no_lists: {}}
meter_provider:
  readers:
    - periodic: {interval: 200, exporter: {otlp_http: {endpoint: "${COLLECTOR}/v1/metrics"}}}
  views:
    - {selector: {instrument_name: gateway.decisions}, stream: {name: decisions.of.the.file}}
logger_provider:
  processors:
    - simple: {exporter: {otlp_http: {endpoint: "${COLLECTOR}/v1/logs"}}}
"""


async def test_a_configuration_file_is_in_force(tmp_path: Path, package: Path) -> None:
    path, lines = tmp_path / "sdk.yaml", tmp_path / "spans.jsonl"
    path.write_text(CONFIGURATION, encoding="utf-8")
    async with (
        start_collector() as collector,
        start_call_counter() as backend,
        aiohttp.ClientSession() as session,
    ):
        project = write(tmp_path / "p", approval_client(backend.port))
        env = {
            **environ_of(PEOPLE),
            "PYTHONPATH": f"{package}:{ROOT}",
            "COLLECTOR": collector.url,
            "VENDOR_FILE": str(lines),
            "OTEL_CONFIG_FILE": str(path),
        }
        with start_gateway_process(project, tmp_path / "data", env=env, is_forked=False) as running:
            caller = Caller(send_http(session, running.url), ANA.token)
            await caller.modern("desk", "tools/list")
            await caller.modern_call("desk", "plain", {"text": "x"})
            await collector.until(lambda known: len(known.spans) >= 3 and known.events_named("gateway.call.started"))
            await collector.until(lambda known: has_metric(known, b"decisions.of.the.file"))
            assert await asyncio.to_thread(running.stop) == 0

    spans = {each.name: each for each in collector.spans}
    assert spans.keys() == CALL
    assert {each.resource["service.name"] for each in collector.spans} == {"of the file"}
    assert all(each["vendor.sampled"] for each in collector.spans)
    assert (spans["POST"].trace, spans["POST"].parent) == spans["execute_tool plain"].address
    assert backend.requests[0][1]["x-vendor-trace"] == f"{spans['POST'].trace}:{spans['POST'].id}"
    assert {each["name"] for each in read_lines(lines)} == CALL
    assert has_metric(collector, b"gateway.calls.running")
    assert not has_metric(collector, b"gateway.decisions")


def has_metric(collector: Collector, name: bytes) -> bool:
    sent = zip(collector.requests, collector.payloads, strict=True)
    return any(path == "/v1/metrics" and name in body for (path, _), body in sent)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "OTEL_CONFIG_FILE cannot be used"),
        ("file_format: [hunter2", "OTEL_CONFIG_FILE cannot be used"),
        ('file_format: "1.0"\ntracer_provider: hunter2\n', "OTEL_CONFIG_FILE cannot be used"),
    ],
    ids=["missing", "not YAML", "not of the schema"],
)
async def test_a_file_that_cannot_be_used_stops_the_start(tmp_path: Path, content: str | None, problem: str) -> None:
    path = tmp_path / "sdk.yaml"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    async with start_call_counter() as backend:
        settings = Settings.model_validate({"configs": write(tmp_path / "p", approval_client(backend.port))})

    with pytest.raises(InvalidTelemetry, match=problem) as raised:
        prepare_app(settings, environ={**environ_of(PEOPLE), "OTEL_CONFIG_FILE": str(path)})

    assert "hunter2" not in f"{raised.value.message}{raised.value.help}"


async def test_a_file_that_nothing_reads_is_refused_with_the_name_of_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sdk.yaml"
    path.write_text(CONFIGURATION, encoding="utf-8")
    async with start_call_counter() as backend:
        settings = Settings.model_validate({"configs": write(tmp_path / "p", approval_client(backend.port))})
    monkeypatch.setitem(sys.modules, "opentelemetry.configuration", None)  # as without the package

    with pytest.raises(InvalidTelemetry, match="OTEL_CONFIG_FILE needs a package that is not installed") as raised:
        prepare_app(settings, environ={**environ_of(PEOPLE), "OTEL_CONFIG_FILE": str(path)})

    assert 'pip install "agent-gateway[otel-config]"' in str(raised.value.help)

"""Parts of the OpenTelemetry SDK from another package: each has an effect on the spans of calls."""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.app.app import prepare_app
from gateway.app.settings import Settings
from gateway.telemetry.settings import InvalidTelemetry
from tests.support.gateways.gate_projects import ANA, PEOPLE, approval_client, write
from tests.support.gateways.process import start_gateway_process
from tests.support.gateways.projects import (
    CallCounter,
    Caller,
    GatewayUnderTest,
    environ_of,
    send_http,
    start_call_counter,
    start_gateway,
)
from tests.support.paths import ROOT
from tests.support.servers.otlp_collector import Collector, sending_to, start_collector, wait_for_spans

pytestmark = pytest.mark.anyio

MODULE = "vendor_telemetry"
ENTRY_POINTS = f"""
[opentelemetry_traces_exporter]
lines = {MODULE}:LineExporter
[opentelemetry_traces_sampler]
by_name = {MODULE}:NameSampler
[opentelemetry_sampler]
no_lists = {MODULE}:drop_lists
[opentelemetry_propagator]
vendor = {MODULE}:HeaderPropagator
[opentelemetry_resource_detector]
rack = {MODULE}:RackDetector
[opentelemetry_id_generator]
prefixed = {MODULE}:PrefixedIds
[opentelemetry_tracer_provider]
stamped = {MODULE}:StampedProvider
"""
REST_CALL = "POST /v1/catalogues/{catalogue}/tools/{name}/call"
CALL = {"tools/call plain", "execute_tool plain", "POST"}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the package into a folder, and return the folder."""
    folder = tmp_path / "installed"
    source = ROOT / "tests" / "support" / "telemetry_package" / f"{MODULE}.py"
    described = folder / f"{MODULE}-1.0.dist-info"
    described.mkdir(parents=True)
    (folder / source.name).write_bytes(source.read_bytes())
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {MODULE}\nVersion: 1.0\n", encoding="utf-8")
    (described / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    return folder


@asynccontextmanager
async def gateway(tmp_path: Path, **environ: str) -> AsyncIterator[tuple[GatewayUnderTest, Collector, CallCounter]]:
    async with start_collector() as collector, start_call_counter() as backend:
        project = write(tmp_path / "p", wait_for_spans(approval_client(backend.port)))
        known = {**sending_to(collector), **environ}
        async with start_gateway(project, tmp_path / "data", people=PEOPLE, environ=known) as running:
            yield running, collector, backend


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


async def test_an_exporter_gets_the_spans_beside_the_collector(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "spans.jsonl"
    monkeypatch.setenv("VENDOR_FILE", str(path))
    async with gateway(tmp_path, OTEL_TRACES_EXPORTER="otlp,lines") as (running, collector, _):
        await running.caller(ANA).modern_call("desk", "plain", {"text": "x"})
        [sent] = await collector.named("execute_tool plain")

    lines = {each["name"]: each for each in read_lines(path)}
    assert lines.keys() == CALL
    execution = lines["execute_tool plain"]
    assert execution["context"]["trace_id"] == f"0x{sent.trace}"
    assert execution["parent_id"] == f"0x{sent.parent}"
    assert execution["attributes"] == dict(sent.attributes)
    assert execution["kind"] == "SpanKind.INTERNAL"
    assert execution["resource"]["attributes"]["process.pid"] == sent.resource["process.pid"] > 0


async def test_a_sampler_decides_when_a_span_starts(
    tmp_path: Path, package: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {"OTEL_TRACES_SAMPLER": "by_name", "OTEL_TRACES_SAMPLER_ARG": "tools/list"}
    with caplog.at_level(logging.INFO, "gateway.telemetry"):
        async with gateway(tmp_path, **environ) as (running, collector, backend):
            await running.caller(ANA).modern("desk", "tools/list")
            await running.caller(ANA).modern_call("desk", "plain", {"text": "x"})
            await collector.until(lambda known: len(known.spans) >= 3)

    spans = {each.name: each for each in collector.spans}
    assert spans.keys() == CALL
    assert all(each["vendor.sampled"] for each in collector.spans)
    assert (spans["execute_tool plain"].trace, spans["execute_tool plain"].parent) == spans["tools/call plain"].address
    assert (spans["POST"].trace, spans["POST"].parent) == spans["execute_tool plain"].address
    assert backend.requests[0][1]["traceparent"] == f"00-{spans['POST'].trace}-{spans['POST'].id}-01"
    [line] = [each.getMessage() for each in caplog.records if "spans are sent" in each.getMessage()]
    assert "OTEL_TRACES_SAMPLER=by_name" in line


async def test_a_propagator_reads_and_writes_the_trace_context(tmp_path: Path, package: Path) -> None:
    async with gateway(tmp_path, OTEL_PROPAGATORS="vendor") as (running, collector, backend):
        caller = running.caller(ANA)
        caller.headers += [
            ("x-vendor-trace", f"{'a' * 32}:{'b' * 16}"),
            ("traceparent", f"00-{'c' * 32}-{'d' * 16}-01"),
        ]
        await caller.modern_call("desk", "plain", {"text": "x"})
        await caller.rest_call("desk", "plain", {"text": "x"})
        servers = [*await collector.named("tools/call plain"), *await collector.named(REST_CALL)]
        hops = await collector.named("POST", 2)

    assert {each.links for each in servers} == {(("a" * 32, "b" * 16),)}
    sent = [headers for _, headers, _ in backend.requests]
    assert [each["x-vendor-trace"] for each in sent] == [f"{each.trace}:{each.id}" for each in hops]
    assert not any("traceparent" in each for each in sent)


async def test_a_detector_describes_the_sender_and_a_generator_makes_ids(tmp_path: Path, package: Path) -> None:
    environ = {"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "rack", "OTEL_PYTHON_ID_GENERATOR": "prefixed"}
    async with gateway(tmp_path, **environ) as (running, collector, _):
        await running.caller(ANA).modern_call("desk", "plain", {"text": "x"})
        [span] = await collector.named("execute_tool plain")

    assert span.resource["vendor.rack"] == 7
    assert span.resource["service.name"] == "agent-gateway"
    assert span.trace.startswith("feed")


async def test_the_provider_of_the_process_and_its_processors_are_used(tmp_path: Path, package: Path) -> None:
    """As with `opentelemetry-instrument`: the process has a provider before the gateway starts."""
    path = tmp_path / "spans.jsonl"
    async with start_call_counter() as backend, aiohttp.ClientSession() as session:
        kept = tmp_path / "kept.jsonl"
        sent_to = {"exporter": {"type": "file", "path": str(kept)}, "sample": {"ratio": 0.0}}
        project = write(tmp_path / "p", wait_for_spans(approval_client(backend.port), traces=sent_to))
        env = {
            **environ_of(PEOPLE),
            "PYTHONPATH": f"{package}:{ROOT}",
            "VENDOR_FILE": str(path),
            "OTEL_PYTHON_TRACER_PROVIDER": "stamped",
        }
        with start_gateway_process(project, tmp_path / "data", env=env, is_forked=False) as running:
            caller = Caller(send_http(session, running.url), ANA.token)
            assert (await caller.rest_call("desk", "plain", {"text": "x"})).status == 200
            assert await asyncio.to_thread(running.stop) == 0
        sent = backend.requests[0][1]["traceparent"]

    beside = [span for line in read_lines(kept) for scope in _scopes(line) for span in scope["spans"]]
    assert sorted(each["name"] for each in beside) == ["POST", REST_CALL, "execute_tool plain"]
    lines = {each["name"]: each for each in read_lines(path)}
    assert lines.keys() == {REST_CALL, "execute_tool plain", "POST"}
    assert {each["attributes"]["vendor.stamp"] for each in lines.values()} == {"as it started"}
    assert {each["resource"]["attributes"]["service.name"] for each in lines.values()} == {"of the process"}
    assert lines["execute_tool plain"]["attributes"]["gateway.decision"] == "allow"
    assert lines["execute_tool plain"]["parent_id"] == lines[REST_CALL]["context"]["span_id"]
    assert sent.split("-")[1:3] == [lines["POST"]["context"][each][2:] for each in ("trace_id", "span_id")]


def _scopes(line: dict[str, Any]) -> list[dict[str, Any]]:
    return [scope for resource in line.get("resourceSpans", ()) for scope in resource["scopeSpans"]]


@pytest.mark.parametrize(
    ("variable", "value", "names"),
    [
        ("OTEL_TRACES_EXPORTER", "otlp,missing-part", "OTEL_TRACES_EXPORTER"),
        ("OTEL_TRACES_SAMPLER", "missing-part", "OTEL_TRACES_SAMPLER"),
        ("OTEL_PROPAGATORS", "tracecontext,missing-part", "OTEL_PROPAGATORS"),
        ("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", "missing-part", "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS"),
        ("OTEL_PYTHON_ID_GENERATOR", "missing-part", "OTEL_PYTHON_ID_GENERATOR"),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "some", "OTEL_SPAN_EVENT_COUNT_LIMIT"),
    ],
)
async def test_what_is_not_installed_stops_the_start(tmp_path: Path, variable: str, value: str, names: str) -> None:
    async with start_call_counter() as backend:
        project = write(tmp_path / "p", wait_for_spans(approval_client(backend.port)))
    settings = Settings.model_validate({"configs": project})
    environ = {**environ_of(PEOPLE), "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", variable: value}

    with pytest.raises(InvalidTelemetry, match=names) as raised:
        prepare_app(settings, environ=environ)

    assert "missing-part" not in f"{raised.value.message}{raised.value.help}"

"""Metrics through the SDK: exporters, readers and views of other packages, its variables, and a provider in use."""

import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import View

from gateway.telemetry import names
from gateway.telemetry.sdk_components import VIEWS
from gateway.telemetry.settings import InvalidTelemetry
from tests.support.gateways.gate_projects import ANA, PEOPLE, approval_client, write
from tests.support.gateways.projects import GatewayUnderTest, start_call_counter, start_gateway
from tests.support.servers.otlp_collector import Collector, sending_to, start_collector
from tests.support.servers.telemetry_plugins import install_plugins

pytestmark = pytest.mark.anyio

EXPORTERS = "opentelemetry_metrics_exporter"
DURATIONS = names.EXECUTE_DURATION.name
QUICKLY = {"OTEL_METRIC_EXPORT_INTERVAL": "50"}
PREFERENCE = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
AGGREGATION = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"


@asynccontextmanager
async def start_desk(folder: Path, environ: Mapping[str, str]) -> AsyncIterator[GatewayUnderTest]:
    async with start_call_counter() as backend:
        project = write(folder / "p", approval_client(backend.port))
        async with start_gateway(project, folder / "data", people=PEOPLE, environ=environ) as gateway:
            for number in range(3):
                assert (await gateway.caller(ANA).rest_call("desk", "plain", {"text": str(number)})).status == 200
            yield gateway


def exported(collector: Collector) -> list[Any]:
    """Return the durations of calls in every export."""
    return [
        metric
        for payload, (path, _) in zip(collector.payloads, collector.requests, strict=True)
        if path == "/v1/metrics"
        for resource in MetricsData.FromString(payload).resource_metrics
        for scoped in resource.scope_metrics
        for metric in scoped.metrics
        if metric.name == DURATIONS
    ]


async def test_exporter_and_reader_of_another_package_get_what_the_collector_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gateway")
    file = tmp_path / "metrics.jsonl"
    monkeypatch.setenv("ACME_METRICS", str(file))
    found = {EXPORTERS: {"acme_file": "FileExporter", "acme_reader": "KeptReader"}}
    async with start_collector() as collector:
        environ = {**sending_to(collector), **QUICKLY, "OTEL_METRICS_EXPORTER": "otlp, acme_file, acme_reader"}
        with install_plugins(tmp_path, found):
            async with start_desk(tmp_path, environ):
                [reader] = sys.modules["acme_telemetry"].READERS
                await collector.until(exported)
                [read] = [each for each in metrics_of(reader) if each.name == DURATIONS]

    where = f"OTLP over http to {collector.url.removeprefix('http://')}"
    assert f"metrics are sent: {where}; exporter acme_file; exporter acme_reader" in caplog.messages
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    [written] = [
        each for each in lines[-1]["resource_metrics"][0]["scope_metrics"][0]["metrics"] if each["name"] == DURATIONS
    ]
    assert exported(collector)[-1].histogram.data_points[0].count == 3
    assert read.data.data_points[0].count == 3
    assert written["data"]["data_points"][0]["count"] == 3


def metrics_of(reader: InMemoryMetricReader) -> list[Any]:
    data = reader.get_metrics_data()
    assert data is not None
    return [metric for each in data.resource_metrics[0].scope_metrics for metric in each.metrics]


async def test_view_of_another_package_changes_what_is_exported_and_served(tmp_path: Path) -> None:
    async with start_collector() as collector:
        with install_plugins(tmp_path, {VIEWS: {"acme": "views"}}):
            async with start_desk(tmp_path, {**sending_to(collector), **QUICKLY}) as gateway:
                await collector.until(exported)
                text, _ = await gateway.running.metering.render("")

    point = exported(collector)[-1].histogram.data_points[0]
    assert [each.key for each in point.attributes] == [names.TOOL_NAME]
    assert list(point.explicit_bounds) == [0.5, 60.0]
    assert b'gen_ai_execute_tool_duration_seconds_bucket{gen_ai_tool_name="plain",le="60"} 3\n' in text


@pytest.mark.parametrize(
    ("variables", "is_so"),
    [
        ({}, lambda metric: metric.histogram.aggregation_temporality == 2),
        ({PREFERENCE: "delta"}, lambda metric: metric.histogram.aggregation_temporality == 1),
        ({PREFERENCE: "lowmemory"}, lambda metric: metric.histogram.aggregation_temporality == 1),
        (
            {AGGREGATION: "base2_exponential_bucket_histogram"},
            lambda metric: metric.exponential_histogram.data_points[0].count == 3,
        ),
        (
            {"OTEL_METRICS_EXEMPLAR_FILTER": "always_off"},
            lambda metric: not metric.histogram.data_points[0].exemplars,
        ),
        (
            {"OTEL_METRICS_EXEMPLAR_FILTER": "trace_based"},
            lambda metric: metric.histogram.data_points[0].exemplars,
        ),
    ],
    ids=["default", "delta", "lowmemory", "exponential", "no-exemplars", "exemplars"],
)
async def test_variables_of_the_sdk_have_an_effect(
    variables: dict[str, str], is_so: Callable[[Any], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    async with start_collector() as collector:
        environ = {**sending_to(collector), **variables}
        async with start_desk(tmp_path, environ) as gateway:
            text, _ = await gateway.running.metering.render("")

    assert is_so(exported(collector)[0])  # the export at the end
    assert b"gen_ai_execute_tool_duration_seconds_count{" in text


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        (PREFERENCE, "sometimes"),
        (AGGREGATION, "linear"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "often"),
        ("OTEL_METRIC_EXPORT_TIMEOUT", "soon"),
        ("OTEL_METRICS_EXPORTER", "otlp,none"),
        ("OTEL_METRICS_EXPORTER", "missing"),
        ("OTEL_METRICS_EXPORTER", "acme_number"),
    ],
)
async def test_what_the_sdk_would_ignore_stops_the_start(variable: str, value: str, tmp_path: Path) -> None:
    plugins = install_plugins(tmp_path, {EXPORTERS: {"acme_number": "no_exporter"}})
    with plugins, pytest.raises(InvalidTelemetry) as raised:
        async with start_desk(tmp_path, {variable: value}):
            pass

    assert variable in f"{raised.value.message} {raised.value.help}"


async def test_view_that_is_none_stops_the_start(tmp_path: Path) -> None:
    plugins = install_plugins(tmp_path, {VIEWS: {"acme": "broken_views"}})
    with plugins, pytest.raises(InvalidTelemetry, match="no view"):
        async with start_desk(tmp_path, {}):
            pass


async def test_provider_of_the_process_is_used_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    views = [View(instrument_name=DURATIONS, name="calls")]
    provider = MeterProvider([reader], views=views, shutdown_on_exit=False)
    monkeypatch.setattr("opentelemetry.metrics._internal._METER_PROVIDER", provider)
    texts = []
    async with start_collector() as collector:
        environ = {**sending_to(collector), "OTEL_METRICS_EXPORTER": "otlp"}  # which configured that provider
        for folder in (tmp_path / "one", tmp_path / "two"):
            async with start_desk(folder, environ) as gateway:
                texts.append((await gateway.running.metering.render(""))[0])
                running = [each for each in metrics_of(reader) if each.name == names.RUNNING.name]

    after = metrics_of(reader)
    calls = [each for each in after if each.name == "calls"]
    assert [each.data.data_points[0].count for each in calls] == [3, 3]
    assert running
    assert [each for each in after if each.name == names.PROCESS_UPTIME.name] == []  # nothing is read after the end
    assert all(b"calls_seconds_count{" in each for each in texts)
    assert "/v1/metrics" not in {path for path, _ in collector.requests}

"""Metrics as text: names, labels that cannot break out, and features that only OpenMetrics has."""

import re
import subprocess
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.sdk.metrics import Histogram as SdkHistogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View

from gateway.telemetry import names
from gateway.telemetry.export.otlp_exporters import to_message
from gateway.telemetry.export.prometheus_text import (
    Exposition,
    Format,
    Labels,
    label_name,
    negotiate_format,
    parse_metrics,
    prometheus_name,
)
from gateway.telemetry.instruments import Counter, Histogram, observe
from tests.support.prometheus_programs import find_prometheus_program

SAMPLE = re.compile(r'[a-z_]+(\{([a-zA-Z_][a-zA-Z0-9_]*="(\\.|[^"\\\n])*",?)*\})? [-+0-9.e]+( # .*)?')
ABOUT = (("service.name", "agent-gateway"),)


def some(*, wiki: str = "wiki", views: Sequence[View] = ()) -> MetricsData:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], views=views, shutdown_on_exit=False)
    meter = provider.get_meter("gateway")
    calls = Histogram(names.EXECUTE_DURATION, meter)
    calls.record(("execute_tool", "quote", "function", None, "shop", "open"), 0.015, ("a" * 32, "b" * 16))
    calls.record(("execute_tool", "quote", "function", "tool_error", "shop", "open"), 100)
    decisions = Counter(names.DECISIONS, meter)
    decisions.add(("deny", "rule-denied", "shop", "open", "no-refunds"))
    spool = Counter(names.SPOOL_BYTES, meter)
    spool.add(("shop",), 1234)
    for each in (calls, decisions, spool):
        each.hand_over()
    observe(names.CIRCUITS, meter, lambda: [((None, wiki), 2)])
    observe(names.APPROVALS_PENDING, meter, lambda: [(("leads-agree",), 1)])
    provider.get_meter("a.tool").create_counter("lookups", "1", 'of "all"\nkinds').add(
        2, {"2nd": True, "parts": ["a", "b"]}
    )
    return to_message(reader.get_metrics_data())


def text_of(data: MetricsData, format: Format, about: Labels = ()) -> str:
    exposition = Exposition(format)
    exposition.add(data)
    return exposition.text(about).decode()


def test_text_is_what_it_should_be() -> None:
    lines = text_of(some(), "text", ABOUT).splitlines()

    assert lines[:3] == [
        "# TYPE target_info gauge",
        "# HELP target_info the process that reports these metrics",
        'target_info{service_name="agent-gateway"} 1',
    ]
    labels = (
        'gen_ai_operation_name="execute_tool",gen_ai_tool_name="quote",gen_ai_tool_type="function",'
        'gateway_catalogue_name="shop",gateway_trust_tier="open"'
    )
    assert f'gen_ai_execute_tool_duration_seconds_bucket{{{labels},le="0.01"}} 0' in lines
    assert f'gen_ai_execute_tool_duration_seconds_bucket{{{labels},le="0.02"}} 1' in lines
    assert f'gen_ai_execute_tool_duration_seconds_bucket{{{labels},le="+Inf"}} 1' in lines
    assert f"gen_ai_execute_tool_duration_seconds_sum{{{labels}}} 0.015" in lines
    assert 'gateway_spool_bytes_total{gateway_catalogue_name="shop"} 1234' in lines
    assert 'gateway_upstream_circuit_state{gateway_upstream_name="wiki"} 2' in lines
    assert "# TYPE gateway_decisions_total counter" in lines
    assert "# TYPE gateway_approvals_pending gauge" in lines
    assert "# EOF" not in lines


def test_openmetrics_has_examples_units_and_an_end() -> None:
    text = text_of(some(), "openmetrics")

    example = f'# {{trace_id="{"a" * 32}",span_id="{"b" * 16}"}} 0.015 '
    assert [line for line in text.splitlines() if example in line and 'le="0.02"' in line]
    assert "# TYPE gateway_decisions counter\n" in text
    assert "# UNIT gateway_spool_bytes bytes\n" in text
    assert text.endswith("# EOF\n")
    assert "trace_id" not in text_of(some(), "text")


def test_metrics_of_other_libraries_have_their_scope() -> None:
    lines = text_of(some(), "text").splitlines()

    assert 'lookups_total{key_2nd="true",parts="[\\"a\\",\\"b\\"]",otel_scope_name="a.tool"} 2' in lines
    assert '# HELP lookups_total of "all"\\nkinds' in lines


def test_metrics_of_several_processes_are_labelled_and_those_of_the_store_are_not() -> None:
    exposition = Exposition("text")
    for worker in ("0", "1"):
        exposition.add(parse_metrics(some().SerializeToString()), (("worker", worker),))
    lines = exposition.text().decode().splitlines()

    spooled = [line for line in lines if line.startswith("gateway_spool_bytes_total{")]
    assert spooled == [f'gateway_spool_bytes_total{{gateway_catalogue_name="shop",worker="{n}"}} 1234' for n in (0, 1)]
    assert lines.count("# TYPE gateway_spool_bytes_total counter") == 1
    assert [line for line in lines if line.startswith("gateway_approvals_pending{")] == [
        'gateway_approvals_pending{gateway_gate_name="leads-agree"} 1'
    ]


@pytest.mark.parametrize("content", [b"[]", b"\xff", b'{"no.such": []}'])
def test_what_is_no_metrics_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="not encoded metrics"):
        parse_metrics(content)


def test_exponential_histogram_has_its_sum_and_count() -> None:
    view = View(instrument_type=SdkHistogram, aggregation=ExponentialBucketHistogramAggregation())

    lines = text_of(some(views=[view]), "text").splitlines()

    found = [line for line in lines if line.startswith("gen_ai_execute_tool") and "tool_error" in line]
    assert [line.rpartition(" ")[2] for line in found] == ["1", "100", "1"]
    assert 'le="+Inf"' in found[0]


def test_two_metrics_with_one_name_and_different_types_leave_the_text_readable() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    provider.get_meter("one").create_up_down_counter("load").add(1)
    provider.get_meter("two").create_histogram("load").record(1)

    text = text_of(to_message(reader.get_metrics_data()), "text")

    assert text.count("# TYPE load ") == 1
    assert 'load{otel_scope_name="one"} 1' in text
    assert "two" not in text


@given(st.text())
def test_no_value_breaks_out_of_its_label(value: str) -> None:
    data = some()
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        if metric.name == names.CIRCUITS.name:
            metric.gauge.data_points[0].attributes[0].value.string_value = value.encode("utf-8", "replace").decode()

    samples = [line for line in text_of(data, "text").split("\n") if line.startswith("gateway_upstream_circuit_state")]

    assert len(samples) == 1
    assert SAMPLE.fullmatch(samples[0])


def test_names_follow_the_rules_of_prometheus() -> None:
    for metric in names.METRICS:
        assert re.fullmatch(r"[a-z_]+", prometheus_name(metric)), metric.name
        assert prometheus_name(metric).endswith("_total") == (metric.instrument == "counter")
        assert all(re.fullmatch(r"[a-z_]+", label_name(each)) for each in metric.attributes)


@pytest.mark.parametrize(
    ("accept", "format"),
    [("", "text"), ("*/*", "text"), ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", "openmetrics")],
)
def test_format_is_the_one_that_is_asked_for(accept: str, format: str) -> None:
    assert negotiate_format(accept) == format


def test_prometheus_itself_finds_nothing_wrong() -> None:
    promtool = find_prometheus_program("promtool")
    data = some()
    del data.resource_metrics[0].scope_metrics[1:]  # metrics of others need not follow its advice

    found = subprocess.run(
        [promtool, "check", "metrics"], input=text_of(data, "text").encode(), capture_output=True, timeout=60
    )

    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")

"""Metrics as text: names, labels that cannot break out, and features that only OpenMetrics has."""

import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry import names
from gateway.telemetry.metric_instruments import Counter, Family, Histogram, gauge_family
from gateway.telemetry.metrics import format_exposition, label_name, negotiate_format, prometheus_name

SAMPLE = re.compile(r'[a-z_]+(\{([a-zA-Z_][a-zA-Z0-9_]*="(\\.|[^"\\\n])*",?)*\})? [-+0-9.e]+( # .*)?')


def some() -> list[Family]:
    calls = Histogram(names.EXECUTE_DURATION)
    calls.record(
        ("execute_tool", "quote", "function", None, "shop", "open"), 0.015, trace_id="a" * 32, span_id="b" * 16
    )
    calls.record(("execute_tool", "quote", "function", "tool_error", "shop", "open"), 100)
    decisions = Counter(names.DECISIONS)
    decisions.add(("deny", "rule-denied", "shop", "open", "no-refunds"))
    spool = Counter(names.SPOOL_BYTES)
    spool.add(("shop",), 1234)
    return [calls.read(), decisions.read(), spool.read(), gauge_family(names.CIRCUITS, [((None, "wiki"), 2)])]


def test_text_is_what_it_should_be() -> None:
    lines = format_exposition(some(), "text", about=(("service.name", "agent-gateway"),)).decode().splitlines()

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
    assert "# EOF" not in lines


def test_openmetrics_has_examples_units_and_an_end() -> None:
    text = format_exposition(some(), "openmetrics").decode()

    example = f'# {{trace_id="{"a" * 32}",span_id="{"b" * 16}"}} 0.015 '
    assert example in text
    assert "# TYPE gateway_decisions counter\n" in text
    assert "# UNIT gateway_spool_bytes bytes\n" in text
    assert text.endswith("# EOF\n")
    assert "trace_id" not in format_exposition(some(), "text").decode()


def test_metric_without_points_is_left_out() -> None:
    assert format_exposition([Counter(names.LIMITS).read()], "text") == b"\n"


@given(st.text())
def test_no_value_breaks_out_of_its_label(value: str) -> None:
    text = format_exposition([gauge_family(names.CIRCUITS, [((value, None), 1)])], "text").decode()

    samples = [line for line in text.split("\n") if line and not line.startswith("#")]
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
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; Debian's package prometheus has it")

    found = subprocess.run(
        [promtool, "check", "metrics"], input=format_exposition(some(), "text"), capture_output=True, timeout=60
    )

    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")

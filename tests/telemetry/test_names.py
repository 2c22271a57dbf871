"""Every name is repeated here on purpose: dashboards and alerts of operators depend on them."""

import os
from pathlib import Path

from gateway.telemetry import names

SNAPSHOT = Path(__file__).parent / "names.txt"


def format_names() -> str:
    lines = [f"schema {names.SCHEMA_URL}", f"scope {names.SCOPE}"]
    lines += [f"span {name}" for name in sorted(names.SPANS)]
    lines += [f"attribute {name}" for name in sorted(names.ATTRIBUTES)]
    lines += [f"event {name}" for name in sorted(names.EVENTS)]
    for metric in sorted(names.METRICS, key=lambda each: each.name):
        lines.append(f"metric {metric.name} {metric.instrument} {metric.unit} {','.join(metric.attributes)}")
        lines += [f"buckets {metric.name} {','.join(map(str, metric.buckets))}"] if metric.buckets else []
    return "\n".join(lines) + "\n"


def test_no_name_changes_unnoticed() -> None:
    if os.environ.get("GATEWAY_UPDATE_GOLDEN"):
        SNAPSHOT.write_text(format_names(), encoding="utf-8")

    assert format_names() == SNAPSHOT.read_text(encoding="utf-8")


def test_every_attribute_has_a_constant_and_a_meaning() -> None:
    not_attributes = {
        *(names.SCOPE, names.SCHEMA_URL, names.EXECUTE_TOOL, names.TOOLS_CALL, names.TOOL_ERROR, names.OTHER),
        *(
            names.DISPATCH,
            names.ITERATION,
            names.TURN,
            names.DECIDE,
            names.GATE,
            names.REFRESH,
            names.QUEUE_FULL,
            *names.EVENTS,
        ),
    }
    constants = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}

    assert constants - not_attributes == set(names.ATTRIBUTES)


def test_metrics_carry_nothing_that_grows_with_callers_or_calls() -> None:
    endless = {names.PRINCIPAL, names.TENANT, names.CALL_ID, names.TOOL_CALL_ID, names.TURN_ID, names.REQUEST_ID}
    endless |= {names.ARGUMENT_KEYS, names.TOOL_ARGUMENTS, names.TOOL_RESULT, names.MCP_SESSION, names.CLIENT_ADDRESS}

    assert [metric.name for metric in names.METRICS if not endless.isdisjoint(metric.attributes)] == []


def test_an_invented_tool_is_no_part_of_a_span_name() -> None:
    assert names.call_span(None) == "tools/call"

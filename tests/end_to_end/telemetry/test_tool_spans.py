"""A Python tool runs in the span of its call: its spans, and what it records, belong to the trace of the request."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

from gateway.telemetry import names
from tests.support.gateways.gate_projects import ANA, PEOPLE, approval_client, write
from tests.support.gateways.projects import (
    ANY_TEXT,
    Document,
    GatewayUnderTest,
    document,
    http_tool,
    start_call_counter,
    start_gateway,
)
from tests.support.servers.otlp_collector import Collector, Span, sending_to, start_collector, wait_for_spans

pytestmark = pytest.mark.anyio

TOOLS = "tests.support.tools.traced_tools"
CONTENT = "a-text-of-the-call"
MODES = ("loop", "thread", "process")


def traced_tool(name: str, function: str, run: str) -> Document:
    spec: dict[str, Any] = {
        "version": "1.0.0",
        "description": "Traced.",
        "input": {"schema": ANY_TEXT},
        "backend": {"type": "python", "entrypoint": f"{TOOLS}:{function}", "run": run},
        "trust": {"tier": "internal", "flags": []},
    }
    return document("Tool", name, spec)


@asynccontextmanager
async def gateway(tmp_path: Path, **telemetry: Any) -> AsyncIterator[tuple[GatewayUnderTest, Collector]]:
    async with start_collector() as collector, start_call_counter() as backend:
        tools = [traced_tool(f"{run}_inside", "spans_within", run) for run in MODES]
        tools += [traced_tool(f"{run}_later", "spans_within_later", run) for run in MODES]
        tools += [traced_tool(f"{run}_fails", "fails", run) for run in MODES]
        tools += [traced_tool(f"{run}_describes", "describe", run) for run in MODES]
        tools += [http_tool("closed", 1)]
        documents = wait_for_spans(approval_client(backend.port, tools=tools), **telemetry)
        project = write(tmp_path / "p", documents)
        environ = {**sending_to(collector), "GATEWAY_PYTHON_PACKAGES": TOOLS}
        settings = {"python_packages": (TOOLS,)}
        async with start_gateway(project, tmp_path / "data", people=PEOPLE, environ=environ, **settings) as running:
            yield running, collector


async def call(running: GatewayUnderTest, collector: Collector, tool: str) -> tuple[str, Span]:
    """Return the text of the result, and the span of the call."""
    answer = await running.caller(ANA).modern_call("desk", tool, {"text": CONTENT})
    [span] = await collector.named(f"execute_tool {tool}")
    return json.dumps(answer.json), span


def json_in(text: str) -> Any:
    inner = json.loads(text)["result"]["content"][0]["text"]
    return json.loads(inner[inner.index("{") : inner.rindex("}") + 1])


@pytest.mark.parametrize("function", ["inside", "later"])
@pytest.mark.parametrize("run", MODES)
async def test_spans_of_a_tool_are_below_its_call(tmp_path: Path, run: str, function: str) -> None:
    async with gateway(tmp_path) as (running, collector):
        text, span = await call(running, collector, f"{run}_{function}")

    found = json_in(text)
    assert found["parent"] == [span.trace, span.id]
    assert found["sent"] == found["inner"]
    assert not trace.get_current_span().get_span_context().is_valid


async def test_calls_at_once_have_each_their_own_span(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (running, collector):
        answers = await asyncio.gather(
            *(
                running.caller(ANA).modern_call("desk", f"{run}_later", {"text": f"{CONTENT}-{number}"})
                for run in MODES
                for number in range(4)
            )
        )
        spans = [span for run in MODES for span in await collector.named(f"execute_tool {run}_later", 4)]

    parents = {tuple(json_in(json.dumps(answer.json))["parent"]) for answer in answers}
    assert parents == {span.address for span in spans}
    assert len(parents) == 12


@pytest.mark.parametrize("run", ["loop", "thread"])
async def test_what_a_tool_records_is_on_the_span_of_its_call(tmp_path: Path, run: str) -> None:
    async with gateway(tmp_path) as (running, collector):
        _, span = await call(running, collector, f"{run}_describes")

    assert [span[f"shop.{name}"] for name in ("items", "names", "price", "open")] == [3, ["chair", "desk"], 1.5, True]
    assert (span[names.DECISION], span[names.TOOL_NAME], span.is_error) == ("allow", f"{run}_describes", False)
    [looked] = [each for each in span.events if each.name == "looked"]
    assert (looked.name, dict(looked.attributes)) == ("looked", {"shop.shelf": 2})
    assert span.times[0] <= looked.at <= span.times[1]


@pytest.mark.parametrize("run", MODES)
async def test_a_failure_names_the_exception_and_its_place_but_no_content(tmp_path: Path, run: str) -> None:
    async with gateway(tmp_path) as (running, collector):
        _, span = await call(running, collector, f"{run}_fails")

    assert (span.is_error, span[names.ERROR_TYPE]) == (True, "KeyError")
    [event] = [each for each in span.events if each.name == names.EXCEPTION]
    assert (event.name, event[names.EXCEPTION_TYPE]) == ("exception", "KeyError")
    assert event[names.EXCEPTION_PLACES].splitlines()[-1].endswith(", in fails")
    assert "traced_tools.py" in event[names.EXCEPTION_PLACES]
    assert CONTENT not in str(dict(event.attributes))


async def test_a_failure_of_a_service_names_its_status_or_the_connection(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (running, collector):
        _, closed = await call(running, collector, "closed")

    assert closed[names.ERROR_TYPE] == "ConnectionRefusedError"


async def test_a_tool_has_no_span_where_nothing_is_observed(tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        documents = approval_client(backend.port, tools=[traced_tool("inside", "spans_within", "loop")])
        project = write(tmp_path / "p", documents)
        environ = {"GATEWAY_PYTHON_PACKAGES": TOOLS}
        settings = {"python_packages": (TOOLS,)}
        async with start_gateway(project, tmp_path / "data", people=PEOPLE, environ=environ, **settings) as running:
            answer = await running.caller(ANA).modern_call("desk", "inside", {"text": CONTENT})

    assert json_in(json.dumps(answer.json))["parent"] is None

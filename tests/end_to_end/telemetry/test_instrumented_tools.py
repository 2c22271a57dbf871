"""One tree from an agent's span to those of what its tools use: instrumented libraries, services and servers.

Every party has an SDK of its own. The packages that instrument libraries are installed once into the user's cache
folder; without a package registry, these tests are skipped.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.end_to_end.telemetry.test_backends import cache
from tests.end_to_end.telemetry.test_tool_spans import MODES
from tests.support.gateways.process import start_gateway_process
from tests.support.gateways.projects import ANY_TEXT, Document, document
from tests.support.paths import ROOT
from tests.support.servers.otel_agent import call_with_trace, reference, start_traced_service, written
from tests.support.servers.otlp_collector import Collector, start_collector

pytestmark = pytest.mark.anyio

TOOLS = "tests.support.tools.instrumented_tools"
PACKAGES = (
    *("opentelemetry-instrumentation==0.66b2", "opentelemetry-instrumentation-aiohttp-client==0.66b1"),
    *("opentelemetry-instrumentation-sqlalchemy==0.66b1", "opentelemetry-util-http==0.66b2"),
    *("opentelemetry-distro==0.66b1", "wrapt==1.17.3", "greenlet==3.5.6"),
)
INSTRUMENT = (sys.executable, "-c", "from opentelemetry.instrumentation.auto_instrumentation import run; run()")
"""What the script `opentelemetry-instrument` does."""


@pytest.fixture(scope="module")
def instrumentation() -> Path:
    folder = cache("instrumentation-0.66b2-1")
    if not (folder / "complete").exists():
        python = str(Path(sys.base_prefix, "bin", "python3"))  # an environment need not have pip
        command = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *PACKAGES]
        try:
            subprocess.run(command, capture_output=True, timeout=300, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"packages for instrumentation could not be installed: {type(error).__name__}")
        (folder / "complete").touch()
    return folder


def python_tool(run: str) -> Document:
    function = "look" if run == "loop" else "look_at_once"
    spec = {
        "version": "1.0.0",
        "description": "Looks at a shelf.",
        "input": {"schema": ANY_TEXT},
        "backend": {"type": "python", "entrypoint": f"{TOOLS}:{function}", "run": run},
        "trust": {"tier": "internal", "flags": []},
    }
    return document("Tool", f"look_in_{run}", spec)


def http_tool(url: str) -> Document:
    spec = {
        "version": "1.0.0",
        "description": "Asks the service.",
        "input": {"schema": {"type": "object", "properties": {}}},
        "backend": {"type": "http", "method": "GET", "url": url},
        "trust": {"tier": "internal", "flags": []},
    }
    return document("Tool", "shelf", spec)


def calls_of(collector: str, service: str) -> list[tuple[str, Mapping[str, str]]]:
    """Return the calls of the agent: of every kind of tool."""
    text = json.dumps({"collector": collector, "service": service})
    return [*((f"look_in_{run}", {"text": text}) for run in MODES), ("echo", {"text": "hello"}), ("shelf", {})]


def environ_for(collector: str, instrumentation: Path, *, is_instrumented: bool) -> dict[str, str]:
    known = {
        "PYTHONPATH": os.pathsep.join([str(instrumentation), str(ROOT)]),
        "GATEWAY_PYTHON_PACKAGES": TOOLS,
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": "20",
    }
    if is_instrumented:
        known |= {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    return known


EXPECTED = {
    *((f"look_in_{run}", "shop", "look") for run in MODES),
    *((f"look_in_{run}", "opentelemetry.instrumentation.aiohttp_client", "GET") for run in MODES),
    *((f"look_in_{run}", "opentelemetry.instrumentation.sqlalchemy", "SELECT") for run in MODES),
    *((f"look_in_{run}", "service", "GET /shelf") for run in MODES),
    *(("echo", "gateway", "tools/call echo"), ("echo", "mcp-python-sdk", "tools/call echo")),
    *(("shelf", "gateway", "GET"), ("shelf", "service", "GET /shelf")),
}
"""Tool, scope and name of spans below the execution of each tool."""


@pytest.mark.parametrize("is_instrumented", [False, True], ids=["own provider", "opentelemetry-instrument"])
async def test_all_parties_are_in_the_tree_of_the_agent(
    tmp_path: Path, instrumentation: Path, is_instrumented: bool
) -> None:
    async with (
        start_collector() as collector,
        reference(collector.url, "modern") as (url, _),
        start_traced_service(collector.url) as service,
    ):
        project = written(tmp_path / "p", url, *map(python_tool, MODES), http_tool(service))
        env = environ_for(collector.url, instrumentation, is_instrumented=is_instrumented)
        before = INSTRUMENT if is_instrumented else ()
        with start_gateway_process(project, tmp_path / "data", env=env, is_forked=False, before=before) as gateway:
            endpoint = gateway.mcp("/shop")
            await call_with_trace(collector.url, endpoint, "2026-07-28", calls_of(collector.url, service))
            await collector.named("execute_tool shelf")
            assert await asyncio.to_thread(gateway.stop) == 0

    [agent] = collector.of("agent")
    below = below_executions(collector)
    assert set(below) >= EXPECTED
    assert {each.trace for each in collector.spans if each.name.startswith("execute_tool")} == {agent.trace}
    for tool, *_ in calls_of("", ""):
        assert path_to(collector, f"execute_tool {tool}") == [
            *(f"execute_tool {tool}", f"tools/call {tool}", f"MCP send tools/call {tool}", "agent")
        ]
    for run in MODES:
        assert below[f"look_in_{run}", "service", "GET /shelf"] == ["GET", "look"]
        assert below[f"look_in_{run}", "opentelemetry.instrumentation.sqlalchemy", "SELECT"] == ["look"]


def below_executions(collector: Collector) -> dict[tuple[str, str, str], Sequence[str]]:
    """Return what is below the execution of a tool, with the names of the spans between."""
    by_address = {each.address: each for each in collector.spans}
    found: dict[tuple[str, str, str], Sequence[str]] = {}
    for span in collector.spans:
        between, above = [], by_address.get((span.trace, span.parent))
        while above is not None and not above.name.startswith("execute_tool "):
            between.append(above.name)
            above = by_address.get((above.trace, above.parent))
        if above is not None:
            found[above.name.removeprefix("execute_tool "), span.scope, span.name] = between
    return found


def path_to(collector: Collector, name: str) -> list[str]:
    """Return the names from a span to its root."""
    by_address = {each.address: each for each in collector.spans}
    [span] = collector.of(name)
    path = [span]
    while path[-1].parent:
        path.append(by_address[path[-1].trace, path[-1].parent])
    return [each.name for each in path]

"""Telemetry through third-party programs: a real collector in between, and a dashboard that shows what it received.

Both are installed once into the user's cache folder. The dashboard is a large package and is skipped where SHORT is
set.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from gateway.telemetry import names
from tests.support.gateways.gate_projects import ANA, PEOPLE, approval_client, write
from tests.support.gateways.process import start_gateway_process
from tests.support.gateways.projects import start_call_counter, start_gateway
from tests.support.servers.otel_agent import call_with_trace, reference, written
from tests.support.servers.otlp_collector import Collector, start_collector, wait_for_spans

pytestmark = pytest.mark.anyio

ROTEL = "rotel==0.0.1a15"
ASPIRE = "@microsoft/aspire-cli-linux-x64@13.5.4"
WITHIN = 60


def cache(name: str) -> Path:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "agent-gateway-tests" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def install(command: list[str], program: Path, *, what: str) -> Path:
    """Return the path of the program; install it if necessary."""
    if not program.exists():
        try:
            found = subprocess.run(command, capture_output=True, timeout=300)
        except (OSError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"{what} could not be installed: {type(error).__name__}")
        if found.returncode or not program.exists():
            pytest.skip(f"{what} could not be installed; is a package registry reachable?")
    program.chmod(0o755)
    return program


@pytest.fixture(scope="module")
def rotel() -> Path:
    if sys.platform != "linux":
        pytest.skip("the collector is installed for Linux only")
    folder = cache(ROTEL)
    python = str(Path(sys.base_prefix, "bin", "python3"))  # an environment need not have pip
    command = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), ROTEL]
    return install(command, folder / "rotel" / "rotel-agent", what="rotel, a collector")


@pytest.fixture(scope="module")
def aspire() -> Path:
    if os.environ.get("SHORT"):
        pytest.skip("the Aspire dashboard is a package of 128 MB, and SHORT is set")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    folder = cache("aspire")
    program = folder / "node_modules" / "@microsoft" / "aspire-cli-linux-x64" / "bin" / "aspire"
    command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", ASPIRE]
    return install(command, program, what="the Aspire dashboard")


async def test_all_signals_pass_through_a_real_collector(tmp_path: Path, rotel: Path) -> None:
    async with start_collector() as collector, start_call_counter() as backend:
        ways = free_ports(2)
        options = [
            *("start", "--otlp-http-endpoint", f"127.0.0.1:{ways[0]}", "--otlp-grpc-endpoint", f"127.0.0.1:{ways[1]}"),
            *("--exporter", "otlp", "--otlp-exporter-protocol", "http", "--otlp-exporter-endpoint", collector.url),
            *("--otlp-exporter-compression", "none", "--batch-timeout", "100ms"),
            *("--pid-file", str(tmp_path / "pid")),
        ]
        project = write(tmp_path / "p", wait_for_spans(approval_client(backend.port)))
        async with program(rotel, options, tmp_path, ready=lambda: listens(ways[0])):
            env = environ(f"http://127.0.0.1:{ways[0]}")
            async with start_gateway(project, tmp_path / "data", people=PEOPLE, environ=env) as gateway:
                await gateway.caller(ANA).modern_call("desk", "plain", {"text": "x"})
                [executed] = await collector.named("execute_tool plain")
                [received] = await collector.named("tools/call plain")
                await collector.until(lambda known: known.events_named(names.CALL_STARTED))
                await collector.until(durations)

    assert executed.parent == received.id
    assert collector.events_named(names.CALL_STARTED)[0].address == executed.address
    assert executed.resource["service.name"] == "agent-gateway"


async def test_dashboard_shows_one_tree_from_the_client_to_the_upstream_server(tmp_path: Path, aspire: Path) -> None:
    front, over_http, over_grpc = free_ports(3)
    shown_at, sent_to = f"http://127.0.0.1:{front}", f"http://127.0.0.1:{over_http}"
    options = [
        *("dashboard", "run", "--nologo", "--non-interactive", "--allow-anonymous", "--frontend-url", shown_at),
        *("--otlp-http-url", sent_to, "--otlp-grpc-url", f"http://127.0.0.1:{over_grpc}"),
    ]
    home = {"HOME": str(cache("aspire-home"))}
    paths = [
        (
            *[f"tools/call {tool}"] * 2,
            f"execute_tool {tool}",
            f"tools/call {tool}",
            f"MCP send tools/call {tool}",
            "agent",
        )
        for tool in ("echo", "fail", "missing")
    ]
    async with (
        aiohttp.ClientSession() as session,
        program(aspire, options, tmp_path, ready=lambda: listens(over_http), env=home),
        reference(sent_to, "modern") as (url, _),
    ):
        folder = written(tmp_path / "p", url)
        with start_gateway_process(folder, tmp_path / "data", env=environ(sent_to)) as gateway:
            await call_with_trace(sent_to, gateway.mcp("/shop"), "2026-07-28")
            spans = await spans_shown(session, shown_at, named=Counter(name for path in paths for name in path[:-1]))

    by_id = {each["spanId"]: each for each in spans}
    ways = [path_of(each, by_id) for each in spans]
    assert all(path in ways for path in paths)
    assert len({each["traceId"] for each in spans if each["name"].startswith("execute_tool")}) == 1


def path_of(span: dict[str, Any], by_id: Mapping[str, dict[str, Any]]) -> tuple[str, ...]:
    """Return the names from a span up to the root of its tree."""
    above = by_id.get(span.get("parentSpanId") or "")
    return (span["name"], *(() if above is None else path_of(above, by_id)))


def environ(endpoint: str) -> dict[str, str]:
    quick = {"OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_METRIC_EXPORT_INTERVAL": "100"}
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **quick}


def durations(collector: Collector) -> bool:
    for body, (path, _) in zip(collector.payloads, collector.requests, strict=True):
        if path == "/v1/metrics":
            for resource in MetricsData.FromString(body).resource_metrics:
                found = {metric.name for scoped in resource.scope_metrics for metric in scoped.metrics}
                if names.EXECUTE_DURATION.name in found:
                    return True
    return False


async def spans_shown(session: aiohttp.ClientSession, url: str, *, named: Counter[str]) -> list[dict[str, Any]]:
    """Poll the dashboard until it has this many spans of each name: it does not announce new ones."""
    async with asyncio.timeout(WITHIN):
        while True:
            async with session.get(f"{url}/api/telemetry/traces") as answer:
                body = await answer.json()
            resources = (body.get("data") or {}).get("resourceSpans") or []
            found = [span for each in resources for scoped in each["scopeSpans"] for span in scoped["spans"]]
            if named <= Counter(each["name"] for each in found):
                return found
            await asyncio.sleep(0.1)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@asynccontextmanager
async def program(
    path: Path, options: list[str], folder: Path, *, ready: Callable[[], bool], env: Mapping[str, str] | None = None
) -> AsyncIterator[None]:
    """Run a third-party program and its children for the duration of the block."""
    output = folder / "program.txt"
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            str(path),
            *options,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    try:
        async with asyncio.timeout(WITHIN):
            while not ready():
                assert process.returncode is None, output.read_text(encoding="utf-8", errors="replace")
                await asyncio.sleep(0.05)
        yield
    finally:
        if process.returncode is None:
            os.killpg(process.pid, 9)
        await process.wait()

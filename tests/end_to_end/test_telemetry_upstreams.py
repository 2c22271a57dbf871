"""One tree from the agent's client through the gateway to an upstream server: both ends on the reference SDK."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from collecting import Collector, Span, collecting, sending_to
from secured import ROOT, document
from served import served

from gateway.telemetry import names

sys.path.append(str(ROOT / "tests" / "upstreams"))  # whose servers and projects are used here, too
from upstream_gateway import project, tool, upstream

pytestmark = pytest.mark.anyio

SDK = "mcp-python-sdk"
EXPORTING = """
import asyncio, json, sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{sys.argv[1]}/v1/traces")))
trace.set_tracer_provider(provider)
"""
CLIENT = f"""{EXPORTING}
import mcp

async def main():
    async with mcp.Client(sys.argv[2], mode=sys.argv[3]) as client:
        with trace.get_tracer("agent").start_as_current_span("agent"):
            await client.call_tool("echo", {{"text": "hello"}})
            await client.call_tool("fail")
            await client.call_tool("missing")

asyncio.run(main())
"""
SERVER = f"""{EXPORTING}
sys.path.append(sys.argv[2])
from reference_upstream import server
from upstream_serving import legacy_only, listening

app = server().streamable_http_app()
app = legacy_only(app) if sys.argv[3] == "legacy" else app
seen = []

async def noting(scope, receive, send):
    if scope["type"] == "http" and scope["method"] == "POST":
        seen.extend(value.decode() for name, value in scope["headers"] if name == b"traceparent")
    await app(scope, receive, send)

async def main():
    async with listening(noting, lifespan="on") as origin:
        print(origin, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print(json.dumps(seen), flush=True)

asyncio.run(main())
"""


@asynccontextmanager
async def reference(collector: Collector, era: str) -> AsyncIterator[tuple[str, list[str]]]:
    """Its URL; and, once it has ended, the traces that headers of HTTP named to it."""
    shared = str(ROOT / "tests" / "upstreams")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVER, collector.url, shared, era),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    traces: list[str] = []
    try:
        yield f"{(await process.stdout.readline()).decode().strip()}/mcp", traces
        said, _ = await process.communicate(b"\n")
        traces += json.loads(said.splitlines()[-1])
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def written(folder: Path, url: str) -> Path:
    remote = upstream("remote", {"type": "streamable-http", "url": url})
    made = project(
        folder, remote, tool("echo", "text"), tool("fail"), tool("missing"), document("Telemetry", "default", {})
    )
    gateway = made / "configs" / "gateway.yaml"
    text = gateway.read_text(encoding="utf-8")
    gateway.write_text(text.replace("  storage: main", "  storage: main\n  telemetry: default"), encoding="utf-8")
    return made


@pytest.mark.parametrize(("mode", "era"), [("2026-07-28", "modern"), ("legacy", "legacy")], ids=["modern", "legacy"])
async def test_one_trace_reaches_from_the_client_to_the_upstream_server(mode: str, era: str, tmp_path: Path) -> None:
    async with collecting() as collector, reference(collector, era) as (url, traces):
        folder = written(tmp_path / "p", url)
        with served(folder, tmp_path / "data", env=sending_to(collector)) as gateway:
            client = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", CLIENT, collector.url, gateway.mcp("/shop"), mode)
            )
            assert await client.wait() == 0
            for name in ("echo", "fail", "missing"):
                await collector.named(f"execute_tool {name}")
            assert await asyncio.to_thread(gateway.stop) == 0

    [agent] = collector.of("agent")
    by_address = {each.address: each for each in collector.spans}
    hops = []
    for name in ("echo", "fail", "missing"):
        [answering] = _of(collector, f"tools/call {name}", SDK, "SERVER")
        path = [answering]
        while path[-1].parent:
            path.append(by_address[path[-1].trace, path[-1].parent])
        assert [(each.scope, each.kind, each.name) for each in path] == [
            (SDK, "SERVER", f"tools/call {name}"),
            (names.SCOPE, "CLIENT", f"tools/call {name}"),
            (names.SCOPE, "INTERNAL", f"execute_tool {name}"),
            (names.SCOPE, "SERVER", f"tools/call {name}"),
            (SDK, "CLIENT", f"MCP send tools/call {name}"),
            ("agent", "INTERNAL", "agent"),
        ]
        assert {each.trace for each in path} == {agent.trace}
        hops.append(path[1])
    assert {f"00-{each.trace}-{each.id}-01" for each in hops} <= set(traces)
    assert [each[names.ERROR_TYPE] for each in hops] == [None, "tool_error", "tool_error"]
    assert [each.is_error for each in hops] == [False, True, True]
    assert hops[0][names.UPSTREAM] == "remote"
    assert (hops[0][names.SERVER_ADDRESS], hops[0][names.SERVER_PORT]) == ("127.0.0.1", int(url.split(":")[2][:-4]))
    assert hops[0][names.NETWORK_TRANSPORT] == "tcp"


def _of(collector: Collector, name: str, scope: str, kind: str) -> list[Span]:
    return [each for each in collector.of(name) if (each.scope, each.kind) == (scope, kind)]

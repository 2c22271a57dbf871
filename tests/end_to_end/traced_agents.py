"""An agent's client and an upstream server, both on the reference SDK and with a tracer of their own."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from secured import ROOT, document

sys.path.append(str(ROOT / "tests" / "upstreams"))  # whose servers and projects are used here, too
from upstream_gateway import project, tool, upstream

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
async def reference(backend: str, era: str) -> AsyncIterator[tuple[str, list[str]]]:
    """Its URL; and, once it has ended, the traces that headers of HTTP named to it. `backend` is sent its spans."""
    shared = str(ROOT / "tests" / "upstreams")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVER, backend, shared, era),
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


async def called(backend: str, endpoint: str, mode: str) -> None:
    """Three calls of one agent, in a trace of its own."""
    client = await asyncio.create_subprocess_exec(*(sys.executable, "-c", CLIENT, backend, endpoint, mode))
    assert await client.wait() == 0

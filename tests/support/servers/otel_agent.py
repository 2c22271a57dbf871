"""An agent's client and an upstream server, both on the reference SDK, each with its own tracer."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.backends.mcp.servers.front_gateway import project, tool, upstream
from tests.support.gateways.projects import document
from tests.support.paths import ROOT

SDK = "mcp-python-sdk"
EXPORTING = """
import asyncio, json, sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

provider = TracerProvider(resource=Resource.create({"service.name": NAME}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{sys.argv[1]}/v1/traces")))
trace.set_tracer_provider(provider)
"""
CLIENT = f"""NAME = "agent"
{EXPORTING}
import mcp

async def main():
    async with mcp.Client(sys.argv[2], mode=sys.argv[3]) as client:
        with trace.get_tracer("agent").start_as_current_span("agent"):
            for tool, arguments in json.loads(sys.argv[4]):
                await client.call_tool(tool, arguments)

asyncio.run(main())
"""
SERVER = f"""NAME = "mcp-server"
{EXPORTING}
sys.path.append(sys.argv[2])
from tests.backends.mcp.servers.reference_server import server
from tests.backends.mcp.servers.asgi_host import legacy_only, serve_app

app = server().streamable_http_app()
app = legacy_only(app) if sys.argv[3] == "legacy" else app
seen = []

async def noting(scope, receive, send):
    if scope["type"] == "http" and scope["method"] == "POST":
        seen.extend(value.decode() for name, value in scope["headers"] if name == b"traceparent")
    await app(scope, receive, send)

async def main():
    async with serve_app(noting, lifespan="on") as origin:
        print(origin, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print(json.dumps(seen), flush=True)

asyncio.run(main())
"""
SERVICE = f"""NAME = "shelf-service"
{EXPORTING}
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from opentelemetry import propagate

class Shelf(BaseHTTPRequestHandler):
    def do_GET(self):
        context = propagate.extract(dict((name.lower(), value) for name, value in self.headers.items()))
        with trace.get_tracer("service").start_as_current_span("GET /shelf", context, trace.SpanKind.SERVER):
            self.send_response(200)
            self.send_header("content-type", "text/plain")
            self.send_header("content-length", "5")
            self.end_headers()
            self.wfile.write(b"chair")

    def log_message(self, *args):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Shelf)
print(server.server_port, flush=True)
server.serve_forever()
"""
CALLS: Sequence[tuple[str, Mapping[str, str]]] = (("echo", {"text": "hello"}), ("fail", {}), ("missing", {}))


@asynccontextmanager
async def start_traced_service(backend: str) -> AsyncIterator[str]:
    """Run an HTTP service that sends its spans to `backend`; yield its URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVICE, backend), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}/shelf"
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def reference(backend: str, era: str) -> AsyncIterator[tuple[str, list[str]]]:
    """Run the server; yield its URL and a list, filled at its end, of the traces in HTTP headers. Spans go to
    `backend`.
    """
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
        output, _ = await process.communicate(b"\n")
        traces += json.loads(output.splitlines()[-1])
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def written(folder: Path, url: str, *more: Mapping[str, Any]) -> Path:
    remote = upstream("remote", {"type": "streamable-http", "url": url})
    made = project(
        *(folder, remote, tool("echo", "text"), tool("fail"), tool("missing"), document("Telemetry", "default", {})),
        *more,
    )
    gateway = made / "configs" / "gateway.yaml"
    text = gateway.read_text(encoding="utf-8")
    gateway.write_text(text.replace("  storage: main", "  storage: main\n  telemetry: default"), encoding="utf-8")
    return made


async def call_with_trace(
    backend: str, endpoint: str, mode: str, calls: Sequence[tuple[str, Mapping[str, str]]] = CALLS
) -> None:
    """Make calls as one agent, in one trace."""
    words = (sys.executable, "-c", CLIENT, backend, endpoint, mode, json.dumps(calls))
    client = await asyncio.create_subprocess_exec(*words)
    assert await client.wait() == 0

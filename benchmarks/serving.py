"""The cost of a governed call over HTTP, next to a bare ASGI echo and a FastMCP server without governance.

Each server has its own process, one worker, uvicorn with uvloop and httptools; a client in another process keeps a
number of connections busy, with one server at a time, in several rounds. A ratio is the median of the ratios of each
round, because absolute figures depend on the machine. The gateway authenticates, applies its policy to lists and calls,
validates, records durably before it answers, and renders.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import uvloop

HERE = Path(__file__).parent
MODERN = {
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": "tools/call",
    "mcp-name": "echo",
}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@dataclass(frozen=True)
class Load:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Figures:
    per_second: float
    cpu: float
    p50: float
    p99: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each server is kept busy in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--tools", type=int, nargs="+", default=[10, 10_000], help="sizes of the gateway's catalogue")
    parser.add_argument("--ratios", type=float, nargs="*", default=[0.01, 1.0], help="shares of traces that are sent")
    parser.add_argument("--server", choices=["echo", "fastmcp", "collector"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.server:
        SERVERS[options.server](int(os.environ["PORT"]))
        return
    print(f"Python {platform.python_version()}, {options.connections} connections, ", end="")
    print(f"{options.rounds} rounds of {options.seconds:g} s each; medians\n")
    print(f"{'server':34} {'calls/s':>8} {'CPU µs':>8} {'p50 ms':>8} {'p99 ms':>8} {'of echo':>8} {'× FastMCP':>10}")
    with ExitStack() as servers:
        runs = dict(start_servers(options.tools, options.ratios, servers))
        rounds = [{name: measure(run, options) for name, run in runs.items()} for _ in range(options.rounds)]
    for name in runs:
        show(name, rounds)


def show(name: str, rounds: Sequence[Mapping[str, Figures]]) -> None:
    figures = [each[name] for each in rounds]
    of_echo = median(each[name].per_second / each[ECHO].per_second for each in rounds)
    of_fastmcp = median(each[name].per_second / each[FASTMCP].per_second for each in rounds)
    print(
        f"{name:34} {median(each.per_second for each in figures):8.0f} {median(each.cpu for each in figures):8.0f} "
        f"{median(each.p50 for each in figures):8.1f} {median(each.p99 for each in figures):8.1f} "
        f"{of_echo:8.2f} {of_fastmcp:10.1f}",
        flush=True,
    )


CALL = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "echo", "arguments": {"text": "hello"}, "_meta": META},
    },
    separators=(",", ":"),
).encode()
GATEWAY_LOADS = {
    "MCP tools/call": Load("/bench/mcp", MODERN, CALL),
    "REST call": Load(
        "/v1/catalogues/bench/tools/echo/call", {"content-type": "application/json"}, b'{"arguments":{"text":"hello"}}'
    ),
}
LOADS = {
    "echo": Load("/", {"content-type": "application/json"}, CALL),
    "fastmcp": Load("/mcp", MODERN, CALL),
}
ECHO = "bare ASGI echo"
FASTMCP = "FastMCP server, tools/call"


@dataclass(frozen=True)
class Run:
    """A running server and its load: the same for each connection, or one for each."""

    pid: int
    port: int
    load: Load | Sequence[Load]


def start_servers(sizes: Sequence[int], ratios: Sequence[float], servers: ExitStack) -> Iterator[tuple[str, Run]]:
    for name, server in ((ECHO, "echo"), (FASTMCP, "fastmcp")):
        yield name, Run(*servers.enter_context(other(server)), LOADS[server])
    for tools in sizes:
        pid, port = servers.enter_context(gateway(tools))
        for name, load in GATEWAY_LOADS.items():
            yield f"gateway, {name}, {tools} tools", Run(pid, port, load)
    for ratio in ratios:
        _, collector = servers.enter_context(other("collector"))
        pid, port = servers.enter_context(gateway(10, ratio, collector))
        yield f"gateway, MCP, {ratio:.0%} of spans sent", Run(pid, port, GATEWAY_LOADS["MCP tools/call"])


@contextmanager
def other(server: str) -> Iterator[tuple[int, int]]:
    port = free_port()
    command = [sys.executable, __file__, "--server", server]
    process = subprocess.Popen(command, env={**os.environ, "PORT": str(port)}, stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield process.pid, port
    finally:
        process.kill()
        process.wait()


def measure(run: Run, options: argparse.Namespace) -> Figures:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(busy(run.port, run.load, pid=run.pid, options=options))
    time.sleep(REST)
    return figures


REST = 1.0
"""Seconds between measurements, so that late work of one server does not count for the next."""


@contextmanager
def gateway(
    tools: int, ratio: float | None = None, collector: int = 0, *, more: str = "", storage: str = ""
) -> Iterator[tuple[int, int]]:
    """`more` are additional documents of its project, `storage` replaces its Storage."""
    with tempfile.TemporaryDirectory() as folder:
        write_project(Path(folder), tools, ratio, storage or f"{{type: sqlite, path: {folder}/data/gateway.db}}")
        if more:
            Path(folder, "configs", "more.yaml").write_text(more, encoding="utf-8")
        command = [sys.executable, "-m", "gateway", "serve", "--configs", folder, "--port", "0", "--admin-port", "0"]
        environ = {**os.environ, "GATEWAY_PYTHON_PACKAGES": "bench_tools", "PYTHONPATH": folder}
        if collector:
            environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector}"
        log = Path(folder, "output.txt")  # an unread pipe would fill with warnings and stop the gateway
        with log.open("w", encoding="utf-8") as output:
            process = subprocess.Popen(command, cwd=folder, env=environ, stdout=output)
        try:
            port = read_port(process, log)
            wait_for(port)
            yield process.pid, port
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def read_port(process: "subprocess.Popen[bytes]", log: Path) -> int:
    while process.poll() is None:
        if found := re.search(r"REST +http://127\.0\.0\.1:(\d+)/v1 ", log.read_text(encoding="utf-8")):
            return int(found[1])
        time.sleep(0.1)
    raise SystemExit(f"the gateway did not start:\n{log.read_text(encoding='utf-8')}")


def write_project(folder: Path, tools: int, ratio: float | None, storage: str) -> None:
    (folder / "configs").mkdir()
    (folder / "policies").mkdir()
    (folder / "bench_tools.py").write_text(FUNCTIONS, encoding="utf-8")
    documents = [
        ("Gateway", "bench", f"{{{FRAME}{'' if ratio is None else ', telemetry: o'}}}"),
        *([] if ratio is None else [("Telemetry", "o", f"{{traces: {{sample: {{ratio: {ratio}}}}}}}")]),
        ("IdentityProvider", "i", '{type: none, subject: "user:bench", roles: [role:bench]}'),
        ("Storage", "s", storage),
        ("CollisionPolicy", "c", "{onCollision: throw}"),
        ("Pipeline", "p", "{call: [{use: gates}, {use: timeout, with: {after: 30s}}]}"),
        ("TrustTier", "t", "{rank: 0, description: Ours., origin: first-party, mayBeTrusted: true}"),
        ("Catalogue", "bench", '{audience: [role:bench], include: [{tools: ["*"]}], publish: {path: /bench}}'),
        *(("Tool", name, TOOL) for name in ["echo", *(f"tool_{number}" for number in range(tools - 1))]),
    ]
    texts = [
        f"apiVersion: gateway/v1\nkind: {kind}\nmetadata: {{name: {name}, owner: team}}\nspec: {spec}"
        for kind, name, spec in documents
    ]
    for start in range(0, len(texts), PER_FILE):
        some = "\n---\n".join(texts[start : start + PER_FILE])
        (folder / "configs" / f"part-{start:05}.yaml").write_text(some, encoding="utf-8")
    model = (HERE.parent / "policies" / "model.conf").read_text(encoding="utf-8")
    (folder / "policies" / "model.conf").write_text(model, encoding="utf-8")
    rows = ["p, role:bench, bench, tool:*, discover|invoke, t, allow"]
    rows += [f"p, role:other{number}, bench, tool:tool_{number}, invoke, t, allow" for number in range(tools - 1)]
    (folder / "policies" / "policy.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


FUNCTIONS = """
def echo(text: str) -> str:
    return text


def often(text: str) -> str:
    return (text + "\\n") * 20_000
"""
PER_FILE = 500
"""Documents: the size of a file is limited."""

FRAME = "defaults: {pipeline: p, collisionPolicy: c, tier: t}, identity: [i], storage: s"
TOOL = """
  version: 1.0.0
  description: Says what it is told.
  trust: {tier: t, flags: []}
  input: {schema: {type: object, required: [text], properties: {text: {type: string}}}}
  backend: {type: python, entrypoint: "bench_tools:echo", run: loop}"""


async def busy(port: int, load: Load | Sequence[Load], *, pid: int, options: argparse.Namespace) -> Figures:
    """Keep the connections busy, the first second unmeasured."""
    loads = [load] * options.connections if isinstance(load, Load) else load
    requests = [wire_request(port, each) for each in loads]
    times: list[float] = []
    until = time.perf_counter() + 1.0
    await asyncio.gather(*(keep_busy(port, partial(Busy, request, until, [])) for request in requests))
    before, started = cpu_seconds(pid), time.perf_counter()
    until = started + options.seconds
    await asyncio.gather(*(keep_busy(port, partial(Busy, request, until, times)) for request in requests))
    took, cpu = time.perf_counter() - started, cpu_seconds(pid) - before
    times.sort()
    count = len(times)
    return Figures(count / took, cpu / count * 1e6, times[count // 2] * 1e3, times[int(count * 0.99)] * 1e3)


def wire_request(port: int, load: Load) -> bytes:
    headers = {"host": f"127.0.0.1:{port}", "content-length": str(len(load.body)), **load.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {load.path} HTTP/1.1\r\n{lines}\r\n".encode() + load.body


async def keep_busy(port: int, busy: Callable[["asyncio.Future[None]"], "Busy"]) -> None:
    """Run one connection until it ends."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    transport, _ = await loop.create_connection(lambda: busy(ended), "127.0.0.1", port)
    try:
        await ended
    finally:
        transport.close()


class Busy(asyncio.Protocol):
    """Sends the same request again as soon as it is answered, with minimal overhead: the client shares the machine with
    the server it measures.
    """

    transport: asyncio.Transport

    def __init__(self, request: bytes, until: float, times: list[float], ended: "asyncio.Future[None]") -> None:
        self.request = request
        self.until = until
        self.times = times
        self.ended = ended
        self.answer = b""
        self.began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a stream's
        self.send()

    def send(self) -> None:
        self.began = time.perf_counter()
        if self.began < self.until:
            self.transport.write(self.request)
        elif not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.answer = answer = self.answer + data
        head, found, body = answer.partition(b"\r\n\r\n")
        if not found or not is_whole(head.lower(), body):
            return
        self.answer = b""
        self.answered(head, body)

    def answered(self, head: bytes, body: bytes) -> None:
        if not head.startswith(b"HTTP/1.1 200") or b'"isError":true' in body:
            self.fail(head + body)
            return
        self.times.append(time.perf_counter() - self.began)
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(self.answer)

    def fail(self, answer: bytes) -> None:
        if not self.ended.done():
            self.ended.set_exception(RuntimeError(f"unexpected answer: {answer[:2000]!r}"))


def is_whole(head: bytes, body: bytes) -> bool:
    if length := re.search(rb"content-length: (\d+)", head):
        return len(body) >= int(length[1])
    return body.endswith(b"0\r\n\r\n")


def cpu_seconds(pid: int) -> float:
    """Return CPU seconds of the process and its children."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    started = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return own + sum(cpu_seconds(int(child)) for child in started)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on {port}")


def serve_echo(port: int) -> None:
    import uvicorn

    async def echo(scope: dict[str, object], receive: object, send: object) -> None:
        message = await receive()  # type: ignore[operator]  # the shape of ASGI
        body = message["body"]
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})  # type: ignore[operator]  # likewise
        await send({"type": "http.response.body", "body": body})  # type: ignore[operator]  # likewise

    uvicorn.run(echo, host="127.0.0.1", port=port, log_level="error", lifespan="off", access_log=False)


def serve_fastmcp(port: int) -> None:
    from fastmcp import FastMCP

    server = FastMCP("bench")

    @server.tool
    def echo(text: str) -> str:
        """Returns its input."""
        return text

    server.run(transport="http", host="127.0.0.1", port=port, stateless_http=True, log_level="error", show_banner=False)


def serve_collector(port: int) -> None:
    """Accept everything and ignore it."""
    import uvicorn

    async def collect(scope: dict[str, object], receive: object, send: object) -> None:
        while (await receive()).get("more_body"):  # type: ignore[operator]  # the shape of ASGI
            pass
        headers = [(b"content-type", b"application/x-protobuf"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})  # type: ignore[operator]  # likewise
        await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]  # likewise

    uvicorn.run(collect, host="127.0.0.1", port=port, log_level="error", lifespan="off", access_log=False)


SERVERS = {"echo": serve_echo, "fastmcp": serve_fastmcp, "collector": serve_collector}


if __name__ == "__main__":
    main()

"""The cost of one hop to an upstream MCP server: through the gateway, FastMCP's proxy, and ContextForge.

All of them forward the same call to the same server, which does next to nothing, in turns and in several rounds; a
ratio is the median of the ratios of each round. The gateway authenticates, decides, validates, records durably and
sends its spans to a collector. FastMCP's proxy reuses one connected client, which is its fastest mode. ContextForge
gets a session with each caller; it is installed into its own environment in a cache folder (CONTEXTFORGE_HOME), and
skipped, with the reason, where that is not possible.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import Request, urlopen

from benchmarks.gateways import document, gateway
from benchmarks.load import MODERN, TEXT, Figures, Load, Repeated, Run, call_message, free_port, mcp_call, measure
from benchmarks.rows import upstream_documents
from benchmarks.servers import exit_on_sigterm, start_server

CONTEXTFORGE = "mcp-contextforge-gateway==1.0.7.post20260921"
PROXY = "FastMCP proxy, connected client"
OTHER = "ContextForge, sessions"
SECRET = "benchmark-only-" + "0123456789abcdef" * 4


class NotAvailable(Exception):
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each gateway is kept busy in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--ratios", type=float, nargs="*", default=[0.01, 1.0], help="shares of traces that are sent")
    parser.add_argument("--without-contextforge", action="store_true")
    options = parser.parse_args()
    exit_on_sigterm()
    print(f"Python {platform.python_version()}, {options.connections} connections, ", end="")
    print(f"{options.rounds} rounds of {options.seconds:g} s each; medians\n")
    with ExitStack() as servers:
        runs = dict(start_servers(options, servers))
        rounds = [
            {name: measure(run, seconds=options.seconds, connections=options.connections) for name, run in runs.items()}
            for _ in range(options.rounds)
        ]
    print(f"{'one hop through':38} {'calls/s':>8} {'CPU µs':>8} {'p50 ms':>8} {'p99 ms':>8} {'× proxy':>8} {'× CF':>8}")
    for name in runs:
        show(name, rounds)


def show(name: str, rounds: Sequence[Mapping[str, Figures]]) -> None:
    figures = [each[name] for each in rounds]
    print(
        f"{name:38} {median(each.per_second for each in figures):8.0f} {median(each.cpu for each in figures):8.0f} "
        f"{median(each.p50 for each in figures):8.1f} {median(each.p99 for each in figures):8.1f} "
        f"{compare(name, PROXY, rounds):>8} {compare(name, OTHER, rounds):>8}",
        flush=True,
    )


def compare(name: str, reference: str, rounds: Sequence[Mapping[str, Figures]]) -> str:
    if reference not in rounds[0]:
        return "-"
    return f"{median(each[name].per_second / each[reference].per_second for each in rounds):.1f}"


def start_servers(options: argparse.Namespace, servers: ExitStack) -> Iterator[tuple[str, Run]]:
    _, behind = servers.enter_context(start_server("upstream"))
    yield PROXY, Run(*servers.enter_context(start_server("proxy", behind)), Repeated(mcp_call("echo", path="/mcp")))
    for ratio in options.ratios:
        _, collector = servers.enter_context(start_server("collector"))
        pid, port = servers.enter_context(gateway(1, ratio, collector, more=hop(behind)))
        yield f"gateway, {ratio:.0%} of spans sent", Run(pid, port, Repeated(mcp_call("hop")))
    if options.without_contextforge:
        return
    try:
        yield OTHER, servers.enter_context(contextforge(behind, sessions=options.connections))
    except NotAvailable as why:
        print(f"without ContextForge: {why}\n")


def hop(behind: int) -> str:
    transport = f'{{type: streamable-http, url: "http://127.0.0.1:{behind}/mcp"}}'
    return "\n---\n".join(document(*each) for each in upstream_documents(transport))


@dataclass(frozen=True)
class Sessions:
    """The sessions of callers, each with its connection."""

    loads: Sequence[Load]

    def open(self, port: int, connections: int) -> Sequence[Load]:
        return self.loads


# --- ContextForge ---


@contextmanager
def contextforge(behind: int, *, sessions: int) -> Iterator[Run]:
    python = install()
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "output.txt")
        environ = {**os.environ, **settings(folder)}
        command = [str(python), "-m", "uvicorn", "mcpgateway.main:app", "--host", "127.0.0.1", "--port", str(port)]
        with log.open("w", encoding="utf-8") as output:
            quiet = ["--log-level", "error", "--no-access-log"]
            process = subprocess.Popen(
                [*command, *quiet],
                cwd=folder,
                env=environ,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            origin = f"http://127.0.0.1:{port}"
            wait_until_healthy(origin, process, log)
            headers = make_headers(token(python, environ))
            path, tool = create_virtual_server(origin, behind, headers)
            loads = [session_at(f"{origin}{path}", path, tool, headers) for _ in range(sessions)]
            yield Run(process.pid, port, Sessions(loads))
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # including its children
            process.wait()


def install() -> Path:
    """Return the interpreter of the environment with ContextForge."""
    home = os.environ.get("CONTEXTFORGE_HOME")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(home) if home else caches / "agent-gateway-benchmarks" / CONTEXTFORGE.replace("==", "-")
    python, done = folder / "bin" / "python", folder / "installed.txt"
    if not done.exists():
        beside = Path(sys.executable).with_name("uv")
        uv = str(beside) if beside.exists() else shutil.which("uv")
        if uv is None:
            raise NotAvailable("uv is not installed here")
        steps = [[uv, "venv", "-q", "--clear", folder], [uv, "pip", "install", "-q", "--python", python, CONTEXTFORGE]]
        for step in steps:
            if subprocess.run([str(part) for part in step]).returncode != 0:
                raise NotAvailable("it could not be installed; is a package index reachable?")
        done.write_text(f"{CONTEXTFORGE}\n", encoding="utf-8")
    return python


def settings(folder: str) -> dict[str, str]:
    """Return the default settings, except those that forbid upstream servers on loopback and limit rates."""
    return {
        "DATABASE_URL": f"sqlite:///{folder}/mcp.db",
        "JWT_SECRET_KEY": SECRET,
        "AUTH_ENCRYPTION_SECRET": SECRET,
        "PLATFORM_ADMIN_EMAIL": "bench@example.com",
        "PLATFORM_ADMIN_PASSWORD": SECRET,
        "SSRF_ALLOW_LOCALHOST": "true",
        "SSRF_ALLOW_PRIVATE_NETWORKS": "true",
        "USE_STATEFUL_SESSIONS": "true",
        "JSON_RESPONSE_ENABLED": "true",
        "RATE_LIMITING_ENABLED": "false",
        "TOOL_RATE_LIMIT": "1000000000",
        "CACHE_TYPE": "memory",
    }


def wait_until_healthy(origin: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + 180
    while time.monotonic() < until and process.poll() is None:
        try:
            with urlopen(f"{origin}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise NotAvailable(f"it does not start: {log.read_text(encoding='utf-8', errors='replace')[-500:]}")


def token(python: Path, environ: Mapping[str, str]) -> str:
    claims = ["--username", "bench@example.com", "--exp", "600", "--secret", SECRET, "--admin"]
    command = [str(python), "-m", "mcpgateway.utils.create_jwt_token", *claims]
    made = subprocess.run(command, env=environ, capture_output=True, text=True)
    lines = made.stdout.strip().splitlines()
    if made.returncode != 0 or not lines:
        raise NotAvailable(f"it makes no token: {made.stderr[-300:]}")
    return lines[-1]


def make_headers(bearer: str) -> dict[str, str]:
    return {"authorization": f"Bearer {bearer}", "content-type": "application/json"}


def create_virtual_server(origin: str, behind: int, headers: Mapping[str, str]) -> tuple[str, str]:
    """Create a virtual server with the upstream's tool; return its path and the tool's name there."""
    given = {"name": "behind", "url": f"http://127.0.0.1:{behind}/mcp", "transport": "STREAMABLEHTTP"}
    post(f"{origin}/gateways", given, headers)
    [tool] = [each for each in fetch(f"{origin}/tools", headers) if each["name"].endswith("echo")]
    server = {"server": {"name": "bench", "associated_tools": [tool["id"]]}}
    made, _ = post(f"{origin}/servers", server, headers)
    return f"/servers/{made['id']}/mcp", tool["name"]


def session_at(url: str, path: str, tool: str, headers: Mapping[str, str]) -> Load:
    """Return the load of a caller with its own session."""
    headers = {**headers, "accept": MODERN["accept"], "mcp-protocol-version": "2025-06-18"}
    info = {"name": "bench", "version": "1"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
    _, answer_headers = post(url, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}, headers)
    if session := answer_headers.get("mcp-session-id"):
        headers["mcp-session-id"] = session
    post(url, {"jsonrpc": "2.0", "method": "notifications/initialized"}, headers)
    answer, _ = post(url, json.loads(call_message(tool, TEXT)), headers)
    if "hello" not in json.dumps(answer):
        raise NotAvailable(f"it does not pass the call on: {json.dumps(answer)[:300]}")
    return Load(path, headers, call_message(tool, TEXT))


def post(url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[Any, dict[str, str]]:
    return send(Request(url, json.dumps(body).encode(), dict(headers)))


def fetch(url: str, headers: Mapping[str, str]) -> Any:
    return send(Request(url, headers=dict(headers)))[0]


def send(request: Request) -> tuple[Any, dict[str, str]]:
    try:
        with urlopen(request, timeout=60) as answer:
            content = answer.read()
            reply_headers = {name.lower(): value for name, value in answer.headers.items()}
    except OSError as error:
        detail = getattr(error, "read", lambda: b"")()[:300]
        raise NotAvailable(f"it refuses {request.full_url}: {error} {detail!r}") from error
    return (json.loads(content) if content.strip() else None), reply_headers


if __name__ == "__main__":
    main()

"""Runs the official MCP conformance suite: `python tests/conformance/run.py`.

It tests two gateways: one with its own tools and an upstream server's prompts and resources, and one that gets
everything from the upstream server. Nothing is expected to fail.

The suite is a program for Node 22. Both are installed with npm, in fixed versions, into a cache folder
(MCP_CONFORMANCE_HOME) on first use. Exit codes: 0 all passed, 1 not all, 2 the suite is not available.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from tests.support.paths import ROOT

HERE = ROOT / "tests" / "conformance"
PACKAGES = ("node@22.23.3", "@modelcontextprotocol/conformance@0.2.0-alpha.12")
REQUIREMENTS = ("2026-07-28", "2025-11-25")
WIRES = ("2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
AS_A_CLIENT = (
    *(("2025-11-25", name) for name in ("initialize", "tools_call", "sse-retry", "json-schema-2020-12-preservation")),
    ("2025-11-25", "elicitation-sep1034-client-defaults"),
    *(("2026-07-28", name) for name in ("tools_call", "request-metadata", "sep-2322-client-request-state")),
    *(("2026-07-28", f"http-{name}-headers") for name in ("standard", "custom", "invalid-tool")),
    *(("2026-07-28", f"json-schema-{name}") for name in ("ref-no-deref", "2020-12-preservation")),
)
"""The client scenarios of the suite, except authorisation, which is between a client and the gateway."""


class NotAvailable(Exception):
    pass


def cache_folder() -> Path:
    if home := os.environ.get("MCP_CONFORMANCE_HOME"):
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mcp-conformance"


def install_suite(cache: Path) -> list[str]:
    """Return the command that runs the suite; install it if necessary."""
    node = cache / "node_modules" / ".bin" / "node"
    suite = cache / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    if not (node.exists() and suite.exists()):
        npm = shutil.which("npm")
        if npm is None:
            raise NotAvailable("npm is not installed here; install Node.js with npm, or set PATH to where it is")
        cache.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--prefix", str(cache), "--no-audit", "--no-fund", "--loglevel=error", *PACKAGES]
        if subprocess.run(command).returncode != 0 or not suite.exists():
            raise NotAvailable("npm could not install the suite; is the registry that npm is set up for reachable?")
    return [str(node), str(suite)]


@contextmanager
def start_program(program: str, *arguments: str, **environ: str) -> Iterator[str]:
    """Start a program of this folder as a server and yield its address; the port comes before its arguments."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(HERE / program), str(port), *arguments]
    server = subprocess.Popen(command, env={**os.environ, **environ})
    try:
        url = f"http://127.0.0.1:{port}/mcp"
        _wait_for(url, server)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            server.kill()


def _wait_for(url: str, server: "subprocess.Popen[bytes]") -> None:
    for _ in range(300):
        if server.poll() is not None:
            raise SystemExit("a server of the conformance tests did not start")
        try:
            urlopen(url, timeout=5)
        except HTTPError:  # a refusal is an answer
            return
        except URLError:
            time.sleep(0.1)
    raise SystemExit("a server of the conformance tests does not answer")


def asked(suite: list[str], folder: str, title: str, *options: str) -> int:
    done = subprocess.run([*suite, "server", *options], cwd=folder, capture_output=True, text=True)
    _, _, summary = done.stdout.partition("=== SUMMARY ===")
    print(f"--- {title} ---\n{summary.strip() or done.stdout + done.stderr}\n", flush=True)
    return done.returncode


def run_own_tools(suite: list[str], folder: str, upstream: str) -> Iterator[int]:
    """Test the gateway's own tools. Its prompts and resources, except results, come from an upstream server."""
    with start_program("serve.py", f"{folder}/own", EVERYTHING_URL=upstream) as url:
        for revision in REQUIREMENTS:
            options = ("--url", url, "--requirements", revision)
            yield asked(suite, folder, f"its own tools, requirements of {revision}", *options)


def run_relayed(suite: list[str], folder: str, upstream: str) -> Iterator[int]:
    """Test a gateway with everything from an upstream server."""
    with start_program("serve.py", f"{folder}/relay", "relay", EVERYTHING_URL=upstream) as url:
        for revision in REQUIREMENTS:
            yield asked(suite, folder, f"relayed, requirements of {revision}", "--url", url, "--requirements", revision)
        for wire in WIRES:
            options = ("--url", url, "--suite", "all", "--spec-version", wire)
            yield asked(suite, folder, f"relayed, everything of {wire}", *options)


def run_as_client(suite: list[str], folder: str) -> Iterator[int]:
    """Test the gateway as a client: the suite's own servers are behind it."""
    client = f"{sys.executable} {HERE / 'relay_client.py'}"

    def asked(revision: str, scenario: str) -> tuple[str, int]:
        options = ("--scenario", scenario, "--spec-version", revision, "--timeout", "90000")
        command = [*suite, "client", "--command", client, *options]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        shown = "✓" if done.returncode == 0 else "✗"
        return f"{shown} {scenario} ({revision})\n" + (done.stdout + done.stderr) * (
            done.returncode != 0
        ), done.returncode

    with ThreadPoolExecutor(max_workers=3) as pool:
        answers = list(pool.map(lambda each: asked(*each), AS_A_CLIENT))
    print("--- as a client ---\n" + "".join(output for output, _ in answers), flush=True)
    yield from (code for _, code in answers)


def main() -> int:
    try:
        suite = install_suite(cache_folder())
    except NotAvailable as error:
        print(f"the MCP conformance suite cannot be run: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, start_program("upstream.py") as upstream:
        servers = [*run_own_tools(suite, folder, upstream), *run_relayed(suite, folder, upstream)]
        codes = [*servers, *run_as_client(suite, folder)]
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs the official MCP conformance suite: `python tests/conformance/run.py`.

It talks to two gateways: one whose tools are its own, with prompts and resources of a server behind it, and one that
has everything from there. Nothing is expected to fail.

The suite is a program for Node 22. Both are installed with npm, in fixed versions, into a cache folder
(MCP_CONFORMANCE_HOME) on first use. Exit codes: 0 all passed, 1 not all, 2 the suite cannot be had here.
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

HERE = Path(__file__).parent
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
"""What the suite asks of clients, but for authorisation, which is between a client and the gateway."""


class NotAvailable(Exception):
    pass


def cache_folder() -> Path:
    if home := os.environ.get("MCP_CONFORMANCE_HOME"):
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mcp-conformance"


def installed_suite(cache: Path) -> list[str]:
    """The command that runs the suite; installs it if it is not there."""
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
def started(program: str, *arguments: str, **environ: str) -> Iterator[str]:
    """The address of a server that is started as a program of this folder; the port comes before its arguments."""
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


def of_its_own(suite: list[str], folder: str, upstream: str) -> Iterator[int]:
    """Tools of the gateway itself. It has no prompts and no resources but results: those are of a server behind it."""
    with started("serve.py", f"{folder}/own", EVERYTHING_URL=upstream) as url:
        for revision in REQUIREMENTS:
            options = ("--url", url, "--requirements", revision)
            yield asked(suite, folder, f"its own tools, requirements of {revision}", *options)


def relayed(suite: list[str], folder: str, upstream: str) -> Iterator[int]:
    """Everything of a server behind the gateway."""
    with started("serve.py", f"{folder}/relayed", "relayed", EVERYTHING_URL=upstream) as url:
        for revision in REQUIREMENTS:
            yield asked(suite, folder, f"relayed, requirements of {revision}", "--url", url, "--requirements", revision)
        for wire in WIRES:
            options = ("--url", url, "--suite", "all", "--spec-version", wire)
            yield asked(suite, folder, f"relayed, everything of {wire}", *options)


def as_a_client(suite: list[str], folder: str) -> Iterator[int]:
    """The suite's own servers behind the gateway: what they are asked is the gateway's doing."""
    client = f"{sys.executable} {HERE / 'relayed_client.py'}"

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
    print("--- as a client ---\n" + "".join(told for told, _ in answers), flush=True)
    yield from (code for _, code in answers)


def main() -> int:
    try:
        suite = installed_suite(cache_folder())
    except NotAvailable as error:
        print(f"the MCP conformance suite cannot be run: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, started("everything_upstream.py") as upstream:
        servers = [*of_its_own(suite, folder, upstream), *relayed(suite, folder, upstream)]
        codes = [*servers, *as_a_client(suite, folder)]
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs the official MCP conformance suite against the conformance project: `python tests/conformance/run.py`.

The suite is a program for Node 22. Both are installed with npm, in fixed versions, into a cache folder
(MCP_CONFORMANCE_HOME) on first use. Exit codes: 0 as expected, 1 not as expected, 2 the suite cannot be had here.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

HERE = Path(__file__).parent
PACKAGES = ("node@22.23.3", "@modelcontextprotocol/conformance@0.2.0-alpha.12")
REVISIONS = ("2026-07-28", "2025-11-25")


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
def served(folder: Path) -> Iterator[str]:
    """A server of the conformance project, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(HERE / "serve.py"), str(port), str(folder)])
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
            raise SystemExit("the server of the conformance project did not start")
        try:
            urlopen(url, timeout=5)
        except HTTPError:  # a refusal is an answer
            return
        except URLError:
            time.sleep(0.1)
    raise SystemExit("the server of the conformance project does not answer")


def main() -> int:
    try:
        suite = installed_suite(cache_folder())
    except NotAvailable as error:
        print(f"the MCP conformance suite cannot be run: {error}", file=sys.stderr)
        return 2
    baseline = str(HERE / "expected-failures.yaml")
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as url:
        codes = []
        for revision in REVISIONS:
            command = [*suite, "server", "--url", url, "--requirements", revision, "--expected-failures", baseline]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            _, _, summary = done.stdout.partition("=== SUMMARY ===")
            print(f"--- requirements of {revision} ---\n{summary.strip() or done.stdout + done.stderr}\n")
            codes.append(done.returncode)
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())

"""A real gateway: `gateway serve` in a process of its own, on ports that were free."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
STARTS_WITHIN = 60.0
"""Seconds: machines that run everything at once are slow."""


@dataclass
class Served:
    """A gateway that is up. `output` is what it had said by then."""

    process: "subprocess.Popen[str]"
    url: str
    admin_url: str
    output: str

    def mcp(self, path: str) -> str:
        """The MCP endpoint of the catalogue that is published under a path."""
        return f"{self.url}{path}/mcp"

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        return self.process.wait(timeout=STARTS_WITHIN)


@contextmanager
def served(
    project: Path, data: Path, *, env: Mapping[str, str] | None = None, options: tuple[str, ...] = ()
) -> Iterator[Served]:
    """Serve a project with its data in a folder; whatever happens, the process is gone afterwards.

    `GATEWAY_DATA_DIR` is the folder, which documents read as they like; relative paths in them start there.
    """
    data.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "GATEWAY_DATA_DIR": str(data), **(env or {})}
    command = [sys.executable, "-m", "gateway", "serve", "--configs", str(project.resolve())]
    process = subprocess.Popen(
        [*command, "--port", "0", "--admin-port", "0", *options],
        cwd=data,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield _up(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _up(process: "subprocess.Popen[str]") -> Served:
    """Read what the gateway says until it is up; one that takes too long is ended, and its output ends with it."""
    said = ""
    assert process.stdout is not None
    too_late = threading.Timer(STARTS_WITHIN, process.kill)
    too_late.start()
    try:
        for line in process.stdout:
            said += line
            if line.startswith("try: "):
                break
        else:
            raise AssertionError(f"the gateway did not start:\n{said}")
    finally:
        too_late.cancel()
    url = re.search(r"REST +(\S+)/v1 ", said)
    admin = re.search(r"admin +(\S+)/readyz", said)
    assert url is not None, said
    assert admin is not None, said
    return Served(process, url[1], admin[1], said)

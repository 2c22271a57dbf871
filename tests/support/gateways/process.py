"""A real gateway: `gateway serve` in its own process, on free ports."""

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

from tests.support.gateways.commands import ForkedCommand, start_command
from tests.support.ready_databases import prepare_data_folder

STARTS_WITHIN = 60.0
"""Seconds: busy machines are slow."""


@dataclass
class GatewayProcess:
    """A running gateway. `output` is its output until it was up."""

    process: "ForkedCommand | subprocess.Popen[str]"
    url: str
    admin_url: str
    output: str

    def mcp(self, path: str) -> str:
        """Return the MCP endpoint of the catalogue published under this path."""
        return f"{self.url}{path}/mcp"

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        return self.process.wait(timeout=STARTS_WITHIN)


@contextmanager
def start_gateway_process(
    project: Path,
    data: Path,
    *,
    env: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
    is_forked: bool = True,
    before: tuple[str, ...] = (),
) -> Iterator[GatewayProcess]:
    """Serve a project with its data in a folder; the process always ends with the block.

    What is not forked starts as it does from a shell, with everything that only then takes effect; `before` are the
    words of a program that starts it.
    `GATEWAY_DATA_DIR` is the folder, which documents read as they like; relative paths in them start there.
    """
    data.mkdir(parents=True, exist_ok=True)
    prepare_data_folder(data, project)
    environ = {**os.environ, "GATEWAY_DATA_DIR": str(data), **(env or {})}
    arguments = ("serve", "--configs", str(project.resolve()), "--port", "0", "--admin-port", "0", *options)
    if is_forked:
        process: ForkedCommand | subprocess.Popen[str] = start_command(*arguments, cwd=data, env=environ)
    else:
        process = _start_python(*before, sys.executable, "-m", "gateway", *arguments, cwd=data, env=environ)
    try:
        yield _wait_until_up(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _start_python(*command: str, cwd: Path, env: Mapping[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _wait_until_up(process: "ForkedCommand | subprocess.Popen[str]") -> GatewayProcess:
    """Read the output until the gateway is up. A gateway that takes too long is killed, which ends its output."""
    output = ""
    assert process.stdout is not None
    too_late = threading.Timer(STARTS_WITHIN, process.kill)
    too_late.start()
    try:
        for line in process.stdout:
            output += line
            if line.startswith("try: "):
                break
        else:
            raise AssertionError(f"the gateway did not start:\n{output}")
    finally:
        too_late.cancel()
    url = re.search(r"REST +(\S+)/v1 ", output)
    admin = re.search(r"admin +(\S+)/readyz", output)
    assert url is not None, output
    assert admin is not None, output
    return GatewayProcess(process, url[1], admin[1], output)

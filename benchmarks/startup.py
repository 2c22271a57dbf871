"""What a start costs: CPU until the gateway is ready, memory when idle, and how long the first list and the first call
stop the event loop; each project in its own process.

The projects are those of `gateways.py`, with as many policy rows as tools. CPU includes Python and all imports. Memory
is the resident set of the gateway process, and of the process that writes calls after the first one. A stop is CPU time
of the event loop's thread between two turns of another task, so a busy machine does not change it.
"""

import argparse
import asyncio
import gc
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.gateways import ANYBODY, PLAIN_PIPELINE, read_port, write_project
from benchmarks.load import cpu_seconds, make_calls, mcp_call, resident

PRINCIPAL = ("user:bench", frozenset({"role:bench"}))
PROTOCOL = "2026-07-28"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=int, nargs="+", default=[10, 1_000, 10_000])
    parser.add_argument("--stops", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stops:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(measure_stops(Path(options.stops)))
        return
    print(f"Python {platform.python_version()}\n")
    print(
        f"{'tools':>6} {'start CPU s':>11} {'idle MB':>8} {'writer MB':>9} {'first list ms':>13} {'first call ms':>13}"
    )
    for tools in options.tools:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            storage = f"{{type: sqlite, path: {folder}/data/gateway.db}}"
            write_project(folder, tools, None, storage, PLAIN_PIPELINE, ANYBODY)
            start, idle, writer = measure_start(folder)
            command = [sys.executable, __file__, "--stops", name]
            stops = subprocess.run(command, env=environment(folder), stdout=subprocess.PIPE, check=True)
        first_list, first_call = map(float, stops.stdout.split())
        print(f"{tools:6} {start:11.2f} {idle:8.0f} {writer:9.0f} {first_list:13.1f} {first_call:13.1f}", flush=True)


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "GATEWAY_PYTHON_PACKAGES": "bench_tools", "PYTHONPATH": str(folder)}


def measure_start(folder: Path) -> tuple[float, float, float]:
    """Return the CPU seconds until the gateway is ready, and the MB of the gateway and of its writer process."""
    command = [sys.executable, "-m", "gateway", "serve", "--configs", str(folder), "--port", "0", "--admin-port", "0"]
    log = folder / "output.txt"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment(folder), stdout=output)
    try:
        port = read_port(process, log)
        cpu = cpu_seconds(process.pid)
        idle = resident(process.pid)
        make_calls(port, [mcp_call("echo")], 1)
        time.sleep(2.0)  # the writer process starts with the first call
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
        return cpu, idle, sum(resident(int(child)) for child in children)
    finally:
        process.terminate()
        process.wait()


async def measure_stops(folder: Path) -> None:
    """Print the longest stop of the event loop, in milliseconds, at the first list and at the first call."""
    from gateway.app import Settings, start_app
    from gateway.app.app import prepare_app
    from gateway.model import Principal
    from gateway.server.mcp.mcp_server import McpServer

    os.chdir(folder)
    principal = Principal(*PRINCIPAL)
    given: dict[str, Any] = {"configs": folder, "policies": folder / "policies"}
    async with start_app(prepare_app(Settings(**given))) as app:
        gc.collect()
        gc.freeze()
        first_list = await longest_stop(McpServer(app.service, "bench").listings.get_page(principal, PROTOCOL, None))
        first_call = await longest_stop(app.service.call_tool(principal, "bench", "echo", {"text": "hello"}))
    print(first_list, first_call)


async def longest_stop(work: Awaitable[Any]) -> float:
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, before = max(longest, now - before), now

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await work
    await asyncio.sleep(0)
    watching.cancel()
    return longest * 1e3


if __name__ == "__main__":
    main()

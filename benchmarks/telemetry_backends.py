"""The effect of a faulty telemetry backend on callers: how long their calls take, compared with a healthy one.

One gateway for each backend, all sending every span and start record; rounds go through all of them in turn, so that
other load on the machine affects all alike. A ratio is the median of the ratios of each round.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median

from benchmarks.gateways import gateway
from benchmarks.load import Figures, Repeated, Run, free_port, mcp_call, measure, wait_for
from benchmarks.servers import start_server

HEALTHY = "healthy"
UNWELL = {
    "down": "connections are refused",
    "slow": "takes requests and never answers",
    "endless": "answers without an end",
}
NONE = "nothing is sent"
_CHUNK = b"10000\r\n" + bytes(1 << 16) + b"\r\n"


def compare(*, rounds: int, seconds: float, connections: int) -> None:
    with ExitStack() as servers:
        runs = dict(_start_gateways(servers))
        figures = [_measure_round(runs, number, seconds, connections) for number in range(rounds)]
    print(f"\ncalls over MCP, {connections} connections, {rounds} rounds of {seconds:g} s each; medians\n")
    print(f"{'telemetry backend':44} {'CPU µs':>8} {'p50 ms':>8} {'p99 ms':>8} {'CPU ×':>8} {'p50 ×':>8} {'p99 ×':>8}")
    for name in runs:
        _show(name, figures)


def _start_gateways(servers: ExitStack) -> Iterator[tuple[str, Run]]:
    load = Repeated(mcp_call("echo"))
    _, healthy = servers.enter_context(start_server("collector"))
    ports = {HEALTHY: healthy, "down": free_port()}
    ports |= {name: servers.enter_context(_backend(name)) for name in ("slow", "endless")}
    yield NONE, Run(*servers.enter_context(gateway(10)), load)
    for name, port in ports.items():
        yield name, Run(*servers.enter_context(gateway(10, 1.0, port)), load)


def _measure_round(runs: Mapping[str, Run], number: int, seconds: float, connections: int) -> Mapping[str, Figures]:
    """Measure each in turn, starting with another one each round, so that the order does not favour any."""
    names = [*runs]
    first = number % len(names)
    order = (*names[first:], *names[:first])
    return {name: measure(runs[name], seconds=seconds, connections=connections) for name in order}


def _show(name: str, rounds: Sequence[Mapping[str, Figures]]) -> None:
    fields = ("cpu", "p50", "p99")
    found = [median(getattr(each[name], field) for each in rounds) for field in fields]
    ratios = [median(getattr(each[name], field) / getattr(each[HEALTHY], field) for each in rounds) for field in fields]
    label = f"{name}: {UNWELL[name]}" if name in UNWELL else name
    print(f"{label:44} {found[0]:8.0f} {found[1]:8.2f} {found[2]:8.2f} {' '.join(f'{each:8.2f}' for each in ratios)}")


@contextmanager
def _backend(name: str) -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen([sys.executable, __file__, name], env={**os.environ, "PORT": str(port)})
    try:
        wait_for(port)
        yield port
    finally:
        process.kill()
        process.wait()


async def _serve(name: str, port: int) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while name == "slow" and await reader.read(1 << 16):
                pass
            await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ntransfer-encoding: chunked\r\n\r\n"
            writer.write(head)
            while True:
                writer.write(_CHUNK)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(os.environ["PORT"])))

"""What more gateways on one PostgreSQL bring if the database is some milliseconds away.

One gateway and then several are kept busy, with the same number of connections each, and reach the database through a
proxy that delays its answers by `--delay`. Each connection has an MCP session of 2025-11-25. `session` calls only read,
`writing` ones have effects, and so a durable start before they run. The other figure is the CPU of one gateway per
call, on this database and on SQLite, if it is busy: with `--busy` connections.

All of them share this machine. So the ratio of several gateways to one is taken with few connections per gateway: a
call mostly waits for the database, and the processors do not limit the ratio. PostgreSQL runs with `fsync`.
"""

import argparse
import asyncio
import os
import platform
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

import psycopg
import uvloop

from benchmarks.gateways import PLAIN_PIPELINE, gateway, shipped_pipeline
from benchmarks.load import (
    REST,
    Connection,
    Figures,
    Load,
    Repeated,
    Run,
    free_port,
    in_session,
    keep_all_busy,
    wait_for,
)
from benchmarks.storages import CONNECTION, IN_FILES, IN_POSTGRES, TOOLS
from gateway.storage import migrate_postgres
from tests.support.servers.postgres_server import start_postgres

KINDS = ("session", "writing")
PIPELINES = {"plain": PLAIN_PIPELINE, "shipped": shipped_pipeline()}

Server = tuple[int, int]
"""Process and port of a gateway."""
Rounds = Sequence[Mapping[str, Sequence[Figures]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each is kept busy in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gateways", type=int, default=4)
    parser.add_argument("--connections", type=int, default=2, help="connections per gateway")
    parser.add_argument("--busy", type=int, default=32, help="connections of the one gateway whose CPU is measured")
    parser.add_argument("--delay", type=int, default=5, help="milliseconds between a query and its answer")
    parser.add_argument("--pipeline", choices=PIPELINES, default="shipped")
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=KINDS)
    parser.add_argument("--proxy", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.proxy:
        uvloop.run(serve_proxy(options.proxy[0], options.proxy[1], options.delay / 1000))
        return
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {options.connections} connections per gateway")
    with TemporaryDirectory() as folder, ExitStack() as servers:
        os.chmod(folder, 0o711)  # the database runs as another user
        cluster = servers.enter_context(start_postgres(fsync="on", full_page_writes="on", shared_buffers="128MB"))
        address = cluster.database()
        migrate_postgres(address)
        port = servers.enter_context(delaying_proxy(cluster.port, options.delay))
        os.environ[CONNECTION] = address.replace(f":{cluster.port}/", f":{port}/")
        print(f"a query takes {round_trip(os.environ[CONNECTION]):.1f} ms\n")
        start = partial(gateway, 10, more=TOOLS, pipeline=PIPELINES[options.pipeline])
        on_sqlite = servers.enter_context(start())
        storage = IN_POSTGRES % IN_FILES % (Path(folder) / "spool")
        replicas = [servers.enter_context(start(storage=storage)) for _ in range(options.gateways)]
        print(f"{'call':8} {'calls/s, one':>13} {'several':>8} {'ratio':>6} {'p50 ms':>7} {'several':>8}", end=" ")
        print(f"{'CPU µs':>7} {'SQLite':>7} {'ratio':>6}")
        for kind in options.kinds:
            show(kind, [measure_round(kind, on_sqlite, replicas, options) for _ in range(options.rounds)])


def measure_round(
    kind: str, on_sqlite: Server, replicas: Sequence[Server], options: argparse.Namespace
) -> Mapping[str, Sequence[Figures]]:
    busy = argparse.Namespace(**{**vars(options), "connections": options.busy})
    return {
        "sqlite": measure(kind, [on_sqlite], busy),
        "busy": measure(kind, replicas[:1], busy),
        "one": measure(kind, replicas[:1], options),
        "several": measure(kind, replicas, options),
    }


def measure(kind: str, servers: Sequence[Server], options: argparse.Namespace) -> Sequence[Figures]:
    """Keep some gateways busy at the same time. Return the figures of each."""
    tool = "writing" if kind == "writing" else "echo"
    loads = [open_sessions(tool, port, options.connections) for _, port in servers]

    async def run() -> list[Figures]:
        runs = [(Run(pid, port, Repeated(mine[0])), mine) for (pid, port), mine in zip(servers, loads, strict=True)]
        return await asyncio.gather(*(keep_all_busy(run, mine, options.seconds) for run, mine in runs))

    figures = uvloop.run(run())
    sleep(REST)
    return figures


def open_sessions(tool: str, port: int, connections: int) -> list[Load]:
    """Return the calls of so many sessions."""
    return [in_session(tool)(Connection(port)) for _ in range(connections)]


def show(kind: str, rounds: Rounds) -> None:
    one = [each["one"][0] for each in rounds]
    postgres, sqlite = ([each[name][0] for each in rounds] for name in ("busy", "sqlite"))
    several = [sum(figures.per_second for figures in each["several"]) for each in rounds]
    slowest = median(max(figures.p50 for figures in each["several"]) for each in rounds)
    gained = median(all / alone.per_second for all, alone in zip(several, one, strict=True))
    costs = median(here.cpu / there.cpu for here, there in zip(postgres, sqlite, strict=True))
    print(
        f"{kind:8} {median(each.per_second for each in one):13.0f} {median(several):8.0f} {gained:6.2f} "
        f"{median(each.p50 for each in one):7.1f} {slowest:8.1f} {median(each.cpu for each in postgres):7.0f} "
        f"{median(each.cpu for each in sqlite):7.0f} {costs:6.2f}",
        flush=True,
    )


def round_trip(address: str) -> float:
    """Return the median duration of a query that does nothing, in milliseconds."""
    times = []
    with psycopg.connect(address, autocommit=True) as connection:
        for _ in range(100):
            began = perf_counter()
            connection.execute("SELECT 1")
            times.append(perf_counter() - began)
    return median(times) * 1000


@contextmanager
def delaying_proxy(to: int, delay: int) -> Iterator[int]:
    """Run the proxy in a process of its own: its work must not delay the clients."""
    port = free_port()
    command = [sys.executable, __file__, "--delay", str(delay), "--proxy", str(port), str(to)]
    process = subprocess.Popen(command)
    try:
        wait_for(port)
        yield port
    finally:
        process.kill()
        process.wait()


async def serve_proxy(port: int, to: int, delay: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Near(to, delay), "127.0.0.1", port)
    await server.serve_forever()


class Near(asyncio.Protocol):
    """The side of a client: what it sends goes on at once."""

    transport: asyncio.Transport

    def __init__(self, to: int, delay: float) -> None:
        self._to = to
        self._delay = delay
        self._early: list[bytes] = []
        self._far: Far | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment] # a stream's
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        _, self._far = await loop.create_connection(lambda: Far(self, self._delay), "127.0.0.1", self._to)
        self._far.transport.write(b"".join(self._early))

    def data_received(self, data: bytes) -> None:
        if self._far is None:
            self._early.append(data)
        else:
            self._far.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._far is not None:
            self._far.transport.close()


class Far(asyncio.Protocol):
    """The side of the database: its answers arrive later, in their order."""

    transport: asyncio.Transport

    def __init__(self, near: Near, delay: float) -> None:
        self._near = near
        self._delay = delay
        self._late: deque[bytes] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment] # a stream's

    def data_received(self, data: bytes) -> None:
        self._late.append(data)
        asyncio.get_running_loop().call_later(self._delay, self._deliver)

    def _deliver(self) -> None:
        self._near.transport.write(self._late.popleft())

    def connection_lost(self, exc: Exception | None) -> None:
        self._near.transport.close()


if __name__ == "__main__":
    main()

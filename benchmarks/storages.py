"""The same governed calls on every storage, side by side: SQLite and files, PostgreSQL and files, PostgreSQL and S3.

One worker each, all of them up at once, kept busy one after the other in several rounds; figures are medians, and a
ratio is the median of the ratios of each round. A `plain` call stores its small result in its record, a `writing` one
has a durable start before it runs, the result of a `large` one (117 kB) goes into the spool. CPU is that of the
gateway's processes, and of the database's, which may run on another machine.

PostgreSQL (with `fsync`) and SeaweedFS are started here, as by the tests; unavailable ones are left out.
"""

import argparse
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import pytest

from benchmarks.gateways import document, gateway, tool_spec
from benchmarks.load import WARM, Figures, Repeated, Run, cpu_seconds, measure, rest_call

CONNECTION = "BENCH_POSTGRES"
SQLITE = "sqlite + files"
IN_POSTGRES = "{type: postgres, connection: {fromEnv: BENCH_POSTGRES}, blobs: %s}"
IN_FILES = "{type: files, path: %s}"
IN_A_BUCKET = """{type: s3, bucket: %s, endpoint: "%s", region: us-east-1, prefix: bench,
  accessKey: {fromEnv: BENCH_ACCESS_KEY}, secretKey: {fromEnv: BENCH_SECRET_KEY}}"""
ECHO = '{type: python, entrypoint: "bench_tools:echo", run: loop}'
OFTEN = '{type: python, entrypoint: "bench_tools:often", run: loop}'
TOOLS = "\n---\n".join(
    (
        document("TrustFlag", "writes", "{description: Changes state., hint: {readOnly: false}}"),
        document("Tool", "writing", tool_spec(ECHO, flags="[writes]")),
        document("Tool", "large", tool_spec(OFTEN, "  output: {artifact: text, inline: false}")),
    )
)
LOADS = {"plain": "echo", "writing": "writing", "large": "large"}


@dataclass(frozen=True)
class RoundResult:
    """The result of one round."""

    figures: Figures
    server: float
    """Microseconds of database CPU per call."""


Rounds = Sequence[Mapping[tuple[str, str], RoundResult]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each is kept busy in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=32)
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {options.connections} connections, ", end="")
    print(f"{options.rounds} rounds of {options.seconds:g} s each; medians\n")
    with TemporaryDirectory() as folder, ExitStack() as servers:
        os.chmod(folder, 0o711)  # the database runs as another user
        places = dict(start_storages(Path(folder), servers))
        rounds = [
            {
                (load, place): measure_round(Run(pid, port, load_of(tool)), server, options)
                for load, tool in LOADS.items()
                for place, (pid, port, server) in places.items()
            }
            for _ in range(options.rounds)
        ]
    print(f"{'call':8} {'storage':18} {'calls/s':>8} {'of SQLite':>10} {'CPU µs':>7}", end=" ")
    print(f"{'database µs':>12} {'p50 ms':>7} {'p99 ms':>7}")
    for load, place in rounds[0]:
        show(load, place, rounds)


def show(load: str, place: str, rounds: Rounds) -> None:
    found = [each[load, place] for each in rounds]
    figures = [each.figures for each in found]
    ratio = median(each[load, place].figures.per_second / each[load, SQLITE].figures.per_second for each in rounds)
    print(
        f"{load:8} {place:18} {median(each.per_second for each in figures):8.0f} {ratio:10.2f} "
        f"{median(each.cpu for each in figures):7.0f} {median(each.server for each in found):12.0f} "
        f"{median(each.p50 for each in figures):7.1f} {median(each.p99 for each in figures):7.1f}",
        flush=True,
    )


def load_of(tool: str) -> Repeated:
    return Repeated(rest_call(tool, expects=b"callId"))  # a large result is an artifact


def measure_round(run: Run, server: int | None, options: argparse.Namespace) -> RoundResult:
    before = read_cpu(server)
    figures = measure(run, seconds=options.seconds, connections=options.connections)
    calls = figures.per_second * (options.seconds + WARM)
    return RoundResult(figures, (read_cpu(server) - before) / calls * 1e6)


def read_cpu(server: int | None) -> float:
    """Return the CPU seconds of a database; retry if one of its processes ends meanwhile."""
    while server is not None:
        with suppress(FileNotFoundError):
            return cpu_seconds(server)
    return 0.0


def start_storages(folder: Path, servers: ExitStack) -> Iterator[tuple[str, tuple[int, int, int | None]]]:
    """Yield the name of each storage with process and port of the gateway and the process of the database."""
    yield SQLITE, (*servers.enter_context(gateway(10, more=TOOLS)), None)
    try:
        from gateway.storage.sql.postgres.database_setup import migrate_postgres
        from tests.support.servers.postgres_server import start_postgres

        cluster = servers.enter_context(start_postgres(fsync="on", full_page_writes="on", shared_buffers="128MB"))
    except (ImportError, pytest.skip.Exception) as error:
        print(f"without PostgreSQL: {error}")
        return
    for name, blobs in spools(folder, servers):
        address = os.environ[CONNECTION] = cluster.database()
        migrate_postgres(address)
        yield name, (*servers.enter_context(gateway(10, more=TOOLS, storage=IN_POSTGRES % blobs)), cluster.pid)


def spools(folder: Path, servers: ExitStack) -> Iterator[tuple[str, str]]:
    yield "postgres + files", IN_FILES % (folder / "spool")
    try:
        from tests.support.servers.object_store import ACCESS_KEY, BUCKET, SECRET_KEY, object_store

        (folder / "seaweed").mkdir()
        store = servers.enter_context(object_store(folder / "seaweed"))
    except (ImportError, pytest.skip.Exception) as error:
        print(f"without an object store: {error}")
        return
    os.environ |= {"BENCH_ACCESS_KEY": ACCESS_KEY, "BENCH_SECRET_KEY": SECRET_KEY}
    yield "postgres + s3", IN_A_BUCKET % (BUCKET, store.endpoint)


if __name__ == "__main__":
    main()

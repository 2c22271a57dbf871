"""The cost of durable storage: settled records, spooled results, and reading them again.

The reference is one `fdatasync` of one appended kilobyte on the same disk in the same run: absolute figures depend on
the disk; ratios are stable. Give `--folder` to measure another disk.
"""

import argparse
import asyncio
import json
import os
import platform
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

from gateway.artifacts.spool_stores import FileStore
from gateway.model.caller import Principal
from gateway.model.primitives.canonical_json import call_id
from gateway.model.primitives.deadline import now_microseconds
from gateway.storage.blobs.blob_store import Reader
from gateway.storage.blobs.disk_store import DiskSpool
from gateway.storage.call_store import StoredCall, StoredResult, StoredTurn
from gateway.storage.sql.sqlite.engine import open_sqlite_store

REFERENCE = "append 1 KB and sync (reference)"
ADA = Principal("user:ada", roles=frozenset({"role:agent"}), tenant="acme")
DAY = 86_400_000_000
"""In microseconds."""
ARGS = {"query": "quarterly revenue by region", "limit": 25, "fields": ["id", "name", "amount"]}
LINE = b"a line of text as tools print them, neither long nor short\n"


@dataclass(frozen=True, slots=True)
class Figure:
    """Microseconds per operation, of wall clock and of CPU; the median and the slowest one."""

    each: float
    cpu: float
    p50: float
    p99: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long to measure each operation")
    parser.add_argument("--folder", type=Path, help="where to write; the folder of temporary files if not given")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    with TemporaryDirectory(dir=options.folder) as folder:
        figures = asyncio.run(measure(Path(folder), options.seconds))
    if options.json:
        plain = {name: vars_of(figure) for name, figure in figures.items()}
        print(json.dumps({"python": platform.python_version(), "microseconds": plain}, indent=2))
        return
    reference = figures[REFERENCE].each
    print(f"Python {platform.python_version()}, µs\n")
    print(f"{'operation':36} {'each':>9} {'× ref':>7} {'per s':>8} {'cpu':>8} {'p50':>9} {'p99':>9}")
    for name, figure in figures.items():
        print(
            f"{name:36} {figure.each:9.1f} {figure.each / reference:7.2f} {1e6 / figure.each:8.0f}"
            f" {figure.cpu:8.1f} {figure.p50:9.0f} {figure.p99:9.0f}"
        )


async def measure(folder: Path, seconds: float) -> dict[str, Figure]:
    store = await open_sqlite_store(folder / "gateway.db")
    spool = await DiskSpool.open(folder / "blobs", small=store)
    files = await DiskSpool.open(folder / "only-files")
    unsynced = FileStore(folder / "unsynced")
    await store.open_turn(turn("turn"))
    numbers = count()
    large = await spool.for_turn("turn").write("read", LINE * (10_000_000 // len(LINE)))
    middle = large.line_count() // 2

    async def settle() -> None:
        await store.record_call(call("turn", f"c{next(numbers)}"))

    async def settle_own_turn() -> None:
        own = f"t{next(numbers)}"
        await store.record_call(call(own, "call"), turn=turn(own))

    async def start_and_settle() -> None:
        id = f"c{next(numbers)}"
        await store.start_call(call("turn", id))
        await store.record_call(call("turn", id))

    def keep(size: int) -> Callable[[], Awaitable[None]]:
        content = (LINE * (size // len(LINE) + 1))[:size]

        async def spool_and_settle() -> None:
            id = f"c{next(numbers)}"
            reader = await spool.for_turn("turn").write(id, content)
            await store.record_call(call("turn", id, reader))

        return spool_and_settle

    async def file() -> None:
        await files.for_turn("turn").write(f"c{next(numbers)}", LINE * 17)

    async def unsynced_file() -> None:
        await unsynced.write(f"c{next(numbers)}", LINE * 17)

    async def find() -> None:
        await store.find_turn("turn", ADA)

    async def read() -> None:
        assert len(list(large.lines(middle, middle + 50))) == 50

    figures = {REFERENCE: await figure(synced_append(folder), seconds)}
    for at_once in (1, 64, 512):
        figures[f"settle, {at_once} at once"] = await figure(settle, seconds, at_once=at_once)
    figures["settle with its own turn, 64"] = await figure(settle_own_turn, seconds, at_once=64)
    figures["start, then settle, 64"] = await figure(start_and_settle, seconds, at_once=64)
    for name, size in (("1 KB", 1000), ("64 KB", 64_000), ("10 MB", 10_000_000)):
        figures[f"spool {name} and settle, 1"] = await figure(keep(size), seconds)
    figures["spool 1 KB and settle, 64"] = await figure(keep(1000), seconds, at_once=64)
    figures["spool 64 KB and settle, 64"] = await figure(keep(64_000), seconds, at_once=64)
    figures["spool 1 KB to a synced file, 1"] = await figure(file, seconds)
    figures["spool 1 KB to a file, not synced, 1"] = await figure(unsynced_file, seconds)
    figures["find a turn"] = await figure(find, seconds)
    figures["read 50 lines of 10 MB"] = await figure(read, seconds)
    await files.close()
    await spool.close()
    await store.close()
    return figures


async def figure(operation: Callable[[], Awaitable[None]], seconds: float, *, at_once: int = 1) -> Figure:
    durations: list[float] = []
    await operation()
    cpu, start = time.process_time(), time.perf_counter()
    end = start + seconds

    async def lane() -> None:
        began = time.perf_counter()
        while began < end:
            await operation()
            now = time.perf_counter()
            durations.append(now - began)
            began = now

    await asyncio.gather(*(lane() for _ in range(at_once)))
    elapsed, used = time.perf_counter() - start, time.process_time() - cpu
    percentiles = quantiles(durations, n=100) if len(durations) > 1 else durations * 99
    each, spent = elapsed / len(durations), used / len(durations)
    return Figure(*(round(value * 1e6, 1) for value in (each, spent, percentiles[49], percentiles[98])))


def vars_of(figure: Figure) -> dict[str, float]:
    return {"each": figure.each, "cpu": figure.cpu, "p50": figure.p50, "p99": figure.p99}


def synced_append(folder: Path) -> Callable[[], Awaitable[None]]:
    file = os.open(folder / "reference", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    kilobyte = b"x" * 1000

    async def append() -> None:
        os.write(file, kilobyte)
        os.fdatasync(file)

    return append


def turn(id: str) -> StoredTurn:
    now = now_microseconds()
    return StoredTurn(id, ADA, "support", "r1", b"s" * 32, created=now, expires=now + DAY)


def call(turn_id: str, id: str, reader: Reader | None = None) -> StoredCall:
    now = now_microseconds()
    piece = StoredResult("text", text="done")
    if reader is not None:
        piece = StoredResult("artifact", key=reader.key, content=reader.content, byte_length=reader.byte_length())
    return StoredCall(
        id=id,
        turn_id=turn_id,
        tool="search",
        identity="native/search",
        args=ARGS,
        checksum=call_id("search", ARGS),
        principal=ADA,
        catalogue="support",
        revision="r1",
        created=now,
        completed=now,
        decision="allow",
        results=(piece,),
    )


if __name__ == "__main__":
    main()

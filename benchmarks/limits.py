"""The cost of counting and stopping: one rate, several rates, quotas, and an unchanged stop list.

The reference is the same count in an SQLite file with `synchronous=OFF`, the alternative to the table of rates.
`--processes` shows how many calls are allowed, and the cost, when several processes count by one rate at once.
`serving.py` measures calls over HTTP with limits and conditions, and refused ones.
"""

import argparse
import asyncio
import multiprocessing
import platform
import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.model.caller import Principal
from gateway.policy.limits import Limiter, LimitKey, QuotaLimit, RateLimit
from gateway.policy.stop_list import Stop, StopTarget
from gateway.storage.cache_invalidation import FileChangeSignal
from gateway.storage.rate_table import RateTable
from gateway.storage.sql.quotas import SqlQuotas
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from gateway.storage.sql.stop_list import SqlStopList

ADA = LimitKey(Principal("user:ada", tenant="acme"), "search", "support")
WIDE = timedelta(minutes=1)
RATES = [RateLimit(f"rule-{number}", 10**9, WIDE, by=("subject", "tool")) for number in range(3)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long to measure each operation")
    parser.add_argument("--folder", type=Path, help="where to write; the folder of temporary files if not given")
    parser.add_argument("--processes", type=int, default=2, help="how many count by one rate at once")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, µs of processor time\n")
    with TemporaryDirectory(dir=options.folder) as folder:
        asyncio.run(measure(Path(folder), options.seconds))
        contend(Path(folder), options.processes, options.seconds)


async def measure(folder: Path, seconds: float) -> None:
    database = folder / "gateway.db"
    store = await open_sqlite_store(database)
    rates, notices = RateTable(database), FileChangeSignal(database)
    limiter = Limiter(rates, SqlQuotas(store.writer, clock=_now))
    quarantines = SqlStopList(store.writer, notices, clock=_now)
    _print("one rate in SQLite, not synced (reference)", _time_each(_sqlite_count(folder), seconds))
    _print("one rate", _time_each(lambda: rates.take(RATES[:1], ADA), seconds))
    _print("three rates", _time_each(lambda: rates.take(RATES, ADA), seconds))
    small = [RateLimit("small", 1, WIDE, by=("subject", "tool"))]
    _print("one rate that refuses", _time_each(lambda: rates.take(small, ADA), seconds))
    await _quota(limiter, seconds)

    def stopped() -> None:
        quarantines.find_stop(tool="search", subject="user:ada", upstream=None, is_consequential=True)

    _print("kill switch, nothing stopped", _time_each(stopped, seconds))
    other = Stop(StopTarget("tool", "other"), "benchmark", "benchmark", _now())
    await quarantines.add(other)
    _print("kill switch, another tool stopped", _time_each(stopped, seconds))
    quarantines.close()
    notices.close()
    limiter.close()
    await store.close()


async def _quota(limiter: Limiter, seconds: float) -> None:
    quota = [QuotaLimit("budget", 10**12, timedelta(days=1), by=("tenant",))]
    for lanes in (1, 64):
        done, end = 0, time.perf_counter() + seconds
        cpu = time.process_time()

        async def lane(end: float = end) -> int:
            count = 0
            while time.perf_counter() < end:
                await limiter.acquire(quota, ADA)
                count += 1
            return count

        done = sum(await asyncio.gather(*(lane() for _ in range(lanes))))
        _print(f"one quota, durable, {lanes} at once", (time.process_time() - cpu) / done * 1e6, seconds / done * 1e6)


def contend(folder: Path, processes: int, seconds: float) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        found = pool.map(_contender, [(folder / "gateway.db", seconds)] * processes)
        in_sqlite = pool.map(_contender_in_sqlite, [(folder, seconds)] * processes)
    for name, contenders in (("one rate in SQLite", in_sqlite), ("one rate", found)):
        for cpu, wall, longest in contenders:
            _print(f"{name}, {processes} processes at once", cpu, wall, longest)


def _contender(options: tuple[Path, float]) -> tuple[float, float, float]:
    database, seconds = options
    rates = RateTable(database)
    return _hammer(lambda: rates.take(RATES[:1], ADA), seconds)


def _contender_in_sqlite(options: tuple[Path, float]) -> tuple[float, float, float]:
    folder, seconds = options
    return _hammer(_sqlite_count(folder), seconds)


def _hammer(operation: Callable[[], object], seconds: float) -> tuple[float, float, float]:
    """Return CPU time and wall clock per operation, and the time of the slowest one."""
    done, longest, cpu = 0, 0.0, time.process_time()
    began = start = time.perf_counter()
    while began < start + seconds:
        operation()
        ended = time.perf_counter()
        longest = max(longest, ended - began)
        began, done = ended, done + 1
    return (time.process_time() - cpu) / done * 1e6, (began - start) / done * 1e6, longest * 1e6


def _time_each(operation: Callable[[], object], seconds: float) -> float:
    """Return the time per operation in the best of many batches, to exclude other load."""
    best, end = inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        cpu = time.process_time()
        for _ in range(500):
            operation()
        best = min(best, (time.process_time() - cpu) / 500)
    return best * 1e6


def _sqlite_count(folder: Path) -> Callable[[], object]:
    connection = sqlite3.connect(folder / "reference.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("CREATE TABLE IF NOT EXISTS buckets (key BLOB PRIMARY KEY, full_at INTEGER) WITHOUT ROWID")
    key = b"one and the same"

    def count() -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("SELECT full_at FROM buckets WHERE key = ?", (key,)).fetchone()
        connection.execute(
            "INSERT INTO buckets VALUES (?, ?) ON CONFLICT DO UPDATE SET full_at = excluded.full_at",
            (key, time.monotonic_ns()),
        )
        connection.execute("COMMIT")

    return count


def _print(name: str, cpu: float, wall: float | None = None, longest: float | None = None) -> None:
    of_wall = "" if wall is None else f"{wall:9.2f} of wall clock"
    print(f"{name:44} {cpu:9.2f}   {of_wall}" + ("" if longest is None else f", slowest {longest:.0f}"))


def _now() -> datetime:
    return datetime.now(UTC)


if __name__ == "__main__":
    main()

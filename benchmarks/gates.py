"""The cost of approvals: many pending ones, through a crash, and for all other calls.

Another process requests them and is killed; a new one counts what is left. Then as many calls wait at once while pages
are listed, approvals are decided and ordinary calls run. `--pending 10000` is the full measure.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

from gateway.approvals.approval_store import ApprovalRequest, make_action
from gateway.approvals.lifecycle import HoldStatus
from gateway.approvals.service import ApprovalService, present_approval
from gateway.model.caller import Principal
from gateway.model.primitives.canonical_json import call_id
from gateway.model.primitives.deadline import now_microseconds
from gateway.storage.call_store import StoredCall, StoredTurn
from gateway.storage.sql.approvals import SqlApprovalStore
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store

LEAD = "role:lead"
LEA = Principal("user:lea", roles=frozenset({LEAD}), tenant="acme")
ADA = Principal("user:ada", tenant="acme")
AT_ONCE = 100
REQUESTERS = 50
SAMPLES = 300
HOUR = 3_600_000_000
"""In microseconds."""
LIMITS = {
    "restart, all there [s]": 3.0,
    "memory per waiting call [kB]": 25.0,
    "list page p95 [ms]": 100.0,
    "show p95 [ms]": 100.0,
    "decide p95 [ms]": 50.0,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pending", type=int, default=1000, help="how many approvals wait")
    parser.add_argument("--folder", type=Path, help="where to write; the folder of temporary files if not given")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--fill", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fill is not None:
        asyncio.run(fill(options.fill, options.pending))
        return
    with TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "gateway.db"
        figures = request_and_crash(path, options.pending)
        figures |= asyncio.run(measure(path, options.pending))
    if options.json:
        print(json.dumps({"python": platform.python_version(), "pending": options.pending, **figures}, indent=2))
        return
    print(f"Python {platform.python_version()}, {options.pending} pending\n")
    for name, figure in figures.items():
        limit = LIMITS.get(name)
        print(f"{name:36} {figure:10.2f}" + (f"   at most {limit:g}" if limit is not None else ""))


def request_and_crash(path: Path, pending: int) -> dict[str, float]:
    """Request approvals in another process and kill it as soon as all are requested."""
    words = [sys.executable, __file__, "--fill", str(path), "--pending", str(pending)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seconds = float(process.stdout.readline())
        process.kill()
    return {"ask, each [ms]": seconds * 1000 / pending}


async def fill(path: Path, pending: int) -> None:
    async with desk(path) as (_, approvals):
        begin = time.perf_counter()
        for start in range(0, pending, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, pending))
            await asyncio.gather(*(approvals.ask([request(number)]) for number in numbers))
        print(time.perf_counter() - begin, flush=True)
        await asyncio.Event().wait()


async def measure(path: Path, pending: int) -> dict[str, float]:
    begin = time.perf_counter()
    async with desk(path) as (store, approvals):
        found = await every_id(approvals)
        restarted = time.perf_counter() - begin
        assert len(found) == pending, f"{len(found)} of {pending} are there"
        settle = make_settle(store)
        alone = await percentile(settle, 99)
        before, threads, files = resident(), threading.active_count(), open_files()
        hold = timedelta(minutes=10)
        waiting: list[asyncio.Task[HoldStatus]] = []
        while len(waiting) < pending:  # in batches, as callers arrive
            numbers = range(len(waiting), min(len(waiting) + AT_ONCE, pending))
            waiting += [asyncio.create_task(approvals.ask([request(n)], hold_for=hold)) for n in numbers]
            while approvals.count_waiting < len(waiting):
                failed = [each for each in waiting if each.done()]
                assert not failed, failed[0].exception()
                await asyncio.sleep(0.01)
        figures = {
            "restart, all there [s]": restarted,
            "memory per waiting call [kB]": (resident() - before) / pending,
            "threads more than before": threading.active_count() - threads,
            "files more than before": open_files() - files,
            "list page p95 [ms]": await percentile(lambda: approvals.page(LEA, state="pending", limit=50), 95),
            "show p95 [ms]": await percentile(lambda: shown_at(approvals, found[0]), 95),
            "other calls p99, nobody waiting [ms]": alone,
            "other calls p99, all waiting [ms]": await percentile(settle, 99),
        }
        ids = iter(found)
        deciding = min(SAMPLES, pending)
        figures["decide p95 [ms]"] = await percentile(
            lambda: approvals.decide(next(ids), LEA, "grant"), 95, samples=deciding
        )
        await asyncio.wait(waiting[pending - deciding :] if deciding < pending else waiting, timeout=10)
        figures["woken and taken"] = sum(each.done() and each.result().state == "taken" for each in waiting)
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)
    return figures


@asynccontextmanager
async def desk(path: Path) -> AsyncIterator[tuple[SqliteStore, ApprovalService]]:
    store = await open_sqlite_store(path)
    approvals = ApprovalService(
        SqlApprovalStore(store.writer, store.reader),
        held=lambda principal: principal.names,
        served=lambda: "r",
        most_pending=1_000_000,
    )
    yield store, approvals
    await approvals.close()
    await store.close()


def request(number: int) -> ApprovalRequest:
    requester = Principal(f"agent:{number % REQUESTERS}", tenant="acme")
    arguments = {"order": f"A-{number}", "amount": 700 + number, "currency": "EUR", "note": "a line of text " * 10}
    action = make_action(
        requester, catalogue="support", tool="payments/refund", definition="d", revision="r", arguments=arguments
    )
    return ApprovalRequest(
        action, "refund", "refunds", "gates.yaml:1:1", "A refund above the limit", (LEAD,), timedelta(hours=1)
    )


async def every_id(approvals: ApprovalService) -> list[str]:
    ids: list[str] = []
    cursor: str | None = None
    while True:
        page, cursor = await approvals.page(LEA, state="pending", limit=200, before=cursor)
        ids += [each.id for each in page]
        if cursor is None:
            return ids


async def shown_at(approvals: ApprovalService, id: str) -> None:
    await present_approval(await approvals.find(id, LEA))


def make_settle(store: SqliteStore) -> Callable[[], Awaitable[object]]:
    numbers = count()

    async def settle() -> None:
        at = now_microseconds()
        id = f"call-{next(numbers)}"
        turn = StoredTurn(id, ADA, "support", "r", b"secret", at, at + HOUR)
        args = {"query": "quarterly revenue"}
        call = StoredCall(id, id, "search", "search", args, call_id("search", args), ADA, "support", "r", at)
        await store.record_call(call, turn=turn)

    return settle


async def percentile(operation: Callable[[], Awaitable[object]], which: int, *, samples: int = SAMPLES) -> float:
    """Milliseconds."""
    taken: list[float] = []
    for _ in range(samples):
        begin = time.perf_counter()
        await operation()
        taken.append((time.perf_counter() - begin) * 1000)
    return quantiles(taken, n=100)[which - 1]


def resident() -> float:
    """Kilobytes of memory this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1000


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


if __name__ == "__main__":
    main()

"""Workers are killed at any moment: everything that a caller was answered is stored, and nothing is stored twice.

`CRASH_ROUNDS` sets how many times two workers are killed.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from gateway.storage.blobs.disk_store import DiskSpool
from gateway.storage.call_store import CallFilter, StoredCall
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store
from tests.storage.crash_worker import content_of
from tests.storage.sample_records import ADA
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "40"))


@pytest.fixture
def workers(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, str(ROOT / "tests" / "storage" / "crash_worker.py"), str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as process:
        try:
            yield process
        finally:  # including workers of a failed test
            os.killpg(process.pid, signal.SIGKILL)


def run_round(workers: "subprocess.Popen[bytes]", number: int, chance: Random) -> int:
    """Let two workers serve for a while, then kill both, one after the other; return how many calls they settled."""
    assert workers.stdin is not None
    assert workers.stdout is not None
    workers.stdin.write(b"%d\n" % number)
    workers.stdin.flush()
    first, second = map(int, workers.stdout.readline().split())
    before = len(workers.stdout.read(chance.choice([0, 1, chance.randrange(60)])))
    os.kill(first, signal.SIGKILL)
    between = len(workers.stdout.read(chance.choice([0, chance.randrange(20)])))
    os.kill(second, signal.SIGKILL)
    return before + between + len(workers.stdout.readline()) - 1


def read_log(folder: Path, word: str) -> list[str]:
    lines = [line for log in folder.glob("log-*") for line in log.read_text().splitlines()]
    return [id for event, id in map(str.split, lines) if event == word]


async def every_call(store: SqliteStore) -> list[StoredCall]:
    found: list[StoredCall] = []
    page, cursor = await store.list_calls(CallFilter(), limit=500)
    found += page
    while cursor is not None:
        page, cursor = await store.list_calls(CallFilter(), limit=500, before=cursor)
        found += page
    return found


async def test_killed_workers_lose_and_repeat_nothing(workers: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    chance = Random(20260501)
    settled = sum(run_round(workers, number, chance) for number in range(ROUNDS))
    store = await open_sqlite_store(tmp_path / "gateway.db")
    spool = await DiskSpool.open(tmp_path / "blobs", small=store)

    await store.close_interrupted_calls(datetime.now(UTC))

    calls = await every_call(store)
    status = {call.id: call.status for call in calls}
    answered, reached = read_log(tmp_path, "told"), read_log(tmp_path, "reached")
    assert settled > ROUNDS
    assert len(calls) == len(status)
    assert len(reached) == len(set(reached))
    assert {id for id in answered if status.get(id) != "settled"} == set()
    assert {id for id in reached if status.get(id) not in ("settled", "unknown")} == set()
    assert set(status.values()) == {"settled", "unknown"}
    assert {call.id for call in calls if call.status == "unknown"}.isdisjoint(answered)
    for call in calls:
        for piece in call.results:
            assert piece.key is not None
            reader = await spool.find(piece.key, tenant=ADA.tenant)
            assert reader is not None
            assert reader.read_range(0, 1 << 20) == content_of(call.id, large=int(call.id.partition("-")[2]) % 4 == 1)
    assert half_files(tmp_path / "blobs") == []
    await spool.close()
    await store.close()


def half_files(root: Path) -> list[Path]:
    """Partial files that a reader could find, and leftovers in `incoming`."""
    left = [path for path in (root / "incoming").rglob("*") if path.is_file()]
    published = [path for path in root.rglob("*.bytes") if not _is_whole(path.read_bytes())]
    return left + published


def _is_whole(content: bytes) -> bool:
    id = content.partition(b"\n")[0].decode()
    return content == content_of(id, large=True)


async def test_living_worker_keeps_its_calls_when_another_is_killed(
    workers: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    assert workers.stdin is not None
    assert workers.stdout is not None
    workers.stdin.write(b"0\n")
    workers.stdin.flush()
    killed, alive = map(int, workers.stdout.readline().split())
    while len(logs := list(tmp_path.glob("log-*"))) < 2 or not all(log.stat().st_size for log in logs):
        workers.stdout.read(1)
    os.kill(killed, signal.SIGKILL)
    store = await open_sqlite_store(tmp_path / "gateway.db")

    recovered = await store.close_interrupted_calls(datetime.now(UTC))

    unknown = [call.id for call in await every_call(store) if call.status == "unknown"]
    assert len(unknown) == recovered
    assert {id.partition("-")[0] for id in unknown} <= {"0a"}
    os.kill(alive, signal.SIGKILL)
    workers.stdout.readline()
    await store.close_interrupted_calls(datetime.now(UTC))
    left = {call.id: call.status for call in await every_call(store)}
    assert set(left.values()) <= {"settled", "unknown"}
    assert {left[id] for id in read_log(tmp_path, "told")} == {"settled"}
    await store.close()

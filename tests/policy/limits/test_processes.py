"""Fifty clients over two processes: the calls they are allowed together, and the counts after processes are killed."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest

from gateway.storage.sql.sqlite.engine import open_sqlite_store
from tests.policy.limits.limit_worker import LIMITS


@pytest.fixture
def database(tmp_path: Path) -> Path:
    async def made() -> Path:
        await (await open_sqlite_store(tmp_path / "gateway.db")).close()
        return tmp_path / "gateway.db"

    return asyncio.run(made())


@contextmanager
def two_workers(database: Path, task: str, kind: str, attempts: int = 0) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Start both workers once both are ready."""
    script = Path(__file__).parent / "limit_worker.py"
    command = [sys.executable, str(script), str(database), task, kind, str(attempts)]
    with ExitStack() as stack:
        pipe = subprocess.PIPE
        workers = [stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe)) for _ in range(2)]
        try:
            for worker in workers:
                assert worker.stdout is not None
                assert worker.stdout.readline() == b"ready\n"
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.write(b"go\n")
                worker.stdin.flush()
            yield workers
        finally:
            for worker in workers:
                worker.kill()


def race_workers(database: Path, kind: str, attempts: int) -> list[list[int]]:
    with two_workers(database, "race", kind, attempts) as workers:
        return [[int(word) for word in worker.communicate()[0].split()] for worker in workers]


def test_rate_over_two_processes_is_within_one_per_cent(database: Path) -> None:
    found = race_workers(database, "rate", 800)

    limit = LIMITS["rate"].limit
    seconds = (max(ended for _, _, ended in found) - min(began for _, began, _ in found)) / 1e9
    due = limit + seconds * limit
    assert due * 0.99 <= sum(allowed for allowed, _, _ in found) <= due + 1


def test_quota_over_two_processes_is_exact(database: Path) -> None:
    found = race_workers(database, "quota", 40)

    assert sum(allowed for allowed, _, _ in found) == LIMITS["quota"].limit
    assert [allowed for allowed, *_ in race_workers(database, "quota", 1)] == [0, 0]


def test_killed_processes_never_overspend_a_quota(database: Path) -> None:
    chance, reported = Random(20260501), 0
    for _ in range(3):
        with two_workers(database, "spend", "budget") as workers:
            for worker in workers:
                assert worker.stdout is not None
                reported += len(worker.stdout.read(chance.randrange(1, 40)))
                worker.kill()
                reported += len(worker.stdout.read())
    with two_workers(database, "spend", "budget") as workers:
        rest = sum(len(worker.communicate()[0]) for worker in workers)

    # Counted calls that were never reported are lost: at most one for each client of each killed worker.
    assert rest > 0
    assert LIMITS["budget"].limit - 3 * 50 <= reported + rest <= LIMITS["budget"].limit

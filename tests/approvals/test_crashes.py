"""Requested and decided approvals survive the death of a process, and are still used once."""

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from gateway.audit.verification import verify
from gateway.storage.sql.read_only.read_only_store import SqliteAuditReader
from tests.approvals.held_calls import LEA, Clock, make_approval_fixture

pytestmark = pytest.mark.anyio

WORKER = Path(__file__).parent / "approval_worker.py"


@contextmanager
def worker(path: Path, command: str, argument: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(WORKER), str(path), command, str(argument)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def test_pending_approvals_outlive_the_process(tmp_path: Path) -> None:
    with worker(tmp_path / "gateway.db", "fill", 50) as killed:
        ids = line_of(killed).split()

    async with make_approval_fixture(tmp_path / "gateway.db") as desk:
        found, _ = await desk.approvals.page(LEA, state="pending", limit=100)

    assert len(ids) == 50
    assert [each.id for each in reversed(found)] == ids


async def test_time_runs_while_nothing_does(tmp_path: Path) -> None:
    with worker(tmp_path / "gateway.db", "fill", 3) as killed:
        ids = line_of(killed).split()
    clock = Clock()
    clock.advance(minutes=30)

    async with make_approval_fixture(tmp_path / "gateway.db", clock=clock) as desk:
        found = [(await desk.approvals.find(id, LEA)).state for id in ids]

    assert found == ["expired"] * 3


async def test_grant_is_used_by_the_next_process_after_the_crash(tmp_path: Path) -> None:
    async with make_approval_fixture(tmp_path / "gateway.db") as desk:
        id = await desk.pending()
        with worker(tmp_path / "gateway.db", "grant", id) as killed:
            granted = line_of(killed)

        first, second = await desk.again(), await desk.again()

    assert granted == "granted"
    assert (first.state, first.approvals[0].id) == ("taken", id)
    assert second.state == "pending"


async def test_two_processes_take_it_once(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    async with make_approval_fixture(path) as desk:
        await desk.granted()
    with worker(path, "take", 50) as one, worker(path, "take", 50) as other:
        assert (line_of(one), line_of(other)) == ("ready", "ready")
        for each in (one, other):
            assert each.stdin is not None
            print(file=each.stdin, flush=True)

        taken = [int(line_of(one)), int(line_of(other))]

    assert sorted(taken) == [0, 1]


async def test_waiting_call_of_one_process_is_granted_in_another(tmp_path: Path) -> None:
    async with make_approval_fixture(tmp_path / "gateway.db") as desk:
        id = await desk.pending()
        with worker(tmp_path / "gateway.db", "grant", id):
            standing = await desk.again(hold_for=timedelta(seconds=30))

    assert standing.state == "taken"


BECOMES = {
    "approval-requested": "pending",
    "approval-granted": "granted",
    "approval-refused": "refused",
    "approval-expired": "expired",
    "approval-used": "used",
    "approval-returned": "granted",
    "approval-voided": "void",
}


def test_every_approval_is_in_the_state_that_the_log_shows(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    chance = Random(36)
    for number in range(5):
        with worker(path, "churn", number) as killed:
            assert line_of(killed) == "ready"
            time.sleep(chance.uniform(0.2, 0.8))  # no wait for an event: the process is killed wherever it is then
            killed.kill()
            killed.wait()
        logged, kept, changes = states(path)
        assert logged == kept, f"round {number}"
        assert changes[0] == changes[1], f"round {number}"

    with SqliteAuditReader(path) as rows:
        assert verify(rows).is_good
    assert set(kept.values()) >= {"granted", "refused", "expired", "used", "void"}


def states(path: Path) -> tuple[dict[str, str], dict[str, str], tuple[int, int]]:
    """The state of every approval in the log and in the store, and the number of changes in each."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as opened:
        bodies = [json.loads(body) for [body] in opened.execute("SELECT body FROM audit ORDER BY at, seq")]
        kept = dict(opened.execute("SELECT id, state FROM approvals").fetchall())
        [changes] = opened.execute("SELECT max(changed) FROM approvals").fetchone()
    entries = [body for body in bodies if body["event"] in BECOMES]
    return {each["gate"]["approval"]: BECOMES[each["event"]] for each in entries}, kept, (len(entries), changes)

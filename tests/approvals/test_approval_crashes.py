"""Approvals and processes that die: what was asked and decided is still there, and is still used once."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from held_calls import LEA, Clock, desk_at

pytestmark = pytest.mark.anyio

WORKER = Path(__file__).parent / "approving_worker.py"


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

    async with desk_at(tmp_path / "gateway.db") as desk:
        found, _ = await desk.approvals.page(LEA, state="pending", limit=100)

    assert len(ids) == 50
    assert [each.id for each in reversed(found)] == ids


async def test_time_runs_while_nothing_does(tmp_path: Path) -> None:
    with worker(tmp_path / "gateway.db", "fill", 3) as killed:
        ids = line_of(killed).split()
    clock = Clock()
    clock.advance(minutes=30)

    async with desk_at(tmp_path / "gateway.db", clock=clock) as desk:
        found = [(await desk.approvals.find(id, LEA)).state for id in ids]

    assert found == ["expired"] * 3


async def test_grant_is_used_by_whoever_comes_after_the_crash(tmp_path: Path) -> None:
    async with desk_at(tmp_path / "gateway.db") as desk:
        id = await desk.pending()
        with worker(tmp_path / "gateway.db", "grant", id) as killed:
            granted = line_of(killed)

        first, second = await desk.again(), await desk.again()

    assert granted == "granted"
    assert (first.state, first.approvals[0].id) == ("taken", id)
    assert second.state == "pending"


async def test_two_processes_take_it_once(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    async with desk_at(path) as desk:
        await desk.granted()
    with worker(path, "take", 50) as one, worker(path, "take", 50) as other:
        assert (line_of(one), line_of(other)) == ("ready", "ready")
        for each in (one, other):
            assert each.stdin is not None
            print(file=each.stdin, flush=True)

        taken = [int(line_of(one)), int(line_of(other))]

    assert sorted(taken) == [0, 1]


async def test_waiting_call_of_one_process_is_granted_in_another(tmp_path: Path) -> None:
    async with desk_at(tmp_path / "gateway.db") as desk:
        id = await desk.pending()
        with worker(tmp_path / "gateway.db", "grant", id):
            standing = await desk.again(hold_for=timedelta(seconds=30))

    assert standing.state == "taken"

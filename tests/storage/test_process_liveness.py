"""Processes that are alive, recognised by the files they lock."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gateway.storage.process_liveness import ProcessLock

HOLD = """
import sys, time
from pathlib import Path
from gateway.storage.process_liveness import ProcessLock

print(ProcessLock(Path(sys.argv[1])).id, flush=True)
sys.stdin.read()
"""


def test_process_is_gone_when_it_is_killed_and_not_before(tmp_path: Path) -> None:
    ours = ProcessLock(tmp_path)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        id = other.stdout.readline().strip()
        assert not ours.has_ended(id)
        ours.sweep()
        assert (tmp_path / id).exists()

        other.send_signal(signal.SIGKILL)
        other.wait()

        ours.sweep()
        assert not (tmp_path / id).exists()
        assert ours.has_ended(id)
    assert not ours.has_ended(ours.id)
    ours.release()


def test_two_openings_of_one_process_are_distinguished(tmp_path: Path) -> None:
    first, second = ProcessLock(tmp_path), ProcessLock(tmp_path)
    assert not first.has_ended(second.id)

    second.release()

    assert first.has_ended(second.id)
    first.release()
    assert list(tmp_path.iterdir()) == []


def test_it_is_alone_under_one_number_until_another_process_comes(tmp_path: Path) -> None:
    ours = ProcessLock(tmp_path)
    before = ours.alone_since()
    assert before is not None
    assert ours.alone_since() == before

    os.utime(tmp_path, ns=(0, 0))  # as if nothing had changed for long
    assert ours.alone_since() == ours.alone_since() == 0

    other = ProcessLock(tmp_path)
    assert ours.alone_since() is None

    other.release()
    after = ours.alone_since()
    assert after is not None
    assert after != before

    (tmp_path / ("0" * 32)).touch()  # left by a process that was killed
    assert ours.alone_since() is not None
    ours.release()
    tmp_path.rmdir()
    assert ours.alone_since() is None


def test_lock_survives_sweeps_that_run_while_it_is_taken(tmp_path: Path) -> None:
    sweeper = ProcessLock(tmp_path)

    def take_and_sweep(n: int) -> ProcessLock:
        sweeper.sweep()
        return ProcessLock(tmp_path)

    with ThreadPoolExecutor(8) as threads:
        taken = list(threads.map(take_and_sweep, range(200)))

    assert not any(sweeper.has_ended(lock.id) for lock in taken)
    for lock in (*taken, sweeper):
        lock.release()


def test_link_in_place_of_a_lock_is_no_process(tmp_path: Path) -> None:
    ours = ProcessLock(tmp_path / "processes")
    target = tmp_path / "target"
    target.touch()
    (tmp_path / "processes" / ("ab" * 16)).symlink_to(target)

    assert ours.has_ended("ab" * 16)

    assert target.exists()
    ours.release()

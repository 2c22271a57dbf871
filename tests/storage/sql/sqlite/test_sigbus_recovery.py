"""A failing disk beneath SQLite's mapped file ends no process: writes are refused until the disk works again."""

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.paths import ROOT

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="signals are caught on Linux only")

CHILD = """
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.storage.sample_records import ADA, settled, turn
from gateway.errors import StoreUnavailable
from gateway.app.stores.databases import SqliteDatabase
from gateway.storage.sql.sqlite.sigbus_recovery import fault_count

path = Path(sys.argv[1])

async def tried(work):
    try:
        await work
        return "done"
    except StoreUnavailable as error:
        return "refused"

async def main():
    engine = await SqliteDatabase.open(path)
    store = engine.store
    for number in range(100):
        await store.record_call(settled("c", f"t{{number}}"), turn=turn(f"t{{number}}"))
    await asyncio.gather(*(store.find_turn(f"t{{n}}", ADA) for n in range(8)))
    print("ready", flush=True)
    for line in sys.stdin:
        told = set()
        for number in range(int(line)):
            name = f"{{line.strip()}}-{{number}}-{{os.urandom(4).hex()}}"
            told.add("write " + await tried(store.record_call(settled("c", name), turn=turn(name))))
            told.add("read " + await tried(store.find_turn("t1", ADA)))
        last = await tried(store.record_call(settled("c", name + "x"), turn=turn(name + "x")))
        print("faults" if fault_count() else "none", last, *sorted(told), sep=",", flush=True)
    await engine.close()
    print("closed", flush=True)

asyncio.run(main())
"""


class Child:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def goes_on(self, calls: int) -> list[str]:
        """Make that many calls and return their outcomes; the second word is the outcome of the last call."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{calls}\n")
        self.process.stdin.flush()
        return self.line().split(",")

    def ends(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.line() == "closed"
        return self.process.wait(60)


@contextmanager
def child(path: Path) -> Iterator[Child]:
    code = textwrap.dedent(CHILD.format(root=str(ROOT)))
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        found = Child(process)
        assert found.line() == "ready"
        yield found
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


@LINUX
def test_file_that_is_cut_short_ends_no_process(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    with child(path) as running:
        os.truncate(path.with_name("gateway.db-shm"), 0)
        first = running.goes_on(30)
        later = running.goes_on(30)

        assert first[0] == "faults", "the mapping was not used"
        assert later[1] == "done"
        assert running.ends() == 0


@LINUX
def test_other_bus_errors_end_the_process_as_before(tmp_path: Path) -> None:
    code = """
        import mmap, os, sys
        from gateway.storage.sql.sqlite.sigbus_recovery import survive_bus_errors
        survive_bus_errors()
        file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
        os.truncate(file, 4096)
        mapped = mmap.mmap(file, 4096)
        os.truncate(file, 0)
        mapped[0] = 1
        print("alive")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "other")],
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (-signal.SIGBUS, b"")


@contextmanager
def journalled_disk(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A small ext4 that journals data, and the file that makes it fail: writing to a mapping needs its journal."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    commands = [["mkfs.ext4", "-q", "-F", str(image)], ["losetup", "--find", "--show", str(image)]]
    device = ""
    for command in commands:
        device = _ran(command)
    try:
        _ran(["mount", "-o", "data=journal,errors=remount-ro", device, str(folder)])
        try:
            yield folder, Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error")
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    finally:
        subprocess.run(["losetup", "--detach", device], check=False)


def _ran(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        pytest.skip(f"no disk can be made here: {error}")
    if done.returncode:
        pytest.skip(f"no disk can be made here: {done.stderr.strip()}")
    return done.stdout.strip()


@LINUX
def test_file_system_that_turns_read_only_ends_no_process(tmp_path: Path) -> None:
    with journalled_disk(tmp_path) as (folder, failure):
        if not failure.exists():
            pytest.skip("this kernel has no way to make ext4 fail")
        with child(folder / "gateway.db") as running:
            with closing(sqlite3.connect(folder / "gateway.db")) as connection:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")  # the next write starts the log and its index anew
            os.sync()  # before SQLite changes pages that were written back, the file system is asked
            failure.write_text("1", encoding="ascii")
            outcomes = running.goes_on(50)

            assert outcomes[:2] == ["faults", "refused"]
            assert "write done" not in outcomes
            assert running.process.poll() is None

"""A full disk: calls that need a record are refused, reads continue, and calls resume once there is room."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.errors import StoreUnavailable
from gateway.storage.blobs.disk_store import DiskSpool
from gateway.storage.sql.sqlite.disk_space import DiskSpaceMonitor, check_disk_space
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from gateway.storage.sql.sqlite.single_call_conversion import SINGLE_CALL_INSERT, to_single_call_values
from gateway.storage.sql.sqlite.single_call_table import insert_single_calls, to_single_call_row
from tests.storage.sample_records import ADA, NOON, call, settled, turn

pytestmark = pytest.mark.anyio


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)  # a failed test has left files open


def fill(disk: Path) -> Path:
    """Fill the disk to the last byte."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65_536, 4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
    return ballast


async def test_full_disk_refuses_records_and_recovers_with_room(small_disk: Path) -> None:
    store = await open_sqlite_store(small_disk / "gateway.db", clock=lambda: NOON)
    await store.open_turn(turn())
    await store.record_call(settled("before"))
    fresh = to_single_call_values(settled("alone", "its own"), turn("its own"), process="p")
    assert fresh is not None
    await store.writer.run(
        lambda connection: insert_single_calls(connection, SINGLE_CALL_INSERT, [to_single_call_row(fresh)]) and None
    )
    ballast = fill(small_disk)
    big = {"text": "x" * 50_000}

    for write in (store.start_call(call("a", args=big)), store.record_call(settled("b", args=big))):
        with pytest.raises(StoreUnavailable, match="full"):
            await write
    many = await asyncio.gather(
        *(store.record_call(settled(f"m{n}", args=big)) for n in range(20)), return_exceptions=True
    )
    assert {type(error) for error in many} == {StoreUnavailable}
    for id in ("before", "alone"):
        assert await store.find_call(id, ADA) is not None
    assert await store.find_turn("its own", ADA) is not None

    ballast.unlink()
    await store.record_call(settled("after", args=big))
    assert [found.id for found in await store.list_turn_calls("turn")] == ["before", "after"]
    await store.close()


async def test_record_reported_as_failed_is_not_there_after_reopening(small_disk: Path) -> None:
    store = await open_sqlite_store(small_disk / "gateway.db", clock=lambda: NOON)
    await store.open_turn(turn())
    failed = []
    for n in range(300):
        try:
            await store.record_call(settled(f"c{n}", args={"text": "x" * 20_000}))
            failed.append(f"c{n}")
        except StoreUnavailable:
            break
    await store.close()

    again = await open_sqlite_store(small_disk / "gateway.db", clock=lambda: NOON)

    assert len(failed) < 300
    assert [found.id for found in await again.list_turn_calls("turn")] == failed
    await again.close()


async def test_database_is_not_made_on_a_full_disk_and_made_with_room(small_disk: Path) -> None:
    ballast = fill(small_disk)

    with pytest.raises(StoreUnavailable):
        await open_sqlite_store(small_disk / "gateway.db")

    ballast.unlink()
    store = await open_sqlite_store(small_disk / "gateway.db")
    await store.open_turn(turn())
    await store.close()


async def test_full_disk_leaves_no_part_of_a_result(small_disk: Path) -> None:
    spool = await DiskSpool.open(small_disk / "blobs")
    turn_spool = spool.for_turn("turn")
    kept = await turn_spool.write("kept", b"k" * 100_000)

    with pytest.raises(StoreUnavailable, match="full"):
        await turn_spool.write("large", b"x" * (5 << 20))
    assert await turn_spool.read("large") is None
    ballast = fill(small_disk)
    with pytest.raises(StoreUnavailable, match="full"):
        await turn_spool.write("tiny", b"x")
    assert kept.read_range(0, 1) == b"k"
    ballast.unlink()

    await turn_spool.write("large", b"x" * (1 << 20))
    names = sorted(path.suffix for path in (small_disk / "blobs").rglob("*") if path.is_file() and path.suffix)
    assert names == [".bytes", ".bytes", ".lines", ".lines"]
    await spool.close()


async def test_want_of_room_is_known_before_a_call_fails(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    room = DiskSpaceMonitor(small_disk, every=0.01)
    ballast = fill(small_disk)
    async with asyncio.timeout(20):
        while (failed := room.problem) is None:
            await asyncio.sleep(0.01)
        ballast.unlink()
        while room.problem is not None:
            await asyncio.sleep(0.01)
    room.close()

    assert failed == "the disk is full"
    assert [record.message for record in caplog.records] == [
        "nothing can be recorded: the disk is full",
        "calls can be recorded again",
    ]
    assert list(small_disk.iterdir()) == []


def test_folder_that_is_gone_takes_nothing(tmp_path: Path) -> None:
    assert check_disk_space(tmp_path) is None
    assert check_disk_space(tmp_path / "gone") == "its folder cannot be written to"

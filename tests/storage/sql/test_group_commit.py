"""The writer thread: one transaction for many writes, and callers that do not wait for its end."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from threading import Event

import pytest

from gateway.errors import RecordConflict, StoreUnavailable
from gateway.storage.sql.group_commit import GroupCommit
from gateway.storage.sql.sqlite.connection import SqliteConnection
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from tests.storage.sample_records import ADA, NOON, call, settled, turn

pytestmark = pytest.mark.anyio

Work = Callable[[sqlite3.Connection], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "numbers.db"
    path.touch()
    link = SqliteConnection(path)
    link.connection.execute("CREATE TABLE numbers (n INTEGER PRIMARY KEY)")
    link.close()
    return path


@pytest.fixture
async def writer(path: Path) -> AsyncIterator[GroupCommit]:
    writer = GroupCommit(lambda: SqliteConnection(path))
    yield writer
    await writer.close()


def insert(n: int) -> Work:
    return lambda connection: connection.execute("INSERT INTO numbers VALUES (?)", (n,)).close()


def remove(n: int) -> Work:
    return lambda connection: connection.execute("DELETE FROM numbers WHERE n = ?", (n,)).close()


def numbers(path: Path) -> list[int]:
    link = SqliteConnection(path, read_only=True)
    found = [n for [n] in link.connection.execute("SELECT n FROM numbers ORDER BY n")]
    link.close()
    return found


async def held_up(writer: GroupCommit) -> tuple[Event, "asyncio.Future[None]"]:
    """Keep the writer busy, as a slow disk would, until the event is set."""
    begun, go_on = asyncio.Event(), Event()
    loop = asyncio.get_running_loop()

    def wait(connection: sqlite3.Connection) -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait()

    waiting = asyncio.ensure_future(writer.run(wait))
    await begun.wait()
    return go_on, waiting


async def test_what_arrives_during_a_commit_shares_the_next_one(writer: GroupCommit, path: Path) -> None:
    go_on, first = await held_up(writer)
    transactions: list[int] = []

    def noted(n: int) -> Work:
        def work(connection: sqlite3.Connection) -> None:
            insert(n)(connection)
            [position] = connection.execute("SELECT count(*) FROM numbers").fetchone()
            transactions.append(position)
            assert numbers(path) == []  # no part of the group is visible before all of it is

        return work

    writes = [asyncio.ensure_future(writer.run(noted(n))) for n in range(50)]
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(first, *writes)

    assert transactions == list(range(1, 51))
    assert numbers(path) == list(range(50))


async def test_error_of_one_job_is_its_callers_alone(writer: GroupCommit, path: Path) -> None:
    go_on, first = await held_up(writer)
    writes = [asyncio.ensure_future(writer.run(insert(n))) for n in (1, 2, 2, 3)]
    await asyncio.sleep(0)
    go_on.set()

    await first
    outcomes = await asyncio.gather(*writes, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [type(None), type(None), sqlite3.IntegrityError, type(None)]
    assert numbers(path) == [1, 2, 3]


async def test_slow_disk_is_reported_in_time_and_its_write_is_undone(writer: GroupCommit, path: Path) -> None:
    go_on, first = await held_up(writer)

    with pytest.raises(StoreUnavailable, match="too slow"):
        await writer.run(insert(1), within=0.01, undo=remove(1))
    go_on.set()
    await first
    await writer.run(insert(2))

    assert numbers(path) == [2]


async def test_cancelled_caller_is_undone_after_its_work(writer: GroupCommit, path: Path) -> None:
    go_on, first = await held_up(writer)
    cancelled = asyncio.ensure_future(writer.run(insert(1), undo=remove(1)))
    await asyncio.sleep(0)

    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    go_on.set()
    await first
    await writer.run(insert(2))

    assert numbers(path) == [2]


async def test_what_cannot_be_undone_at_once_is_undone_later(writer: GroupCommit, path: Path) -> None:
    await writer.run(insert(1))
    locking = SqliteConnection(path)
    locking.connection.execute("BEGIN IMMEDIATE")
    cancelled = asyncio.ensure_future(writer.run(lambda connection: None, undo=remove(1)))
    await asyncio.sleep(0)
    cancelled.cancel()

    for n in (2, 3):  # the undo does not delay others past their timeout
        with pytest.raises(StoreUnavailable, match="locked"):
            await writer.run(insert(n))
    locking.connection.execute("ROLLBACK")
    locking.close()
    await writer.run(insert(4))

    assert numbers(path) == [4]


async def test_start_with_an_unknown_outcome_is_undone(tmp_path: Path) -> None:
    store = await open_sqlite_store(tmp_path / "gateway.db", clock=lambda: NOON)
    await store.open_turn(turn())
    starting = [
        asyncio.ensure_future(store.start_call(call("a"))),
        asyncio.ensure_future(
            store.claim_idempotency_key("key", ADA, digest="d", call=call("b"), until=turn().expires_at)
        ),
    ]
    await asyncio.sleep(0)

    for start in starting:
        start.cancel()
    await asyncio.gather(*starting, return_exceptions=True)
    await store.record_call(settled("after"))

    assert await store.find_call("a", ADA) is None
    assert await store.find_call("b", ADA) is None
    claim = await store.claim_idempotency_key("key", ADA, digest="other", call=call("b"), until=turn().expires_at)
    assert claim.state == "fresh"
    await store.close()


async def test_cancelled_second_start_leaves_the_first_alone(tmp_path: Path) -> None:
    store = await open_sqlite_store(tmp_path / "gateway.db", clock=lambda: NOON)
    await store.start_call(call("a"), turn=turn())
    again = asyncio.ensure_future(store.start_call(call("a")))
    await asyncio.sleep(0)

    again.cancel()
    await asyncio.gather(again, return_exceptions=True)
    await store.record_call(settled("after"))

    assert await store.find_call("a", ADA) == call("a")
    await store.close()


async def test_work_taken_on_before_closing_is_done(path: Path) -> None:
    writer = GroupCommit(lambda: SqliteConnection(path))
    writes = [asyncio.ensure_future(writer.run(insert(n))) for n in range(5)]
    await asyncio.sleep(0)

    await writer.close()

    await asyncio.gather(*writes)
    assert numbers(path) == [0, 1, 2, 3, 4]
    with pytest.raises(StoreUnavailable, match="closed"):
        await writer.run(insert(9))


async def test_failed_writes_are_a_problem_until_one_succeeds(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    is_readonly = False

    def connect() -> SqliteConnection:
        if is_readonly:
            raise StoreUnavailable("the disk is read-only")
        return SqliteConnection(path)

    writer = GroupCommit(connect)
    await writer.run(lambda connection: None)
    problems = [writer.problem]

    is_readonly = True
    writer._link = None  # as after a failure
    with pytest.raises(StoreUnavailable):
        await writer.run(lambda connection: None)
    assert [*problems, writer.problem] == [None, "calls cannot be recorded: the disk is read-only"]

    is_readonly = False
    async with asyncio.timeout(10):
        while writer.problem is not None:  # no caller writes: the writer itself tries again
            await asyncio.sleep(0.02)
    assert "can be written again" in caplog.text
    await writer.close()


async def test_conflict_of_one_caller_is_no_problem(writer: GroupCommit) -> None:
    def conflict(connection: sqlite3.Connection) -> None:
        raise RecordConflict("stored already")

    with pytest.raises(RecordConflict):
        await writer.run(conflict)

    assert writer.problem is None

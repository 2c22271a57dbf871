"""The decision log of a store: chained in the transaction of its subject, and rolled back with it."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from gateway.audit.chain import Chain
from gateway.audit.entries import AuditEntry, AuditOrigin
from gateway.audit.verification import VerificationReport, verify
from gateway.errors import RecordConflict, StoreUnavailable
from gateway.storage.call_store import AuditBody, StoredCall
from gateway.storage.sql.audit_log import AuditLog
from gateway.storage.sql.read_only.read_only_store import SqliteAuditReader
from gateway.storage.sql.sqlite.connection import SqliteConnection
from gateway.storage.sql.sqlite.database_setup import migrate_sqlite
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store
from gateway.storage.sql.sqlite.writer_client import WriterClient
from tests.storage.sample_records import ADA, NOON, call, settled, turn

pytestmark = pytest.mark.anyio

PLACE = AuditOrigin("gw")


def body(number: int = 0) -> AuditBody:
    return number, AuditEntry("gateway-started", number, PLACE).encode()


def new_log(prefix: str = "shard") -> AuditLog:
    names = (f"{prefix}-{number}" for number in count(1))
    return AuditLog(lambda: next(names), PLACE, clock=lambda: 0)


def abandoned(stored: StoredCall) -> AuditBody:
    return 7, AuditEntry("call-unknown", 7, AuditOrigin(stored.id)).encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.db"


@pytest.fixture
def log() -> AuditLog:
    return new_log()


@pytest.fixture
async def store(path: Path, log: AuditLog) -> AsyncIterator[SqliteStore]:
    store = await open_sqlite_store(path, clock=lambda: NOON)
    store.use_audit_log(log, abandoned=abandoned)
    yield store
    await store.close()


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    """The database file of a store that holds only the log."""
    asyncio.run(_made(path))
    link = SqliteConnection(path)
    yield link.connection
    link.close()


async def _made(path: Path) -> None:
    await (await open_sqlite_store(path)).close()


def verify_log(path: Path) -> VerificationReport:
    with SqliteAuditReader(path) as rows:
        return verify(rows)


def ends(path: Path) -> dict[str, int]:
    """How many entries each shard has; asserts that all of them verify."""
    report = verify_log(path)
    assert report.is_good, report.findings
    return {each.shard: each.last for each in report.shards}


def written(path: Path) -> list[dict[str, Any]]:
    with SqliteAuditReader(path) as rows:
        return [json.loads(row.body) for row in rows]


def openings(path: Path) -> dict[str, list[tuple[str, int]]]:
    """The entries that each shard follows."""
    opened = [each["log"]["opened"] for each in written(path) if each["event"] == "shard-opened"]
    return {each["shard"]: [(mark["shard"], mark["seq"]) for mark in each.get("predecessors", ())] for each in opened}


# --- entries ---


async def test_entries_are_chained_behind_the_opening_of_a_shard(store: SqliteStore, path: Path, log: AuditLog) -> None:
    await store.note([body(1), body(2)])
    await store.note([])
    await store.note([body(3)])

    assert ends(path) == {"shard-1": 4}
    assert [each["at"] for each in written(path)] == [0, 1, 2, 3]
    assert log.durable_head().seq == 4


async def test_many_entries_of_one_transaction_are_chained_in_their_order(store: SqliteStore, path: Path) -> None:
    await store.note([body(number) for number in range(1, 301)])

    assert ends(path) == {"shard-1": 301}
    assert [each["at"] for each in written(path)] == list(range(301))


async def test_without_a_log_entries_are_let_go(path: Path) -> None:
    store = await open_sqlite_store(path)
    await store.note([body()])
    await store.close()

    assert ends(path) == {}


async def test_call_and_its_entry_are_written_together_or_not_at_all(store: SqliteStore, path: Path) -> None:
    await store.open_turn(turn())
    await store.record_call(settled(), audit=[body(1)])
    with pytest.raises(RecordConflict):
        await store.record_call(settled(), audit=[body(2)])
    with pytest.raises(RecordConflict):
        await store.start_call(call(turn_id="another"), audit=[body(3)])
    await store.record_call(settled("second"), audit=[body(4)])

    assert ends(path) == {"shard-1": 3}
    assert [each["at"] for each in written(path)] == [0, 1, 4]


async def test_start_that_is_given_up_keeps_both_of_its_entries(store: SqliteStore, path: Path) -> None:
    await store.open_turn(turn())
    await store.start_call(call(), audit=[body(1)])
    assert await store.abandon_call("call", turn_id="turn", at=NOON, audit=[body(2)])

    found = await store.find_call("call", ADA)
    assert found is not None
    assert found.status == "unknown"
    assert ends(path) == {"shard-1": 3}


async def test_outcome_that_is_known_is_not_given_up_and_has_no_other_entry(store: SqliteStore, path: Path) -> None:
    await store.open_turn(turn())
    await store.start_call(call(), audit=[body(1)])
    await store.record_call(settled(), audit=[body(2)])

    assert not await store.abandon_call("call", turn_id="turn", at=NOON, audit=[body(3)])
    found = await store.find_call("call", ADA)
    assert found is not None
    assert found.status == "settled"
    assert [each["at"] for each in written(path)] == [0, 1, 2]


async def test_bad_call_of_a_group_takes_no_entry_of_the_others_with_it(store: SqliteStore, path: Path) -> None:
    """The group is rolled back and run again one by one: the chain goes back with it, and has no gap."""
    await store.note([body(0)])
    async with held_up(store):
        good = [
            store.record_single_call(settled(f"c{n}", f"t{n}"), turn(f"t{n}"), audit=[body(n)]) for n in range(1, 4)
        ]
        bad = [store.record_single_call(settled("c1", "t1"), turn("t1"), audit=[body(99)])]
        asked = asyncio.gather(good[0], bad[0], *good[1:], store.note([body(4)]), return_exceptions=True)
        await asyncio.sleep(0)
    outcomes = await asked

    assert [type(each) for each in outcomes] == [type(None), RecordConflict, *[type(None)] * 3]
    assert ends(path) == {"shard-1": 6}
    assert sorted(each["at"] for each in written(path)) == [0, 0, 1, 2, 3, 4]


async def test_log_that_cannot_be_written_fails_what_it_is_about_and_recovers(store: SqliteStore, path: Path) -> None:
    await store.open_turn(turn())
    await store.note([body(1)])
    with sqlite3.connect(path) as other:
        other.execute("ALTER TABLE audit RENAME TO away")
    for write in (
        store.start_call(call("a"), audit=[body(2)]),
        store.record_call(settled("b"), audit=[body(2)]),
        store.record_single_call(settled("c", "alone"), turn("alone"), audit=[body(2)]),
        store.note([body(2)]),
    ):
        with pytest.raises(StoreUnavailable, match="decision log"):
            await write
    with sqlite3.connect(path) as other:
        other.execute("ALTER TABLE away RENAME TO audit")
    other.close()
    await store.record_call(settled("d"), audit=[body(3)])

    assert [await store.find_call(id, ADA) for id in ("a", "b", "c")] == [None, None, None]
    assert ends(path) == {"shard-1": 3}


@pytest.mark.parametrize("rolls_back", [False, True], ids=["by the writer", "by SQLite itself"])
async def test_group_that_fails_once_more_on_its_own_leaves_nothing(
    rolls_back: bool, store: SqliteStore, path: Path, log: AuditLog
) -> None:
    await store.note([body(1)])
    runs = count(1)

    def bad(connection: sqlite3.Connection) -> None:
        raise RecordConflict("not this one")

    def without_room(connection: sqlite3.Connection) -> None:
        log.append(connection, [body(9)])
        if next(runs) == 1:
            return
        if rolls_back:
            connection.execute("ROLLBACK")
        full = sqlite3.OperationalError("database or disk is full")
        full.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise full

    async with held_up(store):
        writes = [store.note([body(2)]), store.writer.run(without_room), store.writer.run(bad)]
        asked = asyncio.gather(*writes, return_exceptions=True)
        await asyncio.sleep(0)
    assert {type(each) for each in await asked} == {StoreUnavailable}
    await store.note([body(3)])

    assert ends(path) == {"shard-1": 3}
    assert [each["at"] for each in written(path)] == [0, 1, 3]


async def test_call_whose_caller_is_gone_is_written_with_its_entry(store: SqliteStore, path: Path) -> None:
    async with held_up(store):
        asked = asyncio.ensure_future(store.record_single_call(settled(), turn(), audit=[body(1)]))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    await store.note([body(2)])

    assert await store.find_call("call", ADA) is not None
    assert ends(path) == {"shard-1": 3}


def test_file_that_cannot_be_written_is_reported_as_what_it_is(connection: sqlite3.Connection, log: AuditLog) -> None:
    connection.execute("PRAGMA query_only = ON")

    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        log.append(connection, [body(1)])


class held_up:  # noqa: N801 - reads as a statement
    """Keep the writer busy, so that all writes of the block share the next transaction."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._go_on = Event()

    async def __aenter__(self) -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait(connection: sqlite3.Connection) -> None:
            loop.call_soon_threadsafe(begun.set)
            self._go_on.wait()

        self._waiting = asyncio.ensure_future(self._store.writer.run(wait))
        await begun.wait()

    async def __aexit__(self, *_: object) -> None:
        self._go_on.set()
        await self._waiting


def test_log_of_a_process_that_has_written_nothing_ends_before_its_first_entry(tmp_path: Path) -> None:
    recording = WriterClient(tmp_path / "gateway.db", place=None, shard="shard")

    assert recording.durable_head() == Chain("shard").head


# --- shards ---


def append(log: AuditLog, connection: sqlite3.Connection, *numbers: int, commit: bool = True) -> None:
    mark = log.mark()
    connection.execute("BEGIN IMMEDIATE")
    log.append(connection, [body(number) for number in numbers])
    connection.execute("COMMIT" if commit else "ROLLBACK")
    if commit:
        log.on_commit()
    else:
        log.rewind(mark)


def test_nothing_is_durable_before_something_is_written(connection: sqlite3.Connection, log: AuditLog) -> None:
    log.on_commit()
    with pytest.raises(AssertionError):
        log.durable_head()
    append(log, connection, 1, commit=False)
    with pytest.raises(AssertionError):
        log.durable_head()


def test_what_is_rolled_back_is_chained_anew(connection: sqlite3.Connection, log: AuditLog, path: Path) -> None:
    append(log, connection, 1, commit=False)
    append(log, connection, 2)
    append(log, connection, 3, commit=False)
    append(log, connection, 4)

    assert ends(path) == {"shard-2": 3}
    assert [each["at"] for each in written(path)] == [0, 2, 4]
    assert (log.durable_head().shard, log.durable_head().seq) == ("shard-2", 3)


def test_commit_with_an_unknown_outcome_begins_a_new_shard(
    connection: sqlite3.Connection, log: AuditLog, path: Path
) -> None:
    append(log, connection, 1)
    before = log.mark()
    append(log, connection, 2)
    log.rewind(before)  # as if that commit had failed
    append(log, connection, 3)

    assert ends(path) == {"shard-1": 3, "shard-2": 2}
    assert openings(path) == {"shard-1": [], "shard-2": [("shard-1", 3)]}


def test_shard_that_was_begun_and_rolled_back_is_begun_again(
    connection: sqlite3.Connection, log: AuditLog, path: Path
) -> None:
    append(log, connection, 1)
    before = log.mark()
    append(log, connection, 2)
    log.rewind(before)
    append(log, connection, 3, commit=False)
    append(log, connection, 4)

    assert ends(path) == {"shard-1": 3, "shard-3": 2}


def test_new_process_follows_the_ends_without_a_successor(connection: sqlite3.Connection, path: Path) -> None:
    first, beside = new_log("a"), new_log("b")
    append(first, connection, 1)
    append(beside, connection, 1)
    append(first, connection, 2)
    append(new_log("c"), connection, 1)
    append(new_log("d"), connection, 1)

    assert openings(path) == {
        "a-1": [],
        "b-1": [("a-1", 2)],
        "c-1": [("a-1", 3), ("b-1", 2)],
        "d-1": [("c-1", 2)],
    }
    assert verify_log(path).is_good


def test_end_that_was_changed_since_it_was_followed_is_followed_as_it_is_now(
    connection: sqlite3.Connection, path: Path
) -> None:
    append(new_log("a"), connection, 1)
    append(new_log("b"), connection, 1)
    connection.execute("UPDATE audit SET hash = zeroblob(32) WHERE shard = 'a-1' AND seq = 2")
    append(new_log("c"), connection, 1)

    assert openings(path)["c-1"] == [("a-1", 2), ("b-1", 2)]
    assert not verify_log(path).is_good


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param("UPDATE audit SET body = x'ff00' WHERE seq = 1", id="no opening"),
        pytest.param("DELETE FROM audit WHERE seq = 1", id="opening gone"),
    ],
)
def test_damaged_log_does_not_keep_a_process_from_writing_its_own(
    damage: str, connection: sqlite3.Connection, path: Path
) -> None:
    append(new_log("a"), connection, 1)
    connection.execute(damage)
    append(new_log("b"), connection, 1)

    found = verify_log(path)
    assert {each.shard for each in found.findings} == {"a-1"}
    assert {each.shard: each.last for each in found.shards}["b-1"] == 2


def test_shards_are_found_without_reading_every_entry(connection: sqlite3.Connection, log: AuditLog) -> None:
    append(log, connection, *range(1, 2000))
    steps: list[None] = []
    connection.set_progress_handler(lambda: steps.append(None), 1000)
    append(new_log("later"), connection, 1)
    connection.set_progress_handler(None, 0)

    assert len(steps) <= 2


def test_log_of_another_version_is_the_same_log(connection: sqlite3.Connection, path: Path) -> None:
    append(new_log("b"), connection, *range(3))
    append(new_log("a"), connection, *range(5))
    before = written(path)

    for version in ("0007", "head"):
        migrate_sqlite(connection, to=version)

        assert ends(path) == {"a-1": 6, "b-1": 4}
        assert written(path) == before


# --- calls of dead processes ---


async def started_elsewhere(path: Path, ids: list[str]) -> None:
    """Calls of a process that ended in the middle of them."""
    gone = await open_sqlite_store(path, clock=lambda: NOON)
    await gone.open_turn(turn())
    for id in ids:
        await gone.start_call(call(id))
    await gone.close()


async def test_calls_of_a_process_that_is_gone_are_in_the_log(store: SqliteStore, path: Path) -> None:
    await started_elsewhere(path, ["a", "b"])

    assert await store.close_interrupted_calls(NOON) == 2
    assert await store.close_interrupted_calls(NOON) == 0
    found = [each["place"]["node"] for each in written(path) if each["event"] == "call-unknown"]
    assert sorted(found) == ["a", "b"]
    assert ends(path) == {"shard-1": 3}


async def test_without_a_log_calls_are_recovered_all_the_same(path: Path) -> None:
    await started_elsewhere(path, ["a"])
    store = await open_sqlite_store(path)
    assert await store.close_interrupted_calls(NOON) == 1
    await store.close()

    assert written(path) == []


async def test_calls_are_not_recovered_without_their_entries(store: SqliteStore, path: Path) -> None:
    await started_elsewhere(path, ["a"])
    with sqlite3.connect(path) as other:
        other.execute("ALTER TABLE audit RENAME TO away")
    with pytest.raises(StoreUnavailable, match="decision log"):
        await store.close_interrupted_calls(NOON)
    with sqlite3.connect(path) as other:
        other.execute("ALTER TABLE away RENAME TO audit")
    other.close()

    assert await store.close_interrupted_calls(NOON) == 1
    assert [each["event"] for each in written(path)] == ["shard-opened", "call-unknown"]

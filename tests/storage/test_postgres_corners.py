"""PostgreSQL, in the corners: what is left of a start that fails, of a transaction nobody saw the end of, of a log that
cannot be read, and of a copy that does not work."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
from postgres_clusters import Cluster, running_cluster
from stored_records import ADA, NOON, Clock, call, settled, turn

from gateway.audit.entries import Place
from gateway.errors import StoreUnavailable
from gateway.governance.limits import CountedCall, Limit, Quota, Rate
from gateway.governance.memory import Bounds, TurnMemory
from gateway.governance.principals import Principal
from gateway.governance.records import StoredCall
from gateway.storage.postgres.audit import PostgresAuditLog
from gateway.storage.postgres.copying import copy_sqlite
from gateway.storage.postgres.faults import unavailable
from gateway.storage.postgres.limits import PostgresLimits
from gateway.storage.postgres.migrating import migrate
from gateway.storage.postgres.places import PostgresAuditRows
from gateway.storage.postgres.pulse import PostgresNotices
from gateway.storage.postgres.sessions import Session
from gateway.storage.postgres.store import PostgresStore
from gateway.storage.postgres.writing import _if_committed
from gateway.storage.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

CALLER = CountedCall(Principal("user:ada"), "search", "support")
OTHERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> {}"


@pytest.fixture
def address(new_database: Callable[[], str]) -> str:
    return new_database()


@asynccontextmanager
async def opened(address: str) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(address, clock=Clock())
    try:
        yield store
    finally:
        await store.close()


def asked(address: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(address, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def cut_all(address: str) -> None:
    asked(address, OTHERS.format("pg_backend_pid()"))


# Connections


def test_session_that_cannot_be_set_up_is_closed(address: str) -> None:
    with pytest.raises(psycopg.Error, match="statement_timeout"):
        Session(address, patience=-1)

    assert asked(address, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'agent-gateway'") == [(0,)]


def test_database_that_forgets_commits_is_told_not_to(address: str) -> None:
    name = address.rpartition("/")[2]
    asked(address, f"ALTER DATABASE {name} SET synchronous_commit = off")
    session = Session(address)

    assert session.execute("SHOW synchronous_commit").fetchone() == ("on",)
    session.close()


async def test_store_that_finds_no_connection_for_its_writer_leaves_none(address: str) -> None:
    asked(address, "DROP ROLE IF EXISTS single; CREATE ROLE single LOGIN CONNECTION LIMIT 1")
    asked(address, "GRANT ALL ON ALL TABLES IN SCHEMA public TO single")

    with pytest.raises(StoreUnavailable, match="no connection free"):
        await PostgresStore.open(address.replace("gateway@", "single@"))

    assert asked(address, "SELECT count(*) FROM leases") == [(0,)]
    asked(address, "DROP OWNED BY single; DROP ROLE single")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ('FATAL:  password authentication failed for user "gateway"', "lets the gateway not in"),
        ("fe_sendauth: no password supplied", "lets the gateway not in"),
        ("FATAL:  sorry, too many clients already", "no connection free"),
        ("FATAL:  the database system is starting up", "being stopped or started"),
        ('FATAL:  database "gone" does not exist', "does not exist"),
        ("connection refused", "cannot be reached"),
    ],
)
def test_server_that_turns_us_away_at_the_door_is_understood(words: str, told: str) -> None:
    found = unavailable(psycopg.OperationalError(words))

    assert found is not None
    assert told in found.message
    assert words not in found.message


# Room


async def test_room_is_tried_when_there_was_none_until_there_is(address: str) -> None:
    """A renewal changes a row where it is: on a disk that is full, it finds room when nothing else does."""
    asked(
        address,
        """
        CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$;
        CREATE TRIGGER full_turns BEFORE INSERT ON turns EXECUTE FUNCTION no_room();
        """,
    )
    async with opened(address) as store:
        asked(address, "CREATE TRIGGER full_leases BEFORE INSERT ON leases EXECUTE FUNCTION no_room()")
        before = store.problem
        with pytest.raises(StoreUnavailable, match="disk of the database is full"):
            await store.open_turn(turn())
        at_once = store.problem
        with anyio.fail_after(10):
            while store.pulse.problem is None:  # it was tried, and there is none
                await anyio.sleep(0.02)
        tried = store.problem
        asked(address, "DROP FUNCTION no_room CASCADE")
        with anyio.fail_after(10):
            while store.problem is not None:
                await anyio.sleep(0.02)
        await store.open_turn(turn())
        left = asked(address, "SELECT count(*) FROM leases")

    assert before is None
    assert at_once == tried == "the disk of the database is full"
    assert left == [(1,)]


# Who lives, and who is told


async def test_gateways_tell_how_they_are_reached(address: str) -> None:
    async with opened(address) as one, opened(address) as other:
        one.advertise("http://one:8080")
        with anyio.fail_after(10):
            while not (found := await other.addresses()):
                await anyio.sleep(0.02)

    assert found == ["http://one:8080"]


async def test_lease_that_cannot_be_given_back_is_told(address: str, caplog: pytest.LogCaptureFixture) -> None:
    store = await PostgresStore.open(address, clock=Clock())
    store.pulse._closing.set()
    await asyncio.to_thread(store.pulse._thread.join)
    cut_all(address)

    with caplog.at_level(logging.WARNING):
        await store.close()

    assert "was not given back" in caplog.text


@pytest.fixture(scope="module")
def stoppable() -> Iterator[Cluster]:
    with running_cluster() as cluster:
        yield cluster


async def test_change_that_cannot_be_announced_is_told(stoppable: Cluster) -> None:
    address = stoppable.database()
    migrate(address)
    async with opened(address) as store:
        notices = PostgresNotices(store.pulse, store.writer)
        noticed = notices.noticed(lambda connection: 1, at_first=0)
        before = noticed.problem
        stoppable.stop()
        with pytest.raises(StoreUnavailable, match="stored, but it could not be announced"):
            await notices.announce()
        with anyio.fail_after(10):
            while noticed.problem is None:
                await anyio.sleep(0.02)
        with pytest.raises(StoreUnavailable):
            noticed.current()
        stoppable.start()

    assert before is None


async def test_calls_that_are_given_up_have_their_entry(address: str) -> None:
    log = PostgresAuditLog(lambda: "one", Place("here"), clock=lambda: 1)

    def abandoned(call: StoredCall) -> tuple[int, bytes]:
        return 1, b'{"left":"%s"}' % call.id.encode()

    async with opened(address) as store:
        store.keep_audit(log, abandoned=abandoned)
        before = store._lease.id
        await store.start_call(call("lost"), turn=turn())
        asked(address, "DELETE FROM leases")
        with anyio.fail_after(10):
            while store._lease.id == before:
                await anyio.sleep(0.02)

        assert await store.recover(NOON) == 1
        assert (b'{"left":"lost"}',) in [
            (bytes(body),) for (body,) in asked(address, "SELECT body FROM audit ORDER BY seq")
        ]


async def test_call_is_given_up_once(address: str) -> None:
    log = PostgresAuditLog(lambda: "one", Place("here"), clock=lambda: 1)
    async with opened(address) as store:
        store.keep_audit(log)
        await store.start_call(call(), turn=turn())

        assert await store.give_up_call("call", turn_id="turn", at=NOON, audit=[(1, b'{"up":1}')])
        assert not await store.give_up_call("call", turn_id="turn", at=NOON, audit=[(2, b'{"up":2}')])
        bodies = [bytes(body) for (body,) in asked(address, "SELECT body FROM audit")]

    assert b'{"up":1}' in bodies
    assert b'{"up":2}' not in bodies


# What nobody saw the end of


async def test_transaction_is_undone_only_if_it_was_committed(address: str) -> None:
    undone: list[int] = []
    asking, other = Session(address), Session(address)
    other.begin(is_alone=False)
    number = other.transaction
    assert number is not None
    undo = _if_committed(number, lambda _: undone.append(1))
    with pytest.raises(StoreUnavailable, match="not ended yet"):
        undo(asking)  # type: ignore[arg-type] # what a connection of SQLite is there
    other.execute("ROLLBACK")
    undo(asking)  # type: ignore[arg-type] # likewise
    asking.close()
    other.close()

    assert undone == []


async def test_start_that_was_not_written_takes_nothing_back(address: str) -> None:
    async with opened(address) as store:
        await store.start_call(call(), turn=turn())
        again = store._starting(call(), turn())
        await store.writer.run(again.undo)

        assert await store.find_call("call", ADA) is not None


async def test_reservation_brings_along_what_the_turn_has_seen(address: str) -> None:
    seen = TurnMemory()
    seen.receives(7)
    memory, knowing = seen.to_write()
    async with opened(address) as store:
        await store.open_turn(turn())
        made = await store.reserve_call("turn", "same", bounds=Bounds(same=1), memory=memory, knowing=knowing)
        kept = await store.memory_of_turn("turn")

    assert made.is_made
    assert kept is not None


# What is counted


async def test_limits_are_given_back_one_by_one(address: str) -> None:
    rate, quota = Rate("burst", 1, timedelta(hours=1)), Quota("budget", 1, timedelta(days=1))
    async with opened(address) as store:
        limits = PostgresLimits(store.writer, clock=Clock())
        nothing = await limits.take([], CALLER)
        for limit in (rate, quota):
            wanted: list[Limit] = [limit]
            taken = await limits.take(wanted, CALLER)
            refused = await limits.take(wanted, CALLER)
            await limits.give_back(taken, CALLER)
            again = await limits.take(wanted, CALLER)

            assert (taken.allowed, refused.allowed, again.allowed) == (True, False, True)
    assert (nothing.allowed, nothing.taken) == (True, ())


async def test_caller_who_went_away_has_taken_no_rate(address: str) -> None:
    wanted: list[Limit] = [Rate("burst", 1, timedelta(hours=1))]
    async with opened(address) as store:
        limits = PostgresLimits(store.writer, clock=Clock())
        gone = asyncio.create_task(limits.take(wanted, CALLER))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait({gone})

        assert (await limits.take(wanted, CALLER)).allowed


async def test_buckets_that_are_full_again_are_forgotten(address: str) -> None:
    moment = [10**9]
    async with opened(address) as store:
        limits = PostgresLimits(store.writer, clock=Clock(), counter=lambda: moment[0])
        await limits.take([Rate("burst", 1, timedelta(seconds=1))], CALLER)
        kept = await limits.prune()
        moment[0] = 10**12
        pruned = await limits.prune()
        limits.close()

    assert (kept, pruned) == (0, 1)


# The log, from outside


def test_log_that_is_not_there_cannot_be_opened(postgres: Cluster) -> None:
    with pytest.raises(StoreUnavailable, match="not set up"):
        PostgresAuditRows(postgres.database())


async def test_log_tells_how_much_of_it_was_read(address: str) -> None:
    with PostgresAuditRows(address) as empty:
        assert list(empty) == []
        assert empty.fraction() == 0.0
    async with opened(address) as store:
        store.keep_audit(PostgresAuditLog(lambda: "one", Place("here"), clock=lambda: 1))
        await store.note([(1, b"{}")])
    with PostgresAuditRows(address) as log:
        rows = list(log)
        assert log.fraction() == 1.0
        assert [row.seq for row in log.statements()] == [1]

    assert [row.seq for row in rows] == [1, 2]


async def test_log_that_breaks_off_while_it_is_read_is_told(address: str) -> None:
    with PostgresAuditRows(address) as log:
        cut_all(address)
        with pytest.raises(StoreUnavailable):
            list(log)


# Moving


async def filled(folder: Path) -> Path:
    path = folder / "gateway.db"
    store = await SqliteStore.open(path, clock=Clock())
    await store.settle_alone(settled(), turn())
    await store.close()
    return path


async def test_copy_that_fails_half_way_leaves_nothing(address: str, tmp_path: Path) -> None:
    path = await filled(tmp_path)
    asked(address, "ALTER TABLE calls ADD CONSTRAINT none_at_all CHECK (false)")

    with pytest.raises(StoreUnavailable, match="the records cannot be copied"):
        await asyncio.to_thread(copy_sqlite, path, address)

    assert asked(address, "SELECT count(*) FROM turns") == [(0,)]


async def test_file_that_was_carried_here_alone_is_copied(address: str, tmp_path: Path) -> None:
    path = await filled(tmp_path)
    alone = tmp_path / "elsewhere" / "gateway.db"
    alone.parent.mkdir()
    alone.write_bytes(path.read_bytes())
    with pytest.raises(StoreUnavailable, match="there is no database"):
        await asyncio.to_thread(copy_sqlite, tmp_path / "nowhere.db", address)

    await asyncio.to_thread(copy_sqlite, alone, address)

    assert asked(address, "SELECT id FROM calls") == [("call",)]

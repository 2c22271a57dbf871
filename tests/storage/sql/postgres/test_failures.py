"""PostgreSQL edge cases: failed starts, transactions with an unknown outcome, unreadable logs, and failed copies."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from time import sleep
from typing import Any

import anyio
import psycopg
import pytest

from gateway.audit.entries import AuditOrigin
from gateway.errors import StoreUnavailable
from gateway.model.caller import Principal
from gateway.policy.limits import Limit, LimitKey, QuotaLimit, RateLimit
from gateway.policy.rules.turn_state import CallBounds, TurnState
from gateway.storage.call_store import StoredCall
from gateway.storage.sql.call_transactions import CallStart
from gateway.storage.sql.lock_keys import NOTHING_SHARED
from gateway.storage.sql.postgres.connection import (
    PostgresAuditReader,
    PostgresConnection,
    open_read_only_session,
    to_postgres_store_error,
)
from gateway.storage.sql.postgres.database_setup import import_sqlite, migrate_postgres
from gateway.storage.sql.postgres.dialect import PostgresAuditLog
from gateway.storage.sql.postgres.engine import PostgresStore, open_postgres_store
from gateway.storage.sql.postgres.heartbeat import PostgresChangeSignal
from gateway.storage.sql.postgres.limits import PostgresLimitStore
from gateway.storage.sql.postgres.writer import _if_committed
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from tests.storage.sample_records import ADA, NOON, Clock, call, settled, turn
from tests.support.servers.postgres_server import PostgresServer, start_postgres

pytestmark = pytest.mark.anyio

CALLER = LimitKey(Principal("user:ada"), "search", "support")
OTHERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> {}"


@pytest.fixture
def address(new_database: Callable[[], str]) -> str:
    return new_database()


@asynccontextmanager
async def open_store(address: str) -> AsyncIterator[PostgresStore]:
    store = await open_postgres_store(address, clock=Clock())
    try:
        yield store
    finally:
        await store.close()


def run_sql(address: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(address, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def cut_all(address: str) -> None:
    run_sql(address, OTHERS.format("pg_backend_pid()"))


# Connections


def test_session_that_cannot_be_set_up_is_closed(address: str) -> None:
    with pytest.raises(psycopg.Error, match="statement_timeout"):
        PostgresConnection(address, patience=-1)

    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'agent-gateway'"
    for _ in range(500):  # the server ends a session a moment after its client
        if run_sql(address, sessions) == [(0,)]:
            break
        sleep(0.02)
    assert run_sql(address, sessions) == [(0,)]


def test_synchronous_commit_is_switched_on_for_each_session(address: str) -> None:
    name = address.rpartition("/")[2]
    run_sql(address, f"ALTER DATABASE {name} SET synchronous_commit = off")
    session = PostgresConnection(address)

    assert session.execute("SHOW synchronous_commit").fetchone() == ("on",)
    session.close()


async def test_store_that_finds_no_connection_for_its_writer_leaves_none(address: str) -> None:
    run_sql(address, "DROP ROLE IF EXISTS single; CREATE ROLE single LOGIN CONNECTION LIMIT 1")
    run_sql(address, "GRANT ALL ON ALL TABLES IN SCHEMA public TO single")

    with pytest.raises(StoreUnavailable, match="no connection free"):
        await open_postgres_store(address.replace("gateway@", "single@"))

    assert run_sql(address, "SELECT count(*) FROM leases") == [(0,)]
    run_sql(address, "DROP OWNED BY single; DROP ROLE single")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ('FATAL:  password authentication failed for user "gateway"', "denies access to the gateway"),
        ("fe_sendauth: no password supplied", "denies access to the gateway"),
        ("FATAL:  sorry, too many clients already", "no connection free"),
        ("FATAL:  the database system is starting up", "being stopped or started"),
        ('FATAL:  database "gone" does not exist', "does not exist"),
        ("connection refused", "cannot be reached"),
    ],
)
def test_server_that_turns_us_away_at_the_door_is_understood(words: str, expected: str) -> None:
    found = to_postgres_store_error(psycopg.OperationalError(words))

    assert found is not None
    assert expected in found.message
    assert words not in found.message


# Room


async def test_room_is_tried_when_there_was_none_until_there_is(address: str) -> None:
    """A renewal updates a row in place: on a full disk, it succeeds when nothing else does."""
    run_sql(
        address,
        """
        CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$;
        CREATE TRIGGER full_turns BEFORE INSERT ON turns EXECUTE FUNCTION no_room();
        """,
    )
    async with open_store(address) as store:
        run_sql(address, "CREATE TRIGGER full_leases BEFORE INSERT ON leases EXECUTE FUNCTION no_room()")
        before = store.engine.problem
        with pytest.raises(StoreUnavailable, match="disk of the database is full"):
            await store.open_turn(turn())
        at_once = store.engine.problem
        with anyio.fail_after(10):
            while store.engine.pulse.problem is None:  # the attempt found no room
                await anyio.sleep(0.02)
        tried = store.engine.problem
        run_sql(address, "DROP FUNCTION no_room CASCADE")
        with anyio.fail_after(10):
            while store.engine.problem is not None:
                await anyio.sleep(0.02)
        await store.open_turn(turn())
        left = run_sql(address, "SELECT count(*) FROM leases")

    assert before is None
    assert at_once == tried == "the disk of the database is full"
    assert left == [(1,)]


# Leases and notifications


async def test_gateways_publish_how_they_are_reached(address: str) -> None:
    async with open_store(address) as one, open_store(address) as other:
        one.engine.advertise("http://one:8080")
        with anyio.fail_after(10):
            while not (found := await other.engine.addresses()):
                await anyio.sleep(0.02)

    assert found == ["http://one:8080"]


async def test_lease_that_cannot_be_given_back_is_reported(address: str, caplog: pytest.LogCaptureFixture) -> None:
    store = await open_postgres_store(address, clock=Clock())
    store.engine.pulse._closing.set()
    await asyncio.to_thread(store.engine.pulse._thread.join)
    cut_all(address)

    with caplog.at_level(logging.WARNING):
        await store.close()

    assert "was not released" in caplog.text


@pytest.fixture(scope="module")
def stoppable() -> Iterator[PostgresServer]:
    with start_postgres() as cluster:
        yield cluster


async def test_change_that_cannot_be_announced_is_reported(stoppable: PostgresServer) -> None:
    address = stoppable.database()
    migrate_postgres(address)
    async with open_store(address) as store:
        notices = PostgresChangeSignal(store.engine.pulse, store.writer)
        noticed = notices.cache(lambda connection: 1, at_first=0)
        before = noticed.problem
        stoppable.stop()
        with pytest.raises(StoreUnavailable, match="stored, but it could not be published"):
            await notices.publish()
        with anyio.fail_after(10):
            while noticed.problem is None:
                await anyio.sleep(0.02)
        with pytest.raises(StoreUnavailable):
            noticed.current()
        stoppable.start()

    assert before is None


async def test_calls_that_are_given_up_have_their_entry(address: str) -> None:
    log = PostgresAuditLog(lambda: "one", AuditOrigin("here"), clock=lambda: 1)

    def abandoned(call: StoredCall) -> tuple[int, bytes]:
        return 1, b'{"left":"%s"}' % call.id.encode()

    async with open_store(address) as store:
        store.use_audit_log(log, abandoned=abandoned)
        before = store.engine.lease.id
        await store.start_call(call("lost"), turn=turn())
        run_sql(address, "DELETE FROM leases")
        with anyio.fail_after(10):
            while store.engine.lease.id == before:
                await anyio.sleep(0.02)

        assert await store.close_interrupted_calls(NOON) == 1
        assert (b'{"left":"lost"}',) in [
            (bytes(body),) for (body,) in run_sql(address, "SELECT body FROM audit ORDER BY seq")
        ]


async def test_call_is_given_up_once(address: str) -> None:
    log = PostgresAuditLog(lambda: "one", AuditOrigin("here"), clock=lambda: 1)
    async with open_store(address) as store:
        store.use_audit_log(log)
        await store.start_call(call(), turn=turn())

        assert await store.abandon_call("call", turn_id="turn", at=NOON, audit=[(1, b'{"up":1}')])
        assert not await store.abandon_call("call", turn_id="turn", at=NOON, audit=[(2, b'{"up":2}')])
        bodies = [bytes(body) for (body,) in run_sql(address, "SELECT body FROM audit")]

    assert b'{"up":1}' in bodies
    assert b'{"up":2}' not in bodies


# Unknown outcomes


async def test_transaction_is_undone_only_if_it_was_committed(address: str) -> None:
    undone: list[int] = []
    asking, other = PostgresConnection(address), PostgresConnection(address)
    other.begin(NOTHING_SHARED)
    number = other.transaction
    assert number is not None
    undo = _if_committed(number, lambda _: undone.append(1))
    with pytest.raises(StoreUnavailable, match="not ended yet"):
        undo(asking)  # type: ignore[arg-type] # stands for a connection of SQLite
    other.execute("ROLLBACK")
    undo(asking)  # type: ignore[arg-type] # likewise
    asking.close()
    other.close()

    assert undone == []


async def test_start_that_was_not_written_takes_nothing_back(address: str) -> None:
    async with open_store(address) as store:
        await store.start_call(call(), turn=turn())
        again = CallStart.of(call(), turn(), process=store.engine.process_id)
        await store.writer.run(again.undo)

        assert await store.find_call("call", ADA) is not None


async def test_reservation_brings_along_what_the_turn_has_seen(address: str) -> None:
    seen = TurnState()
    seen.add_bytes(7)
    memory, knowing = seen.begin_write()
    async with open_store(address) as store:
        await store.open_turn(turn())
        made = await store.reserve_call("turn", "same", bounds=CallBounds(same=1), memory=memory, knowing=knowing)
        kept = await store.read_turn_state("turn")

    assert made.is_made
    assert kept is not None


# Counting


async def test_limits_are_given_back_one_by_one(address: str) -> None:
    rate, quota = RateLimit("burst", 1, timedelta(hours=1)), QuotaLimit("budget", 1, timedelta(days=1))
    async with open_store(address) as store:
        limits = PostgresLimitStore(store.writer, clock=Clock())
        nothing = await limits.acquire([], CALLER)
        for limit in (rate, quota):
            wanted: list[Limit] = [limit]
            taken = await limits.acquire(wanted, CALLER)
            refused = await limits.acquire(wanted, CALLER)
            await limits.release(taken, CALLER)
            again = await limits.acquire(wanted, CALLER)

            assert (taken.is_allowed, refused.is_allowed, again.is_allowed) == (True, False, True)
    assert (nothing.is_allowed, nothing.taken) == (True, ())


async def test_caller_who_went_away_has_taken_no_rate(address: str) -> None:
    wanted: list[Limit] = [RateLimit("burst", 1, timedelta(hours=1))]
    async with open_store(address) as store:
        limits = PostgresLimitStore(store.writer, clock=Clock())
        gone = asyncio.create_task(limits.acquire(wanted, CALLER))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait({gone})

        assert (await limits.acquire(wanted, CALLER)).is_allowed


async def test_buckets_that_are_full_again_are_forgotten(address: str) -> None:
    moment = [10**9]
    async with open_store(address) as store:
        limits = PostgresLimitStore(store.writer, clock=Clock(), counter=lambda: moment[0])
        await limits.acquire([RateLimit("burst", 1, timedelta(seconds=1))], CALLER)
        kept = await limits.prune()
        moment[0] = 10**12
        pruned = await limits.prune()
        limits.close()

    assert (kept, pruned) == (0, 1)


# Reading the log from outside


def test_log_that_is_not_there_cannot_be_opened(postgres: PostgresServer) -> None:
    with pytest.raises(StoreUnavailable, match="not set up"):
        PostgresAuditReader(postgres.database())


async def test_log_shows_how_much_of_it_was_read(address: str) -> None:
    with PostgresAuditReader(address) as empty:
        assert list(empty) == []
        assert empty.fraction() == 0.0
    async with open_store(address) as store:
        store.use_audit_log(PostgresAuditLog(lambda: "one", AuditOrigin("here"), clock=lambda: 1))
        await store.note([(1, b"{}")])
    with PostgresAuditReader(address) as log:
        rows = list(log)
        assert log.fraction() == 1.0
        assert [row.seq for row in log.statements()] == [1]

    assert [row.seq for row in rows] == [1, 2]


async def test_log_that_breaks_off_while_it_is_read_is_reported(address: str) -> None:
    with PostgresAuditReader(address) as log:
        cut_all(address)
        with pytest.raises(StoreUnavailable):
            list(log)


# Copying


async def fill_database(folder: Path) -> Path:
    path = folder / "gateway.db"
    store = await open_sqlite_store(path, clock=Clock())
    await store.record_single_call(settled(), turn())
    await store.close()
    return path


async def test_copy_that_fails_half_way_leaves_nothing(address: str, tmp_path: Path) -> None:
    path = await fill_database(tmp_path)
    run_sql(address, "ALTER TABLE calls ADD CONSTRAINT none_at_all CHECK (false)")

    with pytest.raises(StoreUnavailable, match="the records cannot be copied"):
        await asyncio.to_thread(import_sqlite, path, address)

    assert run_sql(address, "SELECT count(*) FROM turns") == [(0,)]


async def test_file_that_was_carried_here_alone_is_copied(address: str, tmp_path: Path) -> None:
    path = await fill_database(tmp_path)
    alone = tmp_path / "elsewhere" / "gateway.db"
    alone.parent.mkdir()
    alone.write_bytes(path.read_bytes())
    with pytest.raises(StoreUnavailable, match="there is no database"):
        await asyncio.to_thread(import_sqlite, tmp_path / "nowhere.db", address)

    await asyncio.to_thread(import_sqlite, alone, address)

    assert run_sql(address, "SELECT id FROM calls") == [("call",)]


def test_stream_whose_server_goes_away_is_unavailable(address: str) -> None:
    with open_read_only_session(address) as session:
        rows = session.stream("SELECT generate_series(1, 100000)", at_once=2)
        assert next(rows) == (1,)
        run_sql(address, OTHERS.format("pg_backend_pid()"))

        with pytest.raises(StoreUnavailable):
            list(rows)

"""Several gateways on one PostgreSQL database: leases, notifications, and the meaning of faults."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import anyio
import psycopg
import pytest

from gateway.approvals.approval_store import ApprovalRecord, ApprovalRequest, ApprovalSubject
from gateway.audit.chain import ChainRow
from gateway.audit.entries import AuditOrigin
from gateway.errors import ForeignStore, RecordConflict, StoreUnavailable
from gateway.model.caller import Principal
from gateway.policy.limits import Limit, LimitKey, QuotaLimit, RateLimit
from gateway.policy.rules.turn_state import CallBounds
from gateway.policy.stop_list import QuarantineNotFound, Stop, StopTarget
from gateway.storage.call_store import CallFilter
from gateway.storage.sql.approvals import SqlApprovalStore
from gateway.storage.sql.call_transactions import CallStart
from gateway.storage.sql.postgres.connection import PostgresConnection
from gateway.storage.sql.postgres.database_setup import migrate_postgres
from gateway.storage.sql.postgres.dialect import PostgresAuditLog
from gateway.storage.sql.postgres.engine import PostgresStore, open_postgres_store
from gateway.storage.sql.postgres.heartbeat import LEASE_SECONDS, Heartbeat, Lease, PostgresChangeSignal, notify_channel
from gateway.storage.sql.postgres.limits import PostgresLimitStore
from gateway.storage.sql.sqlite.database_setup import SCRIPTS
from gateway.storage.sql.stop_list import SqlStopList
from gateway.storage.unwritten_outcomes import LateOutcome
from tests.storage.sample_records import ADA, NOON, Clock, call, settled, spooled, turn
from tests.support.paths import ROOT
from tests.support.servers.postgres_server import PostgresServer, start_postgres

pytestmark = pytest.mark.anyio

SEARCH = Stop(StopTarget("tool", "search"), "leaks data", "ops", NOON)


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


async def eventually(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(15):
        while not holds():
            await anyio.sleep(0.02)


# Set up by a command, not by a starting gateway


async def test_database_that_is_not_set_up_is_refused(postgres: PostgresServer) -> None:
    with pytest.raises(ForeignStore, match="is not set up") as refused:
        await open_postgres_store(postgres.database())
    assert refused.value.help == "run: gateway storage migrate"


async def test_older_and_newer_schema_are_refused(postgres: PostgresServer, address: str) -> None:
    run_sql(address, "UPDATE schema_version SET version_num = '0006'")
    with pytest.raises(ForeignStore, match="has version 0006, and this program needs 0013"):
        await open_postgres_store(address)

    run_sql(address, "UPDATE schema_version SET version_num = '9999'")
    with pytest.raises(ForeignStore, match="version 9999, which is newer than this program"):
        await open_postgres_store(address)
    with pytest.raises(ForeignStore, match="newer than this program"):
        migrate_postgres(address)


def test_database_of_another_program_is_left_alone(postgres: PostgresServer) -> None:
    address = postgres.database()
    run_sql(address, "CREATE TABLE calls (theirs int)")

    with pytest.raises(ForeignStore, match="'calls' of another program"):
        migrate_postgres(address)

    assert run_sql(address, "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'") == [(1,)]


async def test_many_set_it_up_at_once(postgres: PostgresServer) -> None:
    address = postgres.database()

    versions = await asyncio.gather(*(asyncio.to_thread(migrate_postgres, address) for _ in range(4)))

    assert sorted(versions, key=str) == [("0013", "0013")] * 3 + [(None, "0013")]


def test_role_that_may_create_nothing_is_reported(postgres: PostgresServer, address: str) -> None:
    database = postgres.database()
    run_sql(database, "DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN")

    with pytest.raises(StoreUnavailable, match="the schema cannot be changed"):
        migrate_postgres(database.replace("gateway@", "reader@"))


async def test_serving_needs_no_right_to_change_the_log_or_the_schema(address: str, postgres: PostgresServer) -> None:
    """The statements are those of the guide."""
    guide = (ROOT / "docs" / "storage.md").read_text(encoding="utf-8")
    rights = guide.partition("```sql\n")[2].partition("```")[0]
    run_sql(address, "DROP ROLE IF EXISTS serving; CREATE ROLE serving LOGIN")
    run_sql(address, rights.replace("TO gateway", "TO serving").replace("FROM gateway", "FROM serving"))
    async with open_store(address.replace("gateway@", "serving@")) as store:
        store.use_audit_log(PostgresAuditLog(lambda: "one", AuditOrigin("here"), clock=lambda: 1))
        limits = PostgresLimitStore(store.writer, clock=Clock())
        caller = LimitKey(Principal("user:ada"), "search", "support")
        await store.start_call(call(), turn=turn(), audit=[(1, b"{}")])
        await store.record_call(settled(), audit=[(2, b"{}")])
        await store.record_single_call(settled(turn_id="alone"), turn("alone"), audit=[(3, b"{}")])
        await SqlApprovalStore(store.writer, store.reader).transact(lambda table: table.add(approval("a")))
        assert (await limits.acquire([RateLimit("burst", 1, timedelta(hours=1))], caller)).is_allowed
        assert await store.close_interrupted_calls(NOON) == 0
        assert await store.prune(NOON + timedelta(days=9)) > 0
        with pytest.raises(StoreUnavailable, match="may not use its tables"):
            await store.writer.run(lambda connection: connection.execute("DELETE FROM audit"))
    run_sql(address, "DROP OWNED BY serving; DROP ROLE serving")


# Leases


async def test_calls_of_a_process_that_died_are_unknown_soon(address: str) -> None:
    async with open_store(address) as survivor, open_store(address) as dying:
        await dying.start_call(call("lost"), turn=turn())
        await survivor.start_call(call("running"), turn=turn())
        dying.engine.pulse._closing.set()  # as if it were killed: its lease is not renewed
        await anyio.sleep(LEASE_SECONDS + 0.2)

        with anyio.fail_after(10):
            while not (recovered := await survivor.close_interrupted_calls(NOON)):
                await anyio.sleep(0.05)
        lost, running = [await survivor.find_call(id, ADA, turn_id="turn") for id in ("lost", "running")]

        assert recovered == 1
        assert lost is not None
        assert running is not None
        assert (lost.status, running.status) == ("unknown", "started")
        with pytest.raises(StoreUnavailable, match="took it for dead"):
            await dying.start_call(call("late"), turn=turn())
        with pytest.raises(StoreUnavailable, match="took it for dead"):
            await dying.record_call(settled("lost"))


async def test_process_that_was_given_up_goes_on_under_another_name(address: str) -> None:
    async with open_store(address) as store:
        before = store.engine.lease.id
        await store.start_call(call("lost"), turn=turn())
        run_sql(address, "DELETE FROM leases")
        await eventually(lambda: store.engine.lease.id != before)

        assert await store.close_interrupted_calls(NOON) == 1
        with pytest.raises(RecordConflict):
            await store.record_call(settled("lost"))
        await store.start_call(call("next"), turn=turn())
        await store.record_call(settled("next"))


async def test_no_gateway_is_given_up_right_after_an_outage(address: str) -> None:
    async with open_store(address) as one:
        await one.start_call(call(), turn=turn())
        run_sql(address, "UPDATE leases SET until = now() - interval '1 hour'")
        session = PostgresConnection(address)
        newcomer = Lease()
        newcomer.renew(session)

        assert newcomer.find_dead_processes(session) == []
        session.close()


def test_lease_that_came_too_late_is_not_sound(address: str) -> None:
    seconds = [0.0]
    session = PostgresConnection(address)
    lease = Lease(lambda: seconds[0])
    lease.renew(session)
    run_sql(address, "INSERT INTO leases VALUES ('dead', 'there', now() - interval '1 hour')")

    for moment, left in ((2.0, 2), (4.0, 1)):
        seconds[0] = moment
        lease.renew(session)
        lease.find_dead_processes(session)
        assert run_sql(address, "SELECT count(*) FROM leases") == [(left,)]
    run_sql(address, "INSERT INTO leases VALUES ('dead', 'there', now() - interval '1 hour')")
    seconds[0] = 20.0
    lease.renew(session)
    lease.find_dead_processes(session)
    assert run_sql(address, "SELECT count(*) FROM leases") == [(2,)]
    session.close()


async def test_start_in_a_name_that_was_given_up_is_refused(address: str) -> None:
    async with open_store(address) as store:
        start = CallStart.of(call(), turn(), process=store.engine.process_id)
        store.engine.lease.id = "another"
        with pytest.raises(StoreUnavailable, match="took it for dead"):
            store._write_starts(None, [start])
        store.engine.lease.id = start.row["process"]


# Notifications


async def test_quarantine_and_revocation_hold_everywhere_when_the_command_returns(address: str) -> None:
    clock = Clock()
    async with open_store(address) as here, open_store(address) as there:
        notices = [PostgresChangeSignal(each.engine.pulse, each.writer) for each in (here, there)]
        one, other = (
            SqlStopList(store.writer, board, clock=clock) for store, board in zip((here, there), notices, strict=True)
        )
        revoked = SqlStopList(here.writer, notices[0], clock=clock)
        heeded = SqlStopList(there.writer, notices[1], clock=clock)
        assert other.find_stop(tool="search", subject="user:ada", is_consequential=True) is None

        await asyncio.gather(one.add(SEARCH), revoked.add(Stop(StopTarget("token", "Stolen"), "in a log", "ops", NOON)))

        assert other.find_stop(tool="search", subject="user:ada", is_consequential=True) == SEARCH
        assert heeded.has_revoked(frozenset({"stolen"}))
        assert await other.list_stops() == [SEARCH]
        await other.lift(SEARCH.target, reason="fixed", by="ana")
        assert one.find_stop(tool="search", subject="user:ada", is_consequential=True) is None
        with pytest.raises(QuarantineNotFound):
            await one.lift(SEARCH.target, reason="again", by="ana")
        for each in (one, other, revoked, heeded):
            each.close()
            each.close()


async def test_waiter_for_approvals_is_woken(address: str) -> None:
    async with open_store(address) as here, open_store(address) as there:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        there.engine.pulse.on_approvals.append(wake)

        await here.writer.run(lambda connection: notify_channel(connection, "changes"))
        await here.writer.run(lambda connection: notify_channel(connection, "approvals"))

        with anyio.fail_after(5):
            await woken.wait()


# Counting


async def test_limits_are_those_of_all_gateways_together(address: str) -> None:
    wanted: list[Limit] = [RateLimit("burst", 7, timedelta(hours=1)), QuotaLimit("budget", 100, timedelta(days=1))]
    caller = LimitKey(Principal("user:ada"), "search", "support")
    async with open_store(address) as here, open_store(address) as there:
        both = [PostgresLimitStore(each.writer, clock=Clock()) for each in (here, there)] * 20

        taken = await asyncio.gather(*(each.acquire(wanted, caller) for each in both))

        assert sum(each.is_allowed for each in taken) == 7
        allowed = next(each for each in taken if each.is_allowed)
        await both[0].release(allowed, caller)
        assert (await both[1].acquire(wanted, caller)).is_allowed
        assert not (await both[0].acquire(wanted, caller)).is_allowed
        assert await both[0].prune() == 0


async def test_bytes_are_charged_to_all_gateways(address: str) -> None:
    size = QuotaLimit("size", 10, timedelta(days=1), counts="bytes")
    caller = LimitKey(Principal("user:ada"), "search", "support")
    async with open_store(address) as here, open_store(address) as there:
        one, other = (PostgresLimitStore(each.writer, clock=Clock()) for each in (here, there))
        before = await one.acquire([size], caller)
        await one.charge([size], caller, 10)
        after = await other.acquire([size], caller)

    assert (before.is_allowed, after.is_allowed) == (True, False)


async def test_call_alone_that_cannot_be_written_with_others_is_written_by_itself(address: str) -> None:
    async with open_store(address) as store:
        twice = [store.record_single_call(settled(turn_id="alone"), turn("alone")) for _ in range(2)]
        answers = await asyncio.gather(*twice, return_exceptions=True)

    assert sorted(type(each).__name__ for each in answers) == ["NoneType", "RecordConflict"]


async def test_caller_who_went_away_has_taken_nothing(address: str) -> None:
    wanted: list[Limit] = [RateLimit("burst", 1, timedelta(hours=1)), QuotaLimit("budget", 1, timedelta(days=1))]
    caller = LimitKey(Principal("user:ada"), "search", "support")
    async with open_store(address) as store:
        limits = PostgresLimitStore(store.writer, clock=Clock())
        gone = asyncio.create_task(limits.acquire(wanted, caller))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait({gone})

        assert (await limits.acquire(wanted, caller)).is_allowed


async def test_refusing_quota_costs_no_rate(address: str) -> None:
    wide, spent = RateLimit("burst", 2, timedelta(hours=1)), QuotaLimit("budget", 1, timedelta(days=1))
    observed = RateLimit("seen", 1, timedelta(hours=1), enforced=False)
    caller = LimitKey(Principal("user:ada"), "search", "support")
    async with open_store(address) as store:
        limits = PostgresLimitStore(store.writer, clock=Clock())
        first = await limits.acquire([wide, spent, observed], caller)
        refused = [await limits.acquire([wide, spent, observed], caller) for _ in range(3)]
        again = await limits.acquire([wide], caller)

    assert first.is_allowed
    assert [[each.limit.rule for each in taken.exceeded] for taken in refused] == [["budget"]] * 3
    assert [each.limit.rule for each in refused[0].observed] == ["seen"]
    assert again.is_allowed


# Small pieces of results


async def test_small_pieces_are_found_in_the_order_of_their_bytes(address: str) -> None:
    """Whatever the locale of the database, keys are compared byte by byte."""
    prefix = f"s.{'a' * 32}.{'b' * 32}."
    keys = [f"{prefix}{slot * 32}.{generation * 32}" for slot, generation in (("0", "f"), ("1", "0"), ("1", "a"))]
    pieces = [replace(spooled(key), content=key[-1].encode()) for key in keys]
    async with open_store(address) as store:
        await store.record_single_call(settled(results=pieces), turn())

        assert await store.find_blob(keys[0]) == b"f"
        assert await store.find_blob("s.none") is None
        assert await store.find_last_blob(f"{prefix}{'1' * 32}") == (keys[2], b"a")
        assert await store.find_last_blob("s.none") is None
        assert await store.filter_known_results([*keys, "none", "\ud800"]) == set(keys)
        assert await store.delete_blobs(prefix) is True
        assert await store.delete_blobs(prefix) is False


async def test_reader_that_is_cancelled_is_cancelled_even_if_it_is_done(address: str) -> None:
    async with open_store(address) as store:
        for _ in range(50):
            reading = asyncio.create_task(store.find_turn("turn", ADA))
            await asyncio.sleep(0)
            answered = asyncio.create_task(store.find_turn("turn", ADA))
            await answered  # by now the other task has its answer, or gets it in this very iteration of the loop
            if reading.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await reading


async def test_connections_that_broke_while_idle_are_replaced(address: str) -> None:
    async with open_store(address) as store:
        await store.open_turn(turn())
        await asyncio.gather(*(store.find_turn("turn", ADA) for _ in range(8)))
        run_sql(address, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

        assert all(await asyncio.gather(*(store.find_turn("turn", ADA) for _ in range(8))))
        with pytest.raises(ValueError, match="cursor"):
            await store.list_calls(CallFilter(), limit=1, before="none")
        with pytest.raises(psycopg.Error):
            await store.reader.run(lambda connection: connection.execute("SELECT 1 / 0"))


# The decision log


async def test_log_begins_a_new_shard_where_its_place_is_taken(address: str) -> None:
    shards = iter(("one", "two"))
    log = PostgresAuditLog(lambda: next(shards), AuditOrigin("here"), clock=lambda: 1)
    async with open_store(address) as store:
        store.use_audit_log(log)
        await store.note([(1, b"{}")])
        mark = log.mark()
        await store.note([(2, b"{}")])
        log.rewind(mark)  # as after a commit with an unknown outcome
        await store.note([(3, b"{}"), (4, b"{}")])

        found = run_sql(address, "SELECT shard, seq, prev, hash, body, at FROM audit ORDER BY shard, seq")
        rows = [ChainRow(*each) for each in found]
        assert [(row.shard, row.seq) for row in rows] == [("one", 1), ("one", 2), ("one", 3)] + [
            ("two", seq) for seq in (1, 2, 3)
        ]
        taken = PostgresAuditLog(lambda: "two", AuditOrigin("here"), clock=lambda: 1)
        store.use_audit_log(taken)
        with pytest.raises(StoreUnavailable, match="the name of a new shard is taken"):
            await store.note([(5, b"{}")])


# Faults


@pytest.fixture(scope="module")
def stoppable() -> Iterator[PostgresServer]:
    with start_postgres() as cluster:
        yield cluster


@pytest.fixture
def own(stoppable: PostgresServer) -> str:
    """A database of a server that a test may stop."""
    address = stoppable.database()
    migrate_postgres(address)
    return address


async def test_server_that_stops_refuses_at_once_and_needs_no_restart(own: str, stoppable: PostgresServer) -> None:
    async with open_store(own) as store:
        await store.start_call(call("before"), turn=turn())
        stoppable.stop()

        with anyio.fail_after(2):
            with pytest.raises(StoreUnavailable):
                await store.start_call(call("during"), turn=turn())
            with pytest.raises(StoreUnavailable):
                await store.find_turn("turn", ADA)
        await eventually(lambda: store.engine.problem is not None)

        stoppable.start()
        with anyio.fail_after(5):
            while store.engine.problem is not None:
                await anyio.sleep(0.05)
            await store.start_call(call("after"), turn=turn())
            assert await store.find_call("before", ADA) is not None
        assert await store.close_interrupted_calls(NOON) == 0


async def test_outcome_that_could_not_be_written_is_written_later(own: str, stoppable: PostgresServer) -> None:
    async with open_store(own) as store:
        await store.start_call(call("first"), turn=turn())
        await store.start_call(call("second"))
        stoppable.stop()
        for id in ("first", "second"):
            with pytest.raises(StoreUnavailable):
                await store.record_call(settled(id, because="it ran"))
            store.postpone(LateOutcome(settled(id, because="it ran"), turn()))
        with pytest.raises(StoreUnavailable):
            await store.close_interrupted_calls(NOON)
        stoppable.start()
        run_sql(own, "UPDATE calls SET status = 'unknown' WHERE id = 'second'")  # as if others had marked it as dead

        with anyio.fail_after(5):
            while True:
                try:
                    assert await store.close_interrupted_calls(NOON) == 0
                    break
                except StoreUnavailable:
                    await anyio.sleep(0.05)
        first, second = [await store.find_call(id, ADA) for id in ("first", "second")]

    assert first is not None
    assert second is not None
    assert (first.status, first.because, second.status) == ("settled", "it ran", "unknown")


async def test_silent_server_refuses_within_a_second(own: str, stoppable: PostgresServer) -> None:
    async with open_store(own) as store:
        await store.open_turn(turn())
        frozen = stoppable.pids()
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            with anyio.fail_after(2):
                refused = await asyncio.gather(
                    store.start_call(call("frozen")),
                    store.find_turn("turn", ADA),
                    store.reserve_call("turn", "same", bounds=CallBounds(same=1)),
                    return_exceptions=True,
                )
            assert [str(each.message) for each in refused if isinstance(each, StoreUnavailable)] == [
                "the database is too slow"
            ] * 3
            await eventually(lambda: store.engine.problem == "the database does not answer")
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)

        with anyio.fail_after(10):
            while store.engine.problem is not None:
                await anyio.sleep(0.05)
            assert (await store.reserve_call("turn", "same", bounds=CallBounds(same=1))).is_made
            assert await store.find_call("frozen", ADA) is None


async def test_store_on_a_silent_server_can_be_closed(own: str, stoppable: PostgresServer) -> None:
    store = await open_postgres_store(own, clock=Clock())
    await store.find_turn("turn", ADA)  # so that a connection for reading exists
    frozen = stoppable.pids()
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        lost = asyncio.create_task(store.open_turn(turn()))
        reading = asyncio.create_task(store.find_turn("turn", ADA))
        await asyncio.wait({lost, reading}, timeout=0.1)
        with anyio.fail_after(20):
            await store.close()
        with pytest.raises(StoreUnavailable):
            await lost
        with pytest.raises(StoreUnavailable):
            await reading
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("fault", "cure", "words"),
    [
        ("ALTER DATABASE {} SET default_transaction_read_only = on", "off", "read-only"),
        ("ALTER TABLE calls RENAME TO elsewhere", "ALTER TABLE elsewhere RENAME TO calls", "not set up"),
    ],
    ids=["read-only", "without-tables"],
)
async def test_fault_has_a_message(own: str, fault: str, cure: str, words: str) -> None:
    address, name = own, own.rpartition("/")[2]
    async with open_store(address) as store:
        run_sql(address, fault.format(name))
        run_sql(address, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

        with anyio.fail_after(5):
            while True:
                with pytest.raises(StoreUnavailable) as refused:
                    await store.start_call(call(), turn=turn())
                if words in refused.value.message:
                    break

        undo = f"ALTER DATABASE {name} SET default_transaction_read_only = off" if cure == "off" else cure
        with psycopg.connect(address, options="-c default_transaction_read_only=off", autocommit=True) as connection:
            connection.execute(undo)
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        with anyio.fail_after(5):
            while True:
                try:
                    await store.start_call(call(), turn=turn())
                    break
                except StoreUnavailable:
                    await anyio.sleep(0.05)


async def test_server_without_a_free_connection_is_reported(address: str, postgres: PostgresServer) -> None:
    run_sql(address, "DROP ROLE IF EXISTS few; CREATE ROLE few LOGIN CONNECTION LIMIT 1")
    few = address.replace("gateway@", "few@")
    with psycopg.connect(few), pytest.raises(StoreUnavailable, match="no connection free"):
        await open_postgres_store(few)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("postgresql://gateway@127.0.0.1:1/none", "cannot be reached"),
        ("no address at all", "is not valid"),
    ],
    ids=["nobody-there", "no-address"],
)
async def test_address_that_leads_nowhere_is_reported_without_repeating_it(wrong: str, words: str) -> None:
    with pytest.raises(StoreUnavailable, match=words) as refused:
        await open_postgres_store(wrong)
    assert wrong not in str(refused.value)


async def test_database_that_is_not_there_is_reported(postgres: PostgresServer) -> None:
    with pytest.raises(StoreUnavailable, match="does not exist"):
        await open_postgres_store(postgres.address("nowhere"))


async def test_writer_that_waits_too_long_for_the_others_is_reported(address: str) -> None:
    async with open_store(address) as store:
        other = PostgresConnection(address)
        other.execute("SET idle_in_transaction_session_timeout = 0")
        other.begin()

        with pytest.raises(StoreUnavailable, match="another process holds the database"):
            await store.open_turn(turn())
        await store.record_single_call(settled(turn_id="alone"), turn("alone"))  # does not wait for the lock

        other.execute("ROLLBACK")
        await store.open_turn(turn())
        other.close()


async def test_process_that_stops_within_a_transaction_does_not_block_others_for_long(address: str) -> None:
    async with open_store(address) as store:
        stuck = PostgresConnection(address)
        stuck.begin()

        with anyio.fail_after(10):
            while True:
                try:
                    await store.open_turn(turn())
                    break
                except StoreUnavailable:
                    continue
        stuck.close()


async def test_commit_with_an_unknown_outcome_is_undone(address: str) -> None:
    """The connection is cut between the commit and its confirmation: nothing is left behind."""
    quota: list[Limit] = [QuotaLimit("budget", 1, timedelta(days=1))]
    caller = LimitKey(Principal("user:ada"), "search", "support")
    async with open_store(address) as store:
        await store.open_turn(turn())
        limits = PostgresLimitStore(store.writer, clock=Clock())

        await cut_after_commit(store)
        with pytest.raises(StoreUnavailable):
            await store.reserve_call("turn", "same", bounds=CallBounds(same=1))
        assert (await store.reserve_call("turn", "same", bounds=CallBounds(same=1))).is_made

        await cut_after_commit(store)
        with pytest.raises(StoreUnavailable):
            await limits.acquire(quota, caller)
        assert (await limits.acquire(quota, caller)).is_allowed


async def cut_after_commit(store: PostgresStore) -> None:
    """Have the connection of the writer break when the next commit was sent and before it is confirmed."""
    await store.writer.run(lambda connection: None)  # so that there is a connection
    session: Any = store.writer._link
    plain = session.raw

    class Wire:
        """The only place where it can be cut in the middle."""

        def __getattr__(self, name: str) -> Any:
            return getattr(plain, name)

        def execute(self, statement: Any, *parameters: Any, **options: Any) -> Any:
            found = plain.execute(statement, *parameters, **options)
            if statement == "COMMIT" or (isinstance(statement, bytes) and statement.endswith(b"COMMIT")):
                plain.close()
                return plain.execute("SELECT 1")
            return found

    session._connection = Wire()


async def test_pulse_that_cannot_begin_leaves_nothing(postgres: PostgresServer) -> None:
    with pytest.raises(StoreUnavailable, match="not set up"):
        Heartbeat(postgres.database(), Lease())


async def test_text_that_the_database_cannot_keep_is_kept_as_well_as_it_can_be(address: str) -> None:
    async with open_store(address) as store:
        await store.record_call(replace(settled("a\0b"), because="no\0reason"), turn=turn())

        found = await store.find_call("a\0b", ADA)
        assert found is not None
        assert found.because == "no\N{SYMBOL FOR NULL}reason"


async def test_start_beside_one_that_is_refused_is_written_with_its_entry(address: str) -> None:
    async with open_store(address) as store:
        store.use_audit_log(PostgresAuditLog(lambda: "shard", AuditOrigin("gw"), clock=lambda: 0))
        await store.start_call(call("taken"), turn=turn())
        goes_on = Event()
        waiting = asyncio.ensure_future(store.writer.run(lambda connection: goes_on.wait(10) and None))
        starts = [asyncio.ensure_future(store.start_call(call(id), audit=[(1, b"{}")])) for id in ("taken", "free")]
        await asyncio.sleep(0.1)  # so that both wait for the same transaction
        goes_on.set()
        refused, started = await asyncio.gather(*starts, return_exceptions=True)
        await waiting

    assert isinstance(refused, RecordConflict)
    assert started is None
    assert run_sql(address, "SELECT id FROM calls ORDER BY number") == [("taken",), ("free",)]
    assert run_sql(address, "SELECT count(*) FROM audit") == [(2,)]


# Migrations up and down

NEXT = '''
"""What the next version adds."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("approvals", sa.Column("urgency", sa.Text))
    op.create_table("later", sa.Column("id", sa.Text, primary_key=True))


def downgrade() -> None:
    op.drop_table("later")
    op.drop_column("approvals", "urgency")
'''


async def test_next_version_and_back_keeps_what_waits(address: str, tmp_path: Path) -> None:
    later = tmp_path / "migrations"
    shutil.copytree(SCRIPTS, later)
    (later / "versions" / "v0014_later.py").write_text(NEXT, encoding="utf-8")
    asked_for = [approval(f"a{number:04}") for number in range(1000)]
    async with open_store(address) as store:
        approvals = SqlApprovalStore(store.writer, store.reader)
        await approvals.transact(lambda table: [table.add(each) for each in asked_for])

        forwards = await asyncio.to_thread(migrate_postgres, address, scripts=later)
        await approvals.transact(lambda table: table.update(replace(asked_for[0], state="granted"), "decided"))
        await store.start_call(call(), turn=turn())

        assert forwards == ("0013", "0014")
    with pytest.raises(ForeignStore, match="newer than this program"):
        await open_postgres_store(address)
    with pytest.raises(ForeignStore, match="no version '0006'"):
        migrate_postgres(address, to="0006")
    assert migrate_postgres(address, to="0013", scripts=later) == ("0014", "0013")
    async with open_store(address) as store:
        approvals = SqlApprovalStore(store.writer, store.reader)
        found = [await approvals.find(each.id) for each in asked_for]

        assert await approvals.count_pending(NOON) == {"rule": 999}
        assert [each.digest for each in found if each] == [each.digest for each in asked_for]
        assert found[0] is not None
        assert found[0].state == "granted"


def approval(id: str) -> ApprovalRecord:
    action = ApprovalSubject(ADA, "support", "payments/refund", "d1", "r1", '{"amount":700}', f"digest-{id}")
    request = ApprovalRequest(action, "refund", "rule", "gates.yaml:1:1", "because", ("role:lead",), timedelta(hours=1))
    return ApprovalRecord(id, request, NOON, NOON + timedelta(hours=1))

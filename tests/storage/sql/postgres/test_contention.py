"""Several gateways that change the same at the same time: nothing is lost, nothing is used twice, and none waits for
what it does not share.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import count
from threading import Event
from typing import Any

import psycopg
import pytest

from gateway.approvals.approval_store import ApprovalTransaction
from gateway.audit.entries import AuditOrigin
from gateway.errors import RecordConflict, StoreUnavailable
from gateway.model.caller import Principal
from gateway.policy import TurnStateWrite
from gateway.policy.limits import Limit, LimitKey, QuotaLimit, RateLimit
from gateway.policy.rules.turn_state import CallBounds, TurnState
from gateway.storage.refusal_store import Refusal
from gateway.storage.sql.approvals import SqlApprovalStore
from gateway.storage.sql.lock_keys import NOTHING_SHARED, Footprint, turn_footprint
from gateway.storage.sql.postgres.connection import MOST_KEYS, PostgresConnection
from gateway.storage.sql.postgres.dialect import PostgresAuditLog
from gateway.storage.sql.postgres.engine import PostgresStore, open_postgres_store
from gateway.storage.sql.postgres.limits import PostgresLimitStore
from tests.storage.sample_records import ADA, NOON, Clock, call, settled, turn
from tests.storage.sql.postgres.test_store import approval

pytestmark = pytest.mark.anyio

CALLER = LimitKey(Principal("user:ada"), "search", "support")
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@pytest.fixture
def address(new_database: Callable[[], str]) -> str:
    return new_database()


@asynccontextmanager
async def open_stores(address: str, number_of: int = 3) -> AsyncIterator[list[PostgresStore]]:
    async with AsyncExitStack() as closing:
        stores = []
        for number in range(number_of):
            store = await open_postgres_store(address, clock=Clock())
            closing.push_async_callback(store.close)
            shards = map(f"shard{number}.{{}}".format, count())
            store.use_audit_log(PostgresAuditLog(shards.__next__, AuditOrigin("gw"), clock=lambda: 0))
            stores.append(store)
        yield stores


def run_sql(address: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(address, autocommit=True) as connection:
        return connection.execute(statement).fetchall()


@asynccontextmanager
async def one_transaction(store: PostgresStore) -> AsyncIterator[None]:
    """Have the writer do everything that the block begins in one transaction."""
    goes_on = Event()
    waiting = asyncio.ensure_future(store.writer.run(lambda _: goes_on.wait(10) and None, footprint=NOTHING_SHARED))
    await asyncio.sleep(0.05)
    yield
    await asyncio.sleep(0.05)
    goes_on.set()
    await waiting


async def test_turn_that_all_write_to_has_every_call_and_all_of_its_state(address: str) -> None:
    async with open_stores(address) as stores:
        await stores[0].open_turn(turn())

        async def work(number: int, store: PostgresStore) -> None:
            state = TurnState()
            for each in range(15):
                state.add_bytes(1)
                state.reserve_call(f"{number}")
                memory, knowing = state.begin_write()
                outcome = settled(f"{number}.{each}")
                await store.record_call(outcome, memory=memory, knowing=knowing, audit=[(1, b"{}")])

        await asyncio.gather(*(work(number, store) for number, store in enumerate(stores)))
        state = TurnState()
        state.merge_stored(await stores[0].read_turn_state("turn"))

    assert run_sql(address, "SELECT settled_as FROM calls ORDER BY settled_as") == [(each,) for each in range(1, 46)]
    assert [state.count_calls(f"{number}") for number in range(3)] == [15, 15, 15]
    assert state.bytes == 45
    assert run_sql(address, "SELECT count(*) FROM audit") == [(45 + 3,)]


async def test_turn_lets_no_call_more_through_than_it_may(address: str) -> None:
    async with open_stores(address) as stores:
        await stores[0].open_turn(turn())
        attempts = [store.reserve_call("turn", "same", bounds=CallBounds(same=25)) for store in stores * 15]

        made = await asyncio.gather(*attempts)

    assert sum(each.is_made for each in made) == 25


async def test_outcomes_of_a_turn_in_one_transaction_have_an_order(address: str) -> None:
    async with open_stores(address, 1) as [store]:
        await store.open_turn(turn())
        async with one_transaction(store):
            outcomes = [store.record_call(settled(f"{each}"), turn=turn(), memory=b"{}") for each in range(5)]
            recorded = asyncio.gather(*outcomes)
        await recorded

    assert run_sql(address, "SELECT id, settled_as FROM calls ORDER BY number") == [(f"{n}", n + 1) for n in range(5)]


async def test_turn_that_begins_in_the_transaction_has_its_state(address: str) -> None:
    async with open_stores(address, 1) as [store]:
        await store.record_call(settled(), turn=turn(), memory=b'{"calls":1}')
        implicit = TurnStateWrite("nowhere", b"{}", None)
        await store.record_single_call(settled(turn_id="alone"), turn("alone"), implicit=implicit)

        assert await store.read_turn_state("turn") == b'{"calls":1}'
        assert await store.read_turn_state("nowhere") is None


async def test_conflict_costs_the_others_of_its_transaction_nothing(address: str) -> None:
    async with open_stores(address, 1) as [store]:
        await store.record_call(settled("done"), turn=turn(), audit=[(1, b"{}")])
        async with one_transaction(store):
            outcomes = [store.record_call(settled(id), audit=[(1, b"{}")]) for id in ("done", "new")]
            recorded = asyncio.gather(*outcomes, return_exceptions=True)
        refused, written = await recorded

    assert isinstance(refused, RecordConflict)
    assert written is None
    assert run_sql(address, "SELECT shard, seq FROM audit ORDER BY seq") == [("shard0.0", each) for each in (1, 2, 3)]


async def test_quota_and_rate_count_the_calls_of_all(address: str) -> None:
    wanted: list[Limit] = [RateLimit("burst", 30, timedelta(hours=1)), QuotaLimit("budget", 20, timedelta(days=1))]
    async with open_stores(address) as stores:
        limits = [PostgresLimitStore(each.writer, clock=Clock()) for each in stores]

        taken = await asyncio.gather(*(each.acquire(wanted, CALLER) for each in limits * 15))

    assert sum(each.is_allowed for each in taken) == 20


async def test_approval_is_used_once(address: str) -> None:
    granted = replace(approval("a"), state="granted")

    def take(table: ApprovalTransaction) -> bool:
        record = table.find("a")
        assert record is not None
        if record.state != "granted":
            return False
        table.update(replace(record, state="used", used_at=NOON), "taken")
        return True

    async with open_stores(address) as stores:
        approvals = [SqlApprovalStore(each.writer, each.reader) for each in stores]
        await approvals[0].transact(lambda table: table.add(granted))
        await approvals[0].transact(lambda table: [table.add(approval(f"b{each}")) for each in range(5)])

        used = await asyncio.gather(*(each.transact(take) for each in approvals * 10))

    assert sum(used) == 1
    changes = run_sql(address, "SELECT changed FROM approvals ORDER BY changed")
    assert changes == [(each,) for each in range(2, 8)]


async def test_idempotency_key_is_claimed_once(address: str) -> None:
    until = NOON + timedelta(hours=1)
    async with open_stores(address) as stores:
        attempts = [
            store.claim_idempotency_key(
                "key", ADA, digest="same", call=call(f"{n}", f"turn{n}"), turn=turn(f"turn{n}"), until=until
            )
            for n, store in enumerate(stores * 10)
        ]

        claims = await asyncio.gather(*attempts)

    assert sorted(each.state for each in claims) == ["fresh", *["running"] * 29]
    assert run_sql(address, "SELECT count(*) FROM calls") == [(1,)]


async def test_work_of_every_kind_in_any_order_does_not_deadlock(address: str) -> None:
    """Each store changes the same few turns, keys, counts and quotas, as fast as it can."""
    chance = random.Random(7)
    wanted: list[Limit] = [QuotaLimit(f"budget{each}", 10_000, timedelta(days=1)) for each in range(3)]
    async with open_stores(address) as stores:
        for each in range(4):
            await stores[0].open_turn(turn(f"turn{each}"))

        async def work(store: PostgresStore, name: str) -> None:
            limits = PostgresLimitStore(store.writer, clock=Clock())
            for step in range(20):
                id, turn_id, key = f"{name}.{step}", f"turn{chance.randrange(4)}", f"key{chance.randrange(3)}"
                started = call(id, turn_id, idempotency_key=key)
                implicit = TurnStateWrite(f"turn{chance.randrange(4)}", b"{}", None)
                await limits.acquire(chance.sample(wanted, 3), CALLER)
                until = NOON + timedelta(hours=1)
                claim = await store.claim_idempotency_key(key, ADA, digest=id, call=started, until=until)
                refused = replace(settled(id, turn_id, decision="deny"), idempotency_key=key)
                is_started = claim.state == "fresh"
                if step % 3 == 0:
                    refusal = Refusal(ADA, "rule", 5, [(1, b"{}")], refused, is_started, implicit=implicit)
                    await store.refuse(refusal)
                else:
                    outcome = settled(id, turn_id, idempotency_key=key)
                    await store.record_call(outcome, memory=b"{}", implicit=implicit, audit=[(1, b"{}")])

        await asyncio.gather(*(work(store, f"{n}.{each}") for n, store in enumerate(stores) for each in range(4)))
        await stores[0].prune(NOON)

    assert run_sql(address, DEADLOCKS) == [(0,)]
    assert run_sql(address, "SELECT sum(kept) FROM refusals") == [(5,)]


# Who waits for whom


@pytest.fixture
def other(address: str) -> Any:
    session = PostgresConnection(address)
    session.execute("SET idle_in_transaction_session_timeout = 0")
    yield session
    session.close()


async def test_only_writes_about_the_same_wait(address: str, other: PostgresConnection) -> None:
    other.begin(turn_footprint("busy"))
    async with open_stores(address, 1) as [store]:
        await store.open_turn(turn("free"))
        with pytest.raises(StoreUnavailable, match="another process holds the database"):
            await store.open_turn(turn("busy"))
        with pytest.raises(StoreUnavailable, match="another process holds the database"):
            await store.writer.run(lambda _: None)  # may change anything, so it waits for everyone
        other.execute("ROLLBACK")
        await store.open_turn(turn("busy"))
        await store.writer.run(lambda _: None)


@pytest.mark.parametrize("keys", [None, MOST_KEYS + 1], ids=["undeclared", "very-many"])
async def test_write_that_may_change_anything_lets_no_other_change_what_is_shared(
    keys: int | None, address: str, other: PostgresConnection
) -> None:
    other.begin(None if keys is None else Footprint(tuple(f"key {each}" for each in range(keys))))
    async with open_stores(address, 1) as [store]:
        with pytest.raises(StoreUnavailable, match="another process holds the database"):
            await store.open_turn(turn())
        await store.record_single_call(settled(turn_id="alone"), turn("alone"))  # shares nothing


# Turns that are looked up together


async def test_turns_that_are_looked_up_together_are_told_apart(address: str) -> None:
    async with open_stores(address, 1) as [store]:
        for each in range(3):
            await store.open_turn(turn(f"turn{each}"))

        ids = ["turn0", "gone", "turn1", "turn2", "nul\0"]
        found = await asyncio.gather(*(store.find_turn(id, ADA) for id in ids))
        leaving = [asyncio.ensure_future(store.find_turn(f"turn{each}", ADA)) for each in range(3)]
        await asyncio.sleep(0)
        leaving[1].cancel()
        left = await asyncio.gather(*leaving, return_exceptions=True)

    assert [None if each is None else each.id for each in found] == ["turn0", None, "turn1", "turn2", None]
    assert [type(each).__name__ for each in left] == ["StoredTurn", "CancelledError", "StoredTurn"]


async def test_lookups_that_fail_together_fail_each(address: str) -> None:
    async with open_stores(address, 1) as [store]:
        await store.reader.close()
        asked = [asyncio.ensure_future(store.find_turn(f"turn{each}", ADA)) for each in range(4)]
        await asyncio.sleep(0)
        asked[3].cancel()
        errors = await asyncio.gather(*asked, return_exceptions=True)

    assert [type(each) for each in errors] == [StoreUnavailable] * 3 + [asyncio.CancelledError]
    assert len({id(each) for each in errors}) == 4


async def test_lookup_with_an_error_of_the_database_that_is_unexpected_gets_it(address: str) -> None:
    async with open_stores(address, 1) as [store]:
        await store.open_turn(turn())
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("ALTER TABLE turns ALTER expires_at TYPE text")

        with pytest.raises(psycopg.errors.UndefinedFunction):
            await store.find_turn("turn", ADA)
        assert await store.read_turn_state("half \ud800") is None

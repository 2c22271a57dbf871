"""Expired turns are removed with their files; turns in use, or referenced by an idempotency key, stay."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gateway.app.jobs.record_sweeper import FILES_PER_PASS, RecordSweeper, SweepSchedule
from gateway.model.caller import Principal
from gateway.model.primitives.deadline import duration_microseconds, now_microseconds
from gateway.model.turns.events import now
from gateway.storage.blobs.disk_store import DiskSpool
from gateway.storage.call_store import StoredCall, StoredResult, StoredTurn
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store
from tests.support.gateways.forkserver import ForkServer
from tests.support.servers.orders_service import PROJECT, OrdersClient, connect_orders_client, orders_service

pytestmark = pytest.mark.anyio

ANA = Principal("user:ana")
LARGE = b"a line of a large result\n" * 4000


@dataclass
class StoreWithClock:
    """A store whose clock the test sets."""

    store: SqliteStore
    spool: DiskSpool
    folder: Path
    later: timedelta = timedelta()

    def clock(self) -> datetime:
        return now() + self.later

    @property
    def sweeper(self) -> RecordSweeper:
        return RecordSweeper(self.store, self.spool, clock=self.clock)

    @property
    def files(self) -> list[Path]:
        return list((self.folder / "spool").rglob("*.bytes"))

    async def settle(self, name: str, *, lives: timedelta) -> None:
        """Store a turn with one call whose result is a file."""
        turn = turn_of(name, lives=lives)
        reader = await self.spool.for_turn(turn.id).write("a", LARGE)
        result = StoredResult("artifact", key=reader.key, type="text", byte_length=len(LARGE))
        call = replace(make_call(turn), status="settled", results=(result,), completed=now_microseconds())
        await self.store.record_call(call, turn=turn)


def turn_of(name: str, *, lives: timedelta) -> StoredTurn:
    at = now_microseconds()
    return StoredTurn(name, ANA, "shop", "r", b"secret", at, at + duration_microseconds(lives))


def make_call(turn: StoredTurn) -> StoredCall:
    return StoredCall("a", turn.id, "tool", "tool", {}, "c", ANA, "shop", "r", now_microseconds())


@asynccontextmanager
async def open_store(folder: Path) -> AsyncIterator[StoreWithClock]:
    store = await open_sqlite_store(folder / "gateway.db")
    spool = await DiskSpool.open(folder / "spool", small=store)
    try:
        yield StoreWithClock(store, spool, folder)
    finally:
        await spool.close()
        await store.close()


async def test_expired_turn_goes_with_its_calls_and_files_and_the_others_stay(tmp_path: Path) -> None:
    async with open_store(tmp_path) as found:
        await found.settle("short", lives=timedelta(hours=1))
        await found.settle("long", lives=timedelta(days=30))
        found.later = timedelta(days=1)

        assert await found.sweeper.expire()

        assert len(found.files) == 1
        assert await found.store.list_turn_calls("short") == []
        assert len(await found.store.list_turn_calls("long")) == 1


async def test_turn_lives_as_long_as_the_longest_of_what_it_was_given(tmp_path: Path) -> None:
    async with open_store(tmp_path) as found:
        await found.settle("turn", lives=timedelta(hours=1))
        turn = turn_of("turn", lives=timedelta(days=7))
        await found.store.record_call(replace(make_call(turn), id="b", status="settled"), turn=turn)
        await found.store.record_call(
            replace(make_call(turn), id="c", status="settled"), turn=turn_of("turn", lives=timedelta(minutes=1))
        )
        found.later = timedelta(days=1)

        await found.sweeper.expire()

        assert len(await found.store.list_turn_calls("turn")) == 3
        assert len(found.files) == 1


async def test_running_call_and_key_keep_their_turn(tmp_path: Path) -> None:
    async with open_store(tmp_path) as found:
        running, keyed = turn_of("running", lives=timedelta(hours=1)), turn_of("keyed", lives=timedelta(hours=1))
        await found.store.start_call(make_call(running), turn=running)
        until = now() + timedelta(days=2)
        await found.store.claim_idempotency_key("key", ANA, digest="d", call=make_call(keyed), until=until, turn=keyed)
        await found.store.record_call(replace(make_call(keyed), status="settled", completed=now_microseconds()))
        found.later = timedelta(days=1)

        await found.sweeper.expire()

        assert len(await found.store.list_turn_calls("keyed")) == 1
        await found.store.record_call(replace(make_call(running), status="settled", completed=now_microseconds()))
        found.later = timedelta(days=3)
        await found.sweeper.expire()
        assert await found.store.list_turn_calls("keyed") == []
        assert await found.store.list_turn_calls("running") == []


async def test_pass_is_bounded_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async with open_store(tmp_path) as found:
        for number in range(FILES_PER_PASS + 1):
            await found.settle(f"turn-{number}", lives=timedelta(hours=1))
        found.later = timedelta(days=1)

        assert not await found.sweeper.expire()
        assert len(found.files) == 1
        assert await found.sweeper.expire()
        assert found.files == []


async def test_sweeper_goes_on_by_itself(tmp_path: Path) -> None:
    async with open_store(tmp_path) as found:
        await found.settle("turn", lives=timedelta(hours=1))
        found.later = timedelta(days=1)
        often = timedelta(milliseconds=10)
        sweeper = RecordSweeper(found.store, found.spool, rhythm=SweepSchedule(often, often, often), clock=found.clock)
        task = asyncio.create_task(sweeper.run())
        async with asyncio.timeout(30):
            while found.files:
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_turn_of_a_served_gateway_lives_as_long_as_its_storage_and_its_artifacts(
    tmp_path: Path, forks: ForkServer
) -> None:
    async with orders_service() as orders:
        gateway = await asyncio.to_thread(forks.start, PROJECT, tmp_path, env={"ORDERS_URL": orders.url})
        async with connect_orders_client(gateway.url) as shop:
            turn = (await shop.post("/v1/turns", {"catalogue": "shop"}))["id"]
            opened = await life_of(shop, turn)
            await shop.post(f"/v1/turns/{turn}/calls", {"tool": "order_place", "arguments": {"order": "a"}})
            after_text = await life_of(shop, turn)
            await shop.post(f"/v1/turns/{turn}/calls", {"tool": "history_fetch", "arguments": {"bytes": 10}})
            after_history = await life_of(shop, turn)
        await asyncio.to_thread(gateway.kill)
        again = await asyncio.to_thread(forks.start, PROJECT, tmp_path, env={"ORDERS_URL": orders.url})
        async with connect_orders_client(again.url) as shop:
            restarted = await life_of(shop, turn)
        await asyncio.to_thread(again.kill)

    assert opened == timedelta(days=2)
    assert timedelta(days=2) <= after_text < timedelta(days=3)
    assert timedelta(days=7) <= after_history < timedelta(days=8)
    assert restarted == after_history


async def life_of(shop: OrdersClient, turn: str) -> timedelta:
    _, body = await shop.get(f"/v1/turns/{turn}")
    return datetime.fromisoformat(body["expiresAt"]) - datetime.fromisoformat(body["createdAt"])

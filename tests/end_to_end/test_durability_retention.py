"""What is past its end of life goes, with its files; what is in use, or stands for a key, stays."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from forked import Forking
from orders import PROJECT, Shop, orders_service, shop_at

from gateway.core.events import now
from gateway.core.moments import clock, microseconds_in
from gateway.governance.principals import Principal
from gateway.governance.records import StoredCall, StoredResult, StoredTurn
from gateway.runtime.sweeping import FILES_PER_PASS, Rhythm, Sweeper
from gateway.storage.spool_files import FileSpool
from gateway.storage.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

ANA = Principal("user:ana")
LARGE = b"a line of a large result\n" * 4000


@dataclass
class Kept:
    """A store whose clock the test moves."""

    store: SqliteStore
    spool: FileSpool
    folder: Path
    later: timedelta = timedelta()

    def clock(self) -> datetime:
        return now() + self.later

    @property
    def sweeper(self) -> Sweeper:
        return Sweeper(self.store, self.spool, clock=self.clock)

    @property
    def files(self) -> list[Path]:
        return list((self.folder / "spool").rglob("*.bytes"))

    async def settle(self, name: str, *, lives: timedelta) -> None:
        """A turn with one call whose result is a file."""
        turn = turn_of(name, lives=lives)
        reader = await self.spool.scoped(turn.id).write("a", LARGE)
        result = StoredResult("artifact", key=reader.key, type="text", byte_length=len(LARGE))
        call = replace(started(turn), status="settled", results=(result,), completed=clock())
        await self.store.settle_call(call, turn=turn)


def turn_of(name: str, *, lives: timedelta) -> StoredTurn:
    at = clock()
    return StoredTurn(name, ANA, "shop", "r", b"secret", at, at + microseconds_in(lives))


def started(turn: StoredTurn) -> StoredCall:
    return StoredCall("a", turn.id, "tool", "tool", {}, "c", ANA, "shop", "r", clock())


@asynccontextmanager
async def kept(folder: Path) -> AsyncIterator[Kept]:
    store = await SqliteStore.open(folder / "gateway.db")
    spool = await FileSpool.open(folder / "spool", small=store)
    try:
        yield Kept(store, spool, folder)
    finally:
        await spool.close()
        await store.close()


async def test_expired_turn_goes_with_its_calls_and_files_and_the_others_stay(tmp_path: Path) -> None:
    async with kept(tmp_path) as found:
        await found.settle("short", lives=timedelta(hours=1))
        await found.settle("long", lives=timedelta(days=30))
        found.later = timedelta(days=1)

        assert await found.sweeper.expire()

        assert len(found.files) == 1
        assert await found.store.calls_of("short") == []
        assert len(await found.store.calls_of("long")) == 1


async def test_turn_lives_as_long_as_the_longest_of_what_it_was_given(tmp_path: Path) -> None:
    async with kept(tmp_path) as found:
        await found.settle("turn", lives=timedelta(hours=1))
        turn = turn_of("turn", lives=timedelta(days=7))
        await found.store.settle_call(replace(started(turn), id="b", status="settled"), turn=turn)
        await found.store.settle_call(
            replace(started(turn), id="c", status="settled"), turn=turn_of("turn", lives=timedelta(minutes=1))
        )
        found.later = timedelta(days=1)

        await found.sweeper.expire()

        assert len(await found.store.calls_of("turn")) == 3
        assert len(found.files) == 1


async def test_running_call_and_key_keep_their_turn(tmp_path: Path) -> None:
    async with kept(tmp_path) as found:
        running, keyed = turn_of("running", lives=timedelta(hours=1)), turn_of("keyed", lives=timedelta(hours=1))
        await found.store.start_call(started(running), turn=running)
        until = now() + timedelta(days=2)
        await found.store.claim("key", ANA, digest="d", call=started(keyed), until=until, turn=keyed)
        await found.store.settle_call(replace(started(keyed), status="settled", completed=clock()))
        found.later = timedelta(days=1)

        await found.sweeper.expire()

        assert len(await found.store.calls_of("keyed")) == 1
        await found.store.settle_call(replace(started(running), status="settled", completed=clock()))
        found.later = timedelta(days=3)
        await found.sweeper.expire()
        assert await found.store.calls_of("keyed") == []
        assert await found.store.calls_of("running") == []


async def test_pass_is_bounded_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async with kept(tmp_path) as found:
        for number in range(FILES_PER_PASS + 1):
            await found.settle(f"turn-{number}", lives=timedelta(hours=1))
        found.later = timedelta(days=1)

        assert not await found.sweeper.expire()
        assert len(found.files) == 1
        assert await found.sweeper.expire()
        assert found.files == []


async def test_sweeper_goes_on_by_itself(tmp_path: Path) -> None:
    async with kept(tmp_path) as found:
        await found.settle("turn", lives=timedelta(hours=1))
        found.later = timedelta(days=1)
        often = timedelta(milliseconds=10)
        sweeper = Sweeper(found.store, found.spool, rhythm=Rhythm(often, often, often), clock=found.clock)
        task = asyncio.create_task(sweeper.run())
        async with asyncio.timeout(30):
            while found.files:
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_turn_of_a_served_gateway_lives_as_long_as_its_storage_and_its_artifacts_say(
    tmp_path: Path, forks: Forking
) -> None:
    async with orders_service() as orders:
        gateway = await asyncio.to_thread(forks.start, PROJECT, tmp_path, env={"ORDERS_URL": orders.url})
        async with shop_at(gateway.url) as shop:
            turn = (await shop.post("/v1/turns", {"catalogue": "shop"}))["id"]
            opened = await life_of(shop, turn)
            await shop.post(f"/v1/turns/{turn}/calls", {"tool": "order_place", "arguments": {"order": "a"}})
            after_text = await life_of(shop, turn)
            await shop.post(f"/v1/turns/{turn}/calls", {"tool": "history_fetch", "arguments": {"bytes": 10}})
            after_history = await life_of(shop, turn)
        await asyncio.to_thread(gateway.kill)
        again = await asyncio.to_thread(forks.start, PROJECT, tmp_path, env={"ORDERS_URL": orders.url})
        async with shop_at(again.url) as shop:
            restarted = await life_of(shop, turn)
        await asyncio.to_thread(again.kill)

    assert opened == timedelta(days=2)
    assert timedelta(days=2) <= after_text < timedelta(days=3)
    assert timedelta(days=7) <= after_history < timedelta(days=8)
    assert restarted == after_history


async def life_of(shop: Shop, turn: str) -> timedelta:
    _, told = await shop.get(f"/v1/turns/{turn}")
    return datetime.fromisoformat(told["expiresAt"]) - datetime.fromisoformat(told["createdAt"])

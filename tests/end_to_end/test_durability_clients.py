"""Clients that go away while their call runs: what they asked for is given up, and the record says what is known."""

import asyncio
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest
from every_call import every_call
from forked import Forking
from orders import PROJECT, Shop, orders_service, shop_at

pytestmark = pytest.mark.anyio


def records(data: Path) -> dict[str, tuple[str, bool]]:
    """Status of every call and whether it is an error, by the order it was about."""
    with closing(sqlite3.connect(f"file:{data}/data/gateway.db?mode=ro", uri=True)) as database:
        query = every_call("json_extract(args, '$.order'), status, is_error")
        return {order: (status, bool(is_error)) for order, status, is_error in database.execute(query)}


async def gone(call: "asyncio.Task[object]") -> None:
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call


async def test_call_of_a_client_that_has_gone_is_on_record_as_what_it_is(tmp_path: Path, forks: Forking) -> None:
    async with orders_service() as orders:
        gateway = await asyncio.to_thread(forks.start, PROJECT, tmp_path, env={"ORDERS_URL": orders.url})
        async with shop_at(gateway.url) as shop:
            for tool, order in (("order_ship", "written"), ("order_track", "read")):
                call = asyncio.create_task(shop.mcp(tool, {"order": order}))
                await orders.arrived(order)
                await gone(call)
            expected = {"written": ("unknown", False), "read": ("settled", True)}
            async with asyncio.timeout(30):
                while records(tmp_path) != expected:
                    await asyncio.sleep(0.02)
            await check_key(shop, orders.executions)
        await asyncio.to_thread(gateway.kill)


async def check_key(shop: Shop, executions: dict[str, int]) -> None:
    """A key of a call that was given up does not run it again."""
    call = asyncio.create_task(shop.mcp("order_ship", {"order": "keyed"}, key="k"))
    async with asyncio.timeout(30):
        while not executions["keyed"]:
            await asyncio.sleep(0.02)
    await gone(call)
    async with asyncio.timeout(30):
        while "still running" in str((again := await shop.mcp("order_ship", {"order": "keyed"}, key="k")).body):
            await asyncio.sleep(0.02)
    assert "not known" in str(again.body)
    assert executions["keyed"] == 1

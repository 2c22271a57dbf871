"""A client disconnects during its call: the call is cancelled, and its record holds what is known."""

import asyncio
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.support.gateways.forkserver import ForkServer
from tests.support.servers.orders_service import PROJECT, OrdersClient, connect_orders_client, orders_service
from tests.support.stored_calls import read_all_calls

pytestmark = pytest.mark.anyio


def records(data: Path) -> dict[str, tuple[str, bool]]:
    """Return status and `is_error` of every call, by its order."""
    with closing(sqlite3.connect(f"file:{data}/data/gateway.db?mode=ro", uri=True)) as database:
        query = read_all_calls("json_extract(args, '$.order'), status, is_error")
        return {order: (status, bool(is_error)) for order, status, is_error in database.execute(query)}


async def cancel(call: "asyncio.Task[object]") -> None:
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call


async def test_call_of_a_client_that_has_gone_is_on_record_as_what_it_is(tmp_path: Path, forks: ForkServer) -> None:
    async with orders_service() as orders:
        gateway = await asyncio.to_thread(forks.start, PROJECT, tmp_path, env={"ORDERS_URL": orders.url})
        async with connect_orders_client(gateway.url) as shop:
            for tool, order in (("order_ship", "written"), ("order_track", "read")):
                call = asyncio.create_task(shop.mcp(tool, {"order": order}))
                await orders.arrived(order)
                await cancel(call)
            expected = {"written": ("unknown", False), "read": ("settled", True)}
            async with asyncio.timeout(30):
                while records(tmp_path) != expected:
                    await asyncio.sleep(0.02)
            await check_key(shop, orders.executions)
        await asyncio.to_thread(gateway.kill)


async def check_key(shop: OrdersClient, executions: dict[str, int]) -> None:
    """Reusing the key of a cancelled call does not run it again."""
    call = asyncio.create_task(shop.mcp("order_ship", {"order": "keyed"}, key="k"))
    async with asyncio.timeout(30):
        while not executions["keyed"]:
            await asyncio.sleep(0.02)
    await cancel(call)
    async with asyncio.timeout(30):
        while "still running" in str((again := await shop.mcp("order_ship", {"order": "keyed"}, key="k")).body):
            await asyncio.sleep(0.02)
    assert "not known" in str(again.body)
    assert executions["keyed"] == 1

"""Full disk: calls with effects are refused before they run, and work again when there is room."""

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.gateways.process import GatewayProcess, start_gateway_process
from tests.support.servers.orders_service import PROJECT, connect_orders_client, orders_service

pytestmark = pytest.mark.anyio

NO_ROOM = ["files may not grow any more"]


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


@contextmanager
def no_room(gateway: GatewayProcess) -> Iterator[None]:
    """Set the file size limit of the gateway to 0: equivalent to a full disk, without root."""
    before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in family(gateway.process.pid)}
    for pid, (_, hard) in before.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        for pid, limits in before.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


async def readiness(gateway: GatewayProcess, *, is_ready: bool) -> Any:
    """Wait for this readiness and return the body of `/readyz`."""
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{gateway.url}/readyz") as answer:
                if (answer.status == 200) is is_ready:
                    return await answer.json()
            await asyncio.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="limits of other processes need Linux")
async def test_without_room_for_records_nothing_is_changed_and_nothing_is_lost(tmp_path: Path) -> None:
    async with orders_service() as orders:
        with start_gateway_process(PROJECT, tmp_path, env={"ORDERS_URL": orders.url}) as gateway:
            async with connect_orders_client(gateway.url) as shop, asyncio.timeout(60):
                before = await shop.rest("order_place", {"order": "before"})
                with no_room(gateway):
                    refused = [await ask("order_place", {"order": "full"}) for ask in (shop.rest, shop.mcp)]
                    while (await readiness(gateway, is_ready=False))["reasons"] != NO_ROOM:
                        await asyncio.sleep(0.05)  # a failed write may be noticed before its reason
                    read = [await shop.get(path) for path in ("/v1/calls", "/v1/catalogues/shop/tools")]
                    async with aiohttp.ClientSession() as session, session.get(f"{gateway.url}/livez") as answer:
                        live = answer.status
                await readiness(gateway, is_ready=True)
                while not (after := await shop.rest("order_place", {"order": "after"})).is_settled:
                    await asyncio.sleep(0.05)
            code = await asyncio.to_thread(gateway.stop)

    assert before.is_settled
    assert not any(each.is_settled for each in refused)
    assert (refused[0].status, refused[0].body["code"]) == (503, "E_STORE_UNAVAILABLE")
    assert "full" not in orders.executions
    assert [status for status, _ in read] == [200, 200]
    assert live == 200
    assert after.is_settled
    assert orders.executions["after"] == 1
    assert code == 0

"""Graceful shutdown: readiness fails first, running calls finish, late calls are cut off and recorded, exit code 0."""

import asyncio
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.gateways.forkserver import ForkServer, GatewayFork, is_alive
from tests.support.servers.orders_service import (
    PROJECT,
    OrdersClient,
    OrdersService,
    connect_orders_client,
    orders_service,
)
from tests.support.stored_calls import read_all_calls

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def start_shop(
    forks: ForkServer, data: Path, *, grace: str = "PT300S", options: tuple[str, ...] = ()
) -> AsyncIterator[tuple[GatewayFork, OrdersClient, OrdersService]]:
    async with orders_service() as orders:
        env = {"ORDERS_URL": orders.url, "GATEWAY_GRACE": grace}
        gateway = await asyncio.to_thread(forks.start, PROJECT, data, env=env, options=options)
        async with connect_orders_client(gateway.url) as shop:
            yield gateway, shop, orders
        await asyncio.to_thread(gateway.kill)


async def wait_for_end(gateway: GatewayFork) -> int:
    return await asyncio.to_thread(gateway.ended)


async def wait_until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.02)


async def readiness(gateway: GatewayFork) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"{gateway.admin_url}/readyz") as answer:
        return answer.status, await answer.json()


async def refusals(gateway: GatewayFork) -> float:
    """Return the number of requests counted as refused because of the shutdown."""
    async with aiohttp.ClientSession() as session, session.get(f"{gateway.admin_url}/metrics") as answer:
        text = await answer.text()
    name = 'gateway_requests_refused_total{http_response_status_code="503"} '
    return sum(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))


async def until_not_ready(gateway: GatewayFork) -> Any:
    async with asyncio.timeout(30):
        while (state := await readiness(gateway))[0] == 200:
            await asyncio.sleep(0.02)
    return state[1]


def records(data: Path) -> dict[str, tuple[str, bool]]:
    """Return status and `is_error` of every call, by tool."""
    with closing(sqlite3.connect(f"file:{data}/data/gateway.db?mode=ro", uri=True)) as database:
        rows = database.execute(read_all_calls("tool, status, is_error")).fetchall()
    return {tool: (status, bool(is_error)) for tool, status, is_error in rows}


def children(pid: int) -> set[int]:
    """Return all descendants of a process."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            below = {int(child) for child in task.read_text().split()} - found
            found |= below
            waiting += below
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_running_calls_finish_while_readiness_is_gone_and_new_ones_are_refused(
    tmp_path: Path, forks: ForkServer
) -> None:
    async with start_shop(forks, tmp_path) as (gateway, shop, orders):
        calls = [asyncio.create_task(call("order_ship", {"order": name})) for name, call in _wires(shop)]
        for name, _ in _wires(shop):
            await orders.arrived(name)
        gateway.signal(signal.SIGTERM)

        assert (await until_not_ready(gateway))["reasons"] == ["stopping"]
        await _wait_until_refused(shop)
        assert await refusals(gateway) >= 1
        assert is_alive(gateway.pid)
        for name, _ in _wires(shop):
            orders.release(name)

        assert [(await call).status for call in calls] == [200, 200]
        assert await wait_for_end(gateway) == 0
    assert records(tmp_path) == {"order_ship": ("settled", False)}


async def test_calls_that_outlast_the_grace_are_cut_off_with_a_record_and_an_answer(
    tmp_path: Path, forks: ForkServer
) -> None:
    async with start_shop(forks, tmp_path, grace="PT0.5S") as (gateway, shop, orders):
        shipping = asyncio.create_task(shop.rest("order_ship", {"order": "a"}))
        tracking = asyncio.create_task(shop.mcp("order_track", {"order": "b"}))
        await orders.arrived("a")
        await orders.arrived("b")
        gateway.signal(signal.SIGTERM)

        answered = await shipping
        assert (answered.status, answered.body["code"]) == (424, "E_CUT_OFF")
        assert (await tracking).status == 424
        assert await wait_for_end(gateway) == 0
    assert records(tmp_path) == {"order_ship": ("unknown", False), "order_track": ("settled", True)}


async def test_second_signal_is_meant_at_once(tmp_path: Path, forks: ForkServer) -> None:
    async with start_shop(forks, tmp_path) as (gateway, shop, orders):
        shipping = asyncio.create_task(shop.rest("order_ship", {"order": "a"}))
        await orders.arrived("a")
        gateway.signal(signal.SIGTERM)
        await until_not_ready(gateway)
        gateway.signal(signal.SIGTERM)

        assert await wait_for_end(gateway) == 0
        assert (await shipping).status == 424
    assert records(tmp_path) == {"order_ship": ("unknown", False)}


async def test_streams_end_whole(tmp_path: Path, forks: ForkServer) -> None:
    async with start_shop(forks, tmp_path) as (gateway, shop, _), aiohttp.ClientSession() as session:
        async with session.post(f"{shop.url}/v1/turns", json={"catalogue": "shop"}) as opened:
            turn = (await opened.json())["id"]
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        accepts = {"accept": "application/json, text/event-stream"}
        async with session.post(f"{shop.url}/shop/mcp", json=message, headers=accepts) as answer:
            own = {"mcp-session-id": answer.headers["mcp-session-id"], "accept": "text/event-stream"}
        async with (
            session.get(f"{shop.url}/v1/turns/{turn}/events") as events,
            session.get(f"{shop.url}/shop/mcp", headers=own) as messages,
        ):
            assert [events.status, messages.status] == [200, 200]
            gateway.signal(signal.SIGTERM)

            for stream in (events, messages):
                await stream.read()  # raises unless the stream was closed properly
        assert await wait_for_end(gateway) == 0


async def test_programs_end_with_the_gateway_that_started_them(tmp_path: Path, forks: ForkServer) -> None:
    async with start_shop(forks, tmp_path, grace="PT0S") as (gateway, shop, _):
        sleeping = asyncio.create_task(shop.rest("order_sleep", {"seconds": 1000}))
        await wait_until(lambda: any(_is_sleep(child) for child in children(gateway.pid)))
        programs = children(gateway.pid)
        gateway.signal(signal.SIGTERM)

        assert await wait_for_end(gateway) == 0
        assert (await sleeping).status == 424
        await wait_until(lambda: not any(map(is_running, programs)))


async def test_workers_drain_together_behind_one_banner(tmp_path: Path, forks: ForkServer) -> None:
    async with start_shop(forks, tmp_path, options=("--workers", "2")) as (gateway, shop, orders):
        assert gateway.output.read_text(encoding="utf-8").count("REST ") == 1
        workers = children(gateway.pid)
        assert len(workers) == 2
        names = [f"order-{number}" for number in range(12)]
        calls = [asyncio.create_task(shop.rest("order_track", {"order": name})) for name in names]
        for name in names:
            await orders.arrived(name)
        gateway.signal(signal.SIGTERM)
        await until_not_ready(gateway)
        for name in names:
            orders.release(name)

        assert {(await call).status for call in calls} == {200}
        assert await wait_for_end(gateway) == 0
        assert not any(map(is_running, workers))


async def test_workers_end_when_their_parent_is_killed(tmp_path: Path, forks: ForkServer) -> None:
    async with start_shop(forks, tmp_path, options=("--workers", "2")) as (gateway, _, _):
        workers = children(gateway.pid)
        gateway.kill()

        await wait_until(lambda: not any(map(is_running, workers)))


async def test_worker_that_dies_is_replaced_and_the_others_mark_its_calls_unknown(
    tmp_path: Path, forks: ForkServer
) -> None:
    async with start_shop(forks, tmp_path, options=("--workers", "2")) as (gateway, shop, orders):
        workers = children(gateway.pid)
        shipping = asyncio.create_task(shop.rest("order_ship", {"order": "a"}))
        await orders.arrived("a")
        for worker in workers:  # either may run the call
            os.kill(worker, signal.SIGKILL)

        with pytest.raises((aiohttp.ClientError, OSError)):
            await shipping
        await wait_until(lambda: len(children(gateway.pid) - workers) == 2)
        await wait_until(lambda: records(tmp_path) == {"order_ship": ("unknown", False)})
        assert (await readiness(gateway))[0] == 200
        gateway.signal(signal.SIGTERM)
        assert await wait_for_end(gateway) == 0


def _wires(shop: OrdersClient) -> list[tuple[str, Callable[..., Any]]]:
    return [("over-rest", shop.rest), ("over-mcp", shop.mcp)]


async def _wait_until_refused(shop: OrdersClient) -> None:
    """New calls get 503 for a moment; then the listener is closed."""
    async with asyncio.timeout(30):
        while True:
            try:
                answered = await shop.rest("order_place", {"order": "late"})
            except aiohttp.ClientConnectionError:
                return
            assert answered.status == 503


def _is_sleep(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"/usr/bin/sleep")
    except (FileNotFoundError, ProcessLookupError):
        return False

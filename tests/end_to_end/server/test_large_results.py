"""Results of a gigabyte and misbehaving services, through a whole gateway: memory stays flat, other calls go on.

`LARGE_BYTES` is the size; the suite uses an eighth of a gigabyte, which is enough to show growth with the result.
"""

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.servers.orders_service import (
    CHUNK,
    PROJECT,
    OrdersClient,
    OrdersReply,
    OrdersService,
    connect_orders_client,
    orders_service,
)

pytestmark = pytest.mark.anyio

BYTES = int(os.environ.get("LARGE_BYTES", 128 << 20))
EXTRA_MEMORY = 64 << 20


@asynccontextmanager
async def start_shop(forks: ForkServer, data: Path) -> AsyncIterator[tuple[GatewayFork, OrdersClient, OrdersService]]:
    async with orders_service() as orders:
        env = {"ORDERS_URL": orders.url}
        gateway = await asyncio.to_thread(forks.start, PROJECT, data, env=env)
        async with connect_orders_client(gateway.url) as shop:
            await shop.rest("history_fetch", {"bytes": 1 << 20})  # imports and opens everything that is loaded once
            await shop.rest("numbers_print", {"last": 100_000})
            yield gateway, shop, orders
        await asyncio.to_thread(gateway.kill)


def memory(gateway: GatewayFork, field: str = "VmHWM") -> int:
    """Return a memory figure of the process in bytes, by default the peak, which `forget_peak` resets."""
    lines = Path(f"/proc/{gateway.pid}/status").read_text(encoding="ascii").splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(kilobytes) << 10


def forget_peak(gateway: GatewayFork) -> None:
    Path(f"/proc/{gateway.pid}/clear_refs").write_text("5", encoding="ascii")


def last_number(size: int) -> int:
    """Return the last number such that all numbers up to it, one per line, make about that many bytes."""
    digits, last = 1, 0
    while size > 9 * 10 ** (digits - 1) * (digits + 1):
        size -= 9 * 10 ** (digits - 1) * (digits + 1)
        last = 10**digits - 1
        digits += 1
    return last + size // (digits + 1)


@pytest.mark.parametrize("tool", ["history_fetch", "numbers_print"])
async def test_large_result_comes_back_as_a_handle_and_takes_no_memory(
    tmp_path: Path, forks: ForkServer, tool: str
) -> None:
    async with start_shop(forks, tmp_path) as (gateway, shop, _):
        forget_peak(gateway)
        before = memory(gateway)
        args = {"bytes": BYTES} if tool == "history_fetch" else {"last": last_number(BYTES)}

        answered = await shop.rest(tool, args)

        assert answered.body["inline"] is False
        assert answered.body["isError"] is False, answered.body["rendered"]
        assert answered.body["result"]["artifact"]["byteLength"] > BYTES * 0.99
        assert len(answered.body["rendered"]) < 4096
        ask = query_result(shop, answered)
        found = await ask("artifact_grep", {"pattern": "^a new page" if tool == "history_fetch" else "99999$"})
        assert found.count("\n") > 2
        assert memory(gateway) - before < EXTRA_MEMORY


async def test_pages_of_a_search_lead_through_a_large_result(tmp_path: Path, forks: ForkServer) -> None:
    async with start_shop(forks, tmp_path) as (gateway, shop, _):
        ask = query_result(shop, await shop.rest("history_fetch", {"bytes": BYTES}))
        forget_peak(gateway)
        before = memory(gateway)
        args: dict[str, Any] = {"pattern": "^a new page", "limit": 40}
        found = 0
        while True:
            text = await ask("artifact_grep", args)
            found += text.count("a new page of the history")
            goes_on = re.search(r"call artifact_grep with fromLine (\d+) to go on", text)
            if goes_on is None:
                break
            assert int(goes_on[1]) > args.get("fromLine", 0)
            args["fromLine"] = int(goes_on[1])

        assert found == -(-BYTES // len(CHUNK))
        assert memory(gateway) - before < EXTRA_MEMORY


async def test_client_that_reads_slowly_holds_no_memory(tmp_path: Path, forks: ForkServer) -> None:
    async with start_shop(forks, tmp_path) as (gateway, shop, _):
        large = await shop.rest("history_fetch", {"bytes": BYTES})
        forget_peak(gateway)
        before = memory(gateway)
        host, port = gateway.url.removeprefix("http://").split(":")
        path = f"/v1/artifacts/{large.call_id}/content?turn={large.turn}"
        with socket.create_connection((host, int(port)), 10) as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            head = await asyncio.to_thread(client.recv, 4096)
            assert head.startswith(b"HTTP/1.1 200")

            assert (await shop.rest("order_place", {"order": "meanwhile"})).status == 200
            assert memory(gateway) - before < EXTRA_MEMORY
        assert await shop.content(str(large.call_id), str(large.turn)) == history(BYTES)


@pytest.mark.parametrize("how", ["hang", "drip", "garbage", "reset"])
async def test_service_that_misbehaves_is_an_error_in_time_and_others_go_on(
    tmp_path: Path, forks: ForkServer, how: str
) -> None:
    async with start_shop(forks, tmp_path) as (_, shop, _):
        odd = [asyncio.create_task(call("odd_fetch", {"how": how})) for call in (shop.rest, shop.mcp)]
        others = [await shop.rest("order_place", {"order": f"order-{number}"}) for number in range(20)]

        assert {each.status for each in others} == {200}
        over_rest, over_mcp = await asyncio.gather(*odd)
        assert (over_rest.status, over_mcp.status) == (424, 200)
        assert over_rest.body["isError"] is True
        assert over_mcp.body["result"]["isError"] is True
        assert "Traceback" not in str(over_rest.body)
        status, record = await shop.get(f"/v1/calls/{over_rest.call_id}", turn=str(over_rest.turn))
        assert (status, record["status"], record["isError"]) == (200, "settled", True)


async def test_result_larger_than_its_tool_may_yield_is_refused_and_leaves_nothing(
    tmp_path: Path, forks: ForkServer
) -> None:
    async with start_shop(forks, tmp_path) as (_, shop, _):
        answered = await shop.rest("order_dump", {"bytes": 2 << 20})

        assert answered.body["isError"] is True
        assert "larger than" in answered.body["rendered"]
        assert [path for path in (tmp_path / "data" / "spool" / "incoming").rglob("*") if path.is_file()] == []


def query_result(shop: OrdersClient, answered: OrdersReply) -> Callable[[str, dict[str, Any]], Awaitable[str]]:
    """Return a function that calls a query tool on the result and returns the text for the model."""

    async def ask(tool: str, arguments: dict[str, Any]) -> str:
        path = f"/v1/artifacts/{answered.call_id}/query?turn={answered.turn}"
        return str((await shop.post(path, {"tool": tool, "arguments": arguments}))["rendered"])

    return ask


def history(size: int) -> bytes:
    return (CHUNK * (size // len(CHUNK) + 1))[:size]

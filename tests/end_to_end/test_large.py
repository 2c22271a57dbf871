"""Results of a gigabyte and services that misbehave, through a whole gateway: memory stays flat, others go on.

`LARGE_BYTES` says how large; the suite takes an eighth of a gigabyte, which shows what grows with the result as well.
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
from forked import Forked, Forking
from orders import CHUNK, PROJECT, Answered, Orders, Shop, orders_service, shop_at

pytestmark = pytest.mark.anyio

BYTES = int(os.environ.get("LARGE_BYTES", 128 << 20))
EXTRA_MEMORY = 64 << 20


@asynccontextmanager
async def serving(forks: Forking, data: Path) -> AsyncIterator[tuple[Forked, Shop, Orders]]:
    async with orders_service() as orders:
        env = {"ORDERS_URL": orders.url}
        gateway = await asyncio.to_thread(forks.start, PROJECT, data, env=env)
        async with shop_at(gateway.url) as shop:
            await shop.rest("history_fetch", {"bytes": 1 << 20})  # whatever is imported or opened once
            await shop.rest("numbers_print", {"last": 100_000})
            yield gateway, shop, orders
        await asyncio.to_thread(gateway.kill)


def memory(gateway: Forked, field: str = "VmHWM") -> int:
    """Bytes. The peak is forgotten by `forget_peak`."""
    lines = Path(f"/proc/{gateway.pid}/status").read_text(encoding="ascii").splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(kilobytes) << 10


def forget_peak(gateway: Forked) -> None:
    Path(f"/proc/{gateway.pid}/clear_refs").write_text("5", encoding="ascii")


def last_number(size: int) -> int:
    """The last of so many numbers that all of them, a line each, make about that many bytes."""
    digits, last = 1, 0
    while size > 9 * 10 ** (digits - 1) * (digits + 1):
        size -= 9 * 10 ** (digits - 1) * (digits + 1)
        last = 10**digits - 1
        digits += 1
    return last + size // (digits + 1)


@pytest.mark.parametrize("tool", ["history_fetch", "numbers_print"])
async def test_large_result_comes_back_as_a_handle_and_takes_no_memory(
    tmp_path: Path, forks: Forking, tool: str
) -> None:
    async with serving(forks, tmp_path) as (gateway, shop, _):
        forget_peak(gateway)
        before = memory(gateway)
        args = {"bytes": BYTES} if tool == "history_fetch" else {"last": last_number(BYTES)}

        answered = await shop.rest(tool, args)

        assert answered.body["inline"] is False
        assert answered.body["isError"] is False, answered.body["rendered"]
        assert answered.body["result"]["artifact"]["byteLength"] > BYTES * 0.99
        assert len(answered.body["rendered"]) < 4096
        ask = asking(shop, answered)
        found = await ask("artifact_grep", {"pattern": "^a new page" if tool == "history_fetch" else "99999$"})
        assert found.count("\n") > 2
        assert memory(gateway) - before < EXTRA_MEMORY


async def test_pages_of_a_search_lead_through_a_large_result(tmp_path: Path, forks: Forking) -> None:
    async with serving(forks, tmp_path) as (gateway, shop, _):
        ask = asking(shop, await shop.rest("history_fetch", {"bytes": BYTES}))
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


async def test_client_that_reads_slowly_holds_no_memory(tmp_path: Path, forks: Forking) -> None:
    async with serving(forks, tmp_path) as (gateway, shop, _):
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
    tmp_path: Path, forks: Forking, how: str
) -> None:
    async with serving(forks, tmp_path) as (_, shop, _):
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
    tmp_path: Path, forks: Forking
) -> None:
    async with serving(forks, tmp_path) as (_, shop, _):
        answered = await shop.rest("order_dump", {"bytes": 2 << 20})

        assert answered.body["isError"] is True
        assert "larger than" in answered.body["rendered"]
        assert [path for path in (tmp_path / "data" / "spool" / "incoming").rglob("*") if path.is_file()] == []


def asking(shop: Shop, answered: Answered) -> Callable[[str, dict[str, Any]], Awaitable[str]]:
    """Asks a result by one of its query tools; what comes back is what a model reads."""

    async def ask(tool: str, arguments: dict[str, Any]) -> str:
        path = f"/v1/artifacts/{answered.call_id}/query?turn={answered.turn}"
        return str((await shop.post(path, {"tool": tool, "arguments": arguments}))["rendered"])

    return ask


def history(size: int) -> bytes:
    return (CHUNK * (size // len(CHUNK) + 1))[:size]

"""Sessions and turns with several workers: any worker can take a connection, and the owner answers."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.gateways.forkserver import ForkServer, GatewayFork, is_alive
from tests.support.servers.orders_service import PROJECT, orders_service

pytestmark = pytest.mark.anyio

BOTH = "application/json, text/event-stream"


def fresh_connections() -> aiohttp.ClientSession:
    """Send each request on a new connection, which any worker may accept."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))


async def post(session: aiohttp.ClientSession, url: str, body: Any, **headers: str) -> tuple[int, Any, Any]:
    async with session.post(url, json=body, headers=headers) as answer:
        text = await answer.text()
        return answer.status, answer.headers, text


def message(method: str, number: int, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


async def test_sessions_and_turns_are_answered_by_the_worker_that_has_them(tmp_path: Path, forks: ForkServer) -> None:
    async with orders_service() as orders, fresh_connections() as session:
        env = {"ORDERS_URL": orders.url}
        gateway = forks.start(PROJECT, tmp_path, env=env, options=("--workers", "2"))
        try:
            await check_sessions(session, f"{gateway.url}/shop/mcp")
            await check_turns(session, gateway.url)
            await check_strangers(session, f"{gateway.url}/shop/mcp")
            await check_orphans(session, gateway)
        finally:
            gateway.stop()


async def check_sessions(session: aiohttp.ClientSession, url: str) -> None:
    owners = set()
    for _ in range(8):
        hello = message(
            "initialize",
            0,
            protocolVersion="2025-11-25",
            capabilities={},
            clientInfo={"name": "test", "version": "1"},
        )
        status, headers, _ = await post(session, url, hello, accept=BOTH)
        assert status == 200
        id = headers["mcp-session-id"]
        owners.add(id.partition(".")[0])
        for number in range(1, 6):
            call = message("tools/call", number, name="order_read", arguments={"order": f"{number}"})
            session_headers = {"mcp-session-id": id, "mcp-protocol-version": "2025-11-25"}
            status, _, text = await post(session, url, call, accept=BOTH, **session_headers)
            assert (status, '"isError":false' in text) == (200, True), text
        listing = message("tools/list", 9)
        _, _, text = await post(session, url, listing, accept=BOTH, **session_headers)
        assert "artifact_grep" in text
        async with session.delete(url, headers=session_headers) as ended:
            assert ended.status in (200, 204)
        assert (await post(session, url, listing, accept=BOTH, **session_headers))[0] == 404
    assert owners <= {"0", "1"}


async def check_turns(session: aiohttp.ClientSession, url: str) -> None:
    for _ in range(4):
        async with session.post(f"{url}/v1/turns", json={"catalogue": "shop"}) as answer:
            turn = (await answer.json())["id"]
        for number in range(4):
            body = {"tool": "order_read", "arguments": {"order": "a"}, "id": f"call-{number}"}
            status, _, text = await post(session, f"{url}/v1/turns/{turn}/calls", body)
            assert status == 200, text
        async with session.get(f"{url}/v1/turns/{turn}/tools") as answer:
            listed = await answer.text()
        assert all(f'"call-{number}"' in listed for number in range(4))
        assert (await post(session, f"{url}/v1/turns/{turn}/end", {"as": "ack"}))[0] == 200
        body = {"tool": "order_read", "arguments": {"order": "a"}}
        assert (await post(session, f"{url}/v1/turns/{turn}/calls", body))[0] == 409


async def check_orphans(session: aiohttp.ClientSession, gateway: GatewayFork) -> None:
    """Another worker continues the turns of a dead worker."""
    turns = []
    for _ in range(6):
        async with session.post(f"{gateway.url}/v1/turns", json={"catalogue": "shop"}) as answer:
            turns.append((await answer.json())["id"])
    worker = int(Path(f"/proc/{gateway.pid}/task/{gateway.pid}/children").read_text().split()[0])
    os.kill(worker, signal.SIGKILL)
    async with asyncio.timeout(30):
        while is_alive(worker):
            await asyncio.sleep(0.01)
    for turn in turns:
        body = {"tool": "order_read", "arguments": {"order": "a"}}
        status, _, text = await post(session, f"{gateway.url}/v1/turns/{turn}/calls", body)
        assert status == 200, text


async def check_strangers(session: aiohttp.ClientSession, url: str) -> None:
    for id in ("7.abc", "1.abc", "abc", "x.abc", "00001.abc", ".", "1.1.abc"):
        headers = {"accept": BOTH, "mcp-session-id": id}
        assert (await post(session, url, message("tools/list", 1), **headers))[0] == 404, id

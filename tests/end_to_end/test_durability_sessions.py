"""Sessions and turns with several workers: whichever process a connection reaches, the same one answers."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from forked import Forked, Forking, is_alive
from orders import PROJECT, orders_service

pytestmark = pytest.mark.anyio

BOTH = "application/json, text/event-stream"


def fresh_connections() -> aiohttp.ClientSession:
    """Each request goes to whichever worker is first to take the connection."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))


async def posted(session: aiohttp.ClientSession, url: str, body: Any, **headers: str) -> tuple[int, Any, Any]:
    async with session.post(url, json=body, headers=headers) as answer:
        text = await answer.text()
        return answer.status, answer.headers, text


def message(method: str, number: int, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


async def test_sessions_and_turns_are_answered_by_the_worker_that_has_them(tmp_path: Path, forks: Forking) -> None:
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
        status, headers, _ = await posted(session, url, hello, accept=BOTH)
        assert status == 200
        id = headers["mcp-session-id"]
        owners.add(id.partition(".")[0])
        for number in range(1, 6):
            call = message("tools/call", number, name="order_read", arguments={"order": f"{number}"})
            told = {"mcp-session-id": id, "mcp-protocol-version": "2025-11-25"}
            status, _, text = await posted(session, url, call, accept=BOTH, **told)
            assert (status, '"isError":false' in text) == (200, True), text
        listing = message("tools/list", 9)
        _, _, text = await posted(session, url, listing, accept=BOTH, **told)
        assert "artifact_grep" in text
        async with session.delete(url, headers=told) as ended:
            assert ended.status in (200, 204)
        assert (await posted(session, url, listing, accept=BOTH, **told))[0] == 404
    assert owners <= {"0", "1"}


async def check_turns(session: aiohttp.ClientSession, url: str) -> None:
    for _ in range(4):
        async with session.post(f"{url}/v1/turns", json={"catalogue": "shop"}) as answer:
            turn = (await answer.json())["id"]
        for number in range(4):
            body = {"tool": "order_read", "arguments": {"order": "a"}, "id": f"call-{number}"}
            status, _, text = await posted(session, f"{url}/v1/turns/{turn}/calls", body)
            assert status == 200, text
        async with session.get(f"{url}/v1/turns/{turn}/tools") as answer:
            listed = await answer.text()
        assert all(f'"call-{number}"' in listed for number in range(4))
        assert (await posted(session, f"{url}/v1/turns/{turn}/end", {"as": "ack"}))[0] == 200
        body = {"tool": "order_read", "arguments": {"order": "a"}}
        assert (await posted(session, f"{url}/v1/turns/{turn}/calls", body))[0] == 409


async def check_orphans(session: aiohttp.ClientSession, gateway: Forked) -> None:
    """Turns of a worker that is gone go on in another one."""
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
        status, _, text = await posted(session, f"{gateway.url}/v1/turns/{turn}/calls", body)
        assert status == 200, text


async def check_strangers(session: aiohttp.ClientSession, url: str) -> None:
    for id in ("7.abc", "1.abc", "abc", "x.abc", "00001.abc", ".", "1.1.abc"):
        headers = {"accept": BOTH, "mcp-session-id": id}
        assert (await posted(session, url, message("tools/list", 1), **headers))[0] == 404, id

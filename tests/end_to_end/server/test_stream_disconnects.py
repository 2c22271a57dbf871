"""Streaming clients send another request on the same connection and disconnect: nothing is logged, nothing leaks."""

import asyncio
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from tests.end_to_end.gates.test_workers import fork_gateway
from tests.support.gateways.forkserver import ForkServer
from tests.support.gateways.gate_projects import ANA, approval_client, write
from tests.support.gateways.projects import LEGACY, MODERN, Caller, send_http

pytestmark = pytest.mark.anyio

GONE_WITHIN = 10.0
"""Seconds. The gateway sends a comment after 15 seconds of silence; before that, only the disconnect reveals that a
client left.
"""
META = "io.modelcontextprotocol/"


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "host: localhost",
        f"authorization: Bearer {ANA.token}",
        "accept: application/json, text/event-stream",
        f"content-length: {len(body)}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def events(caller: Caller) -> bytes:
    turn = (await caller.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
    return request("GET", f"/v1/turns/{turn}/events")


async def session(caller: Caller) -> bytes:
    id = await caller.begin_legacy("desk")
    return request("GET", "/desk/mcp", mcp_session_id=id, mcp_protocol_version=LEGACY)


async def subscription(caller: Caller) -> bytes:
    method = "subscriptions/listen"
    meta = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {}}
    params = {"notifications": {"toolsListChanged": True}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    headers = {"content_type": "application/json", "mcp_protocol_version": MODERN, "mcp_method": method}
    return request("POST", "/desk/mcp", body, **headers)


STREAMS: tuple[Callable[[Caller], Awaitable[bytes]], ...] = (events, session, subscription)
LISTED = request("GET", "/v1/catalogues/desk/tools")
TURN = request("POST", "/v1/turns", b'{"catalogue":"desk"}', content_type="application/json")
BEHIND = (
    LISTED,
    LISTED * 3,
    LISTED * 40,
    TURN[:-3],
    b"NONSENSE\r\n\r\n",
    request("POST", "/v1/turns", b"x" * 100_000, content_type="application/json"),
)
"""One request, several, too many, an incomplete one, an invalid one, and one whose body is not read at once."""


def sockets(pid: int) -> int:
    found = 0
    for each in os.listdir(f"/proc/{pid}/fd"):
        try:
            found += os.readlink(f"/proc/{pid}/fd/{each}").startswith("socket:")
        except FileNotFoundError:  # closed meanwhile
            continue
    return found


async def leave(writer: asyncio.StreamWriter, *, by_reset: bool) -> None:
    if by_reset:
        opened = writer.get_extra_info("socket")
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


async def test_clients_who_leave_behind_a_stream_are_noticed(forks: ForkServer, tmp_path: Path) -> None:
    with fork_gateway(forks, write(tmp_path / "p", approval_client(9)), tmp_path / "data") as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as http:
            caller = Caller(send_http(http, gateway.url), ANA.token)
            await caller.rest("GET", "/v1/catalogues/desk/tools")
            before = sockets(gateway.pid)
            opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]] = []
            for stream in STREAMS:
                for behind in BEHIND:
                    for _ in range(2):
                        reader, writer = await asyncio.open_connection(host, int(port))
                        writer.write(await stream(caller))
                        opened.append((reader, writer, behind))
            for reader, _, _ in opened:
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.3)  # each stream now watches for its client
            for _, writer, behind in opened:
                writer.write(behind)
            await asyncio.sleep(0.3)
            for number, (_, writer, _) in enumerate(opened):
                await leave(writer, by_reset=bool(number % 2))
            async with asyncio.timeout(GONE_WITHIN):
                while sockets(gateway.pid) > before:
                    await asyncio.sleep(0.1)
            assert (await caller.rest("GET", "/v1/catalogues/desk/tools")).status == 200
        gateway.stop()
        output = gateway.output.read_text(encoding="utf-8")

    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [each for each in lines if each["level"] != "info"] == []
    assert "Traceback" not in output

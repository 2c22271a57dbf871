"""Connections between processes: real sockets, of which only proved ones carry HTTP."""

import asyncio
import logging
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from yarl import URL

from gateway.app.cluster import peer_connector
from gateway.app.cluster.peer_connector import Address, ChannelSilent, PeerConnector
from gateway.app.cluster.proxy import create_forwarding_session, forward_request
from gateway.app.cluster.worker_router import WorkerRouter
from gateway.http_client import HttpSession
from gateway.server.http import peer_listener
from gateway.server.http.asgi import SCOPE_PRINCIPAL, json_response
from gateway.server.http.peer_handshake import HELLO_SIZE, ChannelKey, ClientProof, Kind
from tests.server.http.peer_channel import canary, door_at

pytestmark = pytest.mark.anyio

KEY = ChannelKey(b"k" * 32)


class RecordingApp:
    """An app that records its requests."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.scopes: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        await json_response({"name": self.name})(scope, receive, send)


@asynccontextmanager
async def make_session(kind: Kind, places: dict[str, Address], *, key: ChannelKey = KEY) -> AsyncIterator[HttpSession]:
    session = create_forwarding_session(PeerConnector(key, kind, places.get))
    try:
        yield session
    finally:
        await session.close()


async def send_raw(port: int, *pieces: bytes) -> bytes:
    """The answer to an unproved connection until it ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await reader.read(1 << 16)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_each_kind_of_connection_reaches_its_own_app() -> None:
    apps: dict[Kind, RecordingApp] = {"forward": RecordingApp("forward"), "control": RecordingApp("control")}
    async with door_at(KEY, "worker-1", apps) as (_, port):
        for kind in apps:
            async with make_session(kind, {"worker-1": ("127.0.0.1", port)}) as session:
                for path in ("/.gateway/metrics", "/v1/calls"):
                    async with await session.send("GET", f"http://worker-1{path}") as answer:
                        assert await answer.json() == {"name": kind}

    assert [len(each.scopes) for each in apps.values()] == [2, 2]


async def test_names_that_are_not_known_lead_nowhere() -> None:
    async with canary() as trap, make_session("forward", {}) as session:
        for host in (f"127.0.0.1:{trap.port}", f"worker-1@127.0.0.1:{trap.port}", "worker-1"):
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.send("GET", f"http://{host}/")

    assert trap.heard == []


async def test_server_without_the_secret_gets_a_hello_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    async with canary() as trap, make_session("forward", {"worker-1": ("127.0.0.1", trap.port)}) as session:
        for _ in range(3):
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.send("POST", "http://worker-1/", body=b"body", headers={"authorization": "Bearer secret"})

    assert [len(each) for each in trap.heard] == [HELLO_SIZE] * 3
    assert caplog.text.count("does not prove") == 1


async def test_nothing_of_a_stranger_reaches_the_parser(caplog: pytest.LogCaptureFixture) -> None:
    app = RecordingApp("forward")
    random = Random(3)
    http = b"POST /.gateway/reload/lead HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
    async with door_at(KEY, "worker-1", {"forward": app}) as (door, port):
        assert await send_raw(port, http) == b""
        for kind, key, name in (("control", KEY, "worker-1"), ("forward", ChannelKey(b"x" * 32), "worker-1")):
            proof = ClientProof(key.of(kind, name), kind)  # type: ignore[arg-type]  # one of the two
            answer = await send_raw(port, proof.hello, bytes(32) + http)
            assert len(answer) in (0, 64)
        for _ in range(300):
            start = random.choice([b"", b"a", b"agwp\x01", ClientProof(KEY.of("forward", "worker-1"), "forward").hello])
            answer = await send_raw(port, start + random.randbytes(random.randrange(80, 400)))
            assert b"HTTP" not in answer
        await _until_zero(door)

    assert app.scopes == []
    assert caplog.text.count("was refused") == 1


async def test_silent_strangers_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_listener, "PROOF_SECONDS", 0.2)
    async with door_at(KEY, "worker-1", {"forward": RecordingApp("forward")}) as (door, port):
        hello = ClientProof(KEY.of("forward", "worker-1"), "forward").hello
        async with asyncio.timeout(20):
            answers = await asyncio.gather(send_raw(port), send_raw(port, b"agw"), send_raw(port, hello))
        await _until_zero(door)

    assert [len(each) for each in answers] == [0, 0, 64]


async def test_number_of_strangers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_listener, "MAX_UNPROVED", 3)
    async with door_at(KEY, "worker-1", {"forward": RecordingApp("forward")}) as (door, port):
        waiting = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        async with asyncio.timeout(20):
            while door.unproved < 3:
                await asyncio.sleep(0.01)
            assert await send_raw(port) == b""
            async with make_session("forward", {"worker-1": ("127.0.0.1", port)}) as session:
                with pytest.raises(ChannelSilent):
                    await session.send("GET", "http://worker-1/")
        for _, writer in waiting:
            writer.close()
        await _until_zero(door)
        async with make_session("forward", {"worker-1": ("127.0.0.1", port)}) as session:
            assert (await session.send("GET", "http://worker-1/")).status == 200


async def test_process_that_does_not_answer_is_not_taken_for_one_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_connector, "PROOF_SECONDS", 0.1)
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with make_session("forward", {"worker-1": silent.getsockname()}) as session:
            with pytest.raises(ChannelSilent):
                await session.send("GET", "http://worker-1/")
            scope: dict[str, Any] = {
                "method": "GET",
                "raw_path": b"/",
                "query_string": b"",
                "headers": [],
                "client": None,
            }
            await forward_request(session, URL("http://worker-1"), scope, _nothing, send)

    assert messages[0]["status"] == 503
    assert b"E_OVERLOADED" in messages[1]["body"]


@pytest.mark.parametrize(
    ("messages", "client"),
    [
        ("203.0.113.9 4711", ("203.0.113.9", 4711)),
        ("fe80::1%eth0 1", ("fe80::1%eth0", 1)),
        *((each, None) for each in ("", "203.0.113.9", "203.0.113.9 x", "name 1", " 1", "1" * 99)),
    ],
)
async def test_address_of_the_caller_is_passed_over_the_channel(messages: str, client: object) -> None:
    app = RecordingApp("forward")
    async with (
        door_at(KEY, "worker-1", {"forward": app}) as (_, port),
        make_session("forward", {"worker-1": ("127.0.0.1", port)}) as session,
    ):
        await session.send("GET", "http://worker-1/", headers={"gateway-caller": messages})

    assert app.scopes[0]["client"] == client
    assert all(name != b"gateway-caller" for name, _ in app.scopes[0]["headers"])


async def test_workers_sockets_are_private_and_lead_to_the_worker(tmp_path: Path) -> None:
    async def own(scope: Any, receive: Any, send: Any) -> None:
        await json_response({"name": "here"})(scope, receive, send)

    here = WorkerRouter(own, index=0, count=2, folder=tmp_path, key=KEY)
    other = RecordingApp("other")
    with here.listener():
        assert stat.S_IMODE((tmp_path / "0.sock").stat().st_mode) == 0o600
    answers = []
    async with door_at(KEY, "worker-1", {"forward": other}, path=str(tmp_path / "1.sock")):
        for session, is_let_in in ((b"1.x", True), (b"0.x", True), (b"2.x", True), (b"9999.x", True), (b"1.x", False)):
            answers.append(await _request(here.route, session, is_let_in))
    answers.append(await _request(here.route, b"1.x", True))
    await here.close()

    assert [status for status, _ in answers] == [200, 200, 200, 200, 200, 404]
    assert [b"other" in body for _, body in answers] == [True, False, False, False, False, False]
    assert [each["client"] for each in other.scopes] == [("203.0.113.9", 1)]


async def _request(app: Any, session: bytes, is_let_in: bool) -> tuple[int, bytes]:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {"type": "http", "method": "GET", "path": "/mcp", "raw_path": b"/mcp", "query_string": b""}
    scope |= {"headers": [(b"mcp-session-id", session)], "client": ("203.0.113.9", 1)}
    await app({**scope, **({SCOPE_PRINCIPAL: "somebody"} if is_let_in else {})}, _nothing, send)
    return messages[0]["status"], b"".join(each.get("body", b"") for each in messages[1:])


async def _nothing() -> Any:
    await asyncio.Event().wait()


async def _until_zero(door: Any) -> None:
    async with asyncio.timeout(20):
        while door.unproved:
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "gateway.app.cluster")

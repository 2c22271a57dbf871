"""Answers on a connection: byte for byte what the server that ours is derived from would send."""

import asyncio
import socket
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.server.http import request_cycle as cycles
from gateway.server.http.http1_protocol import BoundedHttpProtocol

pytestmark = pytest.mark.anyio

LENGTH = (b"content-length", b"5")
ANSWERS: dict[str, tuple[int, list[tuple[bytes, bytes]], list[bytes]]] = {
    "/whole": (200, [(b"content-type", b"text/plain"), LENGTH], [b"whole"]),
    "/in-capitals": (201, [(b"Content-Length", b"5"), (b"X-Y", b"Z")], [b"whole"]),
    "/pieces": (200, [(b"content-type", b"text/event-stream")], [b"one", b"two", b""]),
    "/empty": (204, [], [b""]),
    "/unchanged": (304, [], [b""]),
    "/last": (503, [LENGTH, (b"connection", b"Keep-Alive, Close")], [b"whole"]),
    "/too-long": (200, [LENGTH], [b"longer"]),
    "/too-short": (200, [LENGTH], [b"who", b"l"]),
    "/head-only": (200, [LENGTH], []),
    "/split": (200, [(b"x-y", b"a\r\nset-cookie: b"), LENGTH], [b"whole"]),
    "/no-name": (200, [(b"x y", b"z"), LENGTH], [b"whole"]),
    "/a b": (200, [LENGTH], [b"query"]),
}


async def app(scope: Any, receive: Any, send: Any) -> None:
    assert scope["raw_path"].startswith(b"/")
    assert (scope["query_string"] == b"c=%20") is (scope["path"] == "/a b")
    status, headers, pieces = ANSWERS[scope["path"]]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for left, piece in zip(reversed(range(len(pieces))), pieces, strict=True):
        await send({"type": "http.response.body", "body": piece, "more_body": left > 0})


async def read_answer(http: type[HttpToolsProtocol], *requests: bytes) -> bytes:
    """Everything that comes back until the connection is closed."""
    config = uvicorn.Config(app, http=http, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: http(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        writer.write(b"".join(requests))
        async with asyncio.timeout(30):
            return await reader.read()
    finally:
        writer.close()
        server.close()
        await server.wait_closed()


def request(line: str, *headers: str) -> bytes:
    return "".join(f"{each}\r\n" for each in (line, "host: localhost", *headers, "")).encode()


LAST = request("GET /last HTTP/1.1")


async def test_client_that_reads_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycles, "UNREAD_SECONDS", 0.2)
    ended = asyncio.Event()

    async def endless(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(2000):  # more than any buffer on the way holds
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        ended.set()

    config = uvicorn.Config(
        endless, http=BoundedHttpProtocol, ws="none", lifespan="off", log_config=None, access_log=False
    )
    config.load()
    server = await asyncio.get_running_loop().create_server(
        lambda: BoundedHttpProtocol(config=config, server_state=ServerState(), app_state={}), "127.0.0.1", 0
    )
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        client.sendall(request("GET /endless HTTP/1.1"))
        async with asyncio.timeout(20):
            await ended.wait()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("path", [each.replace("/a b", "/a%20b?c=%20") for each in ANSWERS])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_answers_are_those_of_the_server(method: str, path: str) -> None:
    asked = request(f"{method} {path} HTTP/1.1")

    assert await read_answer(BoundedHttpProtocol, asked, LAST) == await read_answer(HttpToolsProtocol, asked, LAST)


@pytest.mark.parametrize(
    "asked",
    [
        request("GET /whole HTTP/1.0"),
        request("GET /whole HTTP/1.1", "connection: close"),
        request("GET /whole HTTP/1.1") + request("GET /pieces HTTP/1.1") + LAST,
    ],
    ids=["old", "once", "pipeline"],
)
async def test_connections_end_as_those_of_the_server(asked: bytes) -> None:
    assert await read_answer(BoundedHttpProtocol, asked) == await read_answer(HttpToolsProtocol, asked)

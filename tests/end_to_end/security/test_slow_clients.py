"""Slow clients: the server closes the connection if a head, or the rest of an answered request, does not arrive."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.server.http.asgi import json_response, problem_response
from gateway.server.http.http1_protocol import BoundedHttpProtocol
from gateway.server.http.json_body import BodyTooSlow, read_body

pytestmark = pytest.mark.anyio


class Hasty(BoundedHttpProtocol):
    max_head = 2000
    head_seconds = 0.05
    linger_seconds = 0.05


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer at once, or after reading the available body."""
    if scope["path"] == "/at-once":
        await json_response("read nothing")(scope, receive, send)
        return
    try:
        body = await read_body(receive, limit=1 << 20, within=0.05)
    except BodyTooSlow:
        await problem_response(408, "too slow")(scope, receive, send)
        return
    await json_response(len(body))(scope, receive, send)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connect(keep_alive: int = 60) -> AsyncIterator[Streams]:
    config = uvicorn.Config(app, http=Hasty, ws="none", lifespan="off", log_config=None, timeout_keep_alive=keep_alive)
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: Hasty(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        async with asyncio.timeout(30):
            yield reader, writer
    finally:
        writer.close()
        server.close()
        await server.wait_closed()
        await asyncio.gather(*state.tasks, return_exceptions=True)


HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    return int(head.split()[1]), await reader.readexactly(length)


@pytest.mark.parametrize("begun", [b"", b"PO", b"POST / HTTP/1.1\r\nHost: local"], ids=["silence", "word", "header"])
async def test_head_that_does_not_come_is_not_waited_for(begun: bytes) -> None:
    async with connect() as (reader, writer):
        writer.write(begun)
        assert await reader.read() == b""


async def test_second_head_is_not_waited_for_either() -> None:
    async with connect() as (reader, writer):
        writer.write(HEAD % 1 + b"x")
        assert await read_answer(reader) == (200, b"1")
        writer.write(b"POST / HT")
        assert await reader.read() == b""


async def test_answered_client_who_goes_on_sending_is_left() -> None:
    async with connect() as (reader, writer):
        writer.write(b"POST /at-once HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx")
        assert await read_answer(reader) == (200, b'"read nothing"')
        assert await reader.read() == b""


async def test_answered_client_whose_body_ends_in_time_may_stay() -> None:
    async with connect() as (reader, writer):
        writer.write(b"POST /at-once HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nx")
        assert await read_answer(reader) == (200, b'"read nothing"')
        writer.write(b"y" + HEAD % 1 + b"x")
        assert await read_answer(reader) == (200, b"1")


async def test_body_that_does_not_come_is_answered_and_left() -> None:
    async with connect() as (reader, writer):
        writer.write(HEAD % 10 + b"x")
        assert (await read_answer(reader))[0] == 408
        assert await reader.read() == b""


async def test_connection_is_kept_as_long_as_it_is_used() -> None:
    async with connect(keep_alive=1) as (reader, writer):
        loop = asyncio.get_running_loop()
        for _ in range(3):
            writer.write(HEAD % 1 + b"x")
            assert await read_answer(reader) == (200, b"1")
            last = loop.time()
            await asyncio.sleep(0.6)
        assert await reader.read() == b""
        assert 0.9 < loop.time() - last < 10


async def test_head_has_a_bound_in_bytes_and_a_body_behind_it_does_not_count() -> None:
    async with connect() as (reader, writer):
        for _ in range(2):
            writer.write(HEAD % 200_000 + b"x" * 200_000)
            assert await read_answer(reader) == (200, b"200000")
        writer.write(HEAD % 0 + b"POST / HTTP/1.1\r\n")
        assert await read_answer(reader) == (200, b"0")
        writer.write(b"X: " + b"a" * 2001)
        assert (await read_answer(reader))[0] == 400
        assert await reader.read() == b""

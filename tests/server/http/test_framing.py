"""Where requests begin and end on a connection: one interpretation of the bytes, and bounds on all but the body."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.mcp.http_bodies import MAX_TRAILERS
from gateway.server.http.http1_protocol import MAX_FIELDS, MAX_PIPELINED, BoundedHttpProtocol

pytestmark = pytest.mark.anyio

CHUNKED = "Transfer-Encoding: chunked"
CLOSE = "Connection: close"


class Seen:
    """An application that reads whole bodies and records its requests. `/hold` waits for `released`."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.bodies: list[bytes] = []
        self.gone: list[str] = []
        self.released = asyncio.Event()
        self.port = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone.append(scope["path"])
                return
            body += message["body"]
            if not message["more_body"]:
                break
        if scope["path"] == "/hold":
            await self.released.wait()
        if scope["path"] == "/listen":
            self.gone.append((await receive())["type"])
        self.bodies.append(body)
        content = scope["path"].encode()
        headers = [(b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    @property
    def paths(self) -> list[str]:
        return [each["path"] for each in self.scopes]

    async def read_answer(self, *pieces: bytes) -> bytes:
        """Everything that comes back until the connection is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            async with asyncio.timeout(30):
                return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


@asynccontextmanager
async def serve() -> AsyncIterator[Seen]:
    app = Seen()
    config = uvicorn.Config(app, http=BoundedHttpProtocol, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: BoundedHttpProtocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    app.port = server.sockets[0].getsockname()[1]
    try:
        yield app
    finally:
        app.released.set()
        server.close()
        for connection in tuple(state.connections):
            connection.transport.abort()


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    return "".join(f"{each}\r\n" for each in (line, "Host: localhost", *headers, "")).encode("latin-1") + body


LAST = request("GET /last HTTP/1.1", CLOSE)


def statuses(answers: bytes) -> list[int]:
    return [int(each) for each in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]


@pytest.mark.parametrize(
    "headers",
    [
        ["Transfer-Encoding: gzip, chunked"],
        ["Transfer-Encoding: chunked, chunked"],
        ["Transfer-Encoding: chunked, identity"],
        ["Transfer-Encoding: gzip"],
        ["Transfer-Encoding: identity"],
        ["Transfer-Encoding: xchunked"],
        ["Transfer-Encoding: chunkedx"],
        ["Transfer-Encoding: chunked;q=1"],
        ["Transfer-Encoding: chunked\t"],
        ["Transfer-Encoding: chunked "],
        ["Transfer-Encoding: \x0bchunked"],
        ["Transfer-Encoding: chunked\r\n ,gzip"],
        ["Transfer-Encoding: ,chunked"],
        ["Transfer-Encoding: "],
        ["Transfer-Encoding : chunked"],
        [" Transfer-Encoding: chunked"],
        [CHUNKED, CHUNKED],
        ["Transfer-Encoding: gzip", CHUNKED],
        [CHUNKED, "Content-Length: 5"],
        ["Content-Length: 5", CHUNKED],
        ["Content-Length: 5", "Content-Length: 5"],
        ["Content-Length: 5", "Content-Length: 6"],
        ["Content-Length: 5, 5"],
        ["Content-Length: +5"],
        ["Content-Length: -5"],
        ["Content-Length: 0x5"],
        ["Content-Length: 5 5"],
        ["Content-Length: "],
        ["Content-Length: 99999999999999999999999"],
    ],
    ids=str,
)
async def test_length_that_can_be_read_in_two_ways_is_refused(headers: list[str]) -> None:
    async with serve() as app:
        answers = await app.read_answer(request("POST /x HTTP/1.1", *headers, body=b"0\r\n\r\n") + LAST)

        assert statuses(answers) == [400]
        assert app.paths == []


@pytest.mark.parametrize("coding", ["chunked", "Chunked", "CHUNKED", "  chunked"])
async def test_chunked_is_read_in_any_case(coding: str) -> None:
    body = b"3;a=b\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    async with serve() as app:
        answers = await app.read_answer(request("POST /x HTTP/1.1", f"Transfer-Encoding: {coding}", body=body) + LAST)

        assert statuses(answers) == [200, 200]
        assert app.bodies == [b"abcde", b""]


@pytest.mark.parametrize(
    "asked",
    [
        request("POST /x HTTP/1.0", CHUNKED, body=b"0\r\n\r\n"),
        request("GET /x HTTP/0.9"),
        request("GET /x HTTP/2.0"),
        b"GET /x\r\n\r\n",
        request("CONNECT localhost:80 HTTP/1.1"),
        request("CONNECT /x HTTP/1.1"),
        request("GET http://localhost/x HTTP/1.1"),
        request("GET *@127.0.0.1:80/x HTTP/1.1"),
        request("GET * HTTP/1.1"),
        request("OPTIONS *x HTTP/1.1"),
        request("GET //localhost/x HTTP/1.1"),
        request("GET /a%2fb HTTP/1.1"),
        request("GET /a/../b HTTP/1.1"),
        request("POST /x HTTP/1.1", "Connection: upgrade", "Upgrade: h2c", "Content-Length: 5", body=b"hello"),
        request("POST /x HTTP/1.1", "Connection: upgrade", "Upgrade: h2c", CHUNKED, body=b"0\r\n\r\n"),
        request("GET /x HTTP/1.1", "A: b\r\n folded"),
        request("GET /x HTTP/1.1", "A\x00: b"),
        request("GET /x HTTP/1.1", "A: b\x01"),
        request("GET /x HTTP/1.1", ": b"),
        request("GET /x HTTP/1.1", "A b: c"),
        request("GET /x HTTP/1.1", "\xc3: c"),
        request("GET /x HTTP/1.1", "A"),
    ],
    ids=lambda asked: repr(asked[:60]),
)
async def test_what_is_no_plain_request_is_refused_before_an_application_sees_it(asked: bytes) -> None:
    async with serve() as app:
        assert statuses(await app.read_answer(asked + LAST)) == [400]
        for cut in range(1, len(asked), 9):
            assert statuses(await app.read_answer(asked[:cut], asked[cut:] + LAST)) == [400]
        assert app.paths == []


async def test_upgrade_is_not_followed_and_hides_no_request() -> None:
    upgrade = ("Connection: upgrade", "Upgrade: websocket")
    async with serve() as app:
        asked = request("GET /a HTTP/1.1", *upgrade) + request("GET /b HTTP/1.1", *upgrade, "Content-Length: 0") + LAST
        for cut in range(1, len(asked), 13):
            assert statuses(await app.read_answer(asked[:cut], asked[cut:])) == [200, 200, 200]
        assert app.paths == ["/a", "/b", "/last"] * len(range(1, len(asked), 13))


async def test_options_of_the_server_reach_no_application() -> None:
    async with serve() as app:
        answers = await app.read_answer(request("OPTIONS * HTTP/1.1") + LAST)

        assert statuses(answers) == [204, 200]
        assert b"allow: GET, HEAD, POST, DELETE, OPTIONS" in answers
        assert app.paths == ["/last"]


# --- trailers ---


async def test_trailers_become_no_headers() -> None:
    trailers = b"0\r\nAuthorization: Bearer x\r\nHost: evil.example\r\nX-Y: z\r\n\r\n"
    async with serve() as app:
        answers = await app.read_answer(request("POST /x HTTP/1.1", CHUNKED, body=b"1\r\na\r\n" + trailers) + LAST)

        assert statuses(answers) == [200, 200]
        assert app.bodies == [b"a", b""]
        for scope in app.scopes:
            assert not {b"authorization", b"x-y"} & dict(scope["headers"]).keys()
            assert [value for name, value in scope["headers"] if name == b"host"] == [b"localhost"]


@pytest.mark.parametrize(
    "trailers",
    [b"a: b\r\n" * MAX_TRAILERS, b"a: " + b"b" * (1 << 20), b"a" * (1 << 20), b"a:" + b" " * (1 << 20)],
    ids=["many", "one long value", "one long name", "blanks"],
)
@pytest.mark.parametrize("size", [1, 1 << 18], ids=["little content", "much content"])
async def test_trailers_are_bounded(trailers: bytes, size: int) -> None:
    async with serve() as app:
        start = request("POST /x HTTP/1.1", CHUNKED, body=b"%x\r\n%b\r\n0\r\n" % (size, b"x" * size))
        pieces = [trailers[at : at + 4096] for at in range(0, len(trailers), 4096)]

        assert statuses(await app.read_answer(start, *pieces)) in ([400], [])
        assert app.bodies == []


@pytest.mark.parametrize(
    "chunks",
    [b"1;a=" + b"b" * (1 << 20), (b"1;a=" + b"b" * 4096 + b"\r\nx\r\n") * 100, b"0" * (1 << 20)],
    ids=["one extension", "many extensions", "zeros"],
)
async def test_framing_is_bounded(chunks: bytes) -> None:
    async with serve() as app:
        pieces = [chunks[at : at + 4096] for at in range(0, len(chunks), 4096)]

        assert statuses(await app.read_answer(request("POST /x HTTP/1.1", CHUNKED), *pieces)) in ([400], [])
        assert app.bodies == []


async def test_single_bytes_are_chunks_like_others() -> None:
    async with serve() as app:
        body = b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"

        assert statuses(await app.read_answer(request("POST /x HTTP/1.1", CHUNKED, body=body) + LAST)) == [200, 200]
        assert app.bodies == [b"x" * 20_000, b""]


# --- headers ---


async def test_headers_are_counted() -> None:
    async with serve() as app:
        most = [f"A{number}: b" for number in range(MAX_FIELDS - 2)]

        assert statuses(await app.read_answer(request("GET /x HTTP/1.1", CLOSE, *most))) == [200]
        assert statuses(await app.read_answer(request("GET /x HTTP/1.1", CLOSE, *most, "A: b"))) == [431]


async def test_old_clients_are_asked_for_nothing() -> None:
    async with serve() as app:
        expect = "Expect: 100-continue"
        old = await app.read_answer(request("POST /x HTTP/1.0", expect, "Content-Length: 1", body=b"a"))
        new = await app.read_answer(request("POST /x HTTP/1.1", expect, expect, "Content-Length: 1", CLOSE, body=b"a"))

        assert statuses(old) == [200]
        assert statuses(new) == [100, 200]


# --- several requests ---


async def test_fault_is_answered_after_the_requests_before_it() -> None:
    async with serve() as app:
        for wrong in (b"rubbish\r\n\r\n", request("GET //x HTTP/1.1"), request("POST /x HTTP/1.1", CHUNKED, body=b"?")):
            asked = request("GET /a HTTP/1.1") + request("GET /b HTTP/1.1") + wrong + LAST
            assert statuses(await app.read_answer(asked)) == [200, 200, 400]
        assert app.paths == ["/a", "/b"] * 3


async def test_fault_in_a_body_is_answered_in_its_place() -> None:
    async with serve() as app:
        assert statuses(await app.read_answer(request("POST /a HTTP/1.1", CHUNKED, body=b"1\r\nx?") + LAST)) == [400]
        assert app.bodies == []


async def test_fault_after_an_answer_only_closes_the_connection() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(
        refuse, http=BoundedHttpProtocol, ws="none", lifespan="off", log_config=None, access_log=False
    )
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: BoundedHttpProtocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(request("POST /a HTTP/1.1", CHUNKED, body=b"1\r\nx"))
    first = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"?????")
    async with asyncio.timeout(30):
        rest = await reader.read()
    writer.close()
    server.close()

    assert statuses(first) == [401]
    assert rest == b""


async def test_requests_that_wait_are_counted() -> None:
    async with serve() as app:
        many = request("GET /hold HTTP/1.1") + request("GET /a HTTP/1.1") * (MAX_PIPELINED + 5000)
        answering = asyncio.ensure_future(app.read_answer(many))
        async with asyncio.timeout(30):
            while not app.paths:
                await asyncio.sleep(0.01)
        app.released.set()

        assert statuses(await answering) == [200] * (MAX_PIPELINED + 1) + [400]
        assert len(app.paths) == MAX_PIPELINED + 1


async def test_request_learns_that_its_client_is_gone_while_another_waits_behind_it() -> None:
    async with serve() as app:
        with socket.create_connection(("127.0.0.1", app.port)) as connection:
            connection.sendall(request("GET /listen HTTP/1.1") + request("GET /a HTTP/1.1"))
            async with asyncio.timeout(30):
                while not app.paths:
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(30):
            while not app.gone:
                await asyncio.sleep(0.01)

        assert app.gone == ["http.disconnect"]
        assert app.paths == ["/listen"]

"""The lean client: whatever a service sends, each answer belongs to one request, and no request waits for ever."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.http_client.allowed_addresses import LOOPBACK, Origin
from gateway.http_client.http1 import MAX_FIELDS, MAX_HEAD
from gateway.http_client.http_policy import HttpPolicy
from gateway.http_client.pool import ConnectionPool
from gateway.model.tools.backend import BackendError
from tests.backends.loopback_service import Service, plain, raw, start_service
from tests.backends.test_http_reach import self_signed

pytestmark = pytest.mark.anyio

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def at_home(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


@asynccontextmanager
async def pooled(service: Service, *, scheme: str = "http", **options: Any) -> AsyncIterator[ConnectionPool]:
    given: dict[str, Any] = {"lookup": at_home, "networks": LOOPBACK, **options}
    policy = HttpPolicy(**given)
    pool = ConnectionPool(Origin(scheme, "service.example", service.port), policy)
    try:
        yield pool
    finally:
        pool.close()


async def ask(pool: ConnectionPool, body: bytes | None = b"{}") -> bytes:
    answer = await pool.send("POST", "/mcp?a=1", {"accept": "application/json"}, body)
    return await answer.read(limit=1 << 20)


async def test_request_is_what_was_asked_for_and_the_connection_is_kept() -> None:
    async with start_service(plain(b"one"), plain(b"two", "404 Not Found", "X-Twice: a", "X-Twice: b")) as service:
        async with pooled(service) as pool:
            assert await ask(pool) == b"one"
            answer = await pool.send("POST", "/mcp", {}, b"{}")
            assert (answer.status, await answer.read(limit=1 << 20)) == (404, b"two")
            assert answer.headers["x-twice"] == "a, b"
        first = service.received[0]
        assert first.line == "POST /mcp?a=1 HTTP/1.1"
        assert first.headers["host"] == f"service.example:{service.port}"
        assert (first.headers["content-length"], first.body) == ("2", b"{}")
        assert service.connections == 1


async def test_body_comes_in_chunks_or_ends_with_the_connection() -> None:
    async def closing(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")
        writer.close()

    chunked = raw(CHUNKED, b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n")
    async with start_service(chunked, closing, plain(b"again")) as service, pooled(service) as pool:
        assert await ask(pool) == b"abcde"
        assert await ask(pool) == b"until the end"
        assert await ask(pool) == b"again"
        assert service.connections == 2


async def test_large_body_waits_for_its_reader() -> None:
    body = bytes(range(256)) * 16_384
    async with start_service(plain(body)) as service, pooled(service) as pool:
        answer = await pool.send("GET", "/", {}, None)
        assert answer.content_length == len(body)
        received = b""
        async with aclosing(answer.chunks()) as chunks:
            async for chunk in chunks:
                received += chunk
        assert received == body
        assert answer.is_complete


@pytest.mark.parametrize(
    ("sent", "word", "message"),
    [
        (b"SSH-2.0-OpenSSH_9.9\r\n", "failed", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", "failed", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * (MAX_HEAD + 1), "failed", "not HTTP"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 4_000, "failed", "not HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "failed", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "unavailable", "ended early"),
        (CHUNKED + b"3\r\nabc\r\n", "unavailable", "ended early"),
        (b"", "unavailable", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * (MAX_FIELDS + 1) + b"\r\n", "failed", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 20_000, "failed", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "failed", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc", "failed", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", "failed", "not HTTP"),
        (CHUNKED + b"0\r\n" + b"X: a\r\n" * 200_000, "failed", "trailers"),
        (CHUNKED + b"0\r\nX: " + b"a" * (1 << 20), "failed", "trailers"),
        (CHUNKED + b"40000\r\n" + b"x" * (1 << 18) + b"\r\n0\r\nX: " + b"a" * (1 << 20), "failed", "trailers"),
        (CHUNKED + b"1;" + b"a" * (1 << 20), "failed", "chunk extensions"),
        (CHUNKED + (b"1;" + b"a" * 4096 + b"\r\nx\r\n") * 500, "failed", "chunk extensions"),
    ],
    ids=lambda each: repr(each[:70]) if isinstance(each, bytes) else "",
)
async def test_invalid_answer_is_reported_and_its_connection_closed(sent: bytes, word: str, message: str) -> None:
    async def broken(writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()
        writer.close()

    async with start_service(broken, plain(b"well")) as service, pooled(service) as pool:
        with pytest.raises(BackendError, match=message) as failed:
            await ask(pool)
        assert failed.value.word == word
        assert await ask(pool) == b"well"
        assert service.connections == 2


async def test_trailers_become_no_headers_and_the_connection_is_kept() -> None:
    trailers = b"0\r\nContent-Type: text/html\r\nX-Late: a\r\n\r\n"
    async with (
        start_service(raw(STREAM, b"3\r\nabc\r\n", trailers), plain(b"next")) as service,
        pooled(service) as pool,
    ):
        answer = await pool.send("GET", "/", {}, None)
        assert await answer.read(limit=1 << 20) == b"abc"
        assert answer.headers == {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        assert await ask(pool) == b"next"
        assert service.connections == 1


async def test_interim_answers_come_before_the_real_one() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    async with start_service(early * 2 + plain(b"real")) as service, pooled(service) as pool:
        answer = await pool.send("GET", "/", {}, None)
        assert (answer.status, await answer.read(limit=1 << 20)) == (200, b"real")
        assert "link" not in answer.headers


@pytest.mark.parametrize("unasked", [plain(b"mine") + plain(b"smuggled"), plain(b"mine") + b"garbage"])
async def test_unrequested_answer_is_dropped(unasked: bytes) -> None:
    async with start_service(unasked, plain(b"own")) as service, pooled(service) as pool:
        first = await pool.send("GET", "/", {}, None)
        assert await first.read(limit=1 << 20) == b"mine"
        assert await ask(pool) == b"own"
        assert service.connections == 2


async def test_cancelled_request_leaves_no_answer_for_the_next() -> None:
    go_on = asyncio.Event()

    async def late(writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        writer.write(plain(b"of the first"))

    async with start_service(late, plain(b"of the second")) as service, pooled(service) as pool:
        waiting = asyncio.create_task(ask(pool))
        while not service.received:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        go_on.set()
        assert await ask(pool) == b"of the second"
        assert service.connections == 2


async def test_stream_that_was_left_is_read_to_its_end_and_the_connection_used_again() -> None:
    end = asyncio.Event()

    async def streamed(writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + b"5\r\ndata:\r\n")
        await end.wait()
        writer.write(b"4\r\nmore\r\n0\r\n\r\n")

    async with start_service(streamed, plain(b"next")) as service, pooled(service) as pool:
        answer = await pool.send("POST", "/", {}, b"{}")
        assert answer.content_type == "text/event-stream"
        async with aclosing(answer.chunks()) as chunks:
            assert await anext(chunks) == b"data:"
        answer.discard_rest()
        answer.close()
        end.set()
        while not answer.is_complete:
            await asyncio.sleep(0)
        assert await ask(pool) == b"next"
        assert service.connections == 1


async def test_stream_that_goes_on_after_it_was_left_is_ended() -> None:
    ended = asyncio.Event()

    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM)
        try:
            while True:
                writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
                await writer.drain()
        except ConnectionError:
            ended.set()

    async with start_service(endless) as service, pooled(service) as pool:
        answer = await pool.send("POST", "/", {}, b"{}")
        answer.discard_rest()
        await ended.wait()
        assert not answer.is_complete


async def test_no_more_connections_than_allowed_and_every_request_has_a_turn() -> None:
    most = 0
    running = 0

    async def counted(writer: asyncio.StreamWriter) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        writer.write(plain(b"ok"))

    async with start_service(counted) as service, pooled(service, connections=3) as pool:
        given_up = [asyncio.create_task(ask(pool)) for _ in range(5)]
        others = [asyncio.create_task(ask(pool)) for _ in range(40)]
        await asyncio.sleep(0)
        for task in given_up:
            task.cancel()
        assert await asyncio.gather(*others) == [b"ok"] * 40
        assert most <= 3


async def test_idle_connections_are_closed() -> None:
    async with start_service(plain(b"ok")) as service, pooled(service, idle=0.01) as pool:
        assert await ask(pool) == b"ok"
        while pool._connections:
            await asyncio.sleep(0.005)
        assert await ask(pool) == b"ok"
        assert service.connections == 2


@pytest.mark.parametrize("value", ["a\r\nx: y", "a\nb", "a\0b", "half \ud800"])
async def test_value_that_would_be_a_header_is_never_sent(value: str) -> None:
    async with start_service(plain(b"ok")) as service, pooled(service) as pool:
        with pytest.raises(BackendError, match="could not be made"):
            await pool.send("POST", "/", {"traceparent": value}, b"{}")
        assert not service.received


async def test_address_that_tools_may_not_reach_is_not_connected_to() -> None:
    async with start_service(plain(b"ok")) as service, pooled(service, networks=()) as pool:
        with pytest.raises(BackendError, match="may not reach") as refused:
            await ask(pool)
        assert refused.value.word == "failed"
        assert service.connections == 0


async def test_service_that_cannot_prove_who_it_is_gets_no_request(tmp_path: Path) -> None:
    async with start_service(plain(b"ok"), tls=self_signed(tmp_path, "service.example")) as service:
        async with pooled(service, scheme="https") as pool:
            with pytest.raises(BackendError, match="certificate of the service"):
                await ask(pool)
        assert not service.received


async def test_service_that_is_not_there_is_reported_and_a_further_address_tried() -> None:
    async def both(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.3", "127.0.0.1"]

    async with start_service(plain(b"ok")) as service, pooled(service, lookup=both) as pool:
        assert await ask(pool) == b"ok"
    async with pooled(service) as pool:
        with pytest.raises(BackendError, match="cannot be reached"):
            await ask(pool)


async def test_lookup_that_takes_too_long_is_given_up() -> None:
    async def never(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        raise AssertionError

    async with start_service(plain(b"ok")) as service, pooled(service, lookup=never, connect=0.01) as pool:
        with pytest.raises(BackendError, match="in time"):
            await ask(pool)


async def test_request_that_is_under_way_when_all_is_closed_leaves_no_connection() -> None:
    go_on = asyncio.Event()

    async def slowly(host: str, port: int) -> Sequence[str]:
        await go_on.wait()
        return ["127.0.0.1"]

    async with start_service(plain(b"last")) as service, pooled(service, lookup=slowly) as pool:
        asking = asyncio.create_task(ask(pool))
        await asyncio.sleep(0)
        pool.close()
        go_on.set()
        assert await asking == b"last"
        assert not pool._connections


async def test_next_address_is_used_if_the_first_one_refuses() -> None:
    async def two(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.3", "127.0.0.1"]

    async with start_service(plain(b"ok")) as service, pooled(service, lookup=two) as pool:
        assert await ask(pool) == b"ok"


async def silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def test_request_waits_no_longer_for_a_free_connection_than_for_an_answer() -> None:
    async with start_service(silent) as service, pooled(service, connections=1, connect=0.05, answer=0.05) as pool:
        first = asyncio.create_task(pool.send("POST", "/", {}, None, is_timed=False))
        while not service.received:
            await asyncio.sleep(0)
        with pytest.raises(BackendError, match="did not answer in time"):
            await ask(pool)
        assert not first.done()  # its caller sets the limit
        first.cancel()


async def test_silence_in_a_body_ends_the_response_and_its_connection() -> None:
    async def stops(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        await silent(writer)

    async with start_service(stops, plain(b"next")) as service, pooled(service, idle=0.05) as pool:
        with pytest.raises(BackendError, match="did not answer in time"):
            await ask(pool)
        assert await ask(pool) == b"next"
        assert service.connections == 2


async def test_closed_pool_sends_nothing() -> None:
    async with start_service(plain(b"ok")) as service, pooled(service) as pool:
        pool.close()
        with pytest.raises(BackendError, match="closing"):
            await ask(pool)
        assert not service.received

"""Generated responses of hostile services: each request ends, and gets no bytes of another one's response."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.http_client.allowed_addresses import LOOPBACK, Origin
from gateway.http_client.http1 import MAX_FIELDS
from gateway.http_client.http_policy import MAX_FIELD, HttpPolicy
from gateway.http_client.pool import ConnectionPool
from gateway.model.tools.backend import BackendError
from tests.backends.loopback_service import Service, plain, start_service

QUICK: Final = HttpPolicy(answer=0.05, idle=0.05, networks=LOOPBACK)
OWN: Final = b"of the second"
EVIL: Final = plain(b"evil")

STATUS_LINES: Final = (
    *(b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 204 No Content", b"HTTP/1.1 304 Not Modified"),
    *(b"HTTP/1.1 100 Continue", b"HTTP/1.1 101 Switching Protocols", b"HTTP/1.1 103 Early Hints", b"HTTP/2.0 200 OK"),
    *(b"HTTP/1.1 20 OK", b"HTTP/1.1 2000 OK", b"HTTP/1.1 200", b"ICY 200 OK", b"HTTP/1.1  200 OK", b" HTTP/1.1 200 OK"),
)
HEADERS: Final = (
    *(b"Content-Length: 5", b"Content-Length: 4", b"Content-Length: 0", b"Content-Length: 99", b"Content-Length: -5"),
    *(
        b"Content-Length: +5",
        b"Content-Length: 5, 5",
        b"Content-Length: 0x5",
        b"Content-Length:",
        b"Content-Length : 5",
    ),
    *(b"Content-Length: 18446744073709551621", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked"),
    *(b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: xchunked", b"Transfer-Encoding:\x0bchunked"),
    *(b"Transfer-Encoding : chunked", b"transfer-encoding: CHUNKED", b"Transfer-Encoding: identity", b"X: a\r\n b"),
    *(
        b"Connection: close",
        b"Connection: keep-alive",
        b"Connection: upgrade",
        b"Upgrade: x",
        b"X\0: a",
        b"X: a\0",
        b":",
    ),
    *(b"X: " + b"a" * MAX_FIELD, b"\r\n".join([b"X: a"] * MAX_FIELDS), b"X: a\nContent-Length: 4", b"\xff: \xff"),
)
BODIES: Final = (
    *(b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello\r\n0\r\n", b"5\r\nhello\r\n", b"5\r\nhello0\r\n\r\n"),
    *(b"5;a=b\r\nhello\r\n0\r\n\r\n", b"5\nhello\n0\n\n", b"-5\r\nhello\r\n0\r\n\r\n", b"0x5\r\nhello\r\n0\r\n\r\n"),
    *(b"5 \r\nhello\r\n0\r\n\r\n", b"10000000000000005\r\nhello\r\n0\r\n\r\n", b"5\r\nhello\r\n0\r\nX: a\r\n\r\n"),
    *(
        b"5\r\nhello\r\n0\r\nContent-Length: 5\r\n\r\n",
        b"4\r\nhello\r\n0\r\n\r\n",
        b"6\r\nhello\r\n0\r\n\r\n",
        b"\r\n\r\n",
    ),
)
TAILS: Final = (b"", EVIL, EVIL[:9], b"H", b"\r\n" + EVIL, b"\0", b"0\r\n\r\n" + EVIL, b"evil" * 1000)
MUTATIONS: Final = (b"", b"\r", b"\n", b"\0", b" ", b"\t", b":", b"\x80", b"0", b"HTTP/1.1 ")


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """A response from these parts, perhaps after another one, with up to two bytes replaced."""
    lines = [draw(st.sampled_from(STATUS_LINES)), *draw(st.lists(st.sampled_from(HEADERS), max_size=3))]
    made = b"\r\n".join(lines) + b"\r\n\r\n" + draw(st.sampled_from(BODIES)) + draw(st.sampled_from(TAILS))
    made = draw(st.sampled_from((b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"))) + made
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(made)))
        made = made[:place] + draw(st.sampled_from(MUTATIONS)) + made[place + draw(st.integers(0, 1)) :]
    return made


def sends(content: bytes, *, closes: bool) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(content)
        if closes:
            writer.close()

    return answer


async def request(pool: ConnectionPool, method: str) -> bytes | str:
    """Return the body, or the kind of failure."""
    try:
        response = await pool.send(method, "/", {}, None)
        try:
            return await response.read(limit=1 << 20)
        finally:
            response.close()
    except BackendError as error:
        return error.word


async def send_twice(content: bytes, *, method: str, closes: bool) -> tuple[bytes | str, bytes | str, Service]:
    async with start_service(sends(content, closes=closes), plain(OWN)) as service, asyncio.timeout(10):
        pool = ConnectionPool(Origin("http", "127.0.0.1", service.port), QUICK)
        try:
            return await request(pool, method), await request(pool, "GET"), service
        finally:
            pool.close()


@given(content=responses(), method=st.sampled_from(("GET", "POST", "HEAD")), closes=st.booleans())
@example(content=plain(b"hello") + EVIL, method="GET", closes=False)
@example(content=plain(b"hello") + EVIL[:1], method="GET", closes=False)
@example(
    content=b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", method="GET", closes=False
)
@example(content=plain(b"hello"), method="HEAD", closes=False)
@example(content=EVIL[:-2], method="GET", closes=True)
def test_every_request_ends_and_the_next_one_gets_its_own_response(content: bytes, method: str, closes: bool) -> None:
    first, second, service = asyncio.run(send_twice(content, method=method, closes=closes))

    assert isinstance(first, bytes) or first in ("failed", "unavailable")
    assert second == OWN
    assert len(service.received) == 2


@pytest.mark.parametrize("tail", [b"H", b"HTTP/1.1 200 OK\r\nContent-", EVIL, b"\0"])
def test_connection_with_bytes_after_a_response_is_not_used_again(tail: bytes) -> None:
    first, second, service = asyncio.run(send_twice(plain(b"hello") + tail, method="GET", closes=False))

    assert (first, second, service.connections) == (b"hello", OWN, 2)


def test_response_to_head_has_no_body() -> None:
    head = plain(b"hello").removesuffix(b"hello")
    first, second, _ = asyncio.run(send_twice(head, method="HEAD", closes=False))

    assert (first, second) == (b"", OWN)


@pytest.mark.parametrize(("method", "sent"), [("GET", 3), ("PUT", 3), ("POST", 2)])
def test_only_a_repeatable_request_is_sent_again_if_the_service_closes_unanswered(method: str, sent: int) -> None:
    """The service closes a connection that it kept open as soon as it has the next request."""

    async def send() -> tuple[bytes | str, bytes | str, int]:
        async with start_service(plain(b"kept"), sends(b"", closes=True), plain(OWN)) as service:
            pool = ConnectionPool(Origin("http", "127.0.0.1", service.port), QUICK)
            try:
                return await request(pool, method), await request(pool, method), len(service.received)
            finally:
                pool.close()

    first, second, received = asyncio.run(send())

    assert (first, received) == (b"kept", sent)
    assert second == (OWN if sent == 3 else "unavailable")


def test_request_is_not_sent_again_after_the_first_byte_of_a_response() -> None:
    async def send() -> tuple[bytes | str, bytes | str, int]:
        async with start_service(plain(b"kept"), sends(b"H", closes=True), plain(OWN)) as service:
            pool = ConnectionPool(Origin("http", "127.0.0.1", service.port), QUICK)
            try:
                return await request(pool, "GET"), await request(pool, "GET"), len(service.received)
            finally:
                pool.close()

    assert asyncio.run(send()) == (b"kept", "unavailable", 2)

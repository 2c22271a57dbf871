"""Documents are downloaded from the reviewed address, and no further than the requested size."""

import asyncio
import gzip
from datetime import timedelta

import pytest

from gateway.app.upstream_discovery import fetch_document
from gateway.backends.result_conversion import BackendUnusable
from gateway.http_client.pool import HttpConnections
from gateway.model.tools.backend import BackendError
from tests.backends.loopback_service import Answer, plain, start_service

pytestmark = pytest.mark.anyio


async def fetch(
    *answers: Answer | bytes, limit: int = 1000, path: str = "/openapi.json?v=1"
) -> tuple[bytes, list[str]]:
    connections = HttpConnections()
    try:
        async with start_service(*answers) as service, asyncio.timeout(20):
            data = await fetch_document(f"{service.url}{path}", connections, limit=limit, timeout=timedelta(seconds=1))
            return data, [request.line for request in service.received]
    finally:
        await connections.close()


async def test_document_is_fetched_from_its_address() -> None:
    assert await fetch(plain(b"{}")) == (b"{}", ["GET /openapi.json?v=1 HTTP/1.1"])


async def test_compressed_document_is_read() -> None:
    assert (await fetch(plain(gzip.compress(b"{}"), "200 OK", "Content-Encoding: gzip")))[0] == b"{}"


async def silent(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
    await writer.drain()
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (plain(b"x" * 1001), "the answer has more than 1000 bytes"),
        (plain(gzip.compress(b"x" * 9999), "200 OK", "Content-Encoding: gzip"), "the answer has more than 1000 bytes"),
        (plain(b"", "302 Found", "Location: http://127.0.0.1:1/"), "the server of the document responded with 302"),
        (plain(b"", "404 Not Found"), "the server of the document responded with 404"),
        (b"not http\r\n\r\n", "the service answered something that is not HTTP"),
        (silent, "no result within 1 s"),
    ],
    ids=["large", "bomb", "redirect", "missing", "not-http", "slow"],
)
async def test_document_that_cannot_be_had_is_an_error(answer: Answer | bytes, message: str) -> None:
    with pytest.raises(BackendError) as caught:
        await fetch(answer)

    assert caught.value.message == message


@pytest.mark.parametrize(
    "address", ["http://api.example.com/openapi.json", "file:///etc/passwd", "javascript:alert(1)"]
)
async def test_address_that_must_not_be_asked_is_refused(address: str) -> None:
    with pytest.raises(BackendUnusable):
        await fetch_document(address, HttpConnections(), limit=1000)


async def test_name_that_leads_inside_is_not_asked() -> None:
    async def inside(host: str, port: int) -> list[str]:
        return ["169.254.169.254"]

    connections = HttpConnections(lookup=inside)
    with pytest.raises(BackendError, match="an address that tools may not reach"):
        await fetch_document("https://metadata.example.com/openapi.json", connections, limit=1000)
    await connections.close()

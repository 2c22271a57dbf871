"""A plain proxy that sends every request to the next of several gateways, whatever its content or sender."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import aiohttp
from aiohttp import web

_HOP: Final = frozenset({"transfer-encoding", "connection", "content-length", "keep-alive"})


class RoundRobin:
    """Knows only addresses. If a gateway does not listen, it tries the next one, as nothing was sent yet; if a
    connection breaks before the answer is complete, it answers 502, as the outcome of the request is unknown.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = list(urls)
        self._next = 0
        self._client: aiohttp.ClientSession | None = None
        self.url = ""
        self.broken = 0

    async def forward(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        for _ in self._urls:
            self._next += 1
            try:
                return await self._forwarded(self._urls[self._next % len(self._urls)], request, body)
            except aiohttp.ClientConnectorError:
                continue
            except (aiohttp.ClientError, OSError):
                break
        self.broken += 1
        return web.Response(status=502, text="no answer from upstream")

    async def _forwarded(self, url: str, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        assert self._client is not None
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _HOP]
        whole = f"{url}{request.raw_path}"
        async with self._client.request(request.method, whole, data=body or None, headers=headers) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
            if answer.content_type == "text/event-stream":
                return await _stream(request, answer, kept)
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)

    async def open(self) -> web.ServerRunner:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._client = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        runner = web.ServerRunner(web.Server(self.forward), shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def close(self) -> None:
        assert self._client is not None
        await self._client.close()


async def _stream(
    request: web.BaseRequest, answer: aiohttp.ClientResponse, headers: dict[str, str]
) -> web.StreamResponse:
    """Forward chunks at once; if the stream breaks, end the answer, as no error can be sent any more."""
    passed = web.StreamResponse(status=answer.status, headers=headers)
    await passed.prepare(request)
    with suppress(aiohttp.ClientError, OSError):
        async for piece in answer.content.iter_any():
            await passed.write(piece)
    return passed


@asynccontextmanager
async def round_robin_proxy(urls: Sequence[str]) -> AsyncIterator[RoundRobin]:
    proxy = RoundRobin(urls)
    runner = await proxy.open()
    try:
        yield proxy
    finally:
        await runner.cleanup()
        await proxy.close()

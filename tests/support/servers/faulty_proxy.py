"""A proxy for an object store that can be cut, delayed, or made to return wrong data."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Final

import aiohttp
from aiohttp import web

_HOP: Final = frozenset({"transfer-encoding", "connection", "content-length", "keep-alive"})

Lie = Callable[[str, bytes], bytes]
"""Returns a wrong body for the one that came from a path."""


class FaultyProxy:
    """Forwards every request to the store, except for the chosen faults. Listens on one port for its lifetime."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._site: web.TCPSite | None = None
        self._runner: web.ServerRunner | None = None
        self._client: aiohttp.ClientSession | None = None
        self._port = 0
        self._let_through: int | None = None
        self._is_cut = False
        self.lie: Lie | None = None
        self.slowness = 0.0
        """Seconds added to every request."""
        self.parts_go_on: asyncio.Event | None = None
        """Holds parts until it is set, and no other request."""
        self.refuse_puts_with: int | None = None
        self.asked: list[str] = []
        self.most_parts_at_once = 0
        self._parts = 0
        self.waiting = asyncio.Event()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def hold(self) -> None:
        """From now on accept requests and do not answer them."""
        self._goes_on.clear()

    def hold_after(self, *, parts: int) -> None:
        """Like `hold`, after this many more parts."""
        self._let_through = parts

    def go_on(self) -> None:
        self._let_through = None
        self._goes_on.set()

    async def open(self) -> None:
        self._is_cut = False
        self._client = self._client or aiohttp.ClientSession(auto_decompress=False)
        self._runner = web.ServerRunner(web.Server(self._forward), shutdown_timeout=0)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await self._site.start()
        [self._port] = [each[1] for each in self._runner.addresses]

    async def cut(self) -> None:
        """Close the listener and all connections. `open` listens on the same port again."""
        if self._runner is not None:
            self._is_cut = True
            self.go_on()
            await self._runner.cleanup()
            self._runner = None

    async def close(self) -> None:
        self.go_on()
        await self.cut()
        if self._client is not None:
            await self._client.close()

    async def _forward(self, request: web.BaseRequest) -> web.StreamResponse:
        is_part = request.method == "PUT" and not request.path.endswith(".index")
        self._parts += is_part
        self.most_parts_at_once = max(self.most_parts_at_once, self._parts)
        try:
            return await self._forwarded(request, is_part=is_part)
        finally:
            self._parts -= is_part

    async def _forwarded(self, request: web.BaseRequest, *, is_part: bool) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path_qs}")
        if self._let_through is not None and request.method == "PUT":
            self._let_through -= 1
            if self._let_through < 0:
                self.hold()
        body = await request.content.read()  # of any size
        if not self._goes_on.is_set():
            self.waiting.set()
            await self._goes_on.wait()
            if self._is_cut:  # never forwarded
                return web.Response(status=503)
        if is_part and self.parts_go_on is not None:
            await self.parts_go_on.wait()
        await asyncio.sleep(self.slowness)
        if self.refuse_puts_with is not None and request.method == "PUT":
            return web.Response(status=self.refuse_puts_with)
        assert self._client is not None
        url = f"{self._endpoint}{request.raw_path}"
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        async with self._client.request(request.method, url, data=BytesIO(body), headers=headers) as answer:
            content = await answer.read()
            if self.lie is not None and request.method == "GET":
                content = self.lie(request.path, content)
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
            if request.method == "HEAD":
                kept["content-length"] = answer.headers.get("content-length", "0")
            return web.Response(status=answer.status, body=content, headers=kept)


@asynccontextmanager
async def start_faulty_proxy(endpoint: str) -> AsyncIterator[FaultyProxy]:
    way = FaultyProxy(endpoint)
    await way.open()
    try:
        yield way
    finally:
        await way.close()

"""The service behind the project `orders`, and clients of a gateway in front of it: REST, and MCP without sessions."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from tests.support.paths import ROOT

PROJECT = ROOT / "tests" / "projects" / "orders"
MCP_VERSION = "2026-07-28"
LINE = b"2026-11-16 10:00:00 order placed, paid, packed and on its way to somebody\n"
CHUNK = b"a new page of the history\n" + LINE * (1 << 14)
READ_LINES = 1500


class OrdersService:
    """Counts the requests. `/held/…` answers when the test releases it, `/odd/…` never as it should."""

    def __init__(self, *, slowness: float = 0.0) -> None:
        self.executions: Counter[str] = Counter()
        self.url = ""
        self._slowness = slowness
        self._arrived: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._released: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def arrived(self, order: str) -> None:
        """Wait until a held call has reached the service."""
        await asyncio.wait_for(self._arrived[order].wait(), 30)

    def release(self, order: str) -> None:
        self._released[order].set()

    async def place(self, request: web.Request) -> web.Response:
        order = request.match_info["order"]
        self.executions[order] += 1
        await asyncio.sleep(random.uniform(0, self._slowness))
        return web.Response(text=f"placed {order}")

    async def read(self, request: web.Request) -> web.Response:
        return web.Response(text=order_text(request.match_info["order"]))

    async def held(self, request: web.Request) -> web.Response:
        order = request.match_info["order"]
        self.executions[order] += 1
        self._arrived[order].set()
        await self._released[order].wait()
        return web.Response(text=f"let go {order}")

    async def history(self, request: web.Request) -> web.StreamResponse:
        left = int(request.match_info["bytes"])
        response = web.StreamResponse(headers={"content-type": "text/plain"})
        await response.prepare(request)
        while left > 0:
            await response.write(CHUNK[:left])
            left -= len(CHUNK)
        return response

    async def odd(self, request: web.Request) -> web.StreamResponse:
        how = request.match_info["how"]
        transport: Any = request.transport
        if how == "hang":
            await asyncio.Event().wait()
        response = web.StreamResponse(headers={"content-length": "1000"})
        if how == "garbage":
            transport.write(b"\x00\xff this is no HTTP \r\n\r\n" * 10)
        elif how == "reset":
            await response.prepare(request)
            await response.write(b"some of it")
        elif how == "drip":
            await response.prepare(request)
            while True:
                await response.write(b".")
                await asyncio.sleep(1)
        transport.abort() if how == "reset" else transport.close()
        return response


def order_text(order: str) -> str:
    """Return a text too large for the record itself."""
    return "".join(f"{order} line {number}: {'x' * 60}\n" for number in range(READ_LINES))


@asynccontextmanager
async def orders_service(*, slowness: float = 0.0) -> AsyncIterator[OrdersService]:
    orders = OrdersService(slowness=slowness)
    app = web.Application()
    app.router.add_post("/orders/{order}", orders.place)
    app.router.add_get("/orders/{order}", orders.read)
    app.router.add_route("*", "/held/{order}", orders.held)
    app.router.add_get("/history/{bytes}", orders.history)
    app.router.add_get("/odd/{how}", orders.odd)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        orders.url = f"http://{host}:{port}"
        yield orders
    finally:
        await runner.cleanup()


@dataclass(frozen=True)
class OrdersReply:
    """A client's view of an answer: status, ids, and the text for the model."""

    status: int
    body: dict[str, Any] = field(repr=False)
    call_id: str | None = None
    turn: str | None = None
    is_replay: bool = False

    @property
    def is_settled(self) -> bool:
        return self.status == 200 and self.call_id is not None


class OrdersClient:
    """A client of the catalogue `shop`."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    async def rest(self, tool: str, args: dict[str, Any], *, key: str | None = None) -> OrdersReply:
        headers = {"idempotency-key": key} if key else {}
        path = f"{self.url}/v1/catalogues/shop/tools/{tool}/call"
        async with self._session.post(path, json={"arguments": args}, headers=headers) as answer:
            body = await answer.json(content_type=None)
            return OrdersReply(answer.status, body, body.get("callId"), body.get("turn"), "replayed" in body)

    async def mcp(self, tool: str, args: dict[str, Any], *, key: str | None = None) -> OrdersReply:
        prefix = "io.modelcontextprotocol/"
        meta: dict[str, Any] = {f"{prefix}protocolVersion": MCP_VERSION, f"{prefix}clientCapabilities": {}}
        meta |= {"gateway/idempotencyKey": key} if key else {}
        message = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": tool, "arguments": args, "_meta": meta},
        }
        headers = {"mcp-protocol-version": MCP_VERSION, "mcp-method": "tools/call", "mcp-name": tool}
        headers["accept"] = "application/json"
        async with self._session.post(f"{self.url}/shop/mcp", json=message, headers=headers) as answer:
            body = await answer.json(content_type=None)
            result_meta = body.get("result", {}).get("_meta", {})
            return OrdersReply(answer.status, body, result_meta.get("gateway/call"), result_meta.get("gateway/turn"))

    async def get(self, path: str, **query: str) -> tuple[int, Any]:
        async with self._session.get(f"{self.url}{path}", params=query) as answer:
            return answer.status, await answer.json(content_type=None)

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        async with self._session.post(f"{self.url}{path}", json=body) as answer:
            return await answer.json(content_type=None)

    async def content(self, call_id: str, turn: str) -> bytes:
        async with self._session.get(f"{self.url}/v1/artifacts/{call_id}/content", params={"turn": turn}) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.read()


@asynccontextmanager
async def connect_orders_client(url: str) -> AsyncIterator[OrdersClient]:
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        yield OrdersClient(url, session)

"""ASGI apps on loopback, in the loop of the test, and the reference server in each era."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import uvicorn

from tests.backends.mcp.servers.reference_server import server

App = Callable[[Any, Any, Any], Any]
Era = Literal["modern", "legacy"]


class _Server(uvicorn.Server):
    def install_signal_handlers(self) -> None: ...


@asynccontextmanager
async def serve_app(app: App, *, lifespan: Literal["on", "off"] = "off") -> AsyncIterator[str]:
    """Serve the app and return its origin."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        interface="asgi3",
        loop="none",
        lifespan=lifespan,
        ws="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    serving = _Server(config)
    task = asyncio.create_task(serving.serve(sockets=[bound]))
    while not serving.started:
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        serving.should_exit = True
        await task


def legacy_only(app: App) -> App:
    """Answer unknown requests as a server from before 2026-07-28 does."""

    async def older(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        if scope["type"] == "http" and headers.get(b"mcp-protocol-version") == b"2026-07-28":
            body = b'{"jsonrpc":"2.0","id":"x","error":{"code":-32600,"message":"Bad Request: Missing session ID"}}'
            await send(
                {"type": "http.response.start", "status": 400, "headers": [(b"content-type", b"application/json")]}
            )
            await send({"type": "http.response.body", "body": body})
            return
        await app(scope, receive, send)

    return older


@asynccontextmanager
async def reference(era: Era) -> AsyncIterator[str]:
    """The URL of the reference server, restricted to that era."""
    app: App = server().streamable_http_app()
    async with serve_app(legacy_only(app) if era == "legacy" else app, lifespan="on") as origin:
        yield f"{origin}/mcp"

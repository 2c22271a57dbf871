"""The endpoint behind a real listener on loopback, in the loop of the test."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from gateway.errors import Unauthenticated
from gateway.model.caller import Principal
from gateway.server.http.middleware import EdgeMiddleware, EdgeRules
from gateway.server.mcp.endpoint import McpEndpoint
from tests.server.mcp.project import ANA, PEOPLE


async def by_name(credential: bytes | None) -> Principal:
    """`Bearer kim` is Kim; without a header, the caller is Ana."""
    if credential is None:
        return ANA
    name = credential.decode().removeprefix("Bearer ")
    if name not in PEOPLE:
        raise Unauthenticated("invalid_token", reason="unknown")
    return PEOPLE[name]


class _Server(uvicorn.Server):
    def install_signal_handlers(self) -> None: ...


@asynccontextmanager
async def start_mcp_listener(endpoint: McpEndpoint) -> AsyncIterator[str]:
    """The URL of the endpoint."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    app: Any = EdgeMiddleware(endpoint, EdgeRules(), by_name)
    config = uvicorn.Config(
        app,
        interface="asgi3",
        loop="none",
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[bound]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/mcp"
    finally:
        await endpoint.close()
        server.should_exit = True
        await task

"""Real listeners for other processes, and canaries that record connections."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from gateway.server.http.asgi import AsgiApp
from gateway.server.http.peer_handshake import ChannelKey, Kind
from gateway.server.http.peer_listener import PeerApps, PeerHttpProtocol, with_caller_address


@asynccontextmanager
async def door_at(
    key: ChannelKey, name: str, apps: Mapping[Kind, AsgiApp], *, path: str | None = None, port: int = 0
) -> AsyncIterator[tuple[PeerApps, int]]:
    """A listener for connections that prove themselves: the requests behind it, and its port."""
    peer_apps = PeerApps(key, name, {kind: with_caller_address(app) for kind, app in apps.items()})
    config = uvicorn.Config(
        next(iter(peer_apps.apps.values())), interface="asgi3", log_config=None, ws="none", lifespan="off"
    )
    state = ServerState()
    factory = partial(PeerHttpProtocol, config, state, {}, peer_apps=peer_apps)
    loop = asyncio.get_running_loop()
    server = await (
        loop.create_server(factory, "127.0.0.1", port) if path is None else loop.create_unix_server(factory, path)
    )
    try:
        yield peer_apps, 0 if path else server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for connection in tuple(state.connections):
            connection.transport.abort()
        await server.wait_closed()


class Canary:
    """A listener that must stay unused; it records what arrives."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard.append(b"")
        number = len(self.heard) - 1
        while data := await reader.read(65536):
            self.heard[number] += data
            if len(self.heard[number]) > 32:
                break
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()


@asynccontextmanager
async def canary(path: str | None = None) -> AsyncIterator[Canary]:
    found = Canary()
    opening: Any = (
        asyncio.start_server(found.handle, "127.0.0.1", 0)
        if path is None
        else asyncio.start_unix_server(found.handle, path)
    )
    server = await opening
    found.port = 0 if path else server.sockets[0].getsockname()[1]
    async with server:
        yield found

"""An aiohttp application on a free port of this machine, whose end leaves no connection behind."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def serve_aiohttp(app: web.Application) -> AsyncIterator[int]:
    """Yield the port."""
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listening).start()
    try:
        yield listening.getsockname()[1]
    finally:
        # Python 3.11 forgets a connection that it accepts while the server closes, and never closes it.
        asyncio.get_running_loop().remove_reader(listening)
        await _run_loop()
        assert runner.server is not None
        transports = [each.transport for each in runner.server.connections]
        await runner.cleanup()
        for transport in transports:
            if transport is not None:
                transport.abort()  # closing alone would wait until the other side has read everything
        await _run_loop()


async def _run_loop() -> None:
    """Let callbacks run that are due: the loop needs two turns to accept a connection, and one to drop it."""
    for _ in range(3):
        await asyncio.sleep(0)

"""Two listeners in one process, and an orderly end: stop taking calls, let the running ones finish, close."""

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import uvicorn

from gateway.runtime.settings import Settings


@dataclass(slots=True)
class Stopping:
    """Whether a stop was asked for; the second time it is meant at once."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    times: int = 0

    def ask(self) -> None:
        self.times += 1
        self.asked.set()


class _Server(uvicorn.Server):
    """Signals are ours: one of them must not end one listener and leave the other."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listener(host: str, port: int) -> socket.socket:
    """A bound socket: its port is known before anybody listens, and a taken one is an error before anything starts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    bound.set_inheritable(True)
    return bound


class Apps(Protocol):
    """What is served on the two listeners, and how those who wait on a stream are told that it is over."""

    @property
    def data(self) -> Any: ...

    @property
    def admin(self) -> Any: ...

    @property
    def close(self) -> Callable[[], Awaitable[None]]: ...


async def serve(
    apps: Apps,
    *,
    sockets: tuple[socket.socket, socket.socket],
    settings: Settings,
    stopping: Stopping,
    started: Callable[[], Awaitable[None]],
) -> None:
    """Serve until a signal asks to stop. Running calls have the settings' grace to finish."""
    grace = int(settings.grace.total_seconds())
    servers = [_server(app, grace) for app in (apps.data, apps.admin)]
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.ask)
    tasks = [asyncio.create_task(server.serve(sockets=[bound])) for server, bound in zip(servers, sockets, strict=True)]
    try:
        await _until_up(servers, tasks)
        await started()
        await asyncio.wait([asyncio.create_task(stopping.asked.wait()), *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for server in servers:
            server.should_exit = True
            server.force_exit = stopping.times > 1
        await apps.close()
        await asyncio.gather(*tasks)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _server(app: Any, grace: int) -> _Server:
    config = uvicorn.Config(
        app,
        loop="none",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=grace,
    )
    return _Server(config)


async def _until_up(servers: list[_Server], tasks: list["asyncio.Task[None]"]) -> None:
    while not all(server.started for server in servers):
        if any(task.done() for task in tasks):
            await asyncio.gather(*tasks)
            raise OSError("a listener ended before it was ready")
        await asyncio.sleep(0.01)

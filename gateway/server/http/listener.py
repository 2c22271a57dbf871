"""The listeners of one process and their shutdown: readiness ends first, then new calls, then running calls.

The admin listener closes last, so that monitoring sees the shutdown.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol

import uvicorn

from gateway.engine import CallMeter
from gateway.server.http.admission import AdmissionControl, LoopMonitor
from gateway.server.http.drain import ABORT_SECONDS, CancellableCalls, DrainMiddleware, ShutdownSignal, drain
from gateway.server.http.http1_protocol import BoundedHttpProtocol
from gateway.server.http.peer_listener import PeerApps, PeerHttpProtocol, PeerListener, with_caller_address

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_SWITCH_SECONDS: Final = 0.001
"""Seconds for which a thread that parses a large text may hold up the event loop."""

_COLLECT_AFTER: Final = (50_000, 20, 100)
_CLOSING_SECONDS: Final = 2.0
"""Seconds that connections may take to close once nothing runs any more."""


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers: a signal must stop all listeners, not just one."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def stop_now(self) -> None:
        """Close the listener; abort connections that stay open, such as those of clients that stopped reading."""
        self.should_exit = True
        until = monotonic() + _CLOSING_SECONDS
        while self.server_state.connections and monotonic() < until:
            await asyncio.sleep(0.02)
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()
        self.force_exit = True


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a bound socket, so that the port is known, and a port in use is an error, before anything starts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


class BoundSockets(NamedTuple):
    """Bound sockets. `peers` is for other gateways of the deployment, if it may have any."""

    data: socket.socket
    admin: socket.socket
    peers: socket.socket | None = None


class ListenerApps(Protocol):
    """The apps behind the two listeners, and what a shutdown needs of them."""

    @property
    def data(self) -> Any: ...

    @property
    def admin(self) -> Any: ...

    @property
    def admission(self) -> AdmissionControl:
        """Admission of requests to the data listener."""
        ...

    @property
    def close_streams(self) -> Callable[[], None]:
        """End the event streams of clients that only listen."""
        ...

    @property
    def count_refusal(self) -> Callable[[str], None]:
        """Count a request of the given method that was refused or cut off."""
        ...

    @property
    def meter(self) -> CallMeter:
        """Counts the error responses of the data app."""
        ...

    @property
    def close(self) -> Callable[[], Awaitable[None]]:
        """End everything that outlives a request."""
        ...


def run_event_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run a server to its end, on the fastest event loop available."""
    fastest = uvicorn.Config("", loop="auto", log_config=None).get_loop_factory()
    with asyncio.Runner(loop_factory=fastest) as runner:
        runner.run(main)


async def serve(
    apps: ListenerApps,
    calls: CancellableCalls,
    *,
    sockets: tuple[socket.socket, socket.socket],
    grace: timedelta,
    stopping: ShutdownSignal,
    started: Callable[[], Awaitable[None]],
    inner: Sequence[PeerListener] = (),
) -> None:
    """Serve until a stop is requested. Running calls have `grace` to finish.

    `inner` are further listeners of the data app, for requests that other processes forward.
    """
    draining = [DrainMiddleware(apps.data, stopping, apps.count_refusal, apps.admission, apps.meter)]
    data = [_server(draining[0], grace)]
    for each in inner:
        drains = {
            kind: DrainMiddleware(app, stopping, _ignore_refusal, each.admission if kind == "forward" else None)
            for kind, app in each.apps.items()
        }
        draining += drains.values()
        peer_apps = PeerApps(each.key, each.name, {kind: with_caller_address(app) for kind, app in drains.items()})
        data.append(_server(None, grace, http=partial(PeerHttpProtocol, peer_apps=peer_apps)))
    monitors = [LoopMonitor(apps.admission), *(LoopMonitor(each.admission) for each in inner)]
    admin = _server(apps.admin, grace)
    servers = [*data, admin]
    bound = [sockets[0], *(each.bound for each in inner), sockets[1]]
    tasks = [asyncio.create_task(server.serve(sockets=[each])) for server, each in zip(servers, bound, strict=True)]
    stop = asyncio.create_task(stopping.asked.wait())
    try:
        await _wait_until_up(servers, tasks)
        _calm_collector()
        for monitor in monitors:
            monitor.start()
        if not stopping.times:
            await started()
        await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        stopping.times = stopping.times or 1
        for server in data:
            server.should_exit = True
        for admission in (apps.admission, *(each.admission for each in inner)):
            admission.reject_waiters()
        apps.close_streams()
        await drain(draining, calls, grace=grace, stopping=stopping)
        for monitor in monitors:
            await monitor.close()
        await apps.close()
        for server in servers:
            await server.stop_now()
        await asyncio.gather(*tasks)


def _ignore_refusal(_method: str) -> None:
    """Do nothing: the process that forwarded the refused request counts it."""


def _calm_collector() -> None:
    """Freeze loaded objects and collect rarely: calls leave few cycles; the default took a third of a call's time."""
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    gc.enable()  # `gateway serve` starts without
    sys.setswitchinterval(_SWITCH_SECONDS)


@contextmanager
def handle_signals(ask: Callable[[], None], *, reload: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Call `ask` on SIGTERM and SIGINT and `reload` on SIGHUP; restore the previous handlers on exit."""
    loop = asyncio.get_running_loop()
    had_terminal = _has_terminal()

    def handle_hangup() -> None:
        """Reload, or stop if SIGHUP came because the terminal that started the process was closed."""
        if had_terminal and not _has_terminal():
            ask()
        else:
            reload()

    handlers = {**dict.fromkeys(_SIGNALS, ask), signal.SIGHUP: handle_hangup}
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, handlers)  # meanwhile the default handler would kill the process
        for number in handlers:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _server(app: Any, grace: timedelta, *, http: Any = BoundedHttpProtocol) -> _Server:
    config = uvicorn.Config(
        app,
        interface="asgi3",
        loop="none",
        http=http,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        # only a safeguard: `drain` measures the grace itself
        timeout_graceful_shutdown=int(grace.total_seconds() + ABORT_SECONDS + _CLOSING_SECONDS),
    )
    return _Server(config)


async def _wait_until_up(servers: list[_Server], tasks: list["asyncio.Task[None]"]) -> None:
    while not all(server.started for server in servers):
        if any(task.done() for task in tasks):
            await asyncio.gather(*tasks)
            raise OSError("a listener ended before it was ready")
        await asyncio.sleep(0.01)

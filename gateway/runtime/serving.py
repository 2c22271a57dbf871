"""Two listeners in one process, and an orderly end: readiness goes first, then new calls, then the running ones.

The admin plane stays up to the last, so that whoever watches sees the end coming.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol

import uvicorn

from gateway.runtime.admitting import Admission, Pulse
from gateway.runtime.peer_listener import Door, ProvenHttp, as_the_caller
from gateway.runtime.peer_proof import ChannelKey, Kind
from gateway.runtime.settings import Settings
from gateway.runtime.stopping import CUT_SECONDS, Calls, Draining, Stopping, drained
from gateway.runtime.wire import BoundedHttp
from gateway.web.edge import App

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_SWITCH_SECONDS: Final = 0.001
"""How long a thread that works on a large text keeps the event loop waiting."""

_COLLECT_AFTER: Final = (50_000, 20, 100)
_CLOSING_SECONDS: Final = 2.0
"""How long connections may take to close when nothing runs any more."""


class _Server(uvicorn.Server):
    """Signals are ours: one of them must not end one listener and leave the other."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def stop_now(self) -> None:
        """Whoever still holds a connection, such as a client that stopped reading, loses it."""
        self.should_exit = True
        until = monotonic() + _CLOSING_SECONDS
        while self.server_state.connections and monotonic() < until:
            await asyncio.sleep(0.02)
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()
        self.force_exit = True


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
    return bound


class Listeners(NamedTuple):
    """Bound sockets. `peers` is for other gateways, where there may be any."""

    data: socket.socket
    admin: socket.socket
    peers: socket.socket | None = None


@dataclass(frozen=True, slots=True)
class InnerListener:
    """A listener for other processes of the deployment, who call this one `name` and know the key.

    What they pass on has places of its own. Two processes that pass requests on to each other would wait for each
    other for ever if those took the places of requests that wait for them.
    """

    bound: socket.socket
    key: ChannelKey
    name: str
    apps: Mapping[Kind, App]
    admission: Admission


class Apps(Protocol):
    """What is served on the two listeners."""

    @property
    def data(self) -> Any: ...

    @property
    def admin(self) -> Any: ...

    @property
    def admission(self) -> Admission:
        """How many requests to the data plane are worked on."""
        ...

    @property
    def hush(self) -> Callable[[], None]:
        """Tells those who only listen that it is over."""
        ...

    @property
    def refused(self) -> Callable[[str], None]:
        """Has it counted that a request of that method was refused because of a stop."""
        ...

    @property
    def close(self) -> Callable[[], Awaitable[None]]:
        """Ends whatever outlives a request."""
        ...


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a server to its end, on the fastest event loop there is."""
    fastest = uvicorn.Config("", loop="auto", log_config=None).get_loop_factory()
    with asyncio.Runner(loop_factory=fastest) as runner:
        runner.run(main)


async def serve(
    apps: Apps,
    calls: Calls,
    *,
    sockets: tuple[socket.socket, socket.socket],
    settings: Settings,
    stopping: Stopping,
    started: Callable[[], Awaitable[None]],
    inner: Sequence[InnerListener] = (),
) -> None:
    """Serve until a stop is asked for. Running calls have the settings' grace to finish.

    `inner` are further ways to the data plane, for what another process passes on.
    """
    draining = [Draining(apps.data, stopping, apps.refused, apps.admission)]
    data = [_server(draining[0], settings)]
    for each in inner:
        drains = {
            kind: Draining(app, stopping, _counted_by_the_first, each.admission if kind == "forward" else None)
            for kind, app in each.apps.items()
        }
        draining += drains.values()
        door = Door(each.key, each.name, {kind: as_the_caller(app) for kind, app in drains.items()})
        data.append(_server(None, settings, http=partial(ProvenHttp, door=door)))
    pulses = [Pulse(apps.admission), *(Pulse(each.admission) for each in inner)]
    admin = _server(apps.admin, settings)
    servers = [*data, admin]
    bound = [sockets[0], *(each.bound for each in inner), sockets[1]]
    tasks = [asyncio.create_task(server.serve(sockets=[each])) for server, each in zip(servers, bound, strict=True)]
    asked = asyncio.create_task(stopping.asked.wait())
    try:
        await _until_up(servers, tasks)
        _calm_collector()
        for pulse in pulses:
            pulse.start()
        if not stopping.times:
            await started()
        await asyncio.wait([asked, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        asked.cancel()
        stopping.times = stopping.times or 1
        for server in data:
            server.should_exit = True
        for admission in (apps.admission, *(each.admission for each in inner)):
            admission.turn_away()
        apps.hush()
        await drained(draining, calls, grace=settings.grace, stopping=stopping)
        for pulse in pulses:
            await pulse.close()
        await apps.close()
        for server in servers:
            await server.stop_now()
        await asyncio.gather(*tasks)


def _counted_by_the_first(_method: str) -> None:
    """A refusal of what another process passes on: that one counts it."""


def _calm_collector() -> None:
    """What was loaded stays, and calls leave few cycles: the usual rhythm took a third of the time of a call."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    sys.setswitchinterval(_SWITCH_SECONDS)


@contextmanager
def signals(ask: Callable[[], None], *, reload: Callable[[], None] = lambda: None) -> Iterator[None]:
    """While this lasts, a signal that ends processes asks instead; afterwards it does what it did before."""
    loop = asyncio.get_running_loop()
    had_terminal = _has_terminal()

    def hung_up() -> None:
        """Sent by an operator, or by a terminal that is gone, and then whoever started us there is gone, too."""
        if had_terminal and not _has_terminal():
            ask()
        else:
            reload()

    handlers = {**dict.fromkeys(_SIGNALS, ask), signal.SIGHUP: hung_up}
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, handlers)  # between two handlers the system's own would kill
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


def _server(app: Any, settings: Settings, *, http: Any = BoundedHttp) -> _Server:
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
        # A bound for what must not happen; the grace itself is measured by us.
        timeout_graceful_shutdown=int(settings.grace.total_seconds() + CUT_SECONDS + _CLOSING_SECONDS),
    )
    return _Server(config)


async def _until_up(servers: list[_Server], tasks: list["asyncio.Task[None]"]) -> None:
    while not all(server.started for server in servers):
        if any(task.done() for task in tasks):
            await asyncio.gather(*tasks)
            raise OSError("a listener ended before it was ready")
        await asyncio.sleep(0.01)

"""The listener for other processes of the same deployment: HTTP starts after a connection has proved itself.

Until then no byte reaches the HTTP parser. A connection without a valid proof in time is aborted without a response.
"""

import asyncio
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from time import monotonic
from typing import Any, Final

from gateway.server.http.admission import AdmissionControl
from gateway.server.http.asgi import AsgiApp, Receive, Scope, Send
from gateway.server.http.http1_protocol import MAX_FIELDS, BoundedHttpProtocol
from gateway.server.http.peer_handshake import PROOF_SECONDS, ChannelKey, ChannelRefused, Kind, ServerProof

CALLER: Final = b"gateway-caller"
"""Header with the address of the caller of a forwarded request. Only this listener trusts it."""

MAX_UNPROVED: Final = 256
"""Maximum of connections to one process that have not proved themselves yet; further ones are closed."""
_LOG_INTERVAL: Final = 60.0
_MAX_ADDRESS: Final = 64
_log: Final = logging.getLogger(__name__)


class PeerApps:
    """The app for each kind of connection that the listener accepts, and the keys that prove them."""

    def __init__(self, key: ChannelKey, name: str, apps: Mapping[Kind, AsgiApp]) -> None:
        """`name` is how other processes address this one."""
        self.apps = apps
        self.unproved = 0
        self._keys: dict[Kind, bytes] = {kind: key.of(kind, name) for kind in apps}
        self._next_log = 0.0

    def proof(self) -> ServerProof:
        return ServerProof(self._keys)

    def log_refusal(self, reason: str) -> None:
        """Log a refusal, at most one per minute, because strangers can cause any number of them."""
        if monotonic() >= self._next_log:
            self._next_log = monotonic() + _LOG_INTERVAL
            _log.warning("a connection to the listener for other gateways was refused: %s", reason)


class PeerHttpProtocol(BoundedHttpProtocol):
    """One connection of another process."""

    max_fields = MAX_FIELDS + 1
    """A forwarded request has one header more than its caller sent."""
    _proof: ServerProof | None = None
    _is_counted = False
    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, peer_apps: PeerApps, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._peer_apps = peer_apps

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self._peer_apps.unproved >= MAX_UNPROVED:
            self._refuse("too many connections have not proved themselves")
            return
        self._proof = self._peer_apps.proof()
        self._is_counted = True
        self._peer_apps.unproved += 1
        self._deadline = self.loop.call_later(PROOF_SECONDS, self._refuse, "it did not prove itself in time")

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._proof is not None:
            try:
                answer, data = self._proof.take(data)
            except ChannelRefused as error:
                self._refuse(str(error))
                return
            if answer:
                self.transport.write(answer)
            if self._proof.kind is None:
                return
            self.app = self._peer_apps.apps[self._proof.kind]
            self._proof = None
            self._uncount()
        if data:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._uncount()
        super().connection_lost(exc)

    def _refuse(self, reason: str) -> None:
        self._peer_apps.log_refusal(reason)
        self._uncount()
        self.transport.abort()

    def _uncount(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._is_counted:
            self._is_counted = False
            self._peer_apps.unproved -= 1


def with_caller_address(app: AsgiApp) -> AsgiApp:
    """Wrap the app so that the client of a forwarded request is its original caller. For proved connections only."""

    async def run_as_caller(scope: Scope, receive: Receive, send: Send) -> None:
        addresses = [value for name, value in scope["headers"] if name == CALLER]
        scope["headers"] = [each for each in scope["headers"] if each[0] != CALLER]
        scope["client"] = _parse_address(addresses[0]) if len(addresses) == 1 else None
        await app(scope, receive, send)

    return run_as_caller


def caller_header(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Return the header that gives the next process the caller's address."""
    client = scope.get("client")
    return [(CALLER, f"{client[0]} {client[1]}".encode())] if client else []


def _parse_address(value: bytes) -> tuple[str, int] | None:
    host, _, port = value[:_MAX_ADDRESS].decode("latin-1").partition(" ")
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return (host, int(port)) if port.isdecimal() else None


@dataclass(frozen=True, slots=True)
class PeerListener:
    """A listener for other processes of the deployment, which know the key and address this one by `name`.

    Requests that they forward have their own `admission`. If they shared one with direct requests, two processes that
    forward to each other could deadlock.
    """

    bound: socket.socket
    key: ChannelKey
    name: str
    apps: Mapping[Kind, AsgiApp]
    admission: AdmissionControl

"""The listener for other processes of the same deployment: HTTP begins where a connection has proved itself.

Until then no byte reaches the parser, and whoever does not prove itself in time, or at all, is cut off unanswered.
"""

import asyncio
import logging
from collections.abc import Mapping
from ipaddress import ip_address
from time import monotonic
from typing import Any, Final

from gateway.runtime.peer_proof import PROOF_SECONDS, ChannelKey, ChannelRefused, Kind, ServerProof
from gateway.runtime.wire import MAX_FIELDS, BoundedHttp
from gateway.web.edge import App, Receive, Scope, Send

CALLER: Final = b"gateway-caller"
"""The header that tells a process the address of the caller whose request is forwarded to it. It counts only here."""

MOST_UNPROVED: Final = 256
"""Connections of a process that have not proved themselves yet; further ones are closed."""
_TELL_EVERY: Final = 60.0
_MOST_ADDRESS: Final = 64
_log: Final = logging.getLogger(__name__)


class Door:
    """What is behind a listener: one app for each kind of connection that it accepts."""

    def __init__(self, key: ChannelKey, name: str, apps: Mapping[Kind, App]) -> None:
        """`name` is what others call this process."""
        self.apps = apps
        self.unproved = 0
        self._keys: dict[Kind, bytes] = {kind: key.of(kind, name) for kind in apps}
        self._tell_at = 0.0

    def proof(self) -> ServerProof:
        return ServerProof(self._keys)

    def tell(self, reason: str) -> None:
        """Log a refusal, but not every one: strangers decide how many there are."""
        if monotonic() >= self._tell_at:
            self._tell_at = monotonic() + _TELL_EVERY
            _log.warning("a connection to the listener for other gateways was refused: %s", reason)


class ProvenHttp(BoundedHttp):
    """One connection of another process."""

    max_fields = MAX_FIELDS + 1
    """A forwarded request has a header more than its caller sent."""
    _proof: ServerProof | None = None
    _is_counted = False
    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, door: Door, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._door = door

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self._door.unproved >= MOST_UNPROVED:
            self._refuse("too many connections have not proved themselves")
            return
        self._proof = self._door.proof()
        self._is_counted = True
        self._door.unproved += 1
        self._deadline = self.loop.call_later(PROOF_SECONDS, self._refuse, "it does not prove itself in time")

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
            self.app = self._door.apps[self._proof.kind]
            self._proof = None
            self._uncount()
        if data:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._uncount()
        super().connection_lost(exc)

    def _refuse(self, reason: str) -> None:
        self._door.tell(reason)
        self._uncount()
        self.transport.abort()

    def _uncount(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._is_counted:
            self._is_counted = False
            self._door.unproved -= 1


def as_the_caller(app: App) -> App:
    """Have the app see a forwarded request as one of the caller it comes from. For proved connections only."""

    async def forwarded(scope: Scope, receive: Receive, send: Send) -> None:
        told = [value for name, value in scope["headers"] if name == CALLER]
        scope["headers"] = [each for each in scope["headers"] if each[0] != CALLER]
        scope["client"] = _caller(told[0]) if len(told) == 1 else None
        await app(scope, receive, send)

    return forwarded


def caller_header(scope: Scope) -> list[tuple[bytes, bytes]]:
    """What tells the next process where a request comes from."""
    client = scope.get("client")
    return [(CALLER, f"{client[0]} {client[1]}".encode())] if client else []


def _caller(told: bytes) -> tuple[str, int] | None:
    host, _, port = told[:_MOST_ADDRESS].decode("latin-1").partition(" ")
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return (host, int(port)) if port.isdecimal() else None

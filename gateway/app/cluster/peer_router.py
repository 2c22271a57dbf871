"""Routing between gateways behind one address: each request goes to the gateway that has its session in memory.

The id of a session names its gateway: `<digest of the gateway's address>.<id>`; so does the state of a call that waits
for input of its caller. An authenticated request for another gateway is forwarded unchanged with its credentials, and
the other gateway authenticates the caller again.
"""

import re
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from hashlib import blake2b
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

from yarl import URL

from gateway.app.cluster.event_merge import EventSource, is_event_request, merge_events
from gateway.app.cluster.peer_connector import PeerConnector
from gateway.app.cluster.proxy import PEER_GONE, PeerUnreachable, create_forwarding_session, forward_request
from gateway.app.cluster.worker_router import OF_GATEWAY, find_state_owner, may_carry_state, serve_here, session_of
from gateway.errors import StoreUnavailable
from gateway.http_client import HttpSession
from gateway.server import SCOPE_PRINCIPAL, AsgiApp, ChannelKey, Receive, Scope, Send

PeerAddresses = Callable[[], Awaitable[Collection[str]]]
"""Returns the URLs of the running gateways."""

_DIGITS: Final = 12
_OWNER_MARK: Final = re.compile(rb"([0-9a-f]{%d})\." % _DIGITS)

_REFRESH_EVERY: Final = 0.25
"""Least seconds between two queries of the database, however many unknown sessions callers name."""


class PeerRouter:
    """Router to other gateways. `own` is the URL of this gateway for them.

    `front` handles requests of callers, `back` requests that another gateway forwarded.
    """

    def __init__(self, app: AsgiApp, *, own: str, addresses: PeerAddresses, key: ChannelKey) -> None:
        self._app = app
        self._own = derive_peer_id(own)
        self._mark = self._own.encode() + b"."
        self._addresses = addresses
        self._key = key
        self._known: dict[str, tuple[str, int]] = {}
        self._refresh_at = 0.0
        self._carried: HttpSession | None = None

    async def front(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request of a caller. Only authenticated requests are forwarded."""
        if SCOPE_PRINCIPAL not in scope:
            await self._app(scope, receive, send)
            return
        if is_event_request(scope):
            await merge_events(self._here, self._others, scope, receive, send)
            return
        owner = _owner(scope)
        is_of_a_session = owner is not None
        if owner is None and may_carry_state(scope):
            found, receive = await find_state_owner(receive, OF_GATEWAY)
            owner = None if found is None else found.decode()
        if owner is None or owner == self._own:
            await self._here(scope, receive, send)
            return
        try:
            if not await self._is_known(owner):
                raise PeerUnreachable
            await forward_request(self._carrier(), _origin(owner), scope, receive, send)
        except PeerUnreachable:
            if is_of_a_session:
                await PEER_GONE(scope, receive, send)
            else:  # the app responds that the state is invalid
                await self._here(scope, receive, send)

    async def back(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a forwarded request; it is never forwarded again."""
        owner = _owner(scope)
        app = self._here if owner is None or owner == self._own else PEER_GONE
        await app(scope, receive, send)

    async def close(self) -> None:
        if self._carried is not None:
            await self._carried.close()
            self._carried = None

    def _here(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return serve_here(self._app, self._mark, scope, receive, send)

    async def _is_known(self, owner: str) -> bool:
        """Whether the gateway exists. An unknown one may have started a moment ago, so the database is asked."""
        if owner not in self._known:
            await self._refresh()
        return owner in self._known

    async def _others(self) -> list[EventSource]:
        await self._refresh()
        return [EventSource(name, self._carrier(), _origin(name)) for name in self._known if name != self._own]

    async def _refresh(self) -> None:
        """Update the known gateways; keep the earlier ones while the database is unavailable."""
        if monotonic() >= self._refresh_at:
            self._refresh_at = monotonic() + _REFRESH_EVERY
            with suppress(StoreUnavailable):
                known = {derive_peer_id(each): place_of(each) for each in await self._addresses()}
                self._known = {name: place for name, place in known.items() if place is not None}

    def _carrier(self) -> HttpSession:
        if self._carried is None:
            connector = PeerConnector(self._key, "forward", lambda host: self._known.get(host.removeprefix(_HOST)))
            self._carried = create_forwarding_session(connector)
        return self._carried


_HOST: Final = "gateway-"


def derive_peer_id(address: str) -> str:
    """Return the name of a gateway in ids and states."""
    return blake2b(address.encode(), digest_size=_DIGITS // 2).hexdigest()


def host_of(name: str) -> str:
    """Return the name of a gateway on the channel to it."""
    return _HOST + name


def place_of(address: str) -> tuple[str, int] | None:
    """Return host and port of `http://HOST:PORT`; `None` for anything else."""
    try:
        parts = urlsplit(address)
        is_plain = parts.scheme == "http" and not (parts.path or parts.query or parts.fragment or parts.username)
        return (parts.hostname, parts.port) if is_plain and parts.hostname and parts.port else None
    except ValueError:
        return None


def _origin(name: str) -> URL:
    return URL.build(scheme="http", host=host_of(name))


def _owner(scope: Scope) -> str | None:
    """Return the gateway that owns the session of the request; `None` if the request names none."""
    found = _OWNER_MARK.match(session_of(scope) or b"")
    return None if found is None else found[1].decode()

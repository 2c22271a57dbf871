"""Several gateways behind one address: what lives in the memory of one of them is answered by that one.

A session says in its id whose it is: `<digest of the gateway's address>.<id>`; so does the state of a call that waits
for an answer of its caller. A request about what another gateway has is passed on to it, as it came, with its
credentials, once its caller was let in here: the other gateway judges again who calls.
"""

import re
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from hashlib import blake2b
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from gateway.errors import StoreUnavailable
from gateway.runtime.merging import Source, asks_for_events, merged
from gateway.runtime.passing import GONE, NobodyThere, carrier, passed_on
from gateway.runtime.peer_channel import ChannelConnector
from gateway.runtime.peer_proof import ChannelKey
from gateway.runtime.session_marks import answered_here, session_of
from gateway.runtime.states import OF_GATEWAY, may_have_a_state, owner_in_body
from gateway.web.edge import PRINCIPAL, App, Receive, Scope, Send

Addresses = Callable[[], Awaitable[Collection[str]]]
"""Where the gateways are that live now."""

_DIGITS: Final = 12
_MARKED: Final = re.compile(rb"([0-9a-f]{%d})\." % _DIGITS)

_ASK_EVERY: Final = 0.25
"""Seconds: whoever invents sessions makes nobody ask the database more often than that."""


class Peers:
    """`own` is how others reach this gateway; without it, its sessions are its own only.

    `front` takes what comes from callers, `back` what another gateway passes on.
    """

    def __init__(self, app: App, *, own: str, addresses: Addresses, key: ChannelKey) -> None:
        self._app = app
        self._own = named(own)
        self._mark = self._own.encode() + b"."
        self._addresses = addresses
        self._key = key
        self._known: dict[str, tuple[str, int]] = {}
        self._ask_at = 0.0
        self._carried: aiohttp.ClientSession | None = None

    async def front(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Nothing is passed on for callers who were not let in, as on paths that need no credential."""
        if PRINCIPAL not in scope:
            await self._app(scope, receive, send)
            return
        if asks_for_events(scope):
            await merged(self._here, self._others, scope, receive, send)
            return
        owner = _owner(scope)
        is_of_a_session = owner is not None
        if owner is None and may_have_a_state(scope):
            found, receive = await owner_in_body(receive, OF_GATEWAY)
            owner = None if found is None else found.decode()
        if owner is None or owner == self._own:
            await self._here(scope, receive, send)
            return
        try:
            if not await self._is_known(owner):
                raise NobodyThere
            await passed_on(self._carrier(), _origin(owner), scope, receive, send)
        except NobodyThere:
            if is_of_a_session:
                await GONE(scope, receive, send)
            else:  # which tells that the state is not valid
                await self._here(scope, receive, send)

    async def back(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What was passed on once is answered here."""
        owner = _owner(scope)
        app = self._here if owner is None or owner == self._own else GONE
        await app(scope, receive, send)

    async def close(self) -> None:
        if self._carried is not None:
            await self._carried.close()
            self._carried = None

    def _here(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return answered_here(self._app, self._mark, scope, receive, send)

    async def _is_known(self, owner: str) -> bool:
        """A gateway that is not known yet may have begun a moment ago."""
        if owner not in self._known:
            await self._ask()
        return owner in self._known

    async def _others(self) -> list[Source]:
        await self._ask()
        return [Source(name, self._carrier(), _origin(name)) for name in self._known if name != self._own]

    async def _ask(self) -> None:
        """Who lives now; while the database cannot tell, those who did."""
        if monotonic() >= self._ask_at:
            self._ask_at = monotonic() + _ASK_EVERY
            with suppress(StoreUnavailable):
                known = {named(each): place_of(each) for each in await self._addresses()}
                self._known = {name: place for name, place in known.items() if place is not None}

    def _carrier(self) -> aiohttp.ClientSession:
        if self._carried is None:
            connector = ChannelConnector(self._key, "forward", lambda host: self._known.get(host.removeprefix(_HOST)))
            self._carried = carrier(connector)
        return self._carried


_HOST: Final = "gateway-"


def named(address: str) -> str:
    """What a gateway is called in ids and states."""
    return blake2b(address.encode(), digest_size=_DIGITS // 2).hexdigest()


def host_of(name: str) -> str:
    """What a gateway is called on the channel to it."""
    return _HOST + name


def place_of(address: str) -> tuple[str, int] | None:
    """Host and port of `http://HOST:PORT`; `None` for anything else."""
    try:
        parts = urlsplit(address)
        is_plain = parts.scheme == "http" and not (parts.path or parts.query or parts.fragment or parts.username)
        return (parts.hostname, parts.port) if is_plain and parts.hostname and parts.port else None
    except ValueError:
        return None


def _origin(name: str) -> URL:
    return URL.build(scheme="http", host=host_of(name))


def _owner(scope: Scope) -> str | None:
    """Whose session the request is of; `None` for one of nobody, or of no gateway."""
    found = _MARKED.match(session_of(scope) or b"")
    return None if found is None else found[1].decode()

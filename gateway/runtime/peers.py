"""Several gateways behind one address: what lives in the memory of one of them is answered by that one.

A session says in its id whose it is: `<digest of the gateway's address>.<id>`; so does the state of a call that waits
for an answer of its caller. A request about what another gateway has is passed on to it, as it came, with its
credentials: who calls is judged there, and only there.
"""

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from hashlib import blake2b
from time import monotonic
from typing import Any, Final

import aiohttp

from gateway.errors import StoreUnavailable
from gateway.runtime.merging import PASSED, Source, asks_for_events, merged
from gateway.runtime.passing import GONE, NobodyThere, carrier, passed_on
from gateway.runtime.states import OF_GATEWAY, may_have_a_state, owner_in_body
from gateway.web.edge import App, Receive, Scope, Send

Addresses = Callable[[], Awaitable[Collection[str]]]
"""Where the gateways are that live now."""

_SESSION: Final = b"mcp-session-id"
_DIGITS: Final = 12

_ASK_EVERY: Final = 0.25
"""Seconds: whoever invents sessions makes nobody ask the database more often than that."""


class Peers:
    """`own` is how others reach this gateway; without it, its sessions are its own only."""

    def __init__(self, app: App, *, own: str, addresses: Addresses) -> None:
        self._app = app
        self._mark = named(own).encode() + b"."
        self._addresses = addresses
        self._known: dict[bytes, str] = {}
        self._ask_at = 0.0
        self._carried: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if asks_for_events(scope) and not _was_passed_on(scope):
            await merged(self._here, self._others, scope, receive, send)
            return
        owner = _owner(scope)
        is_of_a_session = owner is not None
        if owner is None and may_have_a_state(scope):
            owner, receive = await owner_in_body(receive, OF_GATEWAY)
        if owner is None or owner == self._mark[:-1]:
            await self._here(scope, receive, send)
            return
        address = None if _was_passed_on(scope) else await self._address(owner)
        try:
            if address is None:
                raise NobodyThere
            await passed_on(self._carrier(), address, scope, receive, send, more=[(PASSED, "1")])
        except NobodyThere:
            if is_of_a_session:
                await GONE(scope, receive, send)
            else:  # which tells that the state is not valid
                await self._here(scope, receive, send)

    async def close(self) -> None:
        if self._carried is not None:
            await self._carried.close()

    async def _here(self, scope: Scope, receive: Receive, send: Send) -> None:
        mark = self._mark
        scope["headers"] = [
            (name, value.removeprefix(mark) if name == _SESSION else value) for name, value in scope["headers"]
        ]

        async def marked(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [(name, mark + value if name == _SESSION else value) for name, value in message["headers"]]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, marked)

    async def _address(self, owner: bytes) -> str | None:
        """A gateway that is not known yet may have begun a moment ago."""
        if owner not in self._known:
            await self._ask()
        return self._known.get(owner)

    async def _others(self) -> list[Source]:
        await self._ask()
        known = [(name, each) for name, each in self._known.items() if name != self._mark[:-1]]
        return [Source(name.decode(), self._carrier(), each) for name, each in known]

    async def _ask(self) -> None:
        """Who lives now; while the database cannot tell, those who did."""
        if monotonic() >= self._ask_at:
            self._ask_at = monotonic() + _ASK_EVERY
            with suppress(StoreUnavailable):
                self._known = {named(each).encode(): each for each in await self._addresses()}

    def _carrier(self) -> aiohttp.ClientSession:
        if self._carried is None:
            self._carried = carrier(aiohttp.TCPConnector(limit=0, force_close=True))
        return self._carried


def named(address: str) -> str:
    """What a gateway is called in ids and states."""
    return blake2b(address.encode(), digest_size=_DIGITS // 2).hexdigest()


def _owner(scope: Scope) -> bytes | None:
    """Whose session the request is of; `None` for one of nobody, or of no gateway."""
    named = [value for name, value in scope["headers"] if name == _SESSION]
    if len(named) != 1:
        return None
    owner, dot, _ = named[0].partition(b".")
    is_name = bool(dot) and len(owner) == _DIGITS and all(each in b"0123456789abcdef" for each in owner)
    return owner if is_name else None


def _was_passed_on(scope: Scope) -> bool:
    return any(name == PASSED.encode() for name, _ in scope["headers"])

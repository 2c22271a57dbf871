"""Several gateways behind one address: what lives in the memory of one of them is answered by that one.

A session says in its id whose it is: `<digest of the gateway's address>.<id>`. A request of another gateway's session
is passed on to it, as it came, with its credentials: who calls is judged there, and only there.
"""

from collections.abc import Awaitable, Callable, Collection
from hashlib import blake2b
from time import monotonic
from typing import Any, Final

import aiohttp

from gateway.errors import StoreUnavailable
from gateway.runtime.passing import GONE, NobodyThere, carrier, passed_on
from gateway.web.edge import App, Receive, Scope, Send

Addresses = Callable[[], Awaitable[Collection[str]]]
"""Where the gateways are that live now."""

_SESSION: Final = b"mcp-session-id"
_PASSED: Final = "gateway-passed-on"
_DIGITS: Final = 12
_ASK_EVERY: Final = 0.25
"""Seconds: whoever invents sessions makes nobody ask the database more often than that."""


class Peers:
    """`own` is how others reach this gateway; without it, its sessions are its own only."""

    def __init__(self, app: App, *, own: str, addresses: Addresses) -> None:
        self._app = app
        self._mark = named(own) + b"."
        self._addresses = addresses
        self._known: dict[bytes, str] = {}
        self._ask_at = 0.0
        self._carried: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = _owner(scope) if scope["type"] == "http" else None
        if owner is None or owner == self._mark[:-1]:
            await self._here(scope, receive, send)
            return
        address = None if _was_passed_on(scope) else await self._address(owner)
        try:
            if address is None:
                raise NobodyThere
            await passed_on(self._carrier(), address, scope, receive, send, more=[(_PASSED, "1")])
        except NobodyThere:
            await GONE(scope, receive, send)

    async def close(self) -> None:
        if self._carried is not None:
            await self._carried.close()

    async def _here(self, scope: Scope, receive: Receive, send: Send) -> None:
        mark = self._mark
        if scope["type"] == "http":
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
        if owner not in self._known and monotonic() >= self._ask_at:
            self._ask_at = monotonic() + _ASK_EVERY
            try:
                self._known = {named(each): each for each in await self._addresses()}
            except StoreUnavailable:
                return None
        return self._known.get(owner)

    def _carrier(self) -> aiohttp.ClientSession:
        if self._carried is None:
            self._carried = carrier(aiohttp.TCPConnector(limit=0, force_close=True))
        return self._carried


def named(address: str) -> bytes:
    return blake2b(address.encode(), digest_size=_DIGITS // 2).hexdigest().encode()


def _owner(scope: Scope) -> bytes | None:
    """Whose session the request is of; `None` for one of nobody, or of no gateway."""
    named = [value for name, value in scope["headers"] if name == _SESSION]
    if len(named) != 1:
        return None
    owner, dot, _ = named[0].partition(b".")
    is_name = bool(dot) and len(owner) == _DIGITS and all(each in b"0123456789abcdef" for each in owner)
    return owner if is_name else None


def _was_passed_on(scope: Scope) -> bool:
    return any(name == _PASSED.encode() for name, _ in scope["headers"])

"""Sessions with an older server: one for each kind of caller, made when the first of them calls.

A session says once who the client is and what it can do. So callers who can be asked other things, or whose
credentials are their own, have other sessions: what a server keeps of one caller is never there for another one.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from gateway.upstreams.connections import Exchange
from gateway.upstreams.introductions import Introduction

MOST_SESSIONS: Final = 256


class SessionKey(NamedTuple):
    """Whose credentials are used, and what the caller can be asked, as JSON."""

    owner: str
    capabilities: bytes

    @classmethod
    def of(cls, owner: str, capabilities: Mapping[str, Any]) -> "SessionKey":
        return cls(owner, orjson.dumps(dict(capabilities), option=orjson.OPT_SORT_KEYS))

    @property
    def declared(self) -> Any:
        return orjson.loads(self.capabilities)


NOBODY: Final = SessionKey("", b"{}")
"""For what the gateway wants to know for itself."""


@dataclass(slots=True, eq=False)
class Session:
    """One handshake. `id` is `None` where the server keeps no sessions."""

    id: str | None
    introduction: Introduction
    level: str | None = None
    callers: list[Exchange] = field(default_factory=list)
    """Whoever it works for at the moment."""
    listener: "asyncio.Task[None] | None" = None
    is_deaf: bool = False
    """Whether the server has nothing to say outside of its answers."""

    @property
    def only_caller(self) -> Exchange | None:
        """Whom a message that belongs to no call is for: a server that works for several does not say."""
        return self.callers[0] if len(self.callers) == 1 else None

    @property
    def headers(self) -> dict[str, str]:
        version = {"mcp-protocol-version": self.introduction.version}
        return version if self.id is None else {**version, "mcp-session-id": self.id}


Shake = Callable[[SessionKey, Exchange | None], Awaitable[Session]]


class Sessions:
    def __init__(self, shake: Shake, *, dropped: Callable[[Session], Awaitable[None]]) -> None:
        """`shake` makes a session, `dropped` tells the server of one that is not used any more."""
        self._shake = shake
        self._dropped = dropped
        self._open: OrderedDict[SessionKey, Session] = OrderedDict()
        self._opening: dict[SessionKey, asyncio.Lock] = {}

    async def of(self, key: SessionKey, exchange: Exchange | None) -> Session:
        if (found := self._open.get(key)) is not None:
            self._open.move_to_end(key)
            return found
        lock = self._opening.setdefault(key, asyncio.Lock())
        async with lock:
            if (found := self._open.get(key)) is not None:
                return found
            try:
                session = self._open[key] = await self._shake(key, exchange)
            finally:
                self._opening.pop(key, None)
        if len(self._open) > MOST_SESSIONS:
            _, oldest = self._open.popitem(last=False)
            await self._dropped(oldest)
        return session

    def forget(self, session: Session) -> None:
        for key in [key for key, each in self._open.items() if each is session]:
            del self._open[key]

    def taken(self) -> list[Session]:
        """All of them; none is left."""
        sessions = list(self._open.values())
        self._open.clear()
        return sessions

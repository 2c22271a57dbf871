"""An MCP server over streamable HTTP.

Modern servers are asked without a session; older ones are given one per kind of caller, because what a client can do,
and who it is, is said once per session over there. A session that is gone is begun again, once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from gateway.backends.connections import Connections
from gateway.governance.ports import BackendFailed
from gateway.upstreams.answering import Answering
from gateway.upstreams.auth import NO_CREDENTIALS, Credentials
from gateway.upstreams.connections import Connection, Definitions, Exchange, ListKind, Propagate
from gateway.upstreams.introductions import Introduction, discovered, shaken_hands
from gateway.upstreams.listening import Announcing, Listening
from gateway.upstreams.marks import Marks
from gateway.upstreams.messages import Json, RemoteError, client_info, encoded, header_value
from gateway.upstreams.sessions import NOBODY, Session, SessionKey, Sessions
from gateway.upstreams.wire import Endpoint, HttpWire, SessionGone, Unauthorised
from gateway.web.mcp.ladder import NAMED
from gateway.web.mcp.protocol import (
    HEADER_MISMATCH,
    LEVELS,
    MISSING_CAPABILITY,
    MODERN,
    NEWEST_LEGACY,
    UNSUPPORTED_VERSION,
)

_MODERN_ERRORS: Final = frozenset({HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION})
_TRACE_FIELDS: Final = ("traceparent", "tracestate", "baggage")
_LAST_WORDS: Final = 5.0
_FORGETFUL: Final = "the upstream server forgets its sessions at once"


class HttpConnection(Connection):
    transport = "streamable-http"

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        pool: Connections,
        *,
        ids: Iterator[int],
        credentials: Credentials = NO_CREDENTIALS,
        propagate: Propagate | None = None,
    ) -> None:
        """Raises `BackendUnusable` for an address or headers that cannot be meant."""
        super().__init__(name, ids=ids, propagate=propagate)
        self._wire = HttpWire(endpoint, pool, credentials)
        self._sessions = Sessions(self._shaken, dropped=self._dropped)
        self._marks = Marks()
        self._answering = Answering(self, self._wire)
        self._listening = Listening(self, self._wire, self._answering, gone=self._forgotten)

    @property
    def address(self) -> str:
        return str(self._wire.origin)

    @property
    def peer(self) -> tuple[str, int]:
        return self._wire.origin.host, self._wire.origin.port

    async def close(self) -> None:
        await super().close()
        await self._listening.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                await asyncio.gather(*map(self._dropped, self._sessions.taken()))

    async def _introduced(self) -> Introduction:
        """Ask as one asks a modern server; whoever does not understand that is asked the older way."""
        try:
            return discovered(await self._modern("server/discover", {}, None))
        except Unauthorised:
            raise
        except RemoteError as error:
            if error.number in _MODERN_ERRORS:
                raise
        except BackendFailed as error:
            if error.word == "unavailable":
                raise
        return (await self._sessions.of(NOBODY, None)).introduction

    async def _requested(self, method: str, params: Mapping[str, Any], exchange: Exchange | None) -> Json:
        known = self.introduction or await self.connect()
        if self._hearers and not self._listening.has_begun:
            self._listening.begin(self._announcing)
        if known.era == "modern":
            return await self._modern(method, params, exchange)
        return await self._in_session(method, params, exchange)

    async def _notified(self, method: str, params: Mapping[str, Any]) -> None:
        body = encoded({"jsonrpc": "2.0", "method": method, "params": params})
        if self.era == "modern":
            await self._wire.told(body, _modern_headers(method, params))
        else:
            await self._wire.told(body, (await self._sessions.of(NOBODY, None)).headers)

    # --- modern servers ---

    async def _modern(self, method: str, params: Mapping[str, Any], exchange: Exchange | None) -> Json:
        if method != "tools/call":
            return await self._asked(method, params, exchange, {})
        if not self._marks.are_known:
            await self._marks.learn(lambda: self.list("tools"))
        try:
            return await self._asked(method, params, exchange, self._marks.headers(params))
        except RemoteError as error:
            if error.number != HEADER_MISMATCH:
                raise
        self._marks.forget()  # the definition has changed since it was read
        await self._marks.learn(lambda: self.list("tools"))
        return await self._asked(method, params, exchange, self._marks.headers(params))

    async def _asked(
        self, method: str, params: Mapping[str, Any], exchange: Exchange | None, extra: Mapping[str, str]
    ) -> Json:
        id = next(self._ids)
        body = encoded(self._message(id, method, params, exchange, era="modern"))
        headers = {**_modern_headers(method, params), **_trace_headers(params), **extra}
        answer = await self._wire.posted(body, headers, None if exchange is None else exchange.principal)
        return await self._answering.result(answer, id, exchange, None)

    def _listed(self, kind: ListKind, found: Definitions) -> Definitions:
        if kind == "tools":
            found = self._marks.learnt(found, complain=self.complain)
        return super()._listed(kind, found)

    # --- older servers ---

    async def _in_session(self, method: str, params: Mapping[str, Any], exchange: Exchange | None) -> Json:
        key = self._key(exchange)
        for _ in range(2):
            session = await self._sessions.of(key, exchange)
            try:
                return await self._asked_in(session, method, params, exchange)
            except SessionGone:  # what was asked was not even looked at
                self._forgotten(session)
                if key == NOBODY:
                    self._listen_anew()  # nobody speaks on the stream of a session that is gone
        raise BackendFailed("unavailable", _FORGETFUL)

    async def _asked_in(
        self, session: Session, method: str, params: Mapping[str, Any], exchange: Exchange | None
    ) -> Json:
        await self._levelled(session, exchange)
        id = next(self._ids)
        body = encoded(self._message(id, method, params, exchange, era="legacy"))
        if exchange is not None:
            await self._listening.attend(session, exchange)
            session.callers.append(exchange)
        try:
            headers = {**session.headers, **_trace_headers(params)}
            answer = await self._wire.posted(body, headers, None if exchange is None else exchange.principal)
            return await self._answering.result(answer, id, exchange, session)
        except asyncio.CancelledError:
            self._listening.in_the_background(self._taken_back(session, id, exchange))
            raise
        finally:
            if exchange is not None:
                session.callers.remove(exchange)

    async def _levelled(self, session: Session, exchange: Exchange | None) -> None:
        """Older servers know one level of messages per session: the most talkative that anybody asked for."""
        wanted = None if exchange is None else exchange.log_level
        if wanted is None or wanted not in LEVELS or "logging" not in session.introduction.capabilities:
            return
        if session.level is None or LEVELS[wanted] < LEVELS[session.level]:
            session.level = wanted
            with suppress(RemoteError):
                await self._asked_in(session, "logging/setLevel", {"level": wanted}, None)

    async def _taken_back(self, session: Session, id: int, exchange: Exchange | None) -> None:
        told = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}
        with suppress(BackendFailed, SessionGone, TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                await self._wire.told(encoded(told), session.headers, None if exchange is None else exchange.principal)

    def _key(self, exchange: Exchange | None) -> SessionKey:
        if exchange is None:
            return NOBODY
        return SessionKey.of(self._wire.credentials.owner(exchange.principal), exchange.capabilities)

    async def _shaken(self, key: SessionKey, exchange: Exchange | None) -> Session:
        id = next(self._ids)
        principal = None if exchange is None else exchange.principal
        params = {"protocolVersion": NEWEST_LEGACY, "capabilities": key.declared, "clientInfo": client_info()}
        body = encoded({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": params})
        answer = await self._wire.posted(body, {}, principal)
        given = answer.headers.get("mcp-session-id")
        session = Session(given, shaken_hands(await self._answering.result(answer, id, None, None)))
        await self._wire.told(b'{"jsonrpc":"2.0","method":"notifications/initialized"}', session.headers, principal)
        if key == NOBODY and self._subscribed:
            await self._subscribed_again(self._subscribing(session))
        return session

    def _subscribing(self, session: Session) -> Callable[[str], Awaitable[Json]]:
        async def subscribe(uri: str) -> Json:
            try:
                return await self._asked_in(session, "resources/subscribe", {"uri": uri}, None)
            except SessionGone as error:
                raise BackendFailed("unavailable", _FORGETFUL) from error

        return subscribe

    def _forgotten(self, session: Session) -> None:
        """By the server: the next request begins another one."""
        self._sessions.forget(session)
        if session.listener is not None:
            session.listener.cancel()

    async def _dropped(self, session: Session) -> None:
        if session.listener is not None:
            session.listener.cancel()
        if session.id is not None:
            with suppress(BackendFailed):
                await self._wire.ended(session.headers)

    # --- what is announced ---

    async def _announcing(self) -> Announcing | None:
        known = await self.connect()
        if known.era == "legacy":
            session = await self._sessions.of(NOBODY, None)
            return Announcing(await self._wire.opened(session.headers, None), session)
        if not (announces := self._announces(known)):
            return None
        params = {"notifications": announces}
        message = self._message(next(self._ids), "subscriptions/listen", params, None, era="modern")
        headers = _modern_headers("subscriptions/listen", params)
        return Announcing(await self._wire.posted(encoded(message), headers, None))

    def _listen_anew(self) -> None:
        if self.introduction is not None and self._hearers:
            self._listening.begin(self._announcing)


def _modern_headers(method: str, params: Mapping[str, Any]) -> dict[str, str]:
    headers = {"mcp-protocol-version": MODERN, "mcp-method": method}
    named = params.get(NAMED.get(method, ""))
    if isinstance(named, str):
        headers["mcp-name"] = header_value(named)
    return headers


def _trace_headers(params: Mapping[str, Any]) -> dict[str, str]:
    """What `_meta` says of the trace, once more: proxies, and servers that do not know `_meta`, read headers."""
    meta = params.get("_meta")
    return {name: meta[name] for name in _TRACE_FIELDS if name in meta} if meta else {}

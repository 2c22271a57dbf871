"""An MCP server over streamable HTTP.

Modern servers are asked without a session; older ones are given one per kind of caller, because what a client can do,
and who it is, is said once per session over there. A session that is gone is begun again, once.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
from contextlib import aclosing, suppress
from contextvars import Context
from typing import Any, Final

import aiohttp

from gateway.backends.connections import Connections
from gateway.governance.ports import BackendFailed
from gateway.governance.principals import Principal
from gateway.upstreams.asking import answer_to
from gateway.upstreams.auth import NO_CREDENTIALS, Credentials
from gateway.upstreams.connections import Connection, Definitions, Exchange, ListKind, Propagate
from gateway.upstreams.introductions import Introduction, discovered, shaken_hands
from gateway.upstreams.marks import Marks
from gateway.upstreams.messages import Json, RemoteError, answers, client_info, encoded, header_value, read, result_of
from gateway.upstreams.sessions import NOBODY, Session, SessionKey, Sessions
from gateway.upstreams.sse import Event
from gateway.upstreams.wire import STREAM, Endpoint, HttpWire, SessionGone, Unauthorised, let_go
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
_MOST_RESUMED: Final = 100
_LONGEST_RETRY: Final = 10.0
_LONGEST_PAUSE: Final = 60.0
_TRACE_FIELDS: Final = ("traceparent", "tracestate", "baggage")
_LAST_WORDS: Final = 5.0
_OPENED_WITHIN: Final = 2.0
_MOST_ATTENDED: Final = 32
"""Streams of sessions that are held at once: each has a connection, and calls need some, too."""
_MOST_ASKED: Final = 64
"""Requests of a server that are being answered at once on one stream."""


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
        self._behind: set[asyncio.Task[Any]] = set()
        self._listener: asyncio.Task[None] | None = None
        self._attended_now = 0

    @property
    def address(self) -> str:
        return str(self._wire.origin)

    @property
    def peer(self) -> tuple[str, int]:
        return self._wire.origin.host, self._wire.origin.port

    async def close(self) -> None:
        await super().close()
        tasks = [*self._behind, *([self._listener] if self._listener else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
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
        if self._hearers and self._listener is None:
            self._listener = asyncio.create_task(self._listen(known), context=Context())  # nobody's in particular
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
        try:
            return await self._asked(method, params, exchange, await self._marked(params))
        except RemoteError as error:
            if error.number != HEADER_MISMATCH:
                raise
        self._marks.forget()  # the definition has changed since it was read
        return await self._asked(method, params, exchange, await self._marked(params))

    async def _marked(self, params: Mapping[str, Any]) -> dict[str, str]:
        return await self._marks.headers(params, lambda: self.list("tools"))

    async def _asked(
        self, method: str, params: Mapping[str, Any], exchange: Exchange | None, extra: Mapping[str, str]
    ) -> Json:
        id = next(self._ids)
        body = encoded(self._message(id, method, params, exchange, era="modern"))
        headers = {**_modern_headers(method, params), **_trace_headers(params), **extra}
        answer = await self._wire.posted(body, headers, None if exchange is None else exchange.principal)
        return await self._answer(answer, id, exchange, None)

    def _listed(self, kind: ListKind, found: Definitions) -> Definitions:
        if kind == "tools":
            found = self._marks.learnt(found, complain=self._complain)
        return super()._listed(kind, found)

    # --- older servers ---

    async def _in_session(self, method: str, params: Mapping[str, Any], exchange: Exchange | None) -> Json:
        key = self._key(exchange)
        for _ in range(2):
            session = await self._sessions.of(key, exchange)
            try:
                return await self._asked_in(session, method, params, exchange)
            except SessionGone:  # what was asked was not even looked at
                self._sessions.forget(session)
                if session.listener is not None:
                    session.listener.cancel()
        raise BackendFailed("unavailable", "the upstream server forgets its sessions at once")

    async def _asked_in(
        self, session: Session, method: str, params: Mapping[str, Any], exchange: Exchange | None
    ) -> Json:
        await self._levelled(session, exchange)
        id = next(self._ids)
        body = encoded(self._message(id, method, params, exchange, era="legacy"))
        if exchange is not None:
            await self._attended(session, exchange)
            session.callers.append(exchange)
        try:
            headers = {**session.headers, **_trace_headers(params)}
            answer = await self._wire.posted(body, headers, None if exchange is None else exchange.principal)
            return await self._answer(answer, id, exchange, session)
        except asyncio.CancelledError:
            self._in_the_background(self._taken_back(session, id, exchange))
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
        given = answer.headers.get("Mcp-Session-Id")
        session = Session(given, shaken_hands(await self._answer(answer, id, None, None)))
        await self._wire.told(b'{"jsonrpc":"2.0","method":"notifications/initialized"}', session.headers, principal)
        return session

    async def _dropped(self, session: Session) -> None:
        if session.listener is not None:
            session.listener.cancel()
        if session.id is not None:
            with suppress(BackendFailed):
                await self._wire.ended(session.headers)

    # --- answers ---

    async def _answer(
        self, answer: aiohttp.ClientResponse, id: int, exchange: Exchange | None, session: Session | None
    ) -> Json:
        if answer.content_type == STREAM:
            return await self._streamed(answer, id, exchange, session)
        try:
            if answer.content_type != "application/json":
                raise BackendFailed("failed", "the upstream server answered something else than JSON")
            message = await self._wire.message(answer)
        finally:
            let_go(answer)
        for each in message if isinstance(message, list) else (message,):
            if answers(each, id):
                return result_of(each)
        raise BackendFailed("failed", "the upstream server answered another request than the one it was asked")

    async def _streamed(
        self, answer: aiohttp.ClientResponse, id: int, exchange: Exchange | None, session: Session | None
    ) -> Json:
        asking: set[asyncio.Task[None]] = set()
        try:
            async with aclosing(self._events(answer, exchange, session)) as events:
                async for event in events:
                    message = read(event.data)
                    for each in message if isinstance(message, list) else (message,):
                        if answers(each, id):
                            return result_of(each)
                        self._heard(each, exchange, session, asking)
        finally:
            for task in asking:
                task.cancel()
        raise BackendFailed("unavailable", "the answer ended early")

    async def _events(
        self, answer: aiohttp.ClientResponse, exchange: Exchange | None, session: Session | None
    ) -> AsyncGenerator[Event, None]:
        """The events of a stream that say something, taken up again where an older server lets go of it."""
        last: str | None = None
        retry = 1.0
        for _ in range(_MOST_RESUMED):
            try:
                async with aclosing(self._wire.events(answer)) as events:
                    async for event in events:
                        last = event.id or last
                        retry = retry if event.retry is None else min(event.retry / 1000, _LONGEST_RETRY)
                        if event.data.strip():
                            yield event
            except BackendFailed as error:
                if error.word != "unavailable" or last is None or session is None:
                    raise
            finally:
                let_go(answer)
            if last is None or session is None:
                return
            await asyncio.sleep(retry)
            answer = await self._taken_up(session, last, exchange)

    async def _taken_up(self, session: Session, last: str, exchange: Exchange | None) -> aiohttp.ClientResponse:
        principal = None if exchange is None else exchange.principal
        answer = await self._wire.opened({**session.headers, "last-event-id": last}, principal)
        if answer.status != 200 or answer.content_type != STREAM:
            answer.close()
            raise BackendFailed("unavailable", "the answer ended early")
        return answer

    def _heard(
        self, message: Any, exchange: Exchange | None, session: Session | None, asking: set["asyncio.Task[None]"]
    ) -> None:
        """Whatever is said before the response. Modern servers ask nothing here: they ask in a result."""
        if not isinstance(message, dict) or "method" not in message:
            self._complain("it answered something that nobody asked")
        elif "id" not in message:
            self._passed_on(message.get("method"), message.get("params"), exchange)
        elif session is not None and len(asking) >= _MOST_ASKED:
            self._complain("it asks more than can be answered")
        elif session is not None:
            task = asyncio.create_task(self._replied(message, exchange, session))
            asking.add(task)
            task.add_done_callback(asking.discard)

    async def _replied(self, message: Json, exchange: Exchange | None, session: Session) -> None:
        principal = None if exchange is None else exchange.principal
        with suppress(BackendFailed, SessionGone):
            await self._wire.told(encoded(await answer_to(message, exchange, self._slots)), session.headers, principal)

    # --- what a server says in a session, outside of its answers ---

    async def _attended(self, session: Session, exchange: Exchange) -> None:
        """Have a stream for what an older server asks there. It is asked for where somebody can answer."""
        if session.is_deaf or session.id is None or not exchange.capabilities:
            return
        if (session.listener is None or session.listener.done()) and self._attended_now < _MOST_ATTENDED:
            opened = asyncio.Event()
            attending = asyncio.create_task(self._attending(session, exchange.principal, opened), context=Context())
            session.listener = self._kept(attending)
            with suppress(TimeoutError):
                async with asyncio.timeout(_OPENED_WITHIN):
                    await opened.wait()

    async def _attending(self, session: Session, principal: Principal | None, opened: asyncio.Event) -> None:
        self._attended_now += 1
        try:
            answer = await self._wire.opened(session.headers, principal)
            opened.set()
            try:
                if answer.status != 200 or answer.content_type != STREAM:
                    session.is_deaf = True
                    return
                async with aclosing(self._wire.events(answer)) as events:
                    async for event in events:
                        message = read(event.data) if event.data.strip() else []
                        for each in message if isinstance(message, list) else (message,):
                            self._heard(each, session.only_caller, session, self._behind)
            finally:
                answer.close()
        except BackendFailed as error:
            if error.word != "unavailable":  # that a stream ends is no fault: the next call asks for another one
                self._complain("what it says outside of its answers cannot be heard", error.message)
        finally:
            self._attended_now -= 1
            opened.set()

    # --- what a server announces to everybody ---

    async def _listen(self, known: Introduction) -> None:
        """A stream of announcements, for as long as the server keeps one up. That it has none is no fault."""
        pause = 1.0
        while True:
            try:
                if not await self._listened(known):
                    return
                pause = 1.0
            except (BackendFailed, SessionGone):
                pause = min(pause * 2, _LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _listened(self, known: Introduction) -> bool:
        """One stream to its end; whether another one is worth asking for."""
        session: Session | None = None
        if known.era == "legacy":
            session = await self._sessions.of(NOBODY, None)
            answer = await self._wire.opened(session.headers, None)
        elif announces := self._announces(known):
            params = {"notifications": announces}
            message = self._message(next(self._ids), "subscriptions/listen", params, None, era="modern")
            answer = await self._wire.posted(encoded(message), _modern_headers("subscriptions/listen", params), None)
        else:
            return False
        try:
            if answer.status == 404 and session is not None and session.id is not None:
                self._sessions.forget(session)
                return True
            if answer.status != 200 or answer.content_type != STREAM:
                return answer.status not in (200, 404, 405, 406)
            async with aclosing(self._wire.events(answer)) as events:
                async for event in events:
                    told = read(event.data) if event.data.strip() else None
                    if isinstance(told, dict) and "method" in told:
                        self._heard(told, None, session, self._behind)
        finally:
            answer.close()
        return True

    def _listen_anew(self) -> None:
        if self.introduction is None or not self._hearers:
            return
        if self._listener is not None:
            self._behind.add(self._listener)
            self._listener.add_done_callback(self._behind.discard)
            self._listener.cancel()
        self._listener = asyncio.create_task(self._listen(self.introduction))

    def _in_the_background(self, work: Coroutine[Any, Any, None]) -> None:
        self._kept(asyncio.create_task(work))

    def _kept(self, task: "asyncio.Task[None]") -> "asyncio.Task[None]":
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)
        return task


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

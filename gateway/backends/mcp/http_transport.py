"""MCP over streamable HTTP.

Modern servers need no session. Legacy servers get one session per kind of caller, because the client's identity and
capabilities are fixed per session. A session that the server no longer knows is opened again, once. `Mcp-Param-*`
headers of requests are derived from the server's definitions and the arguments.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from gateway.backends.mcp.connection import (
    Definitions,
    ListKind,
    ServerRequestHandler,
    UpstreamConnection,
)
from gateway.backends.mcp.credentials import NO_CREDENTIALS, UpstreamCredentials
from gateway.backends.mcp.http_client import (
    ANONYMOUS_KEY,
    SessionKey,
    UnknownSession,
    UpstreamEndpoint,
    UpstreamHttpClient,
    UpstreamSession,
    UpstreamSessions,
    UpstreamUnauthorized,
)
from gateway.backends.mcp.http_streams import NotificationReader, NotificationStream, ResponseReader
from gateway.backends.mcp.rpc_responses import RemoteError, ServerInfo, client_info, parse_discovery, parse_initialize
from gateway.http_client import HttpConnections
from gateway.mcp import (
    HEADER_MISMATCH,
    LOG_LEVELS,
    MISSING_CAPABILITY,
    NAMED_METHODS,
    NEWEST_SESSION_VERSION,
    STATELESS_VERSION,
    UNSUPPORTED_VERSION,
    HeaderArgument,
    Json,
    encode_header_value,
    encode_message,
    find_header_arguments,
    get_value,
    has_header_arguments,
    render_header_value,
)
from gateway.model import BackendError


class ParamHeaders:
    """The arguments of tools that have a header, read from each list of tools."""

    def __init__(self) -> None:
        self._arguments: dict[str, tuple[HeaderArgument, ...]] | None = None
        self._loading = asyncio.Lock()

    def read_tools(self, tools: list[Json], *, log_warning: Callable[[str, str], None]) -> list[Json]:
        """Return the usable tools: those with invalid header marks are dropped."""
        usable: list[Json] = []
        known: dict[str, tuple[HeaderArgument, ...]] = {}
        for tool in tools:
            schema, name = tool.get("inputSchema"), str(tool.get("name"))
            arguments = find_header_arguments(schema)
            if not arguments and has_header_arguments(schema):
                log_warning("a tool has an invalid x-mcp-header and is left out", name)
                continue
            usable.append(tool)
            if arguments:
                known[name] = arguments
        self._arguments = known
        return usable

    def forget(self) -> None:
        self._arguments = None

    @property
    def is_loaded(self) -> bool:
        return self._arguments is not None

    async def load(self, relist: Callable[[], Awaitable[Any]]) -> None:
        """Read the marks once with `relist`, which lists the server's tools and thereby calls `read_tools`."""
        async with self._loading:
            if self._arguments is None:
                try:
                    await relist()
                except BackendError:  # a server without a list of tools has no header arguments
                    self._arguments = {}

    def headers(self, params: Mapping[str, Any]) -> dict[str, str]:
        """Return the headers of one call."""
        arguments = (self._arguments or {}).get(str(params.get("name")), ())
        if not arguments:
            return {}
        texts = {each.header: render_header_value(get_value(params.get("arguments"), each.path)) for each in arguments}
        return {name: encode_header_value(text) for name, text in texts.items() if text is not None}


_MODERN_ERRORS: Final = frozenset({HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION})
_TRACE_FIELDS: Final = ("traceparent", "tracestate", "baggage")
_CLOSE_SECONDS: Final = 5.0
_SESSION_LOST: Final = "the upstream server ends its sessions at once"


class StreamableHttpConnection(UpstreamConnection):
    transport = "streamable-http"

    def __init__(
        self,
        name: str,
        endpoint: UpstreamEndpoint,
        pool: HttpConnections,
        *,
        ids: Iterator[int],
        credentials: UpstreamCredentials = NO_CREDENTIALS,
    ) -> None:
        """Raise `BackendUnusable` for an invalid address or header."""
        super().__init__(name, ids=ids)
        self._http = UpstreamHttpClient(endpoint, pool, credentials)
        self._sessions = UpstreamSessions(self._open_session, end_session=self._end_session)
        self._param_headers = ParamHeaders()
        self._responses = ResponseReader(self, self._http)
        self._notifications = NotificationReader(self, self._http, self._responses, on_lost=self._forget_session)

    @property
    def address(self) -> str:
        return str(self._http.origin)

    @property
    def peer(self) -> tuple[str, int]:
        return self._http.origin.host, self._http.origin.port

    async def close(self) -> None:
        await super().close()
        await self._notifications.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.gather(*map(self._end_session, self._sessions.take_all()))

    async def _fetch_info(self) -> ServerInfo:
        """Connect as to a modern server; fall back to a legacy session if the server does not understand it."""
        try:
            return parse_discovery(await self._send_modern("server/discover", {}, None))
        except UpstreamUnauthorized:
            raise
        except RemoteError as error:
            if error.number in _MODERN_ERRORS:
                raise
        except BackendError as error:
            if error.word == "unavailable":
                raise
        return (await self._sessions.get(ANONYMOUS_KEY, None)).introduction

    async def _request(self, method: str, params: Mapping[str, Any], exchange: ServerRequestHandler | None) -> Json:
        known = self.introduction or await self.connect()
        if self._listeners and not self._notifications.has_begun:
            self._notifications.begin(self._open_notifications)
        if known.era == "modern":
            return await self._send_modern(method, params, exchange)
        return await self._use_session(method, params, exchange)

    async def _send_notification(self, method: str, params: Mapping[str, Any]) -> None:
        body = encode_message({"jsonrpc": "2.0", "method": method, "params": params})
        if self.era == "modern":
            await self._http.send_notification(body, _modern_headers(method, params))
        else:
            await self._http.send_notification(body, (await self._sessions.get(ANONYMOUS_KEY, None)).headers)

    # --- modern servers ---

    async def _send_modern(self, method: str, params: Mapping[str, Any], exchange: ServerRequestHandler | None) -> Json:
        if method != "tools/call":
            return await self._post(method, params, exchange, {})
        if not self._param_headers.is_loaded:
            await self._param_headers.load(lambda: self.list("tools"))
        try:
            return await self._post(method, params, exchange, self._param_headers.headers(params))
        except RemoteError as error:
            if error.number != HEADER_MISMATCH:
                raise
        self._param_headers.forget()  # the definition has changed since it was listed
        await self._param_headers.load(lambda: self.list("tools"))
        return await self._post(method, params, exchange, self._param_headers.headers(params))

    async def _post(
        self, method: str, params: Mapping[str, Any], exchange: ServerRequestHandler | None, extra: Mapping[str, str]
    ) -> Json:
        id = next(self._ids)
        body = encode_message(self._message(id, method, params, exchange, era="modern"))
        headers = {**_modern_headers(method, params), **_trace_headers(params), **extra}
        answer = await self._http.post(body, headers, None if exchange is None else exchange.principal)
        return await self._responses.read_result(answer, id, exchange, None)

    def _process_list(self, kind: ListKind, found: Definitions) -> Definitions:
        if kind == "tools":
            found = self._param_headers.read_tools(found, log_warning=self.log_warning)
        return super()._process_list(kind, found)

    # --- legacy servers ---

    async def _use_session(self, method: str, params: Mapping[str, Any], exchange: ServerRequestHandler | None) -> Json:
        key = self._session_key(exchange)
        for _ in range(2):
            session = await self._sessions.get(key, exchange)
            try:
                return await self._post_in_session(session, method, params, exchange)
            except UnknownSession:  # the server has not processed the request
                self._forget_session(session)
                if key == ANONYMOUS_KEY:
                    self._renew_listening()  # the stream of the lost session is dead
        raise BackendError("unavailable", _SESSION_LOST)

    async def _post_in_session(
        self, session: UpstreamSession, method: str, params: Mapping[str, Any], exchange: ServerRequestHandler | None
    ) -> Json:
        await self._set_log_level(session, exchange)
        id = next(self._ids)
        body = encode_message(self._message(id, method, params, exchange, era="legacy"))
        if exchange is not None:
            await self._notifications.open_session_stream(session, exchange)
            session.callers.append(exchange)
        try:
            headers = {**session.headers, **_trace_headers(params)}
            answer = await self._http.post(body, headers, None if exchange is None else exchange.principal)
            return await self._responses.read_result(answer, id, exchange, session)
        except asyncio.CancelledError:
            self._notifications.start_in_background(self._cancel_request(session, id, exchange))
            raise
        finally:
            if exchange is not None:
                session.callers.remove(exchange)

    async def _set_log_level(self, session: UpstreamSession, exchange: ServerRequestHandler | None) -> None:
        """Set the log level of the session, which has only one: the most verbose that any caller requested."""
        level = None if exchange is None else exchange.log_level
        if level is None or level not in LOG_LEVELS or "logging" not in session.introduction.capabilities:
            return
        if session.level is None or LOG_LEVELS[level] < LOG_LEVELS[session.level]:
            session.level = level
            with suppress(RemoteError):
                await self._post_in_session(session, "logging/setLevel", {"level": level}, None)

    async def _cancel_request(self, session: UpstreamSession, id: int, exchange: ServerRequestHandler | None) -> None:
        cancellation = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}
        with suppress(BackendError, UnknownSession, TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._http.send_notification(
                    encode_message(cancellation), session.headers, None if exchange is None else exchange.principal
                )

    def _session_key(self, exchange: ServerRequestHandler | None) -> SessionKey:
        if exchange is None:
            return ANONYMOUS_KEY
        return SessionKey.of(self._http.credentials.owner(exchange.principal), exchange.capabilities)

    async def _open_session(self, key: SessionKey, exchange: ServerRequestHandler | None) -> UpstreamSession:
        id = next(self._ids)
        principal = None if exchange is None else exchange.principal
        params = {"protocolVersion": NEWEST_SESSION_VERSION, "capabilities": key.declared, "clientInfo": client_info()}
        body = encode_message({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": params})
        answer = await self._http.post(body, {}, principal)
        header = answer.headers.get("mcp-session-id")
        session = UpstreamSession(header, parse_initialize(await self._responses.read_result(answer, id, None, None)))
        await self._http.send_notification(
            b'{"jsonrpc":"2.0","method":"notifications/initialized"}', session.headers, principal
        )
        if key == ANONYMOUS_KEY and self._subscriptions:
            await self._resubscribe(self._subscribe_with(session))
        return session

    def _subscribe_with(self, session: UpstreamSession) -> Callable[[str], Awaitable[Json]]:
        async def subscribe(uri: str) -> Json:
            try:
                return await self._post_in_session(session, "resources/subscribe", {"uri": uri}, None)
            except UnknownSession as error:
                raise BackendError("unavailable", _SESSION_LOST) from error

        return subscribe

    def _forget_session(self, session: UpstreamSession) -> None:
        """Drop a session that the server no longer knows; the next request opens another one."""
        self._sessions.forget(session)
        if session.listener is not None:
            session.listener.cancel()

    async def _end_session(self, session: UpstreamSession) -> None:
        if session.listener is not None:
            session.listener.cancel()
        if session.id is not None:
            with suppress(BackendError):
                await self._http.end_session(session.headers)

    # --- notifications ---

    async def _open_notifications(self) -> NotificationStream | None:
        known = await self.connect()
        if known.era == "legacy":
            session = await self._sessions.get(ANONYMOUS_KEY, None)
            return NotificationStream(await self._http.open_stream(session.headers, None), session)
        if not (announces := self._notification_filter(known)):
            return None
        params = {"notifications": announces}
        message = self._message(next(self._ids), "subscriptions/listen", params, None, era="modern")
        headers = _modern_headers("subscriptions/listen", params)
        return NotificationStream(await self._http.post(encode_message(message), headers, None))

    def _renew_listening(self) -> None:
        if self.introduction is not None and self._listeners:
            self._notifications.begin(self._open_notifications)


def _modern_headers(method: str, params: Mapping[str, Any]) -> dict[str, str]:
    headers = {"mcp-protocol-version": STATELESS_VERSION, "mcp-method": method}
    name = params.get(NAMED_METHODS.get(method, ""))
    if isinstance(name, str):
        headers["mcp-name"] = encode_header_value(name)
    return headers


def _trace_headers(params: Mapping[str, Any]) -> dict[str, str]:
    """Return the trace context in `_meta` as headers: proxies and some servers read only headers."""
    meta = params.get("_meta")
    return {name: meta[name] for name in _TRACE_FIELDS if name in meta} if meta else {}

"""A connection to one upstream MCP server over any transport: requests, notifications, lists and health.

It detects the server's era once. Request ids come from one counter per process, so responses cannot be confused. It
does not decide whether definitions or results are trusted. The number of concurrent calls of a server is limited;
further calls wait in a bounded queue. A call that waits for its caller's answer releases its slot meanwhile.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Literal, Protocol

import orjson

from gateway.backends.mcp.rpc_responses import RemoteError, ServerInfo, client_info
from gateway.backends.result_conversion import excerpt
from gateway.mcp import (
    LOG_LEVELS,
    META_CAPABILITIES,
    META_CLIENT_INFO,
    META_LOG_LEVEL,
    META_VERSION,
    STATELESS_VERSION,
    Era,
    Json,
)
from gateway.model import CURRENT_REFRESH, BackendError, OutboundRequest, Principal

DEFAULT_CONCURRENCY: Final = 32
MAX_QUEUE: Final = 64


class ConcurrencyLimit:
    def __init__(self, at_once: int = DEFAULT_CONCURRENCY, in_line: int = MAX_QUEUE) -> None:
        self._free = at_once
        self._max_queue = in_line
        self._queue: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        """Raise `BackendError` if the queue is full."""
        if self._free > 0:
            self._free -= 1
            return
        if len(self._queue) >= self._max_queue:
            raise BackendError("unavailable", "too many calls wait for the upstream server")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()  # it got the slot and was cancelled
            else:
                self._queue.remove(waiter)
            raise

    def release(self) -> None:
        while self._free >= 0 and self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1

    def reacquire(self) -> None:
        """Take back a released slot without waiting, even if this exceeds the limit by one."""
        self._free -= 1


ListKind = Literal["tools", "prompts", "resources", "resourceTemplates"]
RecordRequest = Callable[["UpstreamConnection", str, Mapping[str, Any], float, BackendError | Json], None]
"""Called after each request with its method, parameters, duration in seconds, and its result or error."""
Definitions = list[Json]
NotificationListener = Callable[[str, Mapping[str, Any]], None]

LIST_METHODS: Final[Mapping[ListKind, str]] = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
    "resourceTemplates": "resources/templates/list",
}
MAX_DEFINITIONS: Final = 10_000
MAX_PAGES: Final = 1_000
LIST_BYTES: Final = 32 << 20
PROBE_SECONDS: Final = 10.0
REQUEST_SECONDS: Final = 60.0
MAX_WARNINGS: Final = 20
"""Maximum number of warnings logged about one server per minute."""
_WARNING_PERIOD: Final = 60.0

_log: Final = logging.getLogger(__name__)
_OWN_REQUEST: Final[ContextVar[tuple[str, OutboundRequest] | None]] = ContextVar("own_request", default=None)
"""Method and trace of the request of the gateway itself that is being sent. Tasks that it starts send others."""


class ServerRequestHandler(Protocol):
    """The caller of a request, whom the server can reach while the request runs."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the server may ask of the caller."""
        ...

    @property
    def wants_progress(self) -> bool: ...

    @property
    def log_level(self) -> str | None: ...

    @property
    def principal(self) -> Principal | None: ...

    def handle_notification(self, method: str, params: Mapping[str, Any]) -> None: ...

    async def handle_request(self, method: str, params: Mapping[str, Any]) -> Any:
        """Return the answer to a request of the server. Raise `ProtocolError` if it cannot be answered."""
        ...


@dataclass(slots=True)
class ConnectionHealth:
    """The health of a server. `failures` counts failures since the last success."""

    state: Literal["not asked", "up", "down"] = "not asked"
    failures: int = 0
    last_error: str | None = None
    latency: float | None = None
    """Duration of the last probe in seconds."""
    tools: int | None = None

    def record_success(self) -> None:
        if self.state != "up":
            self.state, self.failures = "up", 0

    def record_failure(self, why: str, *, enough: int = 1) -> None:
        self.failures += 1
        self.last_error = why
        if self.failures >= enough or self.state == "not asked":
            self.state = "down"


def end_with_error(hop: OutboundRequest, error: BaseException) -> None:
    """End a traced request that failed or was cancelled."""
    match error:
        case RemoteError():
            hop.end(code=error.number)
        case BackendError():
            hop.end(error=error.word)
        case _:
            hop.end(error="cancelled" if isinstance(error, asyncio.CancelledError) else "failed")


class UpstreamConnection(ABC):
    """A connection to an upstream server. Created without a loop; the first request or `connect` detects the era."""

    transport: str = ""

    def __init__(self, name: str, *, ids: Iterator[int]) -> None:
        self.name = name
        self.health = ConnectionHealth()
        self.introduction: ServerInfo | None = None
        self.metered: RecordRequest | None = None
        self._ids = ids
        self.slots = ConcurrencyLimit()
        """Limit on concurrent calls."""
        self._listeners: list[NotificationListener] = []
        self._subscriptions: set[str] = set()
        self._connecting = asyncio.Lock()
        self._closed = False
        self._warned_at = 0.0
        self._warnings = 0

    @property
    def era(self) -> Era | None:
        return None if self.introduction is None else self.introduction.era

    @property
    def capabilities(self) -> Mapping[str, Any]:
        return {} if self.introduction is None else self.introduction.capabilities

    @property
    def server_info(self) -> Mapping[str, Any]:
        return {} if self.introduction is None else self.introduction.server_info

    def on_notification(self, hearer: NotificationListener) -> Callable[[], None]:
        """Call `hearer` in the loop for notifications outside of calls (changed lists). Return a function to stop."""
        self._listeners.append(hearer)

        def end() -> None:
            if hearer in self._listeners:
                self._listeners.remove(hearer)

        return end

    async def subscribe(self, uri: str) -> None:
        """Subscribe to changes of a resource. Raise `BackendError`."""
        known = await self.connect()
        self._subscriptions.add(uri)
        if known.era == "legacy":
            await self.request("resources/subscribe", {"uri": uri})
        else:
            self._renew_listening()

    async def unsubscribe(self, uri: str) -> None:
        self._subscriptions.discard(uri)
        if self.era == "legacy":
            await self.request("resources/unsubscribe", {"uri": uri})
        elif self.era == "modern":
            self._renew_listening()

    async def connect(self) -> ServerInfo:
        """Return the server's info, requested once. Raise `BackendError`."""
        if (known := self.introduction) is not None:
            return known
        async with self._connecting:
            if self.introduction is None:
                self._check_open()
                async with _time_limit(PROBE_SECONDS):
                    self.introduction = await self._fetch_info()
            return self.introduction

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        exchange: ServerRequestHandler | None = None,
        timeout: float | None = REQUEST_SECONDS,
    ) -> Json:
        """Send a request and return its result. Raise `RemoteError` for an error of the server, else `BackendError`."""
        started_at = monotonic()
        try:
            self._check_open()
            if exchange is not None:  # requests of the gateway itself do not wait
                await self.slots.acquire()
            try:
                send = self._request if exchange is not None or CURRENT_REFRESH.get() is None else self._trace_request
                if timeout is None:
                    result = await send(method, params or {}, exchange)
                else:
                    async with _time_limit(timeout):
                        result = await send(method, params or {}, exchange)
            finally:
                if exchange is not None:
                    self.slots.release()
        except BackendError as error:
            if error.word == "unavailable":
                self.health.record_failure(error.message, enough=3)
            if self.metered is not None:
                self.metered(self, method, params or {}, monotonic() - started_at, error)
            raise
        self.health.record_success()
        if self.metered is not None:
            self.metered(self, method, params or {}, monotonic() - started_at, result)
        return result

    async def _trace_request(
        self, method: str, params: Mapping[str, Any], exchange: ServerRequestHandler | None
    ) -> Json:
        """Send a request of the gateway itself, traced as a part of the current round."""
        tracer, (host, port) = CURRENT_REFRESH.get(), self.peer or (None, None)
        hop = None if tracer is None else tracer.mcp(method, host=host, port=port)
        if hop is None:
            return await self._request(method, params, exchange)
        token = _OWN_REQUEST.set((method, hop))
        try:
            result = await self._request(
                method, {**params, "_meta": {**params.get("_meta", {}), **hop.fields}}, exchange
            )
        except BaseException as error:
            end_with_error(hop, error)
            raise
        finally:
            _OWN_REQUEST.reset(token)
        hop.end()
        return result

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        self._check_open()
        async with _time_limit(PROBE_SECONDS):
            await self.connect()
            await self._send_notification(method, params or {})

    async def list(self, kind: ListKind) -> Definitions:
        """Return all definitions of a kind, from all pages, as received. Raise `BackendError` for an endless list."""
        found: Definitions = []
        size, cursor = 0, None
        cursors: set[str] = set()
        for _ in range(MAX_PAGES):
            result = await self.request(LIST_METHODS[kind], {} if cursor is None else {"cursor": cursor})
            page = result.get(kind)
            if not isinstance(page, list) or not all(isinstance(each, dict) for each in page):
                raise BackendError("failed", f"the upstream server's list of {kind} is not a list of definitions")
            found += page
            size += _size(page, kind)
            if len(found) > MAX_DEFINITIONS or size > LIST_BYTES:
                raise BackendError("failed", f"the upstream server's list of {kind} is too long")
            cursor = result.get("nextCursor")
            if cursor is None:
                return self._process_list(kind, found)
            if not isinstance(cursor, str) or cursor in cursors:
                break
            cursors.add(cursor)
        raise BackendError("failed", f"the upstream server's list of {kind} has no end")

    async def probe(self) -> float:
        """Probe the server and return the duration in seconds. Raise `BackendError`."""
        started_at = monotonic()
        known = await self.connect()
        with suppress(RemoteError):  # a server that answers with an error is up
            await self.request("server/discover" if known.era == "modern" else "ping", timeout=PROBE_SECONDS)
        return monotonic() - started_at

    async def close(self) -> None:
        self._closed = True

    # --- implemented by transports ---

    @abstractmethod
    async def _fetch_info(self) -> ServerInfo: ...

    @property
    def peer(self) -> tuple[str, int] | None:
        """Host and port of a server on a network."""
        return None

    @abstractmethod
    async def _request(self, method: str, params: Mapping[str, Any], exchange: ServerRequestHandler | None) -> Json: ...

    @abstractmethod
    async def _send_notification(self, method: str, params: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def _renew_listening(self) -> None:
        """Send the current subscriptions to a modern server."""

    # --- shared by transports ---

    def _notification_filter(self, known: ServerInfo) -> dict[str, Any]:
        """Return the notifications to request from a modern server."""
        kinds: dict[str, Any] = dict(known.notification_kinds)
        return {**kinds, "resourceSubscriptions": sorted(self._subscriptions)} if self._subscriptions else kinds

    async def _resubscribe(self, subscribe: Callable[[str], Awaitable[Any]]) -> None:
        """Subscribe again after a restart of the server, and report each resource as changed meanwhile."""
        for uri in sorted(self._subscriptions):
            try:
                await subscribe(uri)
            except BackendError as error:
                self.log_warning("changes of a resource are no longer announced", error.message)
            else:
                self._notify_listeners("notifications/resources/updated", {"uri": uri})

    def _process_list(self, kind: ListKind, found: Definitions) -> Definitions:
        if kind == "tools":
            self.health.tools = len(found)
        return found

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError("unavailable", "the gateway is closing this server's connection", help="call it again")

    def _meta(
        self, params: Mapping[str, Any], id: int, exchange: ServerRequestHandler | None, *, era: Era
    ) -> dict[str, Any]:
        """Return the `_meta` of a request: given fields, client info, capabilities, progress token."""
        meta = dict(params.get("_meta") or {})
        if era == "modern":
            meta[META_VERSION] = STATELESS_VERSION
            meta[META_CLIENT_INFO] = client_info()
            meta[META_CAPABILITIES] = {} if exchange is None else dict(exchange.capabilities)
            if exchange is not None and exchange.log_level in LOG_LEVELS:
                meta[META_LOG_LEVEL] = exchange.log_level
        if exchange is not None and exchange.wants_progress:
            meta["progressToken"] = id
        return meta

    def _message(
        self, id: int, method: str, params: Mapping[str, Any], exchange: ServerRequestHandler | None, *, era: Era
    ) -> dict[str, Any]:
        hop: OutboundRequest | None = getattr(exchange, "hop", None)  # of a traced call
        if exchange is None and (own := _OWN_REQUEST.get()) is not None and own[0] == method:
            hop = own[1]
        if hop is not None:
            hop.identify(id, None if self.introduction is None else self.introduction.version)
        meta = self._meta(params, id, exchange, era=era)
        full_params = {**params, "_meta": meta} if meta else params
        return {"jsonrpc": "2.0", "id": id, "method": method, "params": full_params}

    def _notify_listeners(self, method: Any, params: Any) -> None:
        if not isinstance(method, str) or not isinstance(params, dict | None):
            return
        for hearer in self._listeners:
            try:
                hearer(method, params or {})
            except Exception:
                _log.exception("upstream %s: a notification could not be handled", self.name)

    def dispatch_message(self, method: Any, params: Any, exchange: ServerRequestHandler | None) -> None:
        """Pass progress and log messages to the caller of the request, all others to the listeners."""
        if method not in ("notifications/progress", "notifications/message"):
            self._notify_listeners(method, params)
        elif exchange is not None and isinstance(params, dict):
            exchange.handle_notification(method, params)

    def log_warning(self, what: str, about: str = "") -> None:
        """Log a warning in one short line, rate-limited, because the text may be the server's."""
        if monotonic() - self._warned_at > _WARNING_PERIOD:
            self._warned_at, self._warnings = monotonic(), 0
        self._warnings += 1
        if self._warnings == MAX_WARNINGS:
            _log.warning("upstream %s: further warnings are not logged for a while", self.name)
        if self._warnings >= MAX_WARNINGS:
            return
        _log.warning("upstream %s: %s%s", self.name, what, f": {excerpt(about, limit=200)}" if about else "")


def _size(page: Definitions, kind: ListKind) -> int:
    try:
        return len(orjson.dumps(page))
    except (TypeError, RecursionError) as error:
        raise BackendError("failed", f"the upstream server's list of {kind} is nested too deeply") from error


class _time_limit:  # noqa: N801 - reads as a statement
    """Raises `BackendError` if the block takes longer than `seconds`."""

    __slots__ = ("_scope", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._scope = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError as late:
            message = f"the upstream server did not answer within {self._seconds:g} s"
            raise BackendError("unavailable", message) from late

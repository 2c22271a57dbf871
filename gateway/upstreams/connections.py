"""A connection to one upstream MCP server, whatever carries it: requests, notifications, lists, and how it stands.

It speaks whichever era the server speaks, found out once. Ids are of one counter for the whole process, so that no
answer can be taken for another one's. Nothing here decides what a definition or a result is worth.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Literal, Protocol

import orjson

from gateway.backends.refusals import excerpt
from gateway.governance.ports import BackendFailed
from gateway.governance.principals import Principal
from gateway.upstreams.introductions import Introduction
from gateway.upstreams.messages import META_CLIENT_INFO, Era, Json, RemoteError, client_info
from gateway.upstreams.slots import Slots
from gateway.web.mcp.protocol import LEVELS, META_CAPABILITIES, META_LOG_LEVEL, META_VERSION, MODERN

ListKind = Literal["tools", "prompts", "resources", "resourceTemplates"]
Propagate = Callable[[dict[str, Any]], None]
"""Adds the context of the current trace to the `_meta` of a request."""
Metered = Callable[["Connection", str, Mapping[str, Any], float, BackendFailed | Json], None]
"""Told of every request: its method and parameters, how many seconds it took, and its result or what went wrong."""
Definitions = list[Json]
Hearer = Callable[[str, Mapping[str, Any]], None]

METHODS: Final[Mapping[ListKind, str]] = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
    "resourceTemplates": "resources/templates/list",
}
MOST_LISTED: Final = 10_000
MOST_PAGES: Final = 1_000
LIST_BYTES: Final = 32 << 20
PROBE_SECONDS: Final = 10.0
REQUEST_SECONDS: Final = 60.0
MOST_COMPLAINTS: Final = 20
"""Lines about one server on the log in a minute."""
_QUIET_AFTER: Final = 60.0

_log: Final = logging.getLogger(__name__)


class Exchange(Protocol):
    """Whoever a request is made for, as a server may reach them while it runs."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What a server may ask of them."""
        ...

    @property
    def wants_progress(self) -> bool: ...

    @property
    def log_level(self) -> str | None: ...

    @property
    def principal(self) -> Principal | None: ...

    def notified(self, method: str, params: Mapping[str, Any]) -> None: ...

    async def asked(self, method: str, params: Mapping[str, Any]) -> Any:
        """The answer to a request of the server. Raises `ProtocolError` for what cannot be answered."""
        ...


@dataclass(slots=True)
class Standing:
    """How a server is doing. `failures` counts since it last answered."""

    state: Literal["not asked", "up", "down"] = "not asked"
    failures: int = 0
    last_error: str | None = None
    latency: float | None = None
    """Seconds that its last probe took."""
    tools: int | None = None

    def answered(self) -> None:
        if self.state != "up":
            self.state, self.failures = "up", 0

    def failed(self, why: str, *, enough: int = 1) -> None:
        self.failures += 1
        self.last_error = why
        if self.failures >= enough or self.state == "not asked":
            self.state = "down"


class Connection(ABC):
    """One upstream server. Made without a loop; the first request, or `connect`, finds out how the server talks."""

    transport: str = ""

    def __init__(self, name: str, *, ids: Iterator[int], propagate: Propagate | None = None) -> None:
        self.name = name
        self.standing = Standing()
        self.introduction: Introduction | None = None
        self.propagate = propagate
        self.metered: Metered | None = None
        self._ids = ids
        self.slots = Slots()
        """How many calls it works on at once."""
        self._hearers: list[Hearer] = []
        self._subscribed: set[str] = set()
        self._connecting = asyncio.Lock()
        self._closed = False
        self._complained = 0.0
        self._complaints = 0

    @property
    def era(self) -> Era | None:
        return None if self.introduction is None else self.introduction.era

    @property
    def capabilities(self) -> Mapping[str, Any]:
        return {} if self.introduction is None else self.introduction.capabilities

    @property
    def server_info(self) -> Mapping[str, Any]:
        return {} if self.introduction is None else self.introduction.server_info

    def on_notification(self, hearer: Hearer) -> Callable[[], None]:
        """`hearer` is told, in the loop, of what the server announces to nobody in particular: lists that changed.

        What is returned ends that.
        """
        self._hearers.append(hearer)

        def end() -> None:
            if hearer in self._hearers:
                self._hearers.remove(hearer)

        return end

    async def subscribe(self, uri: str) -> None:
        """Have changes of a resource announced to whoever listens. Raises `BackendFailed`."""
        known = await self.connect()
        self._subscribed.add(uri)
        if known.era == "legacy":
            await self.request("resources/subscribe", {"uri": uri})
        else:
            self._listen_anew()

    async def unsubscribe(self, uri: str) -> None:
        self._subscribed.discard(uri)
        if self.era == "legacy":
            await self.request("resources/unsubscribe", {"uri": uri})
        elif self.era == "modern":
            self._listen_anew()

    async def connect(self) -> Introduction:
        """Who the server is and how it talks, asked once. Raises `BackendFailed`."""
        if (known := self.introduction) is not None:
            return known
        async with self._connecting:
            if self.introduction is None:
                self._refuse_closed()
                async with _within(PROBE_SECONDS):
                    self.introduction = await self._introduced()
            return self.introduction

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        exchange: Exchange | None = None,
        timeout: float | None = REQUEST_SECONDS,
    ) -> Json:
        """The result as it came. Raises `RemoteError` for an error of the server, else `BackendFailed`."""
        began = monotonic()
        try:
            self._refuse_closed()
            if exchange is not None:  # what the gateway wants to know for itself waits for nobody
                await self.slots.take()
            try:
                if timeout is None:
                    result = await self._requested(method, params or {}, exchange)
                else:
                    async with _within(timeout):
                        result = await self._requested(method, params or {}, exchange)
            finally:
                if exchange is not None:
                    self.slots.give()
        except BackendFailed as error:
            if error.word == "unavailable":
                self.standing.failed(error.message, enough=3)
            if self.metered is not None:
                self.metered(self, method, params or {}, monotonic() - began, error)
            raise
        self.standing.answered()
        if self.metered is not None:
            self.metered(self, method, params or {}, monotonic() - began, result)
        return result

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Tell the server; it has nothing to answer."""
        self._refuse_closed()
        async with _within(PROBE_SECONDS):
            await self.connect()
            await self._notified(method, params or {})

    async def list(self, kind: ListKind) -> Definitions:
        """Every definition of a kind, from all pages, as the server wrote it. Refuses lists without an end."""
        found: Definitions = []
        size, cursor = 0, None
        seen: set[str] = set()
        for _ in range(MOST_PAGES):
            result = await self.request(METHODS[kind], {} if cursor is None else {"cursor": cursor})
            page = result.get(kind)
            if not isinstance(page, list) or not all(isinstance(each, dict) for each in page):
                raise BackendFailed("failed", f"the upstream server's list of {kind} is not a list of definitions")
            found += page
            size += _size(page, kind)
            if len(found) > MOST_LISTED or size > LIST_BYTES:
                raise BackendFailed("failed", f"the upstream server's list of {kind} is too long")
            cursor = result.get("nextCursor")
            if cursor is None:
                return self._listed(kind, found)
            if not isinstance(cursor, str) or cursor in seen:
                break
            seen.add(cursor)
        raise BackendFailed("failed", f"the upstream server's list of {kind} has no end")

    async def probe(self) -> float:
        """Ask the server whether it is there. Gives the seconds that took; raises `BackendFailed`."""
        begun = monotonic()
        known = await self.connect()
        with suppress(RemoteError):  # whoever answers with an error is there
            await self.request("server/discover" if known.era == "modern" else "ping", timeout=PROBE_SECONDS)
        return monotonic() - begun

    async def close(self) -> None:
        self._closed = True

    # --- what a carrier does ---

    @abstractmethod
    async def _introduced(self) -> Introduction: ...

    @property
    def peer(self) -> tuple[str, int] | None:
        """Host and port, where the server is on a network."""
        return None

    @abstractmethod
    async def _requested(self, method: str, params: Mapping[str, Any], exchange: Exchange | None) -> Json: ...

    @abstractmethod
    async def _notified(self, method: str, params: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def _listen_anew(self) -> None:
        """Ask a modern server to announce what is wanted by now."""

    # --- what carriers share ---

    def _announces(self, known: Introduction) -> dict[str, Any]:
        """What a modern server is asked to announce."""
        wanted: dict[str, Any] = dict(known.announces)
        return {**wanted, "resourceSubscriptions": sorted(self._subscribed)} if self._subscribed else wanted

    async def _subscribed_again(self, subscribe: Callable[[str], Awaitable[Any]]) -> None:
        """A server that begins anew knows of no subscription; what changed meanwhile, nobody was told."""
        for uri in sorted(self._subscribed):
            try:
                await subscribe(uri)
            except BackendFailed as error:
                self.complain("what changes is not announced any more", error.message)
            else:
                self._announced("notifications/resources/updated", {"uri": uri})

    def _listed(self, kind: ListKind, found: Definitions) -> Definitions:
        if kind == "tools":
            self.standing.tools = len(found)
        return found

    def _refuse_closed(self) -> None:
        if self._closed:
            raise BackendFailed("unavailable", "the gateway is letting go of this server", help="call it again")

    def _meta(self, params: Mapping[str, Any], id: int, exchange: Exchange | None, *, era: Era) -> dict[str, Any]:
        """The `_meta` of a request: whatever was given, who asks and what they can do, and the trace it is part of."""
        meta = dict(params.get("_meta") or {})
        if era == "modern":
            meta[META_VERSION] = MODERN
            meta[META_CLIENT_INFO] = client_info()
            meta[META_CAPABILITIES] = {} if exchange is None else dict(exchange.capabilities)
            if exchange is not None and exchange.log_level in LEVELS:
                meta[META_LOG_LEVEL] = exchange.log_level
        if exchange is not None and exchange.wants_progress:
            meta["progressToken"] = id
        if self.propagate is not None:
            self.propagate(meta)
        return meta

    def _message(
        self, id: int, method: str, params: Mapping[str, Any], exchange: Exchange | None, *, era: Era
    ) -> dict[str, Any]:
        meta = self._meta(params, id, exchange, era=era)
        given = {**params, "_meta": meta} if meta else params
        return {"jsonrpc": "2.0", "id": id, "method": method, "params": given}

    def _announced(self, method: Any, params: Any) -> None:
        if not isinstance(method, str) or not isinstance(params, dict | None):
            return
        for hearer in self._hearers:
            try:
                hearer(method, params or {})
            except Exception:
                _log.exception("upstream %s: a notification could not be handled", self.name)

    def pass_on(self, method: Any, params: Any, exchange: Exchange | None) -> None:
        """What a server says while it works is for whoever it works for, the rest for whoever listens."""
        if method not in ("notifications/progress", "notifications/message"):
            self._announced(method, params)
        elif exchange is not None and isinstance(params, dict):
            exchange.notified(method, params)

    def complain(self, what: str, about: str = "") -> None:
        """On the operator's log: somebody else's words in one short line, and not too many of them."""
        if monotonic() - self._complained > _QUIET_AFTER:
            self._complained, self._complaints = monotonic(), 0
        self._complaints += 1
        if self._complaints == MOST_COMPLAINTS:
            _log.warning("upstream %s: more of that is not logged for a while", self.name)
        if self._complaints >= MOST_COMPLAINTS:
            return
        _log.warning("upstream %s: %s%s", self.name, what, f": {excerpt(about, limit=200)}" if about else "")


def _size(page: Definitions, kind: ListKind) -> int:
    try:
        return len(orjson.dumps(page))
    except (TypeError, RecursionError) as error:
        raise BackendFailed("failed", f"the upstream server's list of {kind} is nested too deeply") from error


class _within:  # noqa: N801 - reads as a statement
    """Ends what runs inside once the time is up, in our words."""

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
            raise BackendFailed("unavailable", message) from late

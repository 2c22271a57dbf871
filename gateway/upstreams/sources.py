"""Prompts and resources of the upstream servers, asked for in the name of whoever wants them."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from gateway.core.deadlines import Deadline, current_deadline
from gateway.governance.ports import BackendFailed
from gateway.governance.principals import Principal
from gateway.serving.current import Client
from gateway.upstreams.connections import Connection
from gateway.upstreams.messages import Json
from gateway.upstreams.registry import Upstreams
from gateway.upstreams.relaying import Relay, conversed

SECONDS: Final = 60.0
"""How long a server may take, without the time that its questions wait for answers."""
FRESH: Final = 2.0
"""Seconds for which a list of resources is not asked for again."""

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class Sources:
    """Implements `gateway.serving.offers.Remote`. Who may have what has been decided before."""

    upstreams: Upstreams
    _lists: dict[str, tuple[float, "asyncio.Task[list[Json]]"]] = field(default_factory=dict)
    _wanted: Counter[tuple[str, str]] = field(default_factory=Counter)
    _telling: set["asyncio.Task[None]"] = field(default_factory=set)

    async def asked(
        self, upstream: str, method: str, params: Mapping[str, Any], *, client: Client | None, principal: Principal
    ) -> Json:
        connection = self._connection(upstream)
        deadline = Deadline(monotonic() + SECONDS, monotonic, current_deadline())
        relay = Relay(client, principal, deadline)
        try:
            async with asyncio.timeout(SECONDS) as scope:
                deadline.scope = scope
                return await conversed(connection, method, params, relay)
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise BackendFailed("unavailable", f"no result within {SECONDS:g} s") from error
        finally:
            deadline.scope = None

    async def resources(self, upstream: str) -> list[Json]:
        """Asked once for everybody who wants to know at the same time."""
        connection = self._connection(upstream)
        at, listing = self._lists.get(upstream, (0.0, None))
        if listing is None or (listing.done() and monotonic() - at > FRESH):
            listing = asyncio.create_task(connection.list("resources"))
            self._lists[upstream] = (monotonic(), listing)
        return await asyncio.shield(listing)

    def subscribe(self, upstream: str, uri: str) -> Callable[[], None]:
        """A server is told once, however many want to know, and again when nobody does any more."""
        connection = self._connection(upstream)
        self._wanted[upstream, uri] += 1
        if self._wanted[upstream, uri] == 1:
            self._tell(connection, connection.subscribe(uri))
        is_over = False

        def end() -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            self._wanted[upstream, uri] -= 1
            if not self._wanted[upstream, uri]:
                del self._wanted[upstream, uri]
                now = self.upstreams.get(upstream)
                if now is not None:
                    self._tell(now, now.unsubscribe(uri))

        return end

    def move(self, upstreams: Upstreams) -> None:
        """Go on with another registry. What somebody wants to hear of is asked for again where a server is new."""
        before, self.upstreams = self.upstreams, upstreams
        self._lists.clear()
        for upstream, uri in tuple(self._wanted):
            connection = upstreams.get(upstream)
            if connection is not None and connection is not before.get(upstream):
                self._tell(connection, connection.subscribe(uri))

    def completes(self, upstream: str) -> bool:
        connection = self.upstreams.get(upstream)
        return connection is not None and "completions" in connection.capabilities

    def _tell(self, connection: Connection, telling: Any) -> None:
        task = asyncio.create_task(_told(connection, telling))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    def _connection(self, upstream: str) -> Connection:
        connection = self.upstreams.get(upstream)
        if connection is None:
            raise BackendFailed("unavailable", self.upstreams.reason(upstream))
        return connection


async def _told(connection: Connection, telling: Any) -> None:
    try:
        await telling
    except BackendFailed as error:
        _log.warning("upstream %s: what changes is not announced: %s", connection.name, error.message)

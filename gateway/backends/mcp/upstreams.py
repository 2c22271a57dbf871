"""The upstream servers of a project: their connections, health, prompts and resources.

A server that is down does not prevent the gateway from starting: its tools fail with the reason until it answers.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Any, Final

from gateway.backends.mcp.connection import UpstreamConnection
from gateway.backends.mcp.server_requests import CallerRelay, resolve_input_requests
from gateway.backends.result_conversion import excerpt
from gateway.mcp import Json
from gateway.model import BackendError, CallerChannel, Deadline, Principal, current_deadline

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """Interval of health probes, and the number of consecutive failures after which a server is down."""

    every: float = 30.0
    fail_after: int = 3


@dataclass(slots=True)
class Upstreams:
    """Connections by the name of their document. Close it when they are no longer used."""

    ids: Iterator[int] = field(default_factory=lambda: count(1))
    """One counter for all connections: request ids are unique in a process."""
    _connections: dict[str, UpstreamConnection] = field(default_factory=dict)
    _health: dict[str, HealthPolicy] = field(default_factory=dict)
    _unusable: dict[str, str] = field(default_factory=dict)
    _watching: list["asyncio.Task[None]"] = field(default_factory=list)

    def __iter__(self) -> Iterator[UpstreamConnection]:
        return iter(self._connections.values())

    def add(self, connection: UpstreamConnection, health: HealthPolicy | None = None) -> None:
        self._connections[connection.name] = connection
        self._health[connection.name] = health or HealthPolicy()

    def mark_unavailable(self, name: str, reason: str) -> None:
        """Record a server that cannot be connected to, and why."""
        self._unusable[name] = reason

    def get(self, name: str) -> UpstreamConnection | None:
        return self._connections.get(name)

    def get_unavailable_reason(self, name: str) -> str:
        """Return why there is no connection of that name."""
        return self._unusable.get(name, f"the upstream {name!r} is not an MCP server")

    def start_probes(self, rounds: Callable[[str], AbstractContextManager[Any]] = nullcontext) -> None:
        """Connect to every server and probe each periodically, each time within one of the `rounds`."""
        for connection in self._connections.values():
            probing = self._probe_forever(connection, self._health[connection.name], rounds)
            self._watching.append(asyncio.create_task(probing))

    async def probe(self, name: str) -> None:
        """Probe one server now."""
        await probe_once(self._connections[name], self._health[name])

    def adopt(self, earlier: "Upstreams", name: str) -> None:
        """Take over a connection of another registry, whose `close` must get it in `keeping`."""
        self.add(earlier._connections[name], earlier._health[name])

    async def stop_probes(self) -> None:
        """Stop health probes; calls continue."""
        for task in self._watching:
            task.cancel()
        if self._watching:
            await asyncio.wait(self._watching)
        self._watching.clear()

    async def close(self, *, keeping: Iterable[UpstreamConnection] = ()) -> None:
        """Close all connections except those that another registry uses."""
        await self.stop_probes()
        kept_ids = {id(each) for each in keeping}
        await asyncio.gather(*(each.close() for each in self._connections.values() if id(each) not in kept_ids))

    @property
    def problems(self) -> list[str]:
        """What does not work now, one line each, without third-party text: any client may read them."""
        down = [each.name for each in self._connections.values() if each.health.state == "down"]
        found = [f"upstream {name} is left out" for name in self._unusable]
        return [*found, *(f"upstream {name} is down" for name in down)]

    def status(self) -> list[Mapping[str, Any]]:
        """Return the status of each server, for operators."""
        known = [_to_status(each) for each in self._connections.values()]
        left_out = [{"name": name, "state": "left out", "lastError": reason} for name, reason in self._unusable.items()]
        return sorted([*known, *left_out], key=lambda each: str(each["name"]))

    async def _probe_forever(
        self, connection: UpstreamConnection, health: HealthPolicy, rounds: Callable[[str], AbstractContextManager[Any]]
    ) -> None:
        while True:
            with rounds(connection.name):
                await probe_once(connection, health)
            await asyncio.sleep(health.every)


async def probe_once(connection: UpstreamConnection, health: HealthPolicy) -> None:
    """Probe once and record the result in the connection's health."""
    current = connection.health
    before = current.state
    try:
        seconds = await connection.probe()
        current.state, current.failures, current.latency = "up", 0, seconds
        if before == "down":
            _log.info("upstream %s is up again", connection.name)
        if current.tools is None and "tools" in connection.capabilities:
            with suppress(BackendError):
                await connection.list("tools")
    except BackendError as error:
        current.record_failure(error.message, enough=health.fail_after)
        if before != "down" and current.state == "down":
            _log.warning("upstream %s is down: %s", connection.name, error.message)


def _to_status(connection: UpstreamConnection) -> dict[str, Any]:
    current, known = connection.health, connection.introduction
    info = {key: connection.server_info.get(key) for key in ("name", "version")}
    return {
        "name": connection.name,
        "transport": connection.transport,
        "era": None if known is None else known.era,
        "version": None if known is None else known.version,
        "server": {key: excerpt(value, limit=100) for key, value in info.items() if isinstance(value, str)},
        "state": current.state,
        "tools": current.tools,
        "latencyMs": None if current.latency is None else round(current.latency * 1000, 1),
        "failures": current.failures,
        "lastError": current.last_error,
    }


SECONDS: Final = 60.0
"""Time limit of a server, excluding the time that its questions wait for answers."""
CACHE_SECONDS: Final = 2.0
"""Seconds for which a list of resources is cached."""


@dataclass(slots=True)
class UpstreamResources:
    """Implements `gateway.engine.upstream_resources.ResourceClient`. The caller has already checked access."""

    upstreams: Upstreams
    _lists: dict[str, tuple[float, "asyncio.Task[list[Json]]"]] = field(default_factory=dict)
    _wanted: Counter[tuple[str, str]] = field(default_factory=Counter)
    _telling: set["asyncio.Task[None]"] = field(default_factory=set)

    async def fetch(
        self,
        upstream: str,
        method: str,
        params: Mapping[str, Any],
        *,
        client: CallerChannel | None,
        principal: Principal,
    ) -> Json:
        connection = self._connection(upstream)
        deadline = Deadline(monotonic() + SECONDS, monotonic, current_deadline())
        relay = CallerRelay(client, principal, deadline)
        try:
            async with asyncio.timeout(SECONDS) as scope:
                deadline.scope = scope
                return await resolve_input_requests(connection, method, params, relay)
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise BackendError("unavailable", f"no result within {SECONDS:g} s") from error
        finally:
            deadline.scope = None

    async def resources(self, upstream: str) -> list[Json]:
        """List the resources; concurrent callers share one request."""
        connection = self._connection(upstream)
        at, listing = self._lists.get(upstream, (0.0, None))
        if listing is None or (listing.done() and monotonic() - at > CACHE_SECONDS):
            listing = asyncio.create_task(connection.list("resources"))
            self._lists[upstream] = (monotonic(), listing)
        return await asyncio.shield(listing)

    def subscribe(self, upstream: str, uri: str) -> Callable[[], None]:
        """Subscribe at the server for the first subscriber, unsubscribe with the last. Return a function to end it."""
        connection = self._connection(upstream)
        self._wanted[upstream, uri] += 1
        if self._wanted[upstream, uri] == 1:
            self._run_in_background(connection, connection.subscribe(uri))
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
                    self._run_in_background(now, now.unsubscribe(uri))

        return end

    def switch_registry(self, upstreams: Upstreams) -> None:
        """Switch to another registry and subscribe again at servers that are new."""
        before, self.upstreams = self.upstreams, upstreams
        self._lists.clear()
        for upstream, uri in tuple(self._wanted):
            connection = upstreams.get(upstream)
            if connection is not None and connection is not before.get(upstream):
                self._run_in_background(connection, connection.subscribe(uri))

    def supports_completion(self, upstream: str) -> bool:
        connection = self.upstreams.get(upstream)
        return connection is not None and "completions" in connection.capabilities

    def _run_in_background(self, connection: UpstreamConnection, request: Any) -> None:
        task = asyncio.create_task(_log_failure(connection, request))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    def _connection(self, upstream: str) -> UpstreamConnection:
        connection = self.upstreams.get(upstream)
        if connection is None:
            raise BackendError("unavailable", self.upstreams.get_unavailable_reason(upstream))
        return connection


async def _log_failure(connection: UpstreamConnection, request: Any) -> None:
    try:
        await request
    except BackendError as error:
        _log.warning("upstream %s: changes of resources are not announced: %s", connection.name, error.message)

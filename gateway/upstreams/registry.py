"""The upstream servers of a project: their connections, how each stands, and who looks after them.

A server that is down keeps nobody from starting: its tools fail with the reason until it answers.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from gateway.backends.refusals import excerpt
from gateway.governance.ports import BackendFailed
from gateway.upstreams.connections import Connection, Propagate

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Health:
    """How often a server is asked whether it is there, and how many failures in a row mean that it is not."""

    every: float = 30.0
    fail_after: int = 3


@dataclass(slots=True)
class Upstreams:
    """Connections by the name of their document. Close it when nobody uses them any more."""

    ids: Iterator[int] = field(default_factory=lambda: count(1))
    """One counter for all of them: no two requests of a process have the same id."""
    _connections: dict[str, Connection] = field(default_factory=dict)
    _health: dict[str, Health] = field(default_factory=dict)
    _unusable: dict[str, str] = field(default_factory=dict)
    _watching: list["asyncio.Task[None]"] = field(default_factory=list)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._connections.values())

    def add(self, connection: Connection, health: Health | None = None) -> None:
        self._connections[connection.name] = connection
        self._health[connection.name] = health or Health()

    def leave_out(self, name: str, reason: str) -> None:
        """Remember a server that cannot be spoken to from here, and why."""
        self._unusable[name] = reason

    def get(self, name: str) -> Connection | None:
        return self._connections.get(name)

    def reason(self, name: str) -> str:
        """Why there is no connection of that name."""
        return self._unusable.get(name, f"the upstream server {name!r} is not one that MCP is spoken with")

    def propagate(self, propagate: Propagate | None) -> None:
        """Have every request carry the context of the trace that it is part of."""
        for connection in self._connections.values():
            connection.propagate = propagate

    def watch(self) -> None:
        """Meet every server, and ask each from time to time whether it is still there."""
        for connection in self._connections.values():
            self._watching.append(asyncio.create_task(self._watched(connection, self._health[connection.name])))

    async def probe(self, name: str) -> None:
        """Ask one server whether it is there, now."""
        await probed(self._connections[name], self._health[name])

    def keep(self, earlier: "Upstreams", name: str) -> None:
        """Go on with a connection of another registry; whoever closes that one says so with `keeping`."""
        self.add(earlier._connections[name], earlier._health[name])

    async def rest(self) -> None:
        """Ask no server any more whether it is there; calls go on."""
        for task in self._watching:
            task.cancel()
        if self._watching:
            await asyncio.wait(self._watching)
        self._watching.clear()

    async def close(self, *, keeping: Iterable[Connection] = ()) -> None:
        """Close every connection but those that another registry goes on with."""
        await self.rest()
        kept = {id(each) for each in keeping}
        await asyncio.gather(*(each.close() for each in self._connections.values() if id(each) not in kept))

    @property
    def problems(self) -> list[str]:
        """What does not work now, in one line each and in our own words: everybody may read them."""
        down = [each.name for each in self._connections.values() if each.standing.state == "down"]
        found = [f"upstream {name} is left out" for name in self._unusable]
        return [*found, *(f"upstream {name} is down" for name in down)]

    def status(self) -> list[Mapping[str, Any]]:
        """Each server at a glance, for operators."""
        known = [_told(each) for each in self._connections.values()]
        left_out = [{"name": name, "state": "left out", "lastError": reason} for name, reason in self._unusable.items()]
        return sorted([*known, *left_out], key=lambda each: str(each["name"]))

    async def _watched(self, connection: Connection, health: Health) -> None:
        while True:
            await probed(connection, health)
            await asyncio.sleep(health.every)


async def probed(connection: Connection, health: Health) -> None:
    """Ask once; how the server stands afterwards is in its standing."""
    standing = connection.standing
    before = standing.state
    try:
        seconds = await connection.probe()
        standing.state, standing.failures, standing.latency = "up", 0, seconds
        if before == "down":
            _log.info("upstream %s is there again", connection.name)
        if standing.tools is None and "tools" in connection.capabilities:
            with suppress(BackendFailed):
                await connection.list("tools")
    except BackendFailed as error:
        standing.failed(error.message, enough=health.fail_after)
        if before != "down" and standing.state == "down":
            _log.warning("upstream %s is down: %s", connection.name, error.message)


def _told(connection: Connection) -> dict[str, Any]:
    standing, known = connection.standing, connection.introduction
    info = {key: connection.server_info.get(key) for key in ("name", "version")}
    return {
        "name": connection.name,
        "transport": connection.transport,
        "era": None if known is None else known.era,
        "version": None if known is None else known.version,
        "server": {key: excerpt(value, limit=100) for key, value in info.items() if isinstance(value, str)},
        "state": standing.state,
        "tools": standing.tools,
        "latencyMs": None if standing.latency is None else round(standing.latency * 1000, 1),
        "failures": standing.failures,
        "lastError": standing.last_error,
    }

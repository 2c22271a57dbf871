"""Pooled connections, one pool per service, to addresses that were checked when the name was looked up."""

import asyncio
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.backends.addresses import AddressRefused, Network, check, declared_by
from gateway.backends.decoding import ACCEPTED
from gateway.backends.pools import Lookup, Pool
from gateway.backends.urls import Origin
from gateway.governance.ports import BackendFailed

BUFFER: Final = 1 << 16


async def system_lookup(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`answer` is the time until the headers of an answer are there, `idle` the longest silence after that."""

    connect: timedelta = timedelta(seconds=5)
    answer: timedelta = timedelta(seconds=10)
    idle: timedelta = timedelta(seconds=15)
    per_service: int = 100


class Connections:
    """The sessions of all HTTP backends that live and end together."""

    def __init__(self, limits: ConnectionLimits | None = None, *, lookup: Lookup = system_lookup) -> None:
        self.limits = limits or ConnectionLimits()
        self._lookup = lookup
        self._sessions: dict[tuple[Origin, tuple[Network, ...]], aiohttp.ClientSession] = {}
        self._pools: dict[tuple[Origin, tuple[Network, ...]], Pool] = {}
        self._closed = False

    def session(self, origin: Origin, networks: tuple[Network, ...] = ()) -> aiohttp.ClientSession:
        """Needs a running loop, so it is called with the first request and not before.

        `networks` are those of one's own that the name may lead to. Whoever may not go there shares no connection with
        somebody who may.
        """
        self._refuse_closed()
        if (origin, networks) not in self._sessions:
            self._sessions[origin, networks] = self._opened(origin, networks)
        return self._sessions[origin, networks]

    def pool(self, origin: Origin, networks: tuple[Network, ...] = ()) -> Pool:
        """The same for plain requests that are made by the thousand."""
        self._refuse_closed()
        found = self._pools.get((origin, networks))
        if found is None:
            found = self._pools[origin, networks] = Pool(
                origin,
                lookup=self._lookup,
                allowed=(*networks, *declared_by(origin.host)),
                connect=self.limits.connect.total_seconds(),
                idle=self.limits.idle.total_seconds(),
                most=self.limits.per_service,
            )
        return found

    def _refuse_closed(self) -> None:
        if self._closed:
            raise BackendFailed("unavailable", "the gateway is letting go of this tool", help="call it again")

    async def close(self) -> None:
        self._closed = True
        while self._pools:
            _, pool = self._pools.popitem()
            pool.close()
        while self._sessions:
            _, session = self._sessions.popitem()
            await session.close()

    def _opened(self, origin: Origin, networks: tuple[Network, ...]) -> aiohttp.ClientSession:
        limits = self.limits
        connector = aiohttp.TCPConnector(
            resolver=_CheckingResolver(self._lookup, allowed=(*networks, *declared_by(origin.host))),
            limit=limits.per_service,
            keepalive_timeout=limits.idle.total_seconds(),
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # decoded under a limit of our own
            headers={"Accept-Encoding": ACCEPTED, "User-Agent": "agent-gateway"},
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=limits.connect.total_seconds(), sock_read=limits.idle.total_seconds()
            ),
            read_bufsize=BUFFER,
        )


class _CheckingResolver(AbstractResolver):
    """Looks a name up once; the connection is made to the very addresses that were checked."""

    def __init__(self, lookup: Lookup, *, allowed: tuple[Network, ...]) -> None:
        self._lookup = lookup
        self._allowed = allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses = check(await self._lookup(host, port), allowed=self._allowed)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Nothing is held."""


def told(error: BaseException) -> BackendFailed:
    """What went wrong on the way, in words that name no address and quote no header."""
    refused = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(refused, AddressRefused):
        return BackendFailed("failed", "the service's name leads to an address that tools may not reach")
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ServerFingerprintMismatch():
            return BackendFailed("failed", "the service could not prove who it is")
        case TimeoutError():
            return BackendFailed("unavailable", "the service did not answer in time")
        case aiohttp.ClientConnectorError():
            return BackendFailed("unavailable", "the service cannot be reached")
        case aiohttp.ClientPayloadError():
            return BackendFailed("unavailable", "the answer ended early")
        case aiohttp.ClientResponseError():
            return BackendFailed("failed", "the service answered something that is not HTTP")
        case OSError() | aiohttp.ClientConnectionError():
            return BackendFailed("unavailable", "the service closed the connection")
        case _:
            return BackendFailed("failed", "the request could not be made")

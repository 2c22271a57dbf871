"""Pooled HTTP/1.1 connections, one pool per service. Addresses are checked at lookup and connected to as checked."""

import asyncio
import socket
import ssl
import zlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.backends.http.addresses import (
    AddressNotAllowed,
    Network,
    Origin,
    check_addresses,
    networks_allowed_by_host,
)
from gateway.backends.http.http1 import Http1Connection, Http1Response
from gateway.model import BackendError

ACCEPT_ENCODING: Final = "gzip, deflate"

_PIECE: Final = 1 << 16
_MAX_RATIO: Final = 200
_UNCHECKED_BYTES: Final = 16 << 20
"""Any ratio is accepted up to this many bytes: short content may compress to almost nothing."""

_GZIP: Final = 16 + zlib.MAX_WBITS


async def decode_body(chunks: AsyncIterable[bytes], encoding: str, *, limit: int) -> AsyncGenerator[bytes, None]:
    """Yield the decoded body. Raise `BackendError` for a decompression bomb, a broken or an unknown encoding."""
    encoding = encoding.strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise BackendError("failed", "the service answered in an encoding that was not requested")
    received = decoded = 0
    inflater = None if encoding in ("", "identity") else _Inflater(encoding)
    async for chunk in chunks:
        received += len(chunk)
        for piece in [chunk] if inflater is None else inflater.pieces(chunk):
            decoded += len(piece)
            if decoded > limit:
                raise BackendError("failed", f"the answer has more than {limit} bytes")
            if decoded > _UNCHECKED_BYTES and decoded > received * _MAX_RATIO:
                raise BackendError("failed", "the answer grows out of proportion when it is decompressed")
            yield piece
    if inflater is not None and received and not inflater.is_complete:
        raise BackendError("unavailable", "the answer ended early")


class _Inflater:
    """One gzip or deflate stream; gzip may have several members, deflate may lack its header."""

    def __init__(self, encoding: str) -> None:
        self._is_gzip = encoding != "deflate"
        self._inflate: Any = zlib.decompressobj(_GZIP if self._is_gzip else zlib.MAX_WBITS)
        self._has_started = False

    @property
    def is_complete(self) -> bool:
        return bool(self._inflate.eof)

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        is_full = False  # then more output may be buffered, even if no input is left
        while chunk or is_full:
            piece, chunk = self._step(chunk)
            is_full = len(piece) == _PIECE
            if piece:
                yield piece

    def _step(self, data: bytes) -> tuple[bytes, bytes]:
        """Return up to one piece of output, and the remaining input."""
        if self._inflate.eof:
            if not self._is_gzip or not data.strip(b"\x00"):
                return b"", b""  # padding
            self._inflate = zlib.decompressobj(_GZIP)
        try:
            piece = self._inflate.decompress(data, _PIECE)
        except zlib.error as error:
            if self._is_gzip or self._has_started:
                raise BackendError("failed", "the answer does not match its content encoding") from error
            self._has_started = True
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
            return b"", data
        self._has_started = True
        return piece, self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail


ResolveHost = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host and port. Raises `OSError` if there are none."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class ConnectionPool:
    """Connections to one service, at most `most` at once. Connections that are idle for too long are closed."""

    def __init__(
        self,
        origin: Origin,
        *,
        lookup: ResolveHost,
        allowed: tuple[Network, ...],
        connect: float,
        idle: float,
        most: int,
    ) -> None:
        self._origin = origin
        self._lookup = lookup
        self._allowed = allowed
        self._connect = connect
        self._idle_seconds = idle
        self._max_connections = most
        self._connections: set[Http1Connection] = set()
        self._idle: list[Http1Connection] = []
        self._opening = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._prune_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        has_port = origin.port != _DEFAULT_PORTS[origin.scheme]
        self._host = f"{host}:{origin.port}" if has_port else host

    async def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Http1Response:
        """Return the response as soon as its head has arrived. Raise `BackendError`."""
        request = self._encode_request(method, target, headers, body)
        connection = self._idle.pop() if self._idle else await self._acquire_connection()
        return await connection.send(request)

    def close(self) -> None:
        self._is_closed = True
        for connection in tuple(self._connections):
            connection.close()
        if self._prune_timer is not None:
            self._prune_timer.cancel()

    # --- called by connections ---

    def release(self, connection: Http1Connection) -> None:
        if self._is_closed:
            connection.close()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)
        if self._prune_timer is None:
            self._prune_timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._prune)
        self._wake_next()

    def discard(self, connection: Http1Connection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._wake_next()

    # --- internal ---

    def _encode_request(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        lines = [f"{method} {target} HTTP/1.1", f"host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"content-length: {len(body)}")
        text = "\r\n".join(lines)
        ends = len(lines) - 1
        if text.count("\n") != ends or text.count("\r") != ends or "\0" in text:  # a value with a line break
            raise BackendError("failed", "the request could not be made")
        try:
            return text.encode() + b"\r\n\r\n" + (body or b"")
        except UnicodeEncodeError as error:
            raise BackendError("failed", "the request could not be made") from error

    async def _acquire_connection(self) -> Http1Connection:
        while len(self._connections) + self._opening >= self._max_connections:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_next()  # pass the free place on to the next caller in the queue
                raise
            if self._idle:
                return self._idle.pop()
        self._opening += 1
        try:
            connection = await self._open()
        except BaseException:
            self._opening -= 1
            self._wake_next()
            raise
        self._opening -= 1
        self._connections.add(connection)
        return connection

    def _wake_next(self) -> None:
        """Wake the first waiting caller."""
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _open(self) -> Http1Connection:
        origin = self._origin
        tls = await asyncio.to_thread(_tls) if origin.scheme == "https" else None
        try:
            async with asyncio.timeout(self._connect):
                addresses = check_addresses(await self._lookup(origin.host, origin.port), allowed=self._allowed)
                return await self._connect_any(addresses, tls)
        except AddressNotAllowed as error:
            refused = BackendError("failed", "the service's name resolves to an address that tools may not reach")
            raise refused from error
        except ssl.SSLCertVerificationError as error:
            raise BackendError("failed", "the certificate of the service is not valid") from error
        except TimeoutError as error:
            raise BackendError("unavailable", "the service did not answer in time") from error
        except OSError as error:
            raise BackendError("unavailable", "the service cannot be reached") from error

    async def _connect_any(self, addresses: Sequence[str], tls: ssl.SSLContext | None) -> Http1Connection:
        """Connect to the first address that accepts, in the order of the lookup."""
        loop, origin = asyncio.get_running_loop(), self._origin
        name = None if tls is None else origin.host
        for number, address in enumerate(addresses):
            try:
                connecting = loop.create_connection(
                    lambda: Http1Connection(self), address, origin.port, ssl=tls, server_hostname=name
                )
                _, connection = await connecting
            except ssl.SSLCertVerificationError:
                raise
            except OSError:
                if number == len(addresses) - 1:
                    raise
            else:
                return connection
        raise OSError("there is no address")

    def _prune(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in [each for each in self._idle if now - each.idle_since >= self._idle_seconds]:
            connection.close()
        due = min((each.idle_since for each in self._idle), default=None)
        self._prune_timer = None
        if due is not None:
            loop = asyncio.get_running_loop()
            self._prune_timer = loop.call_later(max(due + self._idle_seconds - now, 0.0), self._prune)


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """Load the system's certificates, which is slow."""
    return ssl.create_default_context()


READ_BUFFER_BYTES: Final = 1 << 16


async def resolve_host(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`answer` limits the time until the response headers arrive, `idle` any silence after that."""

    connect: timedelta = timedelta(seconds=5)
    answer: timedelta = timedelta(seconds=10)
    idle: timedelta = timedelta(seconds=15)
    per_service: int = 100


class HttpConnections:
    """The sessions and pools of all HTTP backends that are closed together."""

    def __init__(self, limits: ConnectionLimits | None = None, *, lookup: ResolveHost = resolve_host) -> None:
        self.limits = limits or ConnectionLimits()
        self._lookup = lookup
        self._sessions: dict[tuple[Origin, tuple[Network, ...]], aiohttp.ClientSession] = {}
        self._pools: dict[tuple[Origin, tuple[Network, ...]], ConnectionPool] = {}
        self._closed = False

    def session(self, origin: Origin, networks: tuple[Network, ...] = ()) -> aiohttp.ClientSession:
        """Return the session for an origin. It needs a running loop, so call it at the first request.

        `networks` are private networks that the name may resolve to. Sessions with different `networks` are not shared.
        """
        self._check_open()
        if (origin, networks) not in self._sessions:
            self._sessions[origin, networks] = self._open_session(origin, networks)
        return self._sessions[origin, networks]

    def pool(self, origin: Origin, networks: tuple[Network, ...] = ()) -> ConnectionPool:
        """Return the pool for simple requests that are sent by the thousand."""
        self._check_open()
        found = self._pools.get((origin, networks))
        if found is None:
            found = self._pools[origin, networks] = ConnectionPool(
                origin,
                lookup=self._lookup,
                allowed=(*networks, *networks_allowed_by_host(origin.host)),
                connect=self.limits.connect.total_seconds(),
                idle=self.limits.idle.total_seconds(),
                most=self.limits.per_service,
            )
        return found

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError("unavailable", "the gateway is closing this tool's connections", help="call it again")

    async def close(self) -> None:
        self._closed = True
        while self._pools:
            _, pool = self._pools.popitem()
            pool.close()
        while self._sessions:
            _, session = self._sessions.popitem()
            await session.close()

    def _open_session(self, origin: Origin, networks: tuple[Network, ...]) -> aiohttp.ClientSession:
        limits = self.limits
        connector = aiohttp.TCPConnector(
            resolver=_CheckingResolver(self._lookup, allowed=(*networks, *networks_allowed_by_host(origin.host))),
            limit=limits.per_service,
            keepalive_timeout=limits.idle.total_seconds(),
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # `decode_body` enforces a limit
            headers={"Accept-Encoding": ACCEPT_ENCODING, "User-Agent": "agent-gateway"},
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=limits.connect.total_seconds(), sock_read=limits.idle.total_seconds()
            ),
            read_bufsize=READ_BUFFER_BYTES,
        )


class _CheckingResolver(AbstractResolver):
    """A resolver that looks a name up once, so that the connection uses exactly the checked addresses."""

    def __init__(self, lookup: ResolveHost, *, allowed: tuple[Network, ...]) -> None:
        self._lookup = lookup
        self._allowed = allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses = check_addresses(await self._lookup(host, port), allowed=self._allowed)
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
        """Do nothing: there is nothing to close."""


def to_backend_error(error: BaseException) -> BackendError:
    """Convert a client error, without quoting addresses or headers."""
    refused = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(refused, AddressNotAllowed):
        return BackendError("failed", "the service's name resolves to an address that tools may not reach")
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ServerFingerprintMismatch():
            return BackendError("failed", "the certificate of the service is not valid")
        case TimeoutError():
            return BackendError("unavailable", "the service did not answer in time")
        case aiohttp.ClientConnectorError():
            return BackendError("unavailable", "the service cannot be reached")
        case aiohttp.ClientPayloadError():
            return BackendError("unavailable", "the answer ended early")
        case aiohttp.ClientResponseError():
            return BackendError("failed", "the service answered something that is not HTTP")
        case OSError() | aiohttp.ClientConnectionError():
            return BackendError("unavailable", "the service closed the connection")
        case _:
            return BackendError("failed", "the request could not be made")

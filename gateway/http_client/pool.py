"""Pooled HTTP/1.1 connections to one service, at addresses that its policy allows."""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from gateway.http_client.allowed_addresses import (
    PORTS,
    AddressNotAllowed,
    Network,
    Origin,
    ResolveHost,
    networks_allowed_by_host,
    resolve_host,
)
from gateway.http_client.http1 import ConnectionLost, Http1Connection, Http1Response, response_too_late
from gateway.http_client.http_policy import IDLE_SECONDS, HttpPolicy, load_system_tls
from gateway.model import BackendError

_REPEATABLE: Final = frozenset({"GET", "HEAD", "PUT", "DELETE"})
"""Methods that a service may receive twice. It may have processed a request whose connection it closed unanswered."""

_WITHOUT_BODY: Final = frozenset({"GET", "HEAD"})

_write_field: Final = "%s: %s\r\n".__mod__

_NEXT_ADDRESS_SECONDS: Final = 0.25
"""How long one address of a name is tried before the next one is tried as well."""


class ConnectionPool:
    """Connections to one service. The policy limits their number, their times, and how long they stay idle."""

    def __init__(self, origin: Origin, policy: HttpPolicy) -> None:
        self._origin = origin
        self._policy = policy
        self._idle_seconds = IDLE_SECONDS if policy.idle is None else policy.idle
        self._connections: set[Http1Connection] = set()
        self._idle: list[Http1Connection] = []
        self._opening = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._prune_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        has_port = origin.port != PORTS[origin.scheme]
        self._host = f"{host}:{origin.port}" if has_port else host
        self._defaults = {name.lower(): value for name, value in (policy.headers or {}).items()}

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, *, is_timed: bool = True
    ) -> Http1Response:
        """Return the response as soon as its head has arrived. Raise `BackendError`.

        `headers` replace those of the policy, whose names are in lower case. Without `is_timed`, the policy limits only
        the time to connect, and the caller the whole.
        """
        if self._is_closed:
            raise BackendError("unavailable", "the gateway is closing this tool's connections", help="call it again")
        policy = self._policy
        request = self._encode_request(method, target, {**self._defaults, **headers}, body)
        head_only, answer, idle = method == "HEAD", None, None
        if is_timed:
            answer, idle = policy.answer, policy.idle
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_open:
                continue
            try:
                return await connection.send(request, head_only=head_only, answer=answer, idle=idle)
            except ConnectionLost:
                if method not in _REPEATABLE:
                    raise
                break
        try:
            async with asyncio.timeout(None if answer is None else policy.connect + answer):
                connection = await self._acquire_connection()
        except TimeoutError as error:
            raise response_too_late() from error
        return await connection.send(request, head_only=head_only, answer=answer, idle=idle)

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
        fields = "".join(map(_write_field, headers.items()))
        text = f"{method} {target} HTTP/1.1\r\nhost: {self._host}\r\n{fields}"
        ends = len(headers) + 2
        if text.count("\n") != ends or text.count("\r") != ends or "\0" in text:  # a value with a line break
            raise BackendError("failed", "the request could not be made")
        if body is not None or method not in _WITHOUT_BODY:
            text = f"{text}content-length: {len(body or b'')}\r\n"
        try:
            return f"{text}\r\n".encode() + (body or b"")
        except UnicodeEncodeError as error:
            raise BackendError("failed", "the request could not be made") from error

    async def _acquire_connection(self) -> Http1Connection:
        while 0 < self._policy.connections <= len(self._connections) + self._opening:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_next()  # pass the free place on to the next caller in the queue
                raise
            while self._idle:
                connection = self._idle.pop()
                if connection.is_open:
                    return connection
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
        tls = self._policy.tls or await asyncio.to_thread(load_system_tls) if origin.scheme == "https" else None
        try:
            async with asyncio.timeout(self._policy.connect):
                addresses = await self._policy.resolve(origin.host, origin.port)
                return await self._connect_any(addresses, tls)
        except AddressNotAllowed as error:
            refused = BackendError("failed", "the service's name resolves to an address that tools may not reach")
            raise refused from error
        except ssl.SSLCertVerificationError as error:
            raise BackendError("failed", "the certificate of the service is not valid") from error
        except TimeoutError as error:
            raise response_too_late() from error
        except OSError as error:
            raise BackendError("unavailable", "the service cannot be reached") from error

    async def _connect_any(self, addresses: Sequence[str], tls: ssl.SSLContext | None) -> Http1Connection:
        loop, origin = asyncio.get_running_loop(), self._origin
        name = None if tls is None else origin.host.rstrip(".")
        bound = await _open_first(addresses, origin.port)
        try:
            _, connection = await loop.create_connection(
                lambda: Http1Connection(self), sock=bound, ssl=tls, server_hostname=name
            )
        except BaseException:
            bound.close()
            raise
        return connection

    def _prune(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in [each for each in self._idle if now - each.idle_since >= self._idle_seconds]:
            connection.close()
        due = min((each.idle_since for each in self._idle), default=None)
        self._prune_timer = None
        if due is not None:
            loop = asyncio.get_running_loop()
            self._prune_timer = loop.call_later(max(due + self._idle_seconds - now, 0.0), self._prune)


async def _open_first(addresses: Sequence[str], port: int) -> socket.socket:
    """Connect to the first address that accepts. An address that does not answer does not hold up the next."""
    left, error = deque(addresses), OSError("there is no address")
    started: list[asyncio.Task[socket.socket]] = []
    pending: set[asyncio.Task[socket.socket]] = set()
    try:
        while left or pending:
            if left:
                started.append(asyncio.create_task(_open_socket(left.popleft(), port)))
                pending.add(started[-1])
            seconds = _NEXT_ADDRESS_SECONDS if left else None
            done, pending = await asyncio.wait(pending, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                try:
                    bound = task.result()
                except OSError as failed:
                    error = failed
                else:
                    started.remove(task)
                    return bound
        raise error
    finally:
        for task in started:
            task.cancel()
            task.add_done_callback(_close_unused)


def _close_unused(task: "asyncio.Task[socket.socket]") -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def _open_socket(address: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(bound, (address, port))
    except BaseException:
        bound.close()
        raise
    return bound


ACCEPT_ENCODING: Final = "gzip, deflate"

SERVICE_POLICY: Final = HttpPolicy(
    headers={"Accept": "*/*", "Accept-Encoding": ACCEPT_ENCODING, "User-Agent": "agent-gateway"}
)
"""The values for services behind tools, besides their addresses. `decode_body` decodes what they send."""


class HttpConnections:
    """The connections of all HTTP backends that are closed together."""

    def __init__(self, policy: HttpPolicy = SERVICE_POLICY, *, lookup: ResolveHost = resolve_host) -> None:
        self._policy = replace(policy, lookup=lookup)
        self._pools: dict[tuple[Origin, tuple[Network, ...]], ConnectionPool] = {}
        self._is_closed = False

    def pool(self, origin: Origin, networks: tuple[Network, ...] = ()) -> ConnectionPool:
        """Return the connections to an origin.

        `networks` are private networks that its name may resolve to. Pools with different `networks` are not shared.
        """
        found = self._pools.get((origin, networks))
        if found is None:
            permitted = (*networks, *networks_allowed_by_host(origin.host))
            found = self._pools[origin, networks] = ConnectionPool(origin, replace(self._policy, networks=permitted))
            if self._is_closed:
                found.close()
        return found

    async def close(self) -> None:
        self._is_closed = True
        for pool in self._pools.values():
            pool.close()

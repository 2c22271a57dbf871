"""Connections of HTTP/1.1 to one service: kept, given back, and not too many at once.

Addresses are checked when a name is looked up, and connected to as they were checked.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from gateway.backends.addresses import AddressRefused, Network, check
from gateway.backends.http1 import Answer, Line
from gateway.backends.urls import Origin
from gateway.governance.ports import BackendFailed

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host and port. Raises `OSError` if there are none."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class Pool:
    """Connections to one service. `most` of them at once; one that was idle for long is closed."""

    def __init__(
        self,
        origin: Origin,
        *,
        lookup: Lookup,
        allowed: tuple[Network, ...],
        connect: float,
        idle: float,
        most: int,
    ) -> None:
        self._origin = origin
        self._lookup = lookup
        self._allowed = allowed
        self._connect = connect
        self._keep = idle
        self._most = most
        self._lines: set[Line] = set()
        self._idle: list[Line] = []
        self._opening = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._pruning: asyncio.TimerHandle | None = None
        self._is_closed = False
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        has_port = origin.port != _DEFAULT_PORTS[origin.scheme]
        self._host = f"{host}:{origin.port}" if has_port else host

    async def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """The answer, as soon as its head is there. Raises `BackendFailed`."""
        request = self._written(method, target, headers, body)
        line = self._idle.pop() if self._idle else await self._free_line()
        return await line.ask(request)

    def close(self) -> None:
        self._is_closed = True
        for line in tuple(self._lines):
            line.close()
        if self._pruning is not None:
            self._pruning.cancel()

    # --- told by connections ---

    def given_back(self, line: Line) -> None:
        if self._is_closed:
            line.close()
            return
        line.idle_since = asyncio.get_running_loop().time()
        self._idle.append(line)
        if self._pruning is None:
            self._pruning = asyncio.get_running_loop().call_later(self._keep, self._prune)
        self._next()

    def lost(self, line: Line) -> None:
        self._lines.discard(line)
        if line in self._idle:
            self._idle.remove(line)
        self._next()

    # --- inside ---

    def _written(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        lines = [f"{method} {target} HTTP/1.1", f"host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"content-length: {len(body)}")
        text = "\r\n".join(lines)
        ends = len(lines) - 1
        if text.count("\n") != ends or text.count("\r") != ends or "\0" in text:  # a value that would be a header
            raise BackendFailed("failed", "the request could not be made")
        try:
            return text.encode() + b"\r\n\r\n" + (body or b"")
        except UnicodeEncodeError as error:
            raise BackendFailed("failed", "the request could not be made") from error

    async def _free_line(self) -> Line:
        while len(self._lines) + self._opening >= self._most:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()  # whoever is next has the place that was meant for us
                raise
            if self._idle:
                return self._idle.pop()
        self._opening += 1
        try:
            line = await self._opened()
        except BaseException:
            self._opening -= 1
            self._next()
            raise
        self._opening -= 1
        self._lines.add(line)
        return line

    def _next(self) -> None:
        """Have the first of those who wait look again."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    async def _opened(self) -> Line:
        origin = self._origin
        tls = await asyncio.to_thread(_tls) if origin.scheme == "https" else None
        try:
            async with asyncio.timeout(self._connect):
                addresses = check(await self._lookup(origin.host, origin.port), allowed=self._allowed)
                return await self._connected(addresses, tls)
        except AddressRefused as error:
            told = BackendFailed("failed", "the service's name leads to an address that tools may not reach")
            raise told from error
        except ssl.SSLCertVerificationError as error:
            raise BackendFailed("failed", "the service could not prove who it is") from error
        except TimeoutError as error:
            raise BackendFailed("unavailable", "the service did not answer in time") from error
        except OSError as error:
            raise BackendFailed("unavailable", "the service cannot be reached") from error

    async def _connected(self, addresses: Sequence[str], tls: ssl.SSLContext | None) -> Line:
        """The first address that answers, in the order in which they were found."""
        loop, origin = asyncio.get_running_loop(), self._origin
        name = None if tls is None else origin.host
        for number, address in enumerate(addresses):
            try:
                made = loop.create_connection(lambda: Line(self), address, origin.port, ssl=tls, server_hostname=name)
                _, line = await made
            except ssl.SSLCertVerificationError:
                raise
            except OSError:
                if number == len(addresses) - 1:
                    raise
            else:
                return line
        raise OSError("there is no address")

    def _prune(self) -> None:
        now = asyncio.get_running_loop().time()
        for line in [each for each in self._idle if now - each.idle_since >= self._keep]:
            line.close()
        due = min((each.idle_since for each in self._idle), default=None)
        self._pruning = None
        if due is not None:
            loop = asyncio.get_running_loop()
            self._pruning = loop.call_later(max(due + self._keep - now, 0.0), self._prune)


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """Reads the certificates of the system, which takes a while."""
    return ssl.create_default_context()

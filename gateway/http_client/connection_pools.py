"""Connections to all services that HTTP tools, upstream servers and webhooks reach."""

import zlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

from gateway.http_client.allowed_addresses import Network, Origin, ResolveHost, networks_allowed_by_host, resolve_host
from gateway.http_client.http1 import Http1Response, response_too_large
from gateway.http_client.http_policy import HttpPolicy
from gateway.http_client.pool import ConnectionPool
from gateway.model import BackendError

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


_PIECE: Final = 1 << 16
_MAX_RATIO: Final = 200
_UNCHECKED_BYTES: Final = 16 << 20
"""Any ratio is accepted up to this many bytes: short content may compress to almost nothing."""

_GZIP: Final = 16 + zlib.MAX_WBITS


async def decode_body(response: Http1Response, *, limit: int) -> AsyncGenerator[bytes, None]:
    """Yield the decoded body. Raise `BackendError` for a decompression bomb, a broken or an unknown encoding."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise BackendError("failed", "the service answered in an encoding that was not requested")
    received = decoded = 0
    inflater = None if encoding in ("", "identity") else _Inflater(encoding)
    async with aclosing(_small_chunks(response)) as chunks:
        async for chunk in chunks:
            received += len(chunk)
            for piece in [chunk] if inflater is None else inflater.pieces(chunk):
                decoded += len(piece)
                if decoded > limit:
                    raise response_too_large(limit)
                if decoded > _UNCHECKED_BYTES and decoded > received * _MAX_RATIO:
                    raise BackendError("failed", "the answer grows out of proportion when it is decompressed")
                yield piece
    if inflater is not None and received and not inflater.is_complete:
        raise BackendError("unavailable", "the answer ended early")


async def _small_chunks(response: Http1Response) -> AsyncGenerator[bytes, None]:
    """Yield the body in pieces, so that what is received does not count long before it is decoded."""
    async with aclosing(response.chunks()) as chunks:
        async for chunk in chunks:
            for start in range(0, len(chunk), _PIECE):
                yield chunk[start : start + _PIECE]


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

"""Sessions of the HTTP library, all created with the same rules."""

import asyncio
import socket
from collections.abc import AsyncIterable, Mapping
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from gateway.http_client.http_policy import IDLE_SECONDS, MAX_FIELD, HttpPolicy, ResponseTooLarge

_READ_BUFFER_BYTES: Final = 1 << 16

_AUTOMATIC: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class HttpSession:
    """Sends requests. It follows no redirect, keeps no cookie, decodes no body, and ignores the environment.

    It needs a running loop. `connector` replaces the connections that the policy describes.
    """

    def __init__(self, policy: HttpPolicy, *, connector: aiohttp.BaseConnector | None = None) -> None:
        self._policy = policy
        self._head_seconds = None if policy.answer is None else policy.connect + policy.answer
        self._timeout = self._limit_silence(policy.idle)
        self._session = aiohttp.ClientSession(
            connector=connector or _open_connector(policy),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers=policy.headers,
            skip_auto_headers=_AUTOMATIC if policy.headers is None else (),
            timeout=self._timeout,
            proxy=policy.proxy,
            read_bufsize=_READ_BUFFER_BYTES,
            max_line_size=MAX_FIELD,
            max_field_size=MAX_FIELD,
        )

    async def send(
        self,
        method: str,
        url: str | URL,
        *,
        headers: Mapping[str, str] | list[tuple[str, str]] | None = None,
        body: bytes | AsyncIterable[bytes] | None = None,
        idle: float | None = None,
    ) -> aiohttp.ClientResponse:
        """Return the response as soon as its headers have arrived; its caller closes it. Raise what the library raises.

        `idle` replaces the silence that the policy allows.
        """
        timeout = self._timeout if idle is None else self._limit_silence(idle)
        async with asyncio.timeout(self._head_seconds):
            return await self._session.request(
                method, url, headers=headers, data=body, allow_redirects=False, timeout=timeout
            )

    async def read(self, response: aiohttp.ClientResponse) -> bytes:
        """Return the whole body. Raise `ResponseTooLarge`."""
        body = bytearray()
        async for chunk in response.content.iter_chunked(_READ_BUFFER_BYTES):
            body += chunk
            if len(body) > self._policy.max_body:
                response.close()
                raise ResponseTooLarge(f"the response has more than {self._policy.max_body} bytes")
        return bytes(body)

    async def close(self) -> None:
        await self._session.close()

    def _limit_silence(self, idle: float | None) -> aiohttp.ClientTimeout:
        policy = self._policy
        return aiohttp.ClientTimeout(total=policy.total, sock_connect=policy.connect, sock_read=idle)


def find_proxy(url: str) -> str | None:
    """Return the proxy that the environment names for a URL."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def _open_connector(policy: HttpPolicy) -> aiohttp.TCPConnector:
    return aiohttp.TCPConnector(
        resolver=_PolicyResolver(policy),
        limit=policy.connections,
        keepalive_timeout=IDLE_SECONDS if policy.idle is None else policy.idle,
        ssl=policy.tls or True,
    )


class _PolicyResolver(AbstractResolver):
    """Looks names up as the policy says."""

    def __init__(self, policy: HttpPolicy) -> None:
        self._policy = policy

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in await self._policy.resolve(host, port)
        ]

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

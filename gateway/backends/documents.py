"""Fetching one document that a reviewed address names: over TLS or from this host, bounded in size and time.

No credentials go with the request, and no redirect is followed: the document would come from somewhere else.
"""

import asyncio
from contextlib import aclosing
from datetime import timedelta
from ipaddress import ip_address
from typing import Final

import aiohttp
from yarl import URL

from gateway.backends.addresses import Network
from gateway.backends.connections import BUFFER, Connections, told
from gateway.backends.decoding import decoded
from gateway.backends.refusals import BackendUnusable, within
from gateway.backends.results import collected
from gateway.backends.urls import parsed
from gateway.governance.ports import BackendFailed

_LONGEST: Final = timedelta(seconds=60)
_ACCEPTED: Final = "application/json, application/yaml;q=0.9, */*;q=0.5"


async def fetched(
    address: str,
    connections: Connections,
    *,
    limit: int,
    networks: tuple[Network, ...] = (),
    timeout: timedelta = _LONGEST,
) -> bytes:
    """The document's bytes. Raises `BackendFailed`, or `BackendUnusable` for an address that must not be asked."""
    url = parsed(address)
    if url.origin.scheme != "https" and not _is_this_host(url.origin.host):
        raise BackendUnusable("a document is fetched over https", help="write its https address, or keep a copy")
    session = connections.session(url.origin, networks)
    target = URL(f"{url.origin}{url.target({}, query=())}", encoded=True)
    async with within(timeout):
        try:
            async with asyncio.timeout((connections.limits.connect + connections.limits.answer).total_seconds()):
                response = await session.get(target, headers={"Accept": _ACCEPTED}, allow_redirects=False)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise told(error) from error
        try:
            if response.status != 200:
                raise BackendFailed("failed", f"the document's server answered {response.status}")
            encoding = response.headers.get("Content-Encoding", "")
            async with aclosing(decoded(response.content.iter_chunked(BUFFER), encoding, limit=limit)) as content:
                return await collected(content, limit=limit)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise told(error) from error
        finally:
            response.close()


def _is_this_host(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"

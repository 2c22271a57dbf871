"""What one user of HTTP permits: TLS, limits and addresses. Redirects are not part of it: no client follows them."""

import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request, UnknownHandler

from gateway.http_client.allowed_addresses import Network, ResolveHost, check_addresses, resolve_host

MAX_FIELD: Final = 8190
"""Maximum number of bytes of the status line, and of one header."""

IDLE_SECONDS: Final = 15.0
"""How long an unused connection stays open if the policy does not say."""

_OWN_HEADERS: Final = {"Accept": "*/*", "User-Agent": "agent-gateway", "Accept-Encoding": "identity"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPolicy:
    """The values of one user. Times are in seconds; `None` is no limit."""

    connect: float = 5.0
    """Until the connection is open, TLS included."""
    answer: float | None = 10.0
    """From then until the headers of the response have arrived."""
    idle: float | None = IDLE_SECONDS
    """Silence in a response, and how long an unused connection stays open."""
    total: float | None = None
    """From the request to the end of the response; only of an `HttpSession`."""
    max_body: int = 1 << 20
    """Bytes of a response that is read as a whole. A response that is streamed is bounded by its reader."""
    connections: int = 100
    """At once to one service; 0 is no limit."""
    networks: tuple[Network, ...] | None = None
    """Networks that a name may resolve to besides public addresses; `None` if it may resolve to any address."""
    lookup: ResolveHost = resolve_host
    tls: ssl.SSLContext | None = None
    """Authorities and certificates; `None` for the authorities of the system."""
    proxy: str | None = None
    """Only of an `HttpSession`."""
    headers: Mapping[str, str] | None = field(default_factory=lambda: _OWN_HEADERS)
    """Headers of every request; `None` if a request has exactly the headers that it is sent with."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Look a name up once, so that the connection uses exactly the checked addresses. Raise `OSError`."""
        found: Iterable[str] = await self.lookup(host, port)
        return list(found) if self.networks is None else check_addresses(found, allowed=self.networks)


class ResponseTooLarge(ValueError):
    """A response has more bytes than its policy allows."""


@lru_cache(maxsize=1)
def load_system_tls() -> ssl.SSLContext:
    """Load the authorities of the system, which is slow."""
    return create_tls_context()


def create_tls_context(
    authorities: Path | None = None, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """Load authorities, by default those of the system, and the certificate of a client. Raise `OSError`."""
    context = ssl.create_default_context(cafile=authorities)
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


def send_blocking(
    url: str, policy: HttpPolicy, *, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> tuple[int, bytes]:
    """Return status and body of the response; with a body, the request is a POST.

    Only http and https are sent, and no redirect is followed. `HttpPolicy.idle` limits every wait. Raise `OSError`,
    `HTTPException`, or a `ValueError` such as `ResponseTooLarge`.
    """
    opener = OpenerDirector()  # a default one follows redirects and opens files
    opener.addheaders = []
    for handler in (ProxyHandler(), HTTPHandler(), HTTPSHandler(context=policy.tls), UnknownHandler()):
        opener.add_handler(handler)
    sent = {**(policy.headers or {}), **(headers or {})}
    request = Request(url, data=body, headers=sent)  # noqa: S310 - the handlers accept http and https only
    with opener.open(request, timeout=policy.idle) as response:
        content: bytes = response.read(policy.max_body + 1)
        if len(content) > policy.max_body:
            raise ResponseTooLarge(f"the response has more than {policy.max_body} bytes")
        return response.status, content

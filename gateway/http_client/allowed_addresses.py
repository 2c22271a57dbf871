"""The addresses that a client may connect to.

A tool may connect to public addresses, and to those that its document names or the operator allows. Every address that
a name resolves to is checked at each lookup; notations that embed another address are refused.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LOOPBACK: Final[tuple[Network, ...]] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
_REFUSED_NETWORKS: Final[tuple[Network, ...]] = tuple(
    ip_network(network)
    for network in (
        "::/96",  # IPv4-compatible
        "::ffff:0:0/96",  # IPv4-mapped
        "::ffff:0:0:0/96",  # IPv4-translated
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # local-use NAT64
        "2001::/23",  # protocol assignments, Teredo among them
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
        "fec0::/10",  # site-local, deprecated
        "100.64.0.0/10",  # carrier-grade NAT
        "192.0.0.0/24",  # protocol assignments
        "192.88.99.0/24",  # 6to4 relays
    )
)
"""Networks refused in addition to those that Python calls private, because its lists differ between versions."""


class AddressNotAllowed(OSError):
    """A name resolved to an address that tools may not reach. An `OSError`, as resolvers raise it."""


def is_public(address: Address) -> bool:
    refused = any(address in network for network in _REFUSED_NETWORKS if network.version == address.version)
    return address.is_global and not address.is_multicast and not address.is_reserved and not refused


def networks_allowed_by_host(host: str) -> tuple[Network, ...]:
    """Return the networks that a host in a reviewed document permits: its own address, or loopback for localhost."""
    if host.rstrip(".").lower() == "localhost":
        return LOOPBACK
    try:
        return (ip_network(host),)
    except ValueError:
        return ()


def is_loopback(host: str) -> bool:
    """Whether a host of a URL is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_addresses(found: Iterable[str], *, allowed: Iterable[Network]) -> list[str]:
    """Return the addresses. Raise `AddressNotAllowed` unless a tool may connect to all of them."""
    addresses = list(found)
    permitted = tuple(allowed)
    if not addresses or not all(_is_allowed(address, permitted) for address in addresses):
        raise AddressNotAllowed("the name resolves to an address that tools may not reach")
    return addresses


def _is_allowed(text: str, permitted: tuple[Network, ...]) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if any(address in network for network in permitted if network.version == address.version):
        return True
    return is_public(address)


PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """The destination of all requests of a backend, redirects included."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


ResolveHost = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host and port. Raises `OSError` if there are none."""


async def resolve_host(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))

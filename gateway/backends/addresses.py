"""Which addresses a tool may connect to: public ones, and what its own document names or its operator allows.

A name is judged by every address it leads to, each time it is looked up. Notations that hide one address in another are
refused as such.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LOOPBACK: Final[tuple[Network, ...]] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
_REFUSED: Final[tuple[Network, ...]] = tuple(
    ip_network(network)
    for network in (
        "::/96",  # IPv4-compatible
        "::ffff:0:0/96",  # IPv4-mapped
        "::ffff:0:0:0/96",  # IPv4-translated
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # NAT64 of one's own
        "2001::/23",  # protocol assignments, Teredo among them
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
        "fec0::/10",  # site-local, long abandoned
        "100.64.0.0/10",  # shared by carriers
        "192.0.0.0/24",  # protocol assignments
        "192.88.99.0/24",  # 6to4 relays
    )
)
"""Besides what Python calls private; its lists differ between versions."""


class AddressRefused(OSError):
    """A name led where tools may not go. An `OSError`, because that is what a resolver may raise."""


def is_public(address: Address) -> bool:
    refused = any(address in network for network in _REFUSED if network.version == address.version)
    return address.is_global and not address.is_multicast and not address.is_reserved and not refused


def declared_by(host: str) -> tuple[Network, ...]:
    """What a host in a reviewed document allows by being written there: itself, if it is an address or this host."""
    if host.rstrip(".").lower() == "localhost":
        return LOOPBACK
    try:
        return (ip_network(host),)
    except ValueError:
        return ()


def check(found: Iterable[str], *, allowed: Iterable[Network]) -> list[str]:
    """The addresses, if a tool may connect to every one of them."""
    addresses = list(found)
    permitted = tuple(allowed)
    if not addresses or not all(_is_allowed(address, permitted) for address in addresses):
        raise AddressRefused("the name leads to an address that tools may not reach")
    return addresses


def _is_allowed(text: str, permitted: tuple[Network, ...]) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if any(address in network for network in permitted if network.version == address.version):
        return True
    return is_public(address)

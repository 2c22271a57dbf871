"""URL templates of requests, and the addresses that a tool may connect to.

The host comes from the document only. Arguments fill whole path segments and query values; a built URL is never parsed
again. A tool may connect to public addresses, and to those that its document names or the operator allows.
Every address that a name resolves to is checked at each lookup; notations that embed another address are refused.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from gateway.backends.results import BackendUnusable
from gateway.model import BackendError

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


_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")
_HOST: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_NUMBER_LIKE: Final = re.compile(r"(?:0[xX][0-9A-Fa-f]*|[0-9]+)\.?$")
_PORTS: Final = {"http": 80, "https": 443}
_LITERAL: Final = "/%:@!$&'()*+,;=-._~"


@dataclass(frozen=True, slots=True)
class Origin:
    """The destination of all requests of a backend, redirects included."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UrlTemplate:
    """A URL with `{argument}` in its path. Created by `parse_url_template`."""

    origin: Origin
    path: str
    query: str

    @property
    def names(self) -> frozenset[str]:
        return frozenset(_PLACEHOLDER.findall(self.path))

    def target(self, args: Mapping[str, Any], *, query: Iterable[tuple[str, Any]]) -> str:
        """Return path and query, encoded. Raise `BackendError` for a value that cannot be used."""
        segments = [self._fill_segment(segment, args) for segment in self.path.split("/")]
        pairs = [self.query] if self.query else []
        pairs += [f"{_quote(name, name)}={_quote(text, name)}" for name, text in _to_texts(query)]
        return "/".join(segments) + (f"?{'&'.join(pairs)}" if pairs else "")

    def _fill_segment(self, segment: str, args: Mapping[str, Any]) -> str:
        names = _PLACEHOLDER.findall(segment)
        if not names:
            return quote(segment, safe=_LITERAL)
        parts = _PLACEHOLDER.split(segment)
        filled = "".join(
            _quote(_to_text(part, args.get(part)), part) if index % 2 else quote(part, safe=_LITERAL)
            for index, part in enumerate(parts)
        )
        if unquote(filled) in ("", ".", ".."):
            raise _invalid_argument(names[-1], "would change the path it is part of")
        return filled


def parse_url_template(template: str) -> UrlTemplate:
    """Raise `BackendUnusable` for anything but a plain http or https URL with a fixed host."""
    try:
        parts = urlsplit(template)
        scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
    except ValueError as error:
        raise BackendUnusable("the URL cannot be read", help="write a full http or https URL") from error
    if scheme not in _PORTS or "@" in parts.netloc or "\\" in template or parts.fragment or not _is_host(host):
        raise BackendUnusable("the URL names no fixed host", help="write a full http or https URL without user or '#'")
    if re.search(r"[{}]", parts.query + _PLACEHOLDER.sub("", parts.path)):
        raise BackendUnusable("a brace in the URL is not part of a {placeholder} in its path")
    origin = Origin(scheme, host, _PORTS[scheme] if port is None else port)
    return UrlTemplate(origin, parts.path or "/", quote(parts.query, safe=f"{_LITERAL}?"))


def _is_host(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        # if the last part is a number, resolvers read the whole as an address: 2130706433, 0x7f.1, 127.1
        last = host.rstrip(".").rpartition(".")[2]
        return bool(_HOST.fullmatch(host)) and not _NUMBER_LIKE.match(last)
    return "%" not in host


def _to_texts(query: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, str]]:
    for name, value in query:
        for item in value if isinstance(value, list | tuple) else (value,):
            if item is not None:
                yield name, _to_text(name, item)


def _to_text(name: str, value: Any) -> str:
    if value is None:
        raise _invalid_argument(name, "was not given")
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise _invalid_argument(name, "is not a text, a number or a boolean")


def _quote(text: str, name: str) -> str:
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise _invalid_argument(name, "contains an unpaired surrogate") from None


def _invalid_argument(name: str, what: str) -> BackendError:
    return BackendError("invalid", f"argument {name[:80]!r} {what}")

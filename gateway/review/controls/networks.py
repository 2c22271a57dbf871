"""Private networks that a tool or an upstream may reach, and could not."""

from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any

from gateway.review.controls.common import Spec, Weakness, at


def wider_networks(before: Spec, after: Spec, path: str) -> Iterator[Weakness]:
    """`path` is of the list. A part of what could be reached already is nothing new."""
    old = [ip_network(each) for each in at(before, path, ())]
    if new := [each for each in at(after, path, ()) if not _is_within(ip_network(each), old)]:
        yield Weakness("network-widened", path, ", ".join(new))


def _is_within(network: Any, known: list[Any]) -> bool:
    return any(network.version == each.version and network.subnet_of(each) for each in known)

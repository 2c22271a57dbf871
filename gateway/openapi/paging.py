"""Where an answer goes on: the next page that a `Link` header names, as arguments of the same operation.

Nothing is followed. A page on another host, or of another path, is not spoken of.
"""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urljoin, urlsplit

from gateway.openapi.requests import Request

_MAX_HEADER: Final = 8192
_MAX_VALUE: Final = 500
_LINK: Final = re.compile(r'<([^<>"\s]{1,4096})>((?:\s*;\s*[A-Za-z*]+\s*=\s*(?:"[^"]{0,256}"|[^\s",;]{1,256}))*)')
_REL: Final = re.compile(r';\s*rel\s*=\s*(?:"([^"]*)"|([^\s",;]+))', re.IGNORECASE)


def next_arguments(headers: Mapping[str, str], address: str, request: Request) -> dict[str, str]:
    """What to call the operation with, besides what it was called with, for the next page; empty if there is none."""
    target = _next(headers.get("Link", "")[:_MAX_HEADER])
    if target is None:
        return {}
    try:
        here, there = urlsplit(address), urlsplit(urljoin(address, target))
        same = (here.scheme, here.hostname, here.port, here.path) == (
            there.scheme,
            there.hostname,
            there.port,
            there.path,
        )
        pairs = parse_qsl(there.query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        return {}
    if not same or there.username is not None:
        return {}
    before = set(parse_qsl(here.query, keep_blank_values=True))
    arguments = {each.name: each.argument for each in request.parameters if each.place == "query"}
    return {
        arguments[name]: value
        for name, value in pairs
        if name in arguments and (name, value) not in before and len(value) <= _MAX_VALUE and value.isprintable()
    }


def _next(header: str) -> str | None:
    for link in _LINK.finditer(header):
        relation = _REL.search(link[2])
        if relation is not None and "next" in (relation[1] or relation[2] or "").lower().split():
            return link[1]
    return None

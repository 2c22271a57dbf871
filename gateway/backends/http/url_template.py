"""URL templates of requests.

The host comes from the document only. Arguments fill whole path segments and query values; a built URL is never parsed
again. A redirect leads only to another path of the same origin.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import quote, unquote, urljoin, urlsplit

from gateway.backends.result_conversion import BackendUnusable
from gateway.http_client import PORTS, Origin
from gateway.model import BackendError

_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")
_HOST: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_NUMBER_LIKE: Final = re.compile(r"(?:0[xX][0-9A-Fa-f]*|[0-9]+)\.?$")
_LITERAL: Final = "/%:@!$&'()*+,;=-._~"
_QUERY: Final = f"{_LITERAL}?"


Segment = str | tuple[str, ...]
"""A literal segment, encoded; or literals, encoded, and the names of the arguments between them."""


@dataclass(frozen=True, slots=True)
class UrlTemplate:
    """A URL with `{argument}` in its path. Created by `parse_url_template`."""

    origin: Origin
    segments: tuple[Segment, ...]
    names: frozenset[str]
    query: str

    def target(self, args: Mapping[str, Any], *, query: Iterable[tuple[str, Any]]) -> str:
        """Return path and query, encoded. Raise `BackendError` for a value that cannot be used."""
        segments = (each if isinstance(each, str) else _fill_segment(each, args) for each in self.segments)
        pairs = [self.query] if self.query else []
        pairs += [f"{_quote(name, name)}={_quote(text, name)}" for name, text in _to_texts(query)]
        return "/".join(segments) + (f"?{'&'.join(pairs)}" if pairs else "")


def _parse_segment(segment: str) -> Segment:
    parts = _PLACEHOLDER.split(segment)
    encoded = [part if index % 2 else quote(part, safe=_LITERAL) for index, part in enumerate(parts)]
    return encoded[0] if len(encoded) == 1 else tuple(encoded)


def _fill_segment(parts: tuple[str, ...], args: Mapping[str, Any]) -> str:
    filled = "".join(
        _quote(_to_text(part, args.get(part)), part) if index % 2 else part for index, part in enumerate(parts)
    )
    if unquote(filled) in ("", ".", ".."):
        raise _invalid_argument(parts[-2], "would change the path it is part of")
    return filled


def parse_url_template(template: str) -> UrlTemplate:
    """Raise `BackendUnusable` for anything but a plain http or https URL with a fixed host."""
    try:
        parts = urlsplit(template)
        scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
    except ValueError as error:
        raise BackendUnusable("the URL cannot be read", help="write a full http or https URL") from error
    if scheme not in PORTS or "@" in parts.netloc or "\\" in template or parts.fragment or not _is_host(host):
        raise BackendUnusable("the URL names no fixed host", help="write a full http or https URL without user or '#'")
    if re.search(r"[{}]", parts.query + _PLACEHOLDER.sub("", parts.path)):
        raise BackendUnusable("a brace in the URL is not part of a {placeholder} in its path")
    origin = Origin(scheme, host, PORTS[scheme] if port is None else port)
    path = parts.path or "/"
    segments = tuple(map(_parse_segment, path.split("/")))
    return UrlTemplate(origin, segments, frozenset(_PLACEHOLDER.findall(path)), quote(parts.query, safe=_QUERY))


def redirect_target(origin: Origin, target: str, location: str, *, sender: str = "the service") -> str:
    """Return the path and query that a redirect leads to. Raise `BackendError` if it leaves the origin."""
    try:
        parts = urlsplit(urljoin(f"{origin}{target}", location))
        port = PORTS.get(parts.scheme) if parts.port is None else parts.port
        is_same = (parts.scheme, parts.hostname, port) == (origin.scheme, origin.host, origin.port)
        path, query = quote(parts.path or "/", safe=_LITERAL), quote(parts.query, safe=_QUERY)
    except ValueError as error:
        raise BackendError("failed", f"{sender} redirects to an invalid URL") from error
    if not is_same or "@" in parts.netloc:
        raise BackendError("failed", f"{sender} redirects to another host, which is not followed")
    return f"{path}?{query}" if query else path


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

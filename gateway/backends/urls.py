"""The address of a request, built from parts: the host comes from the document alone, arguments fill whole path parts
and query values, and nothing is ever joined or parsed again."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from gateway.backends.refusals import BackendUnusable
from gateway.governance.ports import BackendFailed

_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")
_HOST: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_NUMBER_LIKE: Final = re.compile(r"(?:0[xX][0-9A-Fa-f]*|[0-9]+)\.?$")
_PORTS: Final = {"http": 80, "https": 443}
_LITERAL: Final = "/%:@!$&'()*+,;=-._~"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where all requests of a backend go, redirects included."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UrlTemplate:
    """A URL with `{argument}` in its path. Made by `parsed`."""

    origin: Origin
    path: str
    query: str

    @property
    def names(self) -> frozenset[str]:
        return frozenset(_PLACEHOLDER.findall(self.path))

    def target(self, args: Mapping[str, Any], *, query: Iterable[tuple[str, Any]]) -> str:
        """Path and query, encoded. Raises `BackendFailed` for a value that cannot stand there."""
        segments = [self._segment(segment, args) for segment in self.path.split("/")]
        pairs = [self.query] if self.query else []
        pairs += [f"{_quoted(name, name)}={_quoted(text, name)}" for name, text in _texts(query)]
        return "/".join(segments) + (f"?{'&'.join(pairs)}" if pairs else "")

    def _segment(self, segment: str, args: Mapping[str, Any]) -> str:
        names = _PLACEHOLDER.findall(segment)
        if not names:
            return quote(segment, safe=_LITERAL)
        parts = _PLACEHOLDER.split(segment)
        filled = "".join(
            _quoted(_text(part, args.get(part)), part) if index % 2 else quote(part, safe=_LITERAL)
            for index, part in enumerate(parts)
        )
        if unquote(filled) in ("", ".", ".."):
            raise _invalid(names[-1], "would change the path it is part of")
        return filled


def parsed(template: str) -> UrlTemplate:
    """Raises `BackendUnusable` for anything but a plain http or https URL with a fixed host."""
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
        # a last part that is a number makes resolvers read the whole as an address: 2130706433, 0x7f.1, 127.1
        last = host.rstrip(".").rpartition(".")[2]
        return bool(_HOST.fullmatch(host)) and not _NUMBER_LIKE.match(last)
    return "%" not in host


def _texts(query: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, str]]:
    for name, value in query:
        for item in value if isinstance(value, list | tuple) else (value,):
            if item is not None:
                yield name, _text(name, item)


def _text(name: str, value: Any) -> str:
    if value is None:
        raise _invalid(name, "was not given")
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise _invalid(name, "is not a text, a number or a boolean")


def _quoted(text: str, name: str) -> str:
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise _invalid(name, "holds half a character") from None


def _invalid(name: str, what: str) -> BackendFailed:
    return BackendFailed("invalid", f"argument {name[:80]!r} {what}")

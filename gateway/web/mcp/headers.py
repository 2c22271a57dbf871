"""Headers of a request as MCP reads them: blanks taken off, what must stand once looked at once.

A header that is there twice is not joined or chosen from: whoever reads the first copy and whoever reads the last one
would disagree.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

RawHeaders = Iterable[tuple[bytes, bytes]]

_JSON: Final = "application/json"
PARAM_PREFIX: Final = "mcp-param-"
_ROUTING: Final = frozenset({"mcp-protocol-version", "mcp-method", "mcp-name"})
_READ: Final = ("mcp-session-id", "last-event-id", "accept", "content-type", "content-encoding")
_TRACE: Final = ("traceparent", "tracestate", "baggage")
_KEPT: Final = {name.encode(): name for name in (*_ROUTING, *_READ, *_TRACE)}
_NONE: Final[frozenset[str]] = frozenset()
_SENTINEL: Final = re.compile(r"=\?base64\?(.*)\?=")


@dataclass(slots=True)
class Headers:
    """The headers that matter here, by lower-case name."""

    values: Mapping[str, str]
    repeated: frozenset[str] = frozenset()
    peer: tuple[str, int] | None = None
    """Who is at the other end of the connection."""

    def get(self, name: str) -> str | None:
        return self.values.get(name)

    @property
    def repeated_routing(self) -> str | None:
        """A routing header that is there twice."""
        return next(iter(self.repeated & _ROUTING), None) if self.repeated else None

    @property
    def is_json(self) -> bool:
        content_type = self.values.get("content-type") or ""
        return content_type == _JSON or content_type.partition(";")[0].strip(" \t").lower() == _JSON

    def accepts(self, type: str) -> bool:
        """Whether the client takes a media type; whoever names none takes all."""
        accept = self.get("accept")
        if accept is None or type in accept:
            return True
        wanted = {each.partition(";")[0].strip(" \t").lower() for each in accept.split(",")}
        return not wanted.isdisjoint({"*/*", f"{type.partition('/')[0]}/*", type})


def read_headers(raw: RawHeaders, peer: tuple[str, int] | None = None) -> Headers:
    values: dict[str, str] = {}
    repeated: set[str] = set()
    for name, value in raw:
        key = _KEPT.get(name)
        if key is None and name.startswith(b"mcp-param-"):
            key = name.decode("latin-1")
        if key is not None:
            text = value.decode("latin-1").strip(" \t")
            if key not in values:
                values[key] = text
            elif key == "accept":  # the one list among them
                values[key] = f"{values[key]}, {text}"
            else:
                repeated.add(key)
    return Headers(values, frozenset(repeated) if repeated else _NONE, peer)


def decoded_value(value: str | None) -> str | None:
    """What a header stands for: `=?base64?…?=` is unpacked; one that is not canonical stands for nothing."""
    if value is None or not value.startswith("=?base64?"):
        return value
    found = _SENTINEL.fullmatch(value)
    if found is None:
        return value
    try:
        content = base64.b64decode(found[1], validate=True)
        return content.decode() if base64.b64encode(content).decode() == found[1] else None
    except (binascii.Error, UnicodeDecodeError):
        return None

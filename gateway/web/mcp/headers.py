"""Headers of a request as MCP reads them: blanks taken off, what must stand once looked at once.

A header that is there twice is not joined or chosen from: whoever reads the first copy and whoever reads the last one
would disagree.
"""

import asyncio
import base64
import binascii
import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

from gateway.web.fields import Fields

PARAM_PREFIX: Final = "mcp-param-"
_JSON: Final = b"application/json"
_ROUTING: Final = frozenset({b"mcp-protocol-version", b"mcp-method", b"mcp-name"})
_TRACE: Final = {name.encode(): name for name in ("traceparent", "tracestate", "baggage")}
_SENTINEL: Final = re.compile(r"=\?base64\?(.*)\?=")


class Media(NamedTuple):
    """In what a client sends its messages, and in what it takes the answers."""

    is_json: bool
    is_compressed: bool
    takes_json: bool
    takes_streams: bool


class Headers:
    """The headers that matter here, by lower-case name."""

    __slots__ = ("_by_name", "media", "method", "name", "peer", "repeated", "task", "version")

    def __init__(
        self, fields: Fields, peer: tuple[str, int] | None = None, task: "asyncio.Task[Any] | None" = None
    ) -> None:
        """`peer` is who is at the other end of the connection, `task` the one that answers."""
        self._by_name = by_name = fields.by_name
        self.repeated = fields.repeated
        self.peer = peer
        self.task = task
        accept = by_name.get(b"accept")
        if b"accept" in self.repeated:  # the one list among them
            accept = b", ".join(fields.all(b"accept"))
        self.media = _media(by_name.get(b"content-type"), by_name.get(b"content-encoding"), accept)
        self.version, self.method, self.name = _routing(
            by_name.get(b"mcp-protocol-version"), by_name.get(b"mcp-method"), by_name.get(b"mcp-name")
        )

    def get(self, name: bytes) -> str | None:
        value = self._by_name.get(name)
        return None if value is None else _text(value)

    @property
    def repeated_routing(self) -> str | None:
        """A routing header that is there twice."""
        return next((name.decode() for name in self.repeated & _ROUTING), None)

    def traced(self) -> dict[str, str]:
        """What says which trace a request belongs to; one that is there twice says nothing."""
        if b"traceparent" not in self._by_name and b"baggage" not in self._by_name:  # as most callers have it
            return {}
        told = self._by_name.keys() & _TRACE.keys() - self.repeated
        return {_TRACE[name]: self.get(name) or "" for name in told}


@lru_cache(maxsize=256)
def _text(value: bytes) -> str:
    return value.decode("latin-1").strip(" \t")


@lru_cache(maxsize=256)
def _routing(
    version: bytes | None, method: bytes | None, name: bytes | None
) -> tuple[str | None, str | None, str | None]:
    """What a request is about, said by its headers; the name is decoded."""
    texts = [None if each is None else _text(each) for each in (version, method, name)]
    return texts[0], texts[1], decoded_value(texts[2])


@lru_cache(maxsize=64)
def _media(content_type: bytes | None, encoding: bytes | None, accept: bytes | None) -> Media:
    return Media(
        is_json=content_type is not None and content_type.partition(b";")[0].strip(b" \t").lower() == _JSON,
        is_compressed=encoding is not None and _text(encoding) != "identity",
        takes_json=_takes(accept, _JSON),
        takes_streams=_takes(accept, b"text/event-stream"),
    )


def _takes(accept: bytes | None, type: bytes) -> bool:
    """Whoever names none takes all."""
    if accept is None or type in accept:
        return True
    wanted = {each.partition(b";")[0].strip(b" \t").lower() for each in accept.split(b",")}
    return not wanted.isdisjoint({b"*/*", b"%b/*" % type.partition(b"/")[0], type})


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

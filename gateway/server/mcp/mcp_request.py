"""An MCP request over HTTP: its headers, and the checks of a request that belongs to no session.

A repeated header is neither joined nor chosen from, because parsers that take the first and parsers that take the last
copy would disagree.

The checks have a fixed order, and the first error is reported. Whether a tool, capability or argument exists for the
caller is checked later.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from gateway.mcp import (
    HANDSHAKE_DATES,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    LOG_LEVELS,
    META_CAPABILITIES,
    META_LOG_LEVEL,
    META_VERSION,
    METHOD_NOT_FOUND,
    STATELESS_VERSIONS,
    UNSUPPORTED_VERSION,
    ProtocolError,
    RequestId,
    decode_value,
)
from gateway.server.http.asgi import HeaderFields

_JSON: Final = b"application/json"
NO_JSON: Final = (415, "the content type must be application/json")
_ROUTING: Final = frozenset({b"mcp-protocol-version", b"mcp-method", b"mcp-name"})


class MediaTypes(NamedTuple):
    """What the headers say about a client's message and about the responses that it accepts."""

    takes_streams: bool
    refusal: tuple[int, str] | None
    """Status and text for a message that is no JSON, or whose client accepts none."""


class McpHeaders:
    """The headers that MCP uses, by lower-case name."""

    __slots__ = ("_by_name", "media", "method", "name", "peer", "repeated", "task", "uses_session", "version")

    def __init__(
        self, fields: HeaderFields, peer: tuple[str, int] | None = None, task: "asyncio.Task[Any] | None" = None
    ) -> None:
        """`peer` is the address of the client, `task` the one that answers the request."""
        self._by_name = by_name = fields.by_name
        self.repeated = fields.repeated
        self.peer = peer
        self.task = task
        accept = by_name.get(b"accept")
        if self.repeated and b"accept" in self.repeated:  # the only header that is a list
            accept = b", ".join(fields.all(b"accept"))
        self.media = _media(by_name.get(b"content-type"), by_name.get(b"content-encoding"), accept)
        self.version, self.method, self.name, self.uses_session = _parse_routing(
            by_name.get(b"mcp-protocol-version"), by_name.get(b"mcp-method"), by_name.get(b"mcp-name")
        )

    def get(self, name: bytes) -> str | None:
        value = self._by_name.get(name)
        return None if value is None else _text(value)

    @property
    def duplicate_routing_header(self) -> str | None:
        """The name of a repeated routing header, if any."""
        return next((name.decode() for name in self.repeated & _ROUTING), None)

    def trace_headers(self, known: Mapping[bytes, str]) -> dict[str, str]:
        """Return the headers of trace context, without repeated ones."""
        if known.keys().isdisjoint(self._by_name):  # true for most callers
            return {}
        names = self._by_name.keys() & known.keys() - self.repeated
        return {known[name]: self.get(name) or "" for name in names}


@lru_cache(maxsize=256)
def _text(value: bytes) -> str:
    return value.decode("latin-1").strip(" \t")


@lru_cache(maxsize=256)
def _parse_routing(
    version: bytes | None, method: bytes | None, name: bytes | None
) -> tuple[str | None, str | None, str | None, bool]:
    """Return the texts of the routing headers, with a decoded name, and whether the version has sessions."""
    texts = [None if each is None else _text(each) for each in (version, method, name)]
    return texts[0], texts[1], decode_value(texts[2]), texts[0] is None or texts[0] in HANDSHAKE_DATES


@lru_cache(maxsize=64)
def _media(content_type: bytes | None, encoding: bytes | None, accept: bytes | None) -> MediaTypes:
    refusal = None
    if content_type is None or content_type.partition(b";")[0].strip(b" \t").lower() != _JSON:
        refusal = NO_JSON
    elif encoding is not None and _text(encoding) != "identity":
        refusal = 415, "the body must not be compressed"
    elif not _accepts(accept, _JSON):
        refusal = 406, "the client must accept application/json"
    return MediaTypes(_accepts(accept, b"text/event-stream"), refusal)


def _accepts(accept: bytes | None, type: bytes) -> bool:
    """Whether an Accept header accepts the type; without a header all types are accepted."""
    if accept is None or type in accept:
        return True
    wanted = {each.partition(b";")[0].strip(b" \t").lower() for each in accept.split(b",")}
    return not wanted.isdisjoint({b"*/*", b"%b/*" % type.partition(b"/")[0], type})


NAMED_METHODS: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The parameter that `Mcp-Name` repeats, by method."""


@dataclass(slots=True)
class StatelessRequest:
    id: RequestId
    method: str
    params: dict[str, Any]
    meta: dict[str, Any]
    capabilities: dict[str, Any]
    headers: McpHeaders


def validate_request(
    message: dict[str, Any], headers: McpHeaders, methods: frozenset[str] | dict[str, Any]
) -> StatelessRequest:
    """Return the request if it passes all checks. Raises `ProtocolError`."""
    if headers.repeated and (twice := headers.duplicate_routing_header):
        raise ProtocolError(HEADER_MISMATCH, f"the header {twice!r} is given twice")
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(params, dict) or not isinstance(meta, dict):
        raise ProtocolError(
            INVALID_PARAMS, f"params._meta must be an object with {META_VERSION} and {META_CAPABILITIES}"
        )
    try:
        version, capabilities = meta[META_VERSION], meta[META_CAPABILITIES]
    except KeyError as lacking:
        raise ProtocolError(INVALID_PARAMS, f"params._meta lacks {lacking.args[0]}") from None
    method: str = message["method"]
    if headers.version is None or headers.version != version:
        raise ProtocolError(HEADER_MISMATCH, f"the header 'mcp-protocol-version' does not match {META_VERSION}")
    if headers.method != method:
        raise ProtocolError(HEADER_MISMATCH, "the header 'mcp-method' does not match the method")
    key = NAMED_METHODS.get(method)
    if key is not None and headers.name != params.get(key) and params.get(key) is not None:
        raise ProtocolError(HEADER_MISMATCH, f"the header 'mcp-name' does not match params.{key}")
    if version not in STATELESS_VERSIONS:
        data = {"supported": list(STATELESS_VERSIONS), "requested": version}
        raise ProtocolError(UNSUPPORTED_VERSION, "this protocol version is not served", data)
    if method not in methods:
        raise ProtocolError(METHOD_NOT_FOUND, "there is no such method")
    if not isinstance(capabilities, dict):
        raise ProtocolError(INVALID_PARAMS, f"{META_CAPABILITIES} must be an object")
    if META_LOG_LEVEL in meta and not _is_level(meta[META_LOG_LEVEL]):
        raise ProtocolError(INVALID_PARAMS, f"{META_LOG_LEVEL} must be one of {', '.join(LOG_LEVELS)}")
    return StatelessRequest(message["id"], method, params, meta, capabilities, headers)


def _is_level(level: Any) -> bool:
    return isinstance(level, str) and level in LOG_LEVELS
